// @ts-check
/** The page's views. Texts of files go into the page as text, never as HTML. */

/** @import { ModelReport } from "trainweb" */

/**
 * The element of this id.
 *
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {string} id
 * @param {Tag} tag
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function element(id, tag) {
  const found = document.getElementById(id);
  if (found?.localName !== tag) {
    throw new Error(`The page has no <${tag} id="${id}">.`);
  }
  return /** @type {HTMLElementTagNameMap[Tag]} */ (found);
}

/**
 * @param {string} tag
 * @param {(Node | string)[]} children
 * @returns {HTMLElement}
 */
export function make(tag, ...children) {
  const made = document.createElement(tag);
  made.append(...children);
  return made;
}

/**
 * @param {HTMLTableElement} table
 * @param {string[]} titles
 * @param {string[][]} rows
 */
export function fillTable(table, titles, rows) {
  const head = make("thead", make("tr", ...titles.map((title) => {
    const cell = make("th", title);
    cell.setAttribute("scope", "col");
    return cell;
  })));
  const body = make("tbody", ...rows.map(([first = "", ...others]) => {
    const name = make("th", first);
    name.setAttribute("scope", "row");
    return make("tr", name, ...others.map((text) => make("td", text)));
  }));
  table.replaceChildren(head, body);
}

/**
 * @param {HTMLSelectElement} select
 * @param {readonly string[]} names
 * @param {string} chosen
 */
export function fillSelect(select, names, chosen) {
  select.replaceChildren(...names.map((name) => new Option(name, name, name === chosen, name === chosen)));
}

/** A verdict of more letters is an explanation, and is written smaller. */
const LONG = 80;

/**
 * @param {string} text
 * @param {"good" | "bad" | ""} kind
 * @param {string} reason - in smaller letters below
 */
export function showVerdict(text, kind, reason = "") {
  const below = element("reason", "p");
  below.hidden = reason === "";
  below.textContent = reason;
  const verdict = element("verdict", "p");
  verdict.hidden = text === "";
  verdict.textContent = text;
  verdict.className = `verdict ${kind} ${text.length > LONG ? "long" : ""}`;
}

/** @param {readonly (number | string | null)[] | null} dims */
function dimsText(dims) {
  return dims === null ? "any" : `[${dims.map((dim) => dim ?? "?").join(", ")}]`;
}

/** @param {ModelReport} report */
export function showReport(report) {
  element("report", "section").hidden = false;
  const problems = [
    ...report.unsupported.map(({ op, nodes, message }) => `${op} cannot be executed (${nodes.join(", ")}): ${message}`),
    ...report.missingGradients.map(({ op, nodes, message }) => `${op} has no gradient (${nodes.join(", ")}): ${message}`),
    ...[report.missingLoss, report.error, report.precision, report.untold].filter((text) => text !== null),
    ...report.refined,
    ...report.remarks,
  ];
  const list = make("ul", ...problems.map((text) => make("li", text)));
  element("problems", "div").replaceChildren(...(problems.length > 0 ? [make("h2", "Problems and notes"), list] : []));
  fillTable(element("values", "table"), ["name", "kind", "type", "dims"], [
    ...report.inputs.map(({ name, dtype, dims }) => [name, "input", dtype, dimsText(dims)]),
    ...report.outputs.map(({ name, dtype, dims }) => [name, "output", dtype, dimsText(dims)]),
  ]);
  const counts = Object.entries(report.operators).map(([name, count]) => `${name} ${count}`);
  element("operators", "p").textContent = counts.join(", ") || "None.";
  showParameters(report);
}

/** @param {ModelReport} report */
function showParameters({ trained, leftOut, doubtful, trainable, frozen }) {
  const elements = Object.values(trainable).reduce((sum, dims) => sum + dims.reduce((a, b) => a * b, 1), 0);
  const [count, others] = [Object.keys(trainable).length, Object.keys(frozen).length];
  element("parameter-count", "p").textContent =
    `${count} tensors with ${elements.toLocaleString("en")} numbers train, ${others} are kept as they are.`;
  /** @param {string} name */
  const dimsOf = (name) => dimsText(trainable[name] ?? frozen[name] ?? []);
  fillTable(element("parameters", "table"), ["name", "dims", "trains", "reason"], [
    ...trained.map(({ name, reason }) => [name, dimsOf(name), "yes", reason]),
    ...doubtful.map(({ name, trained: is, reason }) => [name, dimsOf(name), is ? "yes, in doubt" : "no, in doubt", reason]),
    ...leftOut.map(({ name, reason }) => [name, dimsOf(name), "no", reason]),
  ]);
}

/** @param {[string, string][]} costs */
export function showCosts(costs) {
  element("costs", "dl").replaceChildren(...costs.flatMap(([what, text]) => [make("dt", what), make("dd", text)]));
}

/** @param {readonly number[]} losses */
export function showCurve(losses) {
  element("curve", "figure").hidden = losses.length === 0;
  const [low, high] = [Math.min(...losses), Math.max(...losses)];
  const points = losses.map((loss, k) => {
    const x = (400 * k) / Math.max(losses.length - 1, 1);
    return `${x.toFixed(1)},${(115 - (110 * (loss - low)) / (high - low || 1)).toFixed(1)}`;
  });
  document.getElementById("line")?.setAttribute("points", points.join(" "));
  const [first = 0, last = 0] = [losses[0], losses.at(-1)];
  element("course", "figcaption").textContent = losses.length === 0 ? ""
    : `Step ${losses.length}: loss ${last.toPrecision(4)}, ${first.toPrecision(4)} at first. The batch is random and always the same.`;
}
