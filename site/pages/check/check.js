// @ts-check
/** Does my model train? Reports on a dropped file, measures a step, trains on random data. Nothing leaves the page. */

import { env, inspectModel, Tensor, TrainingSession } from "trainweb";
import "trainweb/vis";

import { codeOnTable, headerOf, readTable } from "./table.js";
import { listSafetensors } from "./safetensors.js";
import { element, fillSelect, fillTable, make, showCosts, showCurve, showReport, showVerdict } from "./view.js";

/**
 * @import { ModelReport, OptimizerType, LossType, TrainingConfig } from "trainweb"
 * @typedef {{ model: File, external: { path: string, data: File }[], table: File | null }} Given
 */

/** @type {LossType[]} */
const LOSSES = [
  "CrossEntropyLoss", "MSELoss", "L1Loss", "HuberLoss", "SmoothL1Loss", "BCEWithLogitsLoss", "FocalLoss", "KLDivLoss",
  "CosineEmbeddingLoss", "ContrastiveLoss", "TripletMarginLoss", "CTCLoss", "OutputGradient",
];
/** Losses that take the number of a class. */
const OF_CLASSES = ["CrossEntropyLoss", "FocalLoss"];
const NO_LOSS = "none: it is the output";
/** Among the losses where a model's output asks for it. */
const OF_MAPS = "CrossEntropyLoss along axis 1";
/** @type {OptimizerType[]} */
const OPTIMIZERS = ["AdamW", "SGD"];
/** The first symbolic dim is most likely the batch, and norms want more than one row. */
const BATCH = 8;
const MEASURED_MS = 1000;
const MOST_MEASURED = 50;
const STEPS = 100;
const EPOCHS = 20;
const LEARNING_RATE = 0.01;

const status = element("status", "p");
const lossSelect = element("loss", "select");
const outputSelect = element("output", "select");
const optimizerSelect = element("optimizer", "select");
const classesInput = element("classes", "input");
const targetSelect = element("target", "select");
const trainButton = element("train", "button");
const fitButton = element("fit", "button");
const saveButton = element("save", "button");

/** @type {Given | null} */
let given = null;
/** @type {ModelReport | null} */
let report = null;
/** @type {TrainingSession | null} */
let session = null;
/** Number of the latest question: answers to earlier questions are dropped. */
let asked = 0;

/** True while a question is answered: progress that comes later is not shown. */
let isBusy = false;

env.onProgress = ({ stage, loaded, total, percent }) => {
  if (isBusy) {
    status.textContent = stage === "compile" ? "Compiling …"
      : `Loading ${stage}: ${(loaded / 1e6).toFixed(1)} of ${(total / 1e6).toFixed(1)} MB, ${percent} %`;
  }
};

/** End the progress of a question. */
function ready() {
  isBusy = false;
  status.textContent = "";
}

/** @param {File[]} files */
async function open(files) {
  const turn = await forget();
  if (turn !== asked) {
    return;
  }
  const model = files.find(({ name }) => /\.(onnx|ort)$/.test(name));
  const weights = files.find(({ name }) => name.endsWith(".safetensors"));
  if (model === undefined && weights !== undefined) {
    await openSafetensors(weights);
    return;
  }
  const table = files.find(({ name }) => name.endsWith(".csv")) ?? null;
  const first = model ?? files.find((file) => file !== table);
  if (first === undefined) {
    if (table !== null) {
      showVerdict(`${table.name} is data. Drop the model with it: both files at once.`, "bad");
    }
    return;
  }
  given = {
    model: first,
    external: files.filter((file) => file !== first && file !== table).map((file) => ({ path: file.name, data: file })),
    table,
  };
  optimizerSelect.value = "AdamW";
  classesInput.value = "";
  await look({}, null);
}

