"""Rows from a `ReadableStream` in a page: read to its end, spent, broken, left. test_node.py reads one in Node."""

from .js_session import JsPage
from .test_js_fit import OPEN

STREAMS = """
    const stream = (n = rows) => {
      const iterator = new Dataset(data(n))[Symbol.asyncIterator]();
      return new ReadableStream({
        async pull(to) {
          const { done, value } = await iterator.next();
          if (done) to.close();
          else to.enqueue(value);
        },
        cancel() { cancelled++; },
      });
    };
    let cancelled = 0;
    const piped = () => stream().pipeThrough(new TransformStream());
"""


def test_readable_streams_give_the_bytes_of_arrays(js: JsPage) -> None:
    found = js.run(
        f"""{OPEN}{STREAMS}
        const fits = [];
        let s = null;
        const options = {{ batchSize: 16, shuffle: false }};
        const mapped = () => new Dataset(stream()).map((row) => row).prefetch(2);
        for (const source of [() => data(), stream, piped, mapped]) {{
          await s?.release();
          s = await open();
          const {{ losses, epochs }} = await s.fit(source(), {{ ...options, validationData: source() }});
          fits.push([losses, epochs[0].validation]);
        }}
        const twice = await s.fit(stream, {{ epochs: 2, batchSize: 16 }});
        const evaluated = [await s.evaluate(data()), await s.evaluate(stream())];
        const predicted = [fromTensor((await s.predict(data())).logits), fromTensor((await s.predict(piped())).logits)];
        const rates = await s.findLearningRate(stream);
        const found = [fits, twice.losses.length, evaluated, predicted, rates.losses.length];
        await s.release();
        return found;"""
    )
    fits, steps, evaluated, predicted, rates = found
    assert [fit == fits[0] for fit in fits] == [True] * 4 and len(fits[0][0]) == 4
    assert steps == 8 and rates > 1
    assert evaluated[0] == evaluated[1] and predicted[0] == predicted[1]


def test_readable_streams_that_are_spent_fail_or_are_left(js: JsPage) -> None:
    found = js.run(
        f"""{OPEN}{STREAMS}
        const s = await open();
        const found = [];
        const tell = async (call) => found.push((await failure(call)).message);
        const one = stream();
        await tell(() => s.fit(one, {{ epochs: 2, batchSize: 16 }}));
        await s.fit(one, {{ batchSize: 16 }});
        await tell(() => s.fit(one, {{ batchSize: 16 }}));
        await tell(() => s.fit(data(), {{ epochs: 2, validationData: stream() }}));
        await tell(() => s.predict(one));
        const row = {{ x: new Float32Array(10), labels: 1n }};
        const ends = (k) => new ReadableStream({{
          pull: (to) => (k-- > 0 ? to.enqueue(row) : to.error(new Error("the line is cut"))),
          cancel() {{ cancelled++; }},
        }});
        await tell(() => s.fit(ends(20), {{ batchSize: 5 }}));
        await tell(() => s.evaluate(ends(3)));
        const broken = stream();
        broken.getReader();
        await tell(() => s.fit(broken));
        const cut = ends(Infinity);
        const fit = s.fit(cut, {{ batchSize: 1, callbacks: () => fit.abort(new Error("aborted")) }});
        await tell(() => fit);
        found.push(cancelled, cut.locked, (await s.fit(data())).ended);
        await s.release();
        return found;"""
    )
    again = "is a ReadableStream, which can be read only once. Further epochs and checkpoints read it again"
    assert [message.split(":")[0] for message in found[:4]] == [
        f"The data {again}",
        "The data has no rows in epoch 1",
        f"The validation data {again}",
        "The data has no rows in epoch 1",
    ]
    assert found[4:6] == ["the line is cut"] * 2 and "locked" in found[6]
    assert found[7:] == ["aborted", 1, False, "done"]
