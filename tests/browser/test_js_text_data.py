"""`Dataset.fromText` of a page: the rows and errors of Python (tests/python/test_text_data.py)."""

import warnings
from typing import Any

from tests.python.test_text_data import (
    BATCHES,
    CHATS,
    COPIES,
    FAULTS,
    LETTERS,
    TABLE,
    TEXTS,
    TOKENS,
    Letters,
    Recorded,
    batches_of,
    lists_of,
)

from trainweb.data import Dataset
from trainweb.spelling import camel_case

from .js_session import JsPage

RUN = """
    const id = (letter) => letter === "\\n" ? 99 : letter.charCodeAt(0) - 97;
    const encode = (text, { add_special_tokens = true } = {}) => {
      if (add_special_tokens && text.startsWith("i")) throw new Error("special tokens");
      return Array.from(text.replaceAll("yy", "\\n"), id);
    };
    const apply_chat_template = (chat, { tokenize, add_generation_prompt = false }) => {
      if (tokenize !== false) throw new Error("tokenize");
      return chat.map(({ content }) => `i${content}j`).join("") + (add_generation_prompt ? "i" : "");
    };
    const letters = { encode, eos_token_id: given.end, apply_chat_template };
    const padded = (ids) => ({ ids: [7, ...ids, 7], attention_mask: [0, ...ids.map(() => 1), 0] });
    const forms = [letters, { ...letters, encode: (...given) => padded(encode(...given)) },
      { ...letters, encode: (...given) => BigInt64Array.from(encode(...given), BigInt) }];
    return given.cases.map(([texts, options]) => forms.map((tokenizer) => {
      try {
        const { columns } = trainweb.Dataset.fromText(texts, tokenizer, options);
        return Object.fromEntries([...columns].map(([name, { type, dims: [rows, length], data }]) => {
          if (type !== "int64") throw new Error(type);
          const row = (k) => Array.from(data.subarray(k * length, (k + 1) * length), Number);
          return [name, Array.from({ length: rows }, (_, k) => row(k))];
        }));
      } catch (error) {
        return `${error.name}: ${error.message}`;
      }
    }));
"""


def test_rows_and_errors_are_those_of_python(js: JsPage) -> None:
    cases = [
        [texts, {camel_case(name): value for name, value in options.items()}] for texts, options, _ in [*TABLE, *FAULTS]
    ]
    found = js.run(RUN, given={"cases": cases, "end": Letters.eos_token_id})
    for rows, (texts, _, expected) in zip(found, TABLE, strict=False):
        assert rows == [expected] * 3, texts
    for errors, (texts, options, part) in zip(found[len(TABLE) :], FAULTS, strict=True):
        assert all(isinstance(error, str) and part in error for error in errors), (texts, options, errors)


def test_batches_are_those_of_python(js: JsPage) -> None:
    script = """
      const encode = (text) => Array.from(text, (letter) => letter.charCodeAt(0) - 97);
      const data = trainweb.Dataset.fromText(given.texts, { encode, eos_token_id: given.end }, given.options);
      const rowsOf = ({ dims: [rows, length], data }) =>
        Array.from({ length: rows }, (_, k) => Array.from(data.subarray(k * length, (k + 1) * length), Number));
      const batchesOf = async () => {
        const batches = [];
        for await (const batch of data) {
          batches.push(Object.fromEntries(Object.entries(batch).map(([name, tensor]) => [name, rowsOf(tensor)])));
        }
        return batches;
      };
      return [await batchesOf(), await batchesOf()];
    """
    options = {camel_case(name): value for name, value in BATCHES.items()}
    found = js.run(script, given={"texts": TEXTS, "options": options, "end": Letters.eos_token_id})
    data = Dataset.from_text(TEXTS, Letters(), **BATCHES)
    assert found == [batches_of(data), batches_of(data)]