/** Weights without a graph: say so, and what they are. @param {File} file */
async function openSafetensors(file) {
  try {
    const tensors = await listSafetensors(file);
    showVerdict(
      `${file.name} is a safetensors file: weights without the graph that uses them. ` +
        "Export the model as .onnx, which has both, and drop that.",
      "bad",
    );
    element("report", "section").hidden = false;
    element("problems", "div").replaceChildren();
    fillTable(element("values", "table"), ["name", "type", "dims"], []);
    element("operators", "p").textContent = "None: the file has no graph.";
    const count = tensors.reduce((sum, { dims }) => sum + dims.reduce((a, b) => a * b, 1), 0);
    element("parameter-count", "p").textContent = `${tensors.length} tensors with ${count.toLocaleString("en")} numbers.`;
    const rows = tensors.map(({ name, dtype, dims }) => [name, dtype, `[${dims.join(", ")}]`]);
    fillTable(element("parameters", "table"), ["name", "type", "dims"], rows);
  } catch (error) {
    showVerdict(`${file.name}: ${messageOf(error)}`, "bad");
  }
  ready();
}

/** Drop all results of the previous file. @returns {Promise<number>} number of the new question */
async function forget() {
  // A size that is typed and not entered yet belongs to the previous file, and would change the next one's.
  /** @type {HTMLInputElement | null} */ (document.querySelector("#settings input:focus"))?.blur();
  const turn = ++asked;
  given = report = null;
  for (const id of /** @type {const} */ (["report", "trial"])) {
    element(id, "section").hidden = true;
  }
  element("settings", "form").hidden = true;
  showVerdict("", "");
  await endSession();
  return turn;
}

async function endSession() {
  const ended = session;
  session = null;
  showCurve([]);
  element("table", "div").hidden = true;
  saveButton.hidden = true;
  trainButton.disabled = fitButton.disabled = true;
  await ended?.release();
}

/**
 * Report on the file, and try it if it trains.
 *
 * @param {Record<string, number>} dims - sizes of symbolic dims
 * @param {string | null} loss - null: a loss that fits
 */
async function look(dims, loss) {
  if (given === null) {
    return;
  }
  const { model, external } = given;
  const turn = ++asked;
  await endSession();
  isBusy = true;
  status.textContent = `Reading ${model.name} …`;
  try {
    const config = configOf(report, loss ?? NO_LOSS, outputSelect.value);
    let found = await inspectModel(model, { ...config, dims }, { externalData: external });
    if (loss === null) {
      const symbol = found.inputs.flatMap(({ dims: declared }) => declared?.slice(0, 1) ?? []).find((dim) => typeof dim === "string");
      const sizes = typeof symbol === "string" ? { ...dims, [symbol]: BATCH } : dims;
      const fits = typeof found.suggestedLoss === "string" ? found.suggestedLoss : found.suggestedLoss === null ? NO_LOSS : OF_MAPS;
      const suggested = configOf(found, fits, found.outputs[0]?.name);
      found = await inspectModel(model, { ...suggested, dims: sizes }, { externalData: external });
      if (turn === asked && !isNoModel(found)) {
        showSettings(found, fits, sizes);
      }
    }
    if (turn !== asked) {
      return;
    }
    if (isNoModel(found)) {
      ready();
      showVerdict(`${model.name} is not a whole ONNX file.`, "bad", `${found.error}. Download or export it again.`);
      return;
    }
    report = found;
    showReport(found);
    showVerdict(found.ok ? `${model.name} trains.` : `${model.name} does not train like this.`, found.ok ? "good" : "bad");
    element("trial", "section").hidden = !found.ok;
    if (found.ok) {
      await tryOut(found, turn);
    } else {
      ready();
    }
  } catch (error) {
    if (turn === asked) {
      ready();
      element("trial", "section").hidden = true;
      showVerdict(`${model.name}: ${messageOf(error)}`, "bad");
    }
  }
}

/**
 * The configuration of the form, or of its defaults.
 *
 * @param {ModelReport | null} found - of the same file
 * @param {string} loss
 * @param {string | undefined} output - the output that the loss reads
 * @returns {TrainingConfig}
 */
function configOf(found, loss, output) {
  const optimizer = /** @type {OptimizerType} */ (optimizerSelect.value);
  const head = classesInput.value === "" ? {} : { head: { classes: classesInput.valueAsNumber } };
  if (loss === NO_LOSS) {
    return { loss: null, optimizer, ...head };
  }
  const named = output !== undefined && found !== null && found.outputs.length > 1 ? { lossInputNames: [output] } : {};
  const settings = loss === OF_MAPS ? { type: /** @type {const} */ ("CrossEntropyLoss"), classAxis: 1 } : /** @type {LossType} */ (loss);
  return { loss: settings, optimizer, ...named, ...head };
}

