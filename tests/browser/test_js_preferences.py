"""`Dataset.fromPreferences` of a page: the batches, losses and errors of Python."""

from typing import Any

from tests.python.test_preferences import BETA, LENGTH, PAIRS, preferences, release, session_of

from .js_session import JsPage

__all__ = ["release"]  # the fixture

START = """
    const loss = { type: "DPOLoss", beta: given.beta };
    const config = { loss, optimizer: "AdamW", learningRate: 0.02, lora: { rank: 2 } };
    const model = "/golden/generate/llama.onnx";
    const session = await TrainingSession.createFromModel(model, config, { reproducible: true });
    const letters = { encode: (text) => Array.from(text, (letter) => letter.charCodeAt(0) - 97), eos_token_id: 9 };
    const open = (pairs, options) =>
      trainweb.Dataset.fromPreferences(pairs, letters, { length: given.length, reference: session, ...options });
"""
GIVEN: dict[str, Any] = {"beta": BETA, "length": LENGTH, "pairs": PAIRS}


def test_batches_and_losses_are_those_of_python(js: JsPage) -> None:
    found = js.run(
        START
        + """
        const data = await open(given.pairs, { batchSize: 2, seed: 3 });
        const batches = [];
        for await (const batch of data) {
          batches.push(Object.fromEntries(Object.entries(batch).map(([name, { data, dims }]) =>
            [name, [[...dims], Array.from(data, Number)]])));
        }
        const before = (await session.evaluate(data)).loss;
        const history = await session.fit(await open(given.pairs, { batchSize: 2, seed: 3 }), { epochs: 3 });
        await session.release();
        return { batches, before, losses: history.epochs.map(({ loss }) => loss) };
        """,
        given=GIVEN,
    )
    session = session_of(options={"reproducible": True})
    data = preferences(session, size=2, seed=3)
    for batch, expected in zip(found["batches"], data, strict=True):
        assert batch == {name: [[*array.shape], array.ravel().tolist()] for name, array in expected.items()}
    assert found["before"] == session.evaluate(data)["loss"]
    history = session.fit(preferences(session, size=2, seed=3), epochs=3)
    assert found["losses"] == [epoch.loss for epoch in history.epochs]


def test_a_prompt_that_is_left_out_is_what_both_answers_begin_with(js: JsPage) -> None:
    found = js.run(
        START
        + """
        const explicit = [given.pairs[0], given.pairs[2]];
        const implicit = explicit.map(({ prompt, ...answers }) =>
          Object.fromEntries(Object.entries(answers).map(([name, text]) => [name, prompt + text])));
        const rows = [];
        for (const pairs of [explicit, implicit]) {
          for await (const batch of await open(pairs, {})) {
            rows.push(Object.values(batch).map(({ data }) => Array.from(data, Number)));
          }
        }
        return rows;
        """,
        given=GIVEN,
    )
    assert len(found) == 2 and found[0] == found[1]


def test_wrong_pairs_and_sessions_are_named(js: JsPage) -> None:
    found = js.run(
        START
        + """
        const [first] = given.pairs;
        const faults = [];
        for (const pairs of [[first, { prompt: "a", chosen: "b" }], [{ ...first, rejected: "" }], 3, [null]]) {
          faults.push((await failure(() => open(pairs, {}))).message);
        }
        for (const others of [{ reference: TrainingSession }, { length: 1e9 }]) {
          faults.push((await failure(() => open(given.pairs, others))).message);
        }
        const other = await TrainingSession.createFromModel(model, { ...config, loss: "CrossEntropyLoss" });
        faults.push((await failure(() => open(given.pairs, { reference: other }))).message);
        await session.release();
        await other.release();
        return faults;
        """,
        given=GIVEN,
    )
    parts = [
        "Pair 1 of 'pairs'",
        "Text 1 is empty",
        "must be a list of texts",
        "Pair 0 of 'pairs'",
        "'reference' must be a TrainingSession with the loss 'DPOLoss', got a function.",
        "6 rows of length 1000000000 take 48000000000 bytes",
        "The session of 'reference' needs the loss 'DPOLoss'",
    ]
    for message, part in zip(found, parts, strict=True):
        assert part in message
