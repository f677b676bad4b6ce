"""`generate` of a page: recordings of transformers, and the same draws as CPython."""

import re
from typing import Any

from tests.conformance.fits import camel, snake
from tests.python.test_generate import (
    GOLDEN,
    MODELS,
    OPENED,
    PADDED,
    PARAMETERS,
    WRONG,
    fixed,
    inference,
    learn,
    padded,
    release,
    session_of,
    tokens_of,
    training,
    with_another_result,
    with_nan,
)

from .js_session import JsPage
from .server import Site

__all__ = ["release"]  # the fixture

SHORT, LONG = MODELS["llama"][1], MODELS["llama"][2]
GIVEN: dict[str, Any] = {"short": SHORT["prompt"], "long": LONG["prompt"], "parameters": PARAMETERS}
START = """
    const config = { loss: "CrossEntropyLoss", optimizer: { type: "AdamW", learningRate: 0.05 } };
    const options = { reproducible: true };
    const open = (others) =>
      TrainingSession.createFromModel("/golden/generate/llama.onnx", { ...config, ...others }, options);
    const all = async (tokens) => {
      const found = [];
      for await (const { token } of tokens) found.push(token);
      return found;
    };
    const fault = async (action) => {
      try { await action(); } catch (error) { return `${error.name}: ${error.message.split("\\n")[0]}`; }
      return "no error";
    };
    const learn = async (s, ids) => {
      const tensor = (values) => new Tensor("int64", BigInt64Array.from(values, BigInt), [1, values.length]);
      const labels = [...ids.slice(1), ids[0]];
      const feeds = { input_ids: tensor(ids), attention_mask: tensor(ids.map(() => 1)), labels: tensor(labels) };
      for (let step = 0; step < 3; step++) {
        await s.runTrainStep(feeds);
        await s.runOptimizerStep();
        await s.lazyResetGrad();
      }
    };
    const letters = {
      encode: (text) => Array.from(text, (letter) => letter.charCodeAt(0) - 65),
      decode: (ids) => ids.map((id) => id === 60 ? "<" : id === 59 ? ">" : String.fromCharCode(65 + id)).join("")
        .replaceAll("<>", "é").replaceAll("<", "\\ufffd"),
    };
"""


def test_the_most_likely_tokens_are_those_of_transformers(js: JsPage) -> None:
    found = js.run(
        START
        + """
        const s = await open({ requiresGrad: given.parameters });
        const short = await all(s.generate(given.short, { maxTokens: 24 }));
        const long = await all(s.generate(BigInt64Array.from(given.long, BigInt), { maxTokens: 24 }));
        await s.release();
        return { short, long };
        """,
        given=GIVEN,
    )
    assert found == {"short": SHORT["tokens"], "long": LONG["tokens"]}


def test_prompts_as_tokenizers_of_transformers_give_them(js: JsPage) -> None:
    """Their tensors have no `getData`."""
    found = js.run(
        START
        + """
        const s = await open({ requiresGrad: given.parameters });
        const data = BigInt64Array.from(given.short, BigInt);
        const tensor = (dims) => ({ type: "int64", location: "cpu", size: data.length, data, dims });
        const prompts = [tensor([1, data.length]), { input_ids: tensor([1, data.length]), attention_mask: null }];
        const texts = [];
        for (const prompt of prompts) texts.push(await all(s.generate(prompt, { maxTokens: 24 })));
        for (const row of given.padded) texts.push(await all(s.generate(row, { maxTokens: 24 })));
        const { input_ids: ids, attention_mask: bits } = given.padded[0];
        const of = (values) => ({ data: BigInt64Array.from(values, BigInt), dims: [1, values.length] });
        const mask = { data: Uint8Array.from(bits), dims: [1, bits.length] };
        texts.push(await all(s.generate({ input_ids: of(ids), attention_mask: mask }, { maxTokens: 24 })));
        const booleans = bits.map((bit) => bit === 1);
        texts.push(await all(s.generate({ input_ids: ids, attention_mask: booleans }, { maxTokens: 24 })));
        const nested = Object.fromEntries(Object.entries(given.padded[1]).map(([name, row]) => [name, [row]]));
        const prompted = [nested, [given.short], { input_ids: [ids], attention_mask: bits }, { input_ids: [data] }];
        for (const one of prompted) texts.push(await all(s.generate(one, { maxTokens: 24 })));
        const two = await fault(() => s.generate(tensor([2, data.length / 2])));
        await s.release();
        return { texts, two };
        """,
        given={**GIVEN, "padded": [padded(SHORT["prompt"], *counts) for counts in PADDED.values()]},
    )
    assert found["texts"] == [SHORT["padded"]] * 11
    assert found["two"].startswith("ModelError: prompt is"), found