/**
 * @param {ModelReport} found
 * @param {string} loss
 * @param {Record<string, number>} sizes
 */
function showSettings(found, loss, sizes) {
  element("settings", "form").hidden = false;
  fillSelect(lossSelect, [...LOSSES, ...(loss === OF_MAPS ? [OF_MAPS] : []), NO_LOSS], loss);
  fillSelect(outputSelect, found.outputs.map(({ name }) => name), found.outputs[0]?.name ?? "");
  const symbols = new Set(found.inputs.flatMap(({ dims }) => dims ?? []).filter((dim) => typeof dim === "string"));
  element("dims", "span").replaceChildren(...[...symbols].map((symbol) => {
    const input = document.createElement("input");
    Object.assign(input, { type: "number", min: "1", value: String(sizes[symbol] ?? ""), placeholder: "least", name: symbol });
    return make("label", symbol, input);
  }));
}

/** Make a session and measure its steps. @param {ModelReport} found @param {number} turn */
async function tryOut(found, turn) {
  const { model, external } = /** @type {Given} */ (given);
  await showTable();
  await showCode(found);
  showCosts([["Measuring", "…"]]);
  const config = configOf(found, lossSelect.value, outputSelect.value);
  const made = await TrainingSession.createFromModel(model, config, { externalData: external });
  if (turn !== asked) {
    await made.release();
    return;
  }
  session = made;
  await made.prepare(Object.fromEntries(found.feeds.map(({ name, shape }) => [name, shape])));
  const time = timeOf(await measure(made, randomFeeds(found)));
  const memory = await made.memory();
  const all = Object.entries(memory).filter(([name]) => KERNEL_MEMORY.includes(name));
  const bytes = all.reduce((sum, [, size]) => sum + size, 0);
  if (turn !== asked) {
    return;
  }
  trainButton.disabled = fitButton.disabled = false;
  status.textContent = "";
  /** @type {[string, string][]} */
  const costs = [
    ["Batch", found.feeds.map(({ name, dtype, shape }) => `${name} ${dtype}[${shape.join(", ")}]`).join(", ")],
    ["Time of a step", time],
    ["Kernel memory", withPrefix(bytes, "B")],
    ["Operations", `${withPrefix(found.flops, "FLOP")} a step`],
  ];
  showCosts(costs);
  const onGpu = await tryGpu(found, config);
  if (turn === asked) {
    showCosts(onGpu === null ? costs : [...costs, ["On this device's GPU", onGpu]]);
    ready();
  }
}

/** @param {number[]} times */
function timeOf(times) {
  const [median = NaN] = times.sort((a, b) => a - b).slice(times.length >> 1);
  return `${median.toPrecision(3)} ms (median of ${times.length})`;
}

/**
 * The time of a step on the GPU, or the reason why it does not train there; null: the browser has no WebGPU.
 *
 * @param {ModelReport} found
 * @param {TrainingConfig} config
 */
async function tryGpu(found, config) {
  if (!("gpu" in navigator)) {
    return null;
  }
  const { model, external } = /** @type {Given} */ (given);
  /** @type {TrainingSession | null} */
  let made = null;
  try {
    made = await TrainingSession.createFromModel(model, config, { externalData: external, device: "webgpu" });
    const time = timeOf(await measure(made, randomFeeds(found)));
    const { adapter } = made.device;
    return `${time}, ${adapter?.description || adapter?.vendor}`;
  } catch (error) {
    return messageOf(error);
  } finally {
    await made?.release();
  }
}

/** The code that trains the file, on the data that came with it or on zeros. @param {ModelReport} found */
async function showCode(found) {
  const { model, table } = /** @type {Given} */ (given);
  const code = table === null || targetSelect.value === "" ? found.code
    : await codeOnTable(found, table, targetSelect.value, isOfClasses());
  for (const language of /** @type {const} */ (["javascript", "python"])) {
    element(language, "code").textContent = (code[language] ?? "").replaceAll('"model.onnx"', () => JSON.stringify(model.name));
  }
}