def test_a_schedule_knows_the_batches_of_texts(js: JsPage) -> None:
    """The rate of the last step is the one of a schedule whose total was counted by an iteration."""
    script = """
      const encode = (text) => Array.from(text, (letter) => letter.charCodeAt(0) - 97);
      const s = await trainweb.TrainingSession.createFromModel("/golden/generate/llama.onnx", {
        loss: { type: "CrossEntropyLoss", ignoreIndex: -100 }, optimizer: "SGD",
      });
      const options = { ...given.options, inputs: s.trainingInputNames };
      const texts = trainweb.Dataset.fromText(given.texts, { encode, eos_token_id: given.end }, options);
      let count = 0;
      for await (const _ of texts) count++;
      const fits = [];
      for (const more of [{}, { total: 2 * Math.ceil(count / 3) }]) {
        const schedule = { type: "Linear", learningRate: 0.001, ...more };
        const fit = await s.fit(texts, { epochs: 2, accumulate: 3, schedule });
        fits.push([fit.optimizerSteps, fit.epochs.at(-1).learningRate]);
      }
      const options2 = { schedule: "Linear", learningRate: 0.001 };
      const { message } = await s.fit(texts.filter(() => true), options2).catch((error) => error);
      await s.release();
      return [count, fits, message];
    """
    options = {camel_case(name): value for name, value in LETTERS.items()}
    count, fits, message = js.run(script, given={"texts": TEXTS, "options": options, "end": Letters.eos_token_id})
    assert count == len(list(Dataset.from_text(TEXTS, Letters(), **LETTERS)))
    assert fits[0] == fits[1] and fits[0][0] == 2 * -(-count // 3)
    assert message.startswith("Linear needs 'total'")


def test_labels_that_are_the_tokens_are_named(js: JsPage) -> None:
    script = """
      const tensor = (rows) =>
        new trainweb.Tensor("int64", BigInt64Array.from(rows.flat(), BigInt), [rows.length, rows[0].length]);
      const said = [];
      const { warn } = console;
      const rowsOf = (columns) => given.tokens.map((_, k) => Object.fromEntries(
        Object.entries(columns).map(([name, { data }]) => [name, data.slice(4 * k, 4 * k + 4)])));
      const forms = {
        columns: (columns) => columns,
        rows: rowsOf,
        dataset: (columns) => new trainweb.Dataset(rowsOf(columns)),
        batches: (columns) => new trainweb.Dataset(rowsOf(columns)).batch(2),
        bucket: (columns) => new trainweb.Dataset(rowsOf(columns)).bucket((row) => row.labels.length, [4], 2),
        generator: (columns) => function* () { yield* rowsOf(columns); },
        listed: (columns) => [columns, columns],
      };
      const columns = given.labels.map((labels) => [labels, forms.columns]);
      for (const [labels, form] of [...columns, ...Object.values(forms).map((form) => [given.labels[1], form])]) {
        const warnings = [];
        console.warn = (text) => warnings.push(text);
        const s = await trainweb.TrainingSession.createFromModel("/golden/generate/llama.onnx", {
          loss: { type: "CrossEntropyLoss", ignoreIndex: -100 }, optimizer: "SGD",
        });
        const mask = given.tokens.map((row) => row.map(() => 1));
        const data = { input_ids: tensor(given.tokens), attention_mask: tensor(mask), labels: tensor(labels) };
        for (let k = 0; k < 2; k++) await s.fit(form(data));
        await s.release();
        console.warn = warn;
        said.push(warnings.filter((text) => text.includes("The labels 'labels' are equal to")));
      }
      return said;
    """
    said = js.run(script, given={"tokens": TOKENS, "labels": [labels for labels, _ in COPIES.values()]})
    assert [len(texts) for texts in said] == [*(int(copies) for _, copies in COPIES.values()), *[1] * 7]
    assert all("equal to 'input_ids'" in text and "'fromText'" in text for texts in said for text in texts)


def test_chats_that_are_text_already_have_the_rows_and_warnings_of_python(js: JsPage) -> None:
    script = """
      const rowsOf = ({ dims: [rows, length], data }) =>
        Array.from({ length: rows }, (_, k) => Array.from(data.subarray(k * length, (k + 1) * length), Number));
      const warnings = [];
      const { warn } = console;
      console.warn = (text) => warnings.push(text);
      const found = Object.entries(given.chats).map(([name, { eos, chats, encode }]) => {
        const of = (form, chat) => chats.find(({ messages }) =>
          JSON.stringify(form === "prompt" ? messages.slice(0, -1) : messages) === JSON.stringify(chat)).rendered[form];
        const tokenizer = {
          eos_token_id: eos,
          encode: (text, { add_special_tokens: adds = true } = {}) => encode[`${Number(adds)}${text}`],
          decode: (ids) => `[${ids.join(", ")}]`,
          apply_chat_template: (chat, { add_generation_prompt: begins }) => of(begins ? "prompt" : "whole", chat),
        };
        return given.cases[name].map(([texts, options]) => {
          const { columns } = trainweb.Dataset.fromText(texts, tokenizer, { length: 100, pack: false, ...options });
          return Object.fromEntries([...columns].map(([name, tensor]) => [name, rowsOf(tensor)]));
        });
      });
      console.warn = warn;
      return { found, warnings };
    """
    cases: dict[str, list[Any]] = {}
    for name, found in CHATS.items():
        texts = [one["rendered"] for one in found["chats"]]
        chats = [{"messages": one["messages"], "id": k} for k, one in enumerate(found["chats"])]
        parts = [{"prompt": t["prompt"], "completion": t["whole"].removeprefix(t["prompt"])} for t in texts]
        cases[name] = [[[t["whole"] for t in texts], {}], [chats, {"mask_prompt": True, "end_token": found["eos"]}]]
        cases[name] += [] if name == "moved" else [[parts, {"mask_prompt": True}]]
    given = {
        name: [[texts, {camel_case(key): value for key, value in options.items()}] for texts, options in rows]
        for name, rows in cases.items()
    }
    found = js.run(script, given={"chats": CHATS, "cases": given})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        expected = [
            [
                lists_of(Dataset.from_text(texts, Recorded(name), length=100, pack=False, **options))
                for texts, options in rows
            ]
            for name, rows in cases.items()
        ]
    assert found["found"] == expected
    assert found["warnings"] == [f"trainweb: {one.message}" for one in caught] and len(caught) == len(CHATS) + 1


def test_several_texts_need_an_end_and_a_tokenizer(js: JsPage) -> None:
    given = "['ab', 'c'], { encode: () => [1, 2] }"
    assert "'endToken'" in js.failure(f"trainweb.Dataset.fromText({given}, {{ length: 2 }});")["message"]
    assert "length is undefined" in js.failure(f"trainweb.Dataset.fromText({given}, {{}});")["message"]
    for tokenizer, part in (("undefined", "no function encode"), ("{ encode: String }", "'ids'")):
        call = f"trainweb.Dataset.fromText(['abc'], {tokenizer}, {{ length: 2 }});"
        found = js.failure(call)
        assert found["name"] == "ModelError" and part in found["message"]
    chat = "{ messages: [{ role: 'user', content: 'a' }, { role: 'assistant', content: 'b' }] }"
    call = f"trainweb.Dataset.fromText([{chat}], {{ encode: () => [1, 2] }}, {{ length: 2 }});"
    assert "@huggingface/transformers" in js.failure(call)["message"]