def test_a_callback_of_a_fit_generates(js: JsPage) -> None:
    """Between the epochs, whose rate of 0 leaves the model as it is."""
    found = js.run(
        START
        + """
        const s = await open({ requiresGrad: given.parameters });
        await s.setLearningRate(0);
        const tensor = () => new Tensor("int64", BigInt64Array.from(given.short, BigInt), [1, given.short.length]);
        const data = { input_ids: tensor(), attention_mask: tensor(), labels: tensor() };
        data.attention_mask.data.fill(1n);
        const texts = [];
        const callbacks = async (event) => {
          if (event.type === "epoch") texts.push(await all(s.generate(given.short, { maxTokens: 24 })));
        };
        await s.fit(data, { epochs: 2, callbacks });
        await s.release();
        return texts;
        """,
        given=GIVEN,
    )
    assert found == [SHORT["tokens"]] * 2


def test_a_page_and_python_draw_the_same_tokens_before_and_after_training(js: JsPage) -> None:
    laws = [{"temperature": 1e-310}, {"temperature": 1.3}]
    laws += [{"temperature": 0.8, "top_k": 7}, {"temperature": 1.1, "top_k": 30, "top_p": 0.7}]
    names = {"temperature": "temperature", "top_k": "topK", "top_p": "topP"}
    ids = [int(one) for one in SHORT["prompt"] * 6]
    found = js.run(
        START
        + """
        const s = await open({ requiresGrad: given.parameters });
        const draw = async () => {
          const texts = [];
          for (const law of given.laws) {
            texts.push(await all(s.generate(given.short, { maxTokens: 20, seed: 2 ** 40 + 1, ...law })));
          }
          return texts;
        };
        const before = await draw();
        await learn(s, given.ids);
        const after = await draw();
        await s.release();
        return { before, after };
        """,
        given={**GIVEN, "ids": ids, "laws": [{names[name]: value for name, value in law.items()} for law in laws]},
    )
    session = training(options={"reproducible": True})
    drawn = [tokens_of(session, SHORT["prompt"], 20, seed=2**40 + 1, **law) for law in laws]
    assert found["before"] == drawn
    learn(session, ids=ids)
    learned = [tokens_of(session, SHORT["prompt"], 20, seed=2**40 + 1, **law) for law in laws]
    assert found["after"] == learned != drawn


def test_training_between_tokens_and_texts_by_turns(js: JsPage) -> None:
    ids = [int(one) for one in SHORT["prompt"] * 6]
    found = js.run(
        START
        + """
        const s = await open({ requiresGrad: given.parameters });
        const [one, other] = [given.short, given.long].map((prompt) => s.generate(prompt, { maxTokens: 10 }));
        const turns = [[], []];
        for (let k = 0; k < 5; k++) {
          turns[0].push((await one.next()).value.token);
          turns[1].push((await other.next()).value.token);
        }
        await learn(s, given.ids);
        turns[0].push(...await all(one));
        const whole = await all(s.generate([...given.short, ...turns[0].slice(0, 5)], { maxTokens: 5 }));
        await s.release();
        return { turns, whole };
        """,
        given={**GIVEN, "ids": ids},
    )
    assert found["turns"][0][:5] == SHORT["tokens"][:5]
    assert found["turns"][1] == LONG["tokens"][:5]
    assert found["turns"][0][5:] == found["whole"] != SHORT["tokens"][5:10]


def test_an_adapter_is_left_out_when_asked(js: JsPage) -> None:
    found = js.run(
        START
        + """
        const s = await open({ lora: { rank: 2 } });
        await learn(s, given.ids);
        const base = await all(s.generate(given.short, { maxTokens: 12, adapter: false }));
        const adapted = await all(s.generate(given.short, { maxTokens: 12 }));
        await s.release();
        return { base, adapted };
        """,
        given={**GIVEN, "ids": [int(one) for one in SHORT["prompt"] * 6]},
    )
    assert found["base"] == SHORT["tokens"][:12] != found["adapted"]


