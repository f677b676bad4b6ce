// Texts and rows of different lengths, as users of TypeScript write them: no line needs a cast.
import { Tokenizer } from "@huggingface/tokenizers";
import { AutoTokenizer } from "@huggingface/transformers";
import { Dataset, InferenceSession, Tensor, TrainingSession } from "trainweb";

const tokenizer = await AutoTokenizer.from_pretrained("sonnets");
const session = await TrainingSession.createFromPretrained("sonnets", { lora: { rank: 8, targets: "all-linear" }, tokenizer });
const inference = await InferenceSession.create("model.onnx");
const messages = [{ role: "user", content: "a" }, { role: "assistant", content: "b" }];

// A tokenizer of transformers makes data, prompts and text.
const texts = Dataset.fromText(["a", "b"], tokenizer, { length: 64, inputs: session.trainingInputNames });
Dataset.fromText([{ messages }], tokenizer, { length: 64, pack: false, maskPrompt: true });
const pairs = [{ prompt: "a", chosen: "b", rejected: "c" }];
await session.fit(await Dataset.fromPreferences(pairs, tokenizer, { length: 64, reference: session }), { epochs: 3 });
for await (const { text } of session.generate("a", { tokenizer, stop: tokenizer.eos_token_id })) console.log(text);
session.generate([[1, 2, 3]]);
session.generate([BigInt64Array.of(1n)]);
session.generate(tokenizer("a"));
session.generate(tokenizer("a", { return_tensor: false }));
session.generate(tokenizer.apply_chat_template(messages, { add_generation_prompt: true }));
session.generate(tokenizer.apply_chat_template(messages, { return_dict: false }));
session.generate(tokenizer.apply_chat_template(messages, { tokenize: false }), { tokenizer });
inference.generate(tokenizer.encode("a"), { tokenizer });
const mails = ["a", "b"];
const inputs = tokenizer(mails, { padding: true });
await session.predict(inputs);
await session.fit({ ...inputs, labels: [0, 1] });
await session.evaluate({ ...inputs, labels: [0, 1] }, { metrics: "accuracy" });

// One of @huggingface/tokenizers does, too.
const coder = new Tokenizer({}, {});
Dataset.fromText(["a"], coder, { length: 4 });
session.generate("a", { tokenizer: coder });

// Rows keep their types from step to step.
const row = (ids: number[], label: number) => ({ input_ids: ids.map(BigInt), labels: BigInt(label) });
const marked = new Dataset(mails.map((mail, k) => row(tokenizer.encode(mail), k)));
const batches = marked.bucket(({ input_ids: ids }) => ids.length, [16, 64], 2);
for await (const { input_ids: ids } of batches) console.log(ids?.dims.join(" "));
await session.fit(batches);
const sentences = new Dataset([{ ids: [3n, 1n, 4n], labels: [0n, 2n, 1n] }, { ids: [1n, 5n], labels: [1n, 0n] }]);
sentences.bucket(({ ids }) => ids.length, [4, 8], 2, { padded: { ids: 0, labels: -100 } });
const [training] = sentences.split(0.2, { seed: 1 });
training.shuffle().take(3).cache().prefetch().bucket(({ ids }) => ids.length, [8], 2, { padded: ["ids"] });
sentences.map(({ ids }) => ({ ids: ids.slice(1) })).filter(({ ids }) => ids.length > 2).bucket(({ ids }) => ids.length, [8], 4);
async function* lines() {
  yield { ids: new BigInt64Array(3), labels: 1n };
}
new Dataset(lines).bucket(({ ids }) => ids.length, [4], 2);
Dataset.of(sentences).bucket(({ ids }) => ids.length, [1], 1);
texts.filter(({ labels }) => labels?.dims[0] === 1).batch(2).map(({ input_ids: ids }) => ({ shape: ids?.dims }));

// A type that the user names, and datasets of all kinds as arguments.
interface Sentence {
  ids: number[];
  labels: number;
}
const written: Sentence[] = [];
await session.fit(new Dataset(written).bucket(({ ids }) => ids.length, [4], 2));
await session.fit(written);
await session.predict(new Dataset(written));
new Dataset({ ids: new Tensor("int64", [1n], [1]) }).map((one: { ids: Tensor }) => ({ ids: one.ids.dims }));
const all: Dataset[] = [sentences, batches, texts, new Dataset({ ids: [1] })];
const any: Dataset<object>[] = [...all, new Dataset(written)];

// @ts-expect-error a row has no such value
sentences.bucket(({ words }) => words.length, [4], 2);
// @ts-expect-error a tokenizer needs encode
Dataset.fromText(["a"], { decode: () => "" }, { length: 4 });
// @ts-expect-error no tensor
await session.predict({ ids: { values: [1] } });
console.log(any);
