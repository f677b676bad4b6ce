// @ts-check
/** A CSV file as data of a model: one column to predict, the others in the order of the file as its input. */

import { Dataset, readCsv } from "trainweb";

/** @import { ModelReport } from "trainweb" */

/** Share of the rows that is not trained on. */
const VALIDATION = 0.2;

/** The fields of a line. @param {string} line */
function fieldsOf(line) {
  const found = line.matchAll(/(?:^|,)(?:"((?:[^"]|"")*)"|([^,]*))/g);
  return Array.from(found, ([, quoted, plain]) => quoted?.replaceAll('""', '"') ?? plain ?? "");
}

/** The names of the columns. @param {File} file */
export async function headerOf(file) {
  const [line = ""] = (await file.text()).replace(/^\uFEFF/, "").split(/\r?\n/, 1);
  return fieldsOf(line);
}

/** Values of a column, each once, in the order of numbers or letters. @param {File} file @param {number} column */
async function valuesOf(file, column) {
  const lines = (await file.text()).split(/\r?\n/).slice(1).filter((line) => line !== "");
  const values = [...new Set(lines.map((line) => fieldsOf(line)[column] ?? ""))];
  return values.sort((a, b) => Number(a) - Number(b) || a.localeCompare(b));
}

/**
 * The code of the report, with the table in the place of zeros.
 *
 * @param {ModelReport} report
 * @param {File} file
 * @param {string} target - the column to predict
 * @param {boolean} isClasses - its values are names of classes
 * @returns {Promise<ModelReport["code"]>}
 */
export async function codeOnTable({ code, feeds }, file, target, isClasses) {
  const [input, label] = feeds;
  if (input === undefined || label === undefined || code.javascript === undefined || code.python === undefined) {
    return code;
  }
  const names = await headerOf(file);
  /** @param {string} text */
  const quote = (text) => JSON.stringify(text);
  const columns = names.filter((name) => name !== target).map(quote).join(", ");
  const chosen = isClasses || label.shape.length === 1 ? quote(target) : `[${quote(target)}]`;
  const read = `{\n  ${quote(input.name)}: [${columns}],\n  ${quote(label.name)}: ${chosen},\n}`;
  const classes = isClasses ? `{ ${quote(label.name)}: [${(await valuesOf(file, names.indexOf(target))).map(quote).join(", ")}] }` : "";
  const javascript = [
    `const file = await fetch(${quote(file.name)}); // or a File`,
    `const columns = ${read};`,
    `const rows = await readCsv(file, columns${isClasses ? `, { classes: ${classes} }` : ""});`,
    `const feeds = rows.standardize(${quote(input.name)});`,
  ];
  const python = [
    `columns = ${read}`,
    `rows = trainweb.data.from_csv(${quote(file.name)}, columns${isClasses ? `, classes=${classes}` : ""})`,
    `feeds = rows.standardize(${quote(input.name)})`,
  ];
  return {
    javascript: code.javascript.replace("{ Tensor,", "{ readCsv,")
      .replace(/const feeds = \{[^]*?\n\};/, () => javascript.join("\n")),
    python: code.python.replace("import numpy as np\n", "").replace(/feeds = \{[^]*?\n\}/, () => python.join("\n")),
  };
}

/**
 * The rows as the session takes them.
 *
 * @param {File} file
 * @param {ModelReport} report
 * @param {string} target - the column to predict
 * @param {boolean} isClasses - its values are names of classes
 * @returns {Promise<{ training: Dataset, validation: Dataset, count: number }>}
 * @throws {Error} when the model has other inputs than a row of numbers
 */
export async function readTable(file, report, target, isClasses) {
  const [input, label, ...others] = report.feeds;
  const width = input?.shape[1] ?? NaN;
  if (input === undefined || label === undefined || others.length > 0 || input.shape.length !== 2 || input.dtype !== "float32") {
    throw new Error("A table needs a model with one float32 input [batch, columns] and one target. This model takes "
      + `${report.feeds.map(({ name, dtype, shape }) => `${name} ${dtype}[${shape.join(", ")}]`).join(", ")}.`);
  }
  const names = await headerOf(file);
  const columns = names.filter((name) => name !== target);
  if (columns.length !== width) {
    throw new Error(`${file.name} has ${columns.length} columns besides '${target}', and '${input.name}' takes ${width}.`);
  }
  const classes = isClasses ? { classes: { target: await valuesOf(file, names.indexOf(target)) } } : {};
  const { columns: read } = await readCsv(file, { features: columns, target }, classes);
  const { features, target: values } = Object.fromEntries(read ?? []);
  if (features === undefined || values === undefined) {
    throw new Error(`${file.name} has no rows.`);
  }
  const [count = 0] = features.dims;
  const labels = isClasses ? values : values.reshape([count, ...label.shape.slice(1)]);
  const [first, validation] = new Dataset({ [input.name]: features, [label.name]: labels }).split(VALIDATION, { seed: 1 });
  const training = first.standardize(input.name);
  return { training, validation: validation.preprocess(training.preprocessing), count };
}