def test_text_stops_and_signals(js: JsPage) -> None:
    found = js.run(
        START
        + """
        const s = await open({ requiresGrad: given.parameters });
        const read = async (options) => {
          const found = [];
          const prompt = letters.decode(given.short);
          const all = { maxTokens: 24, tokenizer: letters, ...options };
          for await (const item of s.generate(prompt, all)) found.push(item);
          return [found.length, found.map(({ text }) => text).join("")];
        };
        const whole = await read({});
        const token = await read({ stop: given.tokens[9] });
        const text = await read({ stop: whole[1].slice(4, 6) });
        const controller = new AbortController();
        const aborted = await fault(async () => {
          const { signal } = controller;
          for await (const { token } of s.generate(given.short, { signal })) controller.abort(new Error("enough"));
        });
        await s.release();
        return { whole, token, text, aborted };
        """,
        given={**GIVEN, "tokens": SHORT["tokens"]},
    )
    whole = (
        "".join("<" if one == 60 else ">" if one == 59 else chr(65 + one) for one in SHORT["tokens"])
        .replace("<>", "é")
        .replace("<", "\N{REPLACEMENT CHARACTER}")
    )
    stop = SHORT["tokens"].index(SHORT["tokens"][9])
    assert found["whole"] == [24, whole]
    assert found["token"] == [stop + 1, whole[:stop]]
    assert found["text"] == [whole.index(whole[4:6]) + 2, whole[: whole.index(whole[4:6])]]
    assert found["aborted"] == "Error: enough"


def prompt_of(settings: dict[str, Any]) -> dict[str, Any]:
    """The prompt as it is: names of its tensors are those of tokenizers."""
    return {"prompt": settings["prompt"]} if "prompt" in settings else {}


def test_faults_are_those_of_python(js: JsPage) -> None:
    found = js.run(
        START
        + """
        const s = await open({ requiresGrad: given.parameters });
        const faults = [];
        for (const { prompt = [1, 2], ...options } of given.wrong) {
          faults.push(await failure(() => s.generate(prompt, options).next()));
        }
        const tokens = s.generate([1, 2]);
        await tokens.next();
        await s.release();
        return [faults, await fault(() => tokens.next())];
        """,
        given={**GIVEN, "wrong": [camel(settings) | prompt_of(settings) for settings, *_ in WRONG]},
    )
    for (settings, name, text), error in zip(WRONG, found[0], strict=True):
        assert error is not None, settings
        assert error["name"] == name and re.search(text, snake(error["message"])), (settings, error)
    assert found[1].startswith("ReleasedError: ")
    assert not OPENED


def test_room_grows_with_a_text_until_the_model_takes_no_more(js: JsPage, plain_site: Site) -> None:
    for name in ("opt", "gpt2"):
        plain_site.add(f"/{name}.onnx", (GOLDEN / f"{name}.onnx").read_bytes())
    opt, gpt2 = MODELS["opt"][0], MODELS["gpt2"][0]
    long = [(7 * k) % 61 for k in range(1019)]
    found = js.run(
        START
        + """
        const { InferenceSession } = trainweb;
        const most = 2147483647;
        const firstOf = async (tokens, count) => {
          const found = [];
          for await (const { token } of tokens) if (found.push(token) === count) break;
          return found;
        };
        const texts = {};
        const llama = await InferenceSession.create("/golden/generate/llama.onnx");
        texts.llama = await firstOf(llama.generate(given.long, { maxTokens: most }), 10);
        await llama.release();
        const opt = await InferenceSession.create("/opt.onnx");
        texts.opt = await firstOf(opt.generate(given.opt, { maxTokens: most }), 24);
        await opt.release();
        const gpt2 = await InferenceSession.create("/gpt2.onnx");
        texts.gpt2 = [];
        texts.fault = await fault(async () => {
          for await (const { token } of gpt2.generate(given.gpt2, { maxTokens: most })) texts.gpt2.push(token);
        });
        await gpt2.release();
        return texts;
        """,
        given={"long": long, "opt": opt["prompt"], "gpt2": gpt2["prompt"]},
    )
    assert found["llama"] == tokens_of(inference("llama"), long, 10)
    assert found["opt"] == opt["tokens"]
    assert found["gpt2"] == tokens_of(inference("gpt2"), gpt2["prompt"], 88)
    assert found["fault"].startswith("ModelError: The model does not take 97 tokens, prompt and new ones together")
    assert found["fault"].endswith("or give fewer 'maxTokens'.")