/** Whether the loss takes the number of a class. */
function isOfClasses() {
  return OF_CLASSES.some((name) => lossSelect.value.startsWith(name));
}

/** @param {number} value @param {string} unit */
function withPrefix(value, unit) {
  const power = Math.min(4, Math.max(0, Math.floor(Math.log10(Math.max(value, 1)) / 3)));
  return `${Number((value / 1000 ** power).toPrecision(3))} ${["", "k", "M", "G", "T"][power]}${unit}`;
}

/** Whether nothing of the file could be read. @param {ModelReport} found */
function isNoModel({ error, inputs, outputs, operators }) {
  return error !== null && inputs.length + outputs.length + Object.keys(operators).length === 0;
}

/** Offer the table that came with the model, if there is one. */
async function showTable() {
  const table = given?.table ?? null;
  element("table", "div").hidden = table === null;
  if (table !== null) {
    const names = await headerOf(table);
    element("rows", "p").textContent = `${table.name} has the columns ${names.join(", ")}. All but one go into the model, in this order.`;
    const likely = names.find((name) => /^(label|target|class|y|species|cultivar)s?$/i.test(name)) ?? names.at(-1) ?? "";
    const shown = names.includes(targetSelect.value) ? targetSelect.value : likely;
    fillSelect(targetSelect, names, shown);
    element("fitted", "p").textContent = "";
  }
}

async function fitTable() {
  const [made, found, table] = [session, report, given?.table];
  if (made === null || found === null || !table) {
    return;
  }
  const told = element("fitted", "p");
  fitButton.disabled = true;
  told.textContent = "";
  try {
    const { training, validation, count } = await readTable(table, found, targetSelect.value, isOfClasses());
    const curves = /** @type {import("trainweb/vis").TrainwebCurves} */ (document.querySelector("trainweb-curves"));
    curves.hidden = false;
    curves.clear();
    const history = await curves.watch(made.fit(training, {
      epochs: EPOCHS,
      batchSize: Math.min(BATCH, count),
      remainder: "drop",
      validationData: validation,
      schedule: { type: "Constant", learningRate: LEARNING_RATE },
    }));
    const { loss, validation: values } = /** @type {import("trainweb").EpochEvent} */ (history.epochs.at(-1));
    told.textContent = `${count} rows: training loss ${loss.toPrecision(3)}, validation loss ${Number(values?.["loss"]).toPrecision(3)}.`;
    saveButton.hidden = false;
  } catch (error) {
    if (session === made) {
      told.textContent = messageOf(error);
    }
  } finally {
    fitButton.disabled &&= session !== made;
  }
}

/** Open a model of the examples, which lie beside this page. @param {DOMStringMap} chosen */
async function openSample({ model = "", table }) {
  const addresses = [`models/${model}.onnx`, ...(table === undefined ? [] : [`data/${table}.csv`])];
  const files = await Promise.all(addresses.map(async (address) => {
    const response = await fetch(`../examples/${address}`);
    if (!response.ok) {
      throw new Error(`${response.url}: ${response.status}`);
    }
    return new File([await response.blob()], address.split("/")[1] ?? "");
  }));
  await open(files);
}

const KERNEL_MEMORY = ["parameters", "gradients", "moments", "arena", "prepared", "plans"];

/**
 * Times of steps in milliseconds; the parameters are as before.
 *
 * @param {TrainingSession} made
 * @param {Record<string, Tensor>} feeds
 */
async function measure(made, feeds) {
  const before = await made.getContiguousParameters();
  const times = [];
  await step(made, feeds);
  const end = performance.now() + MEASURED_MS;
  while (times.length < MOST_MEASURED && (times.length === 0 || performance.now() < end)) {
    const start = performance.now();
    await step(made, feeds);
    times.push(performance.now() - start);
  }
  await made.loadParametersBuffer(/** @type {Float32Array} */ (before.data));
  return times;
}

/** @param {TrainingSession} made @param {Record<string, Tensor>} feeds */
async function step(made, feeds) {
  const loss = /** @type {string} */ (made.trainingOutputNames[0]);
  const results = await made.runTrainStep(feeds, [loss]);
  await made.runOptimizerStep();
  await made.lazyResetGrad();
  return Number(results[loss]?.data[0]);
}

