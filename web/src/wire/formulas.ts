/** Formulas that Python declares, computed in float64 as `trainweb/formulas.py` does. */

import { EngineError } from "./errors.js";

/** A number, a name, or an operation with its operands: how a value follows from others (trainweb/formulas.py). */
export type Formula = number | string | readonly Formula[];
/** A number, or numbers: a number, or a row of one, goes with any row. */
export type Row = number | readonly number[];
type Assignments = readonly (readonly [string, Formula])[];

/** A value that follows from settings and observations; `Rule` of trainweb/formulas.py. */
export interface Rule {
  readonly value: Formula;
  /** First values of the state. */
  readonly state: Assignments;
  /** Assignments for each observation. */
  readonly observe: Assignments;
}

type Names = Readonly<Record<string, Row>>;

const OPERATIONS: Readonly<Record<string, (a: number, b: number, c: number) => number>> = {
  "+": (a, b) => a + b,
  "-": (a, b) => a - b,
  "*": (a, b) => a * b,
  "/": (a, b) => a / b,
  over: (a, b) => (b === 0 ? 0 : a / b),
  "=": (a, b) => Number(a === b),
  ">": (a, b) => Number(a > b),
  min: (a, b) => (b < a ? b : a),
  max: (a, b) => (b > a ? b : a),
  if: (condition, a, b) => (condition === 0 ? b : a),
  exp: Math.exp,
  pow: Math.pow,
  floor: Math.floor,
  cos: Math.cos,
};

/** A rule with its state. */
export class Course {
  readonly #rule: Rule;
  readonly #names: Record<string, number>;

  constructor(rule: Rule, settings: Readonly<Record<string, number>>) {
    this.#rule = rule;
    this.#names = { ...settings };
    this.#assign(rule.state);
  }

  #assign(assignments: Assignments): void {
    for (const [name, formula] of assignments) {
      this.#names[name] = numberOf(formula, this.#names);
    }
  }

  /** Change the state. */
  observe(observed: Readonly<Record<string, number>>): void {
    Object.assign(this.#names, observed);
    this.#assign(this.#rule.observe);
  }

  /** The value of the rule. */
  value(names: Readonly<Record<string, number>> = {}): number {
    return numberOf(this.#rule.value, { ...this.#names, ...names });
  }

  /** A setting, or a part of the state. */
  get(name: string): number {
    return numberOf(name, this.#names);
  }
}

/** The value of a formula that is one number. */
export function numberOf(formula: Formula, names: Names): number {
  const result = evaluated(formula, names);
  return typeof result === "number" ? result : (result[0] as number);
}

/** The value of a formula, a number or a row. */
export function evaluated(formula: Formula, names: Names): Row {
  if (typeof formula === "number") {
    return formula;
  }
  if (typeof formula === "string") {
    const row = Object.hasOwn(names, formula) ? names[formula] : undefined;
    if (row === undefined) {
      throw new EngineError(`a formula names '${formula}', which there is not.`);
    }
    return row;
  }
  const [name, ...operands] = formula;
  const operation = String(name);
  if (operation === "if") {
    const condition = evaluated(operands[0] as Formula, names);
    if (typeof condition === "number") {
      return evaluated(operands[condition === 0 ? 2 : 1] as Formula, names);
    }
  }
  const values = operands.map((operand) => evaluated(operand, names));
  if (operation === "sum" || operation === "size") {
    const row = values[0] as readonly number[];
    return operation === "sum" ? row.reduce((total, x) => total + x, 0) : row.length;
  }
  const compute = Object.hasOwn(OPERATIONS, operation) ? OPERATIONS[operation] : undefined;
  if (compute === undefined) {
    throw new EngineError(`formulas have no operation '${operation}'.`);
  }
  const rows = values.filter((row) => typeof row !== "number");
  const element = (row: Row | undefined, k: number): number =>
    (typeof row === "object" ? (row.length === 1 ? row[0] : row[k]) : row) ?? NaN;
  const at = (k: number): number => compute(element(values[0], k), element(values[1], k), element(values[2], k));
  return rows.length === 0 ? at(0) : Array.from({ length: Math.max(...rows.map((row) => row.length)) }, (_, k) => at(k));
}