def test_a_text_that_meets_nan_spoils_no_other(js: JsPage, plain_site: Site) -> None:
    plain_site.add("/nan.onnx", with_nan(float("nan")))
    found = js.run(
        START
        + """
        const s = await trainweb.InferenceSession.create("/nan.onnx");
        const texts = [await all(s.generate([1, 2], { maxTokens: 3 }))];
        const waiting = s.generate([1, 2], { maxTokens: 3 });
        const first = (await waiting.next()).value.token;
        const text = await fault(() => s.generate([1, 2, 1, 2, 1, 6]).next());
        texts.push([first, ...await all(waiting)], await all(s.generate([1, 2], { maxTokens: 3 })));
        await s.release();
        return { texts, text };
        """
    )
    assert found["text"].startswith("SessionError: Token 5 has a logit that is NaN")
    assert found["texts"] == [tokens_of(session_of(with_nan(float("nan"))), [1, 2], 3)] * 3


def test_caches_that_another_result_has_moved_are_filled_again(js: JsPage, plain_site: Site) -> None:
    plain_site.add("/moved.onnx", with_another_result())
    found = js.run(
        START
        + """
        const s = await trainweb.InferenceSession.create("/moved.onnx");
        const steps = s.generate([3, 1, 4, 1, 5], { maxTokens: 24 });
        const tokens = [];
        for (let k = 0; k < 9; k++) tokens.push((await steps.next()).value.token);
        await s.run({ input_ids: new Tensor("int64", [1n, 2n], [1, 2]) }, ["other"]);
        tokens.push(...await all(steps));
        await s.release();
        return tokens;
        """
    )
    assert found == tokens_of(session_of(with_another_result()), [3, 1, 4, 1, 5])


def test_an_inference_session_generates_between_runs(js: JsPage) -> None:
    found = js.run(
        START
        + """
        const { InferenceSession } = trainweb;
        const s = await InferenceSession.create("/golden/generate/llama.onnx", { reproducible: true });
        const tensor = (values) => new Tensor("int64", BigInt64Array.from(values, BigInt), [1, values.length]);
        const feeds = { input_ids: tensor(given.short), attention_mask: tensor(given.short.map(() => 1)) };
        const before = Array.from((await s.run(feeds)).logits.data);
        const [one, other] = [given.short, given.long].map((prompt) => s.generate(prompt, { maxTokens: 10 }));
        const turns = [[], []];
        for (let k = 0; k < 10; k++) {
          turns[0].push((await one.next()).value.token);
          await s.run(feeds);
          turns[1].push((await other.next()).value.token);
        }
        const after = Array.from((await s.run(feeds)).logits.data);
        const drawn = await all(s.generate(given.short, { maxTokens: 12, temperature: 1.3, seed: 4 }));
        const faults = [
          await fault(() => s.generate([1], { adapter: false })),
          await fault(() => s.generate([1], { topK: 3 }).next()),
          await fault(() => s.generate([61]).next()),
        ];
        const tokens = s.generate([1, 2]);
        await tokens.next();
        await s.release();
        faults.push(await fault(() => tokens.next()), await fault(() => s.generate([1]).next()));
        return { turns, same: String(before) === String(after), drawn, faults };
        """,
        given=GIVEN,
    )
    assert found["turns"] == [SHORT["tokens"][:10], LONG["tokens"][:10]] and found["same"]
    session = inference("llama", reproducible=True)
    assert found["drawn"] == tokens_of(session, SHORT["prompt"], 12, temperature=1.3, seed=4)
    parts = ["TypeError: 'adapter' is for", "ModelError: 'topK' changes", "FeedError: ", *["ReleasedError"] * 2]
    for given, part in zip(found["faults"], parts, strict=True):
        assert given.startswith(part), given


def test_a_model_of_fixed_shapes_is_refused(js: JsPage, plain_site: Site) -> None:
    plain_site.add("/fixed.onnx", fixed([2, 9], [2, 9, 4]))
    found = js.run(
        START
        + """
        const training = await TrainingSession.createFromModel("/fixed.onnx", config, options);
        const inference = await trainweb.InferenceSession.create("/fixed.onnx");
        const faults = [];
        for (const session of [training, inference]) {
          faults.push(await fault(() => session.generate([1, 2, 3]).next()));
          await session.release();
        }
        return faults;
        """
    )
    text = "ModelError: Input 'input_ids' has the fixed shape [2, 9], and generate feeds one text that grows. "
    assert [fault.startswith(text) for fault in found] == [True, True], found