/** Numbers like a normal distribution's; integers are 0 and 1, which are labels and indices of most models. @param {ModelReport} found */
function randomFeeds(found) {
  return Object.fromEntries(found.feeds.map(({ name, dtype, shape }) => {
    const size = shape.reduce((a, b) => a * b, 1);
    const isFloat = dtype.startsWith("float") || dtype === "bfloat16";
    const values = Array.from({ length: size }, () => (isFloat ? normal() : Math.random() < 0.5 ? 0 : 1));
    return [name, tensorOf(dtype, values, shape)];
  }));
}

function normal() {
  return Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random());
}

/** @param {string} dtype @param {number[]} values @param {readonly number[]} shape @returns {Tensor} */
function tensorOf(dtype, values, shape) {
  if (dtype === "bfloat16") {
    return new Tensor("uint16", Uint16Array.from(new Uint32Array(Float32Array.from(values).buffer), (bits) => bits >>> 16), shape);
  }
  return dtype.endsWith("int64")
    ? new Tensor(/** @type {"int64"} */ (dtype), values.map(BigInt), shape)
    : new Tensor(/** @type {"float32"} */ (dtype), values, shape);
}

async function train() {
  const [made, found, turn] = [session, report, asked];
  if (made === null || found === null) {
    return;
  }
  trainButton.disabled = true;
  try {
    /** @type {number[]} */
    const losses = [];
    const feeds = randomFeeds(found);
    while (losses.length < STEPS && turn === asked) {
      losses.push(await step(made, feeds));
      showCurve(losses);
    }
    saveButton.hidden = turn !== asked;
  } catch (error) {
    if (turn === asked) {
      showVerdict(messageOf(error), "bad");
    }
  } finally {
    trainButton.disabled &&= session !== made;
  }
}

async function save() {
  if (session === null || report === null || given === null) {
    return;
  }
  const names = report.outputs.map(({ name }) => name);
  const trained = await session.exportModelForInferencing(names, { as: "blob" });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(trained);
  link.download = given.model.name.replace(/\.(onnx|ort)$/, "") + ".trained.onnx";
  link.click();
  URL.revokeObjectURL(link.href);
}

/** Ask again, with the values of the form. */
function change() {
  const inputs = [...element("dims", "span").querySelectorAll("input")];
  const dims = Object.fromEntries(inputs.filter(({ value }) => value !== "").map(({ name, value }) => [name, Number(value)]));
  void look(dims, lossSelect.value);
}

/** @param {unknown} error */
function messageOf(error) {
  return error instanceof Error ? error.message : String(error);
}

fillSelect(optimizerSelect, OPTIMIZERS, "AdamW");
const [drop, input] = [element("drop", "div"), element("file", "input")];
input.addEventListener("change", () => void open([...(input.files ?? [])]));
for (const name of ["dragenter", "dragover"]) {
  drop.addEventListener(name, (event) => {
    event.preventDefault();
    drop.classList.add("over");
  });
}
for (const name of ["dragleave", "drop"]) {
  drop.addEventListener(name, () => drop.classList.remove("over"));
}
drop.addEventListener("drop", (event) => {
  event.preventDefault();
  void open([...(event.dataTransfer?.files ?? [])]);
});
element("settings", "form").addEventListener("change", change);
element("settings", "form").addEventListener("submit", (event) => event.preventDefault());
targetSelect.addEventListener("change", () => void (report !== null && showCode(report)));
trainButton.addEventListener("click", () => void train());
fitButton.addEventListener("click", () => void fitTable());
for (const button of element("samples", "p").querySelectorAll("button")) {
  button.addEventListener("click", () => {
    openSample(button.dataset).catch((error) => showVerdict(messageOf(error), "bad"));
  });
}
saveButton.addEventListener("click", () => void save());
for (const button of document.querySelectorAll("button[data-copies]")) {
  button.addEventListener("click", () => {
    const code = element(/** @type {HTMLElement} */ (button).dataset["copies"] ?? "", "code");
    void navigator.clipboard.writeText(code.textContent ?? "");
  });
}
