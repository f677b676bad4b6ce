/** CSV files as data; trainweb/data/files.py is the same in Python. */

import { Tensor } from "onnxruntime-common";
import { dsvFormat } from "d3-dsv";

import { sessionError } from "../wire/messages.js";
import { describe } from "./given.js";
import { checkOptions } from "./nearest.js";

const DTYPES = ["float32", "float64", "int64", "int32", "uint8", "bool"] as const;
/** Types that values of a CSV file may become. */
export type CsvDtype = (typeof DTYPES)[number];

/** How a CSV file is read. */
export interface CsvOptions {
  /** Types of inputs: float32, unless given, and int64 for those with `classes`. */
  readonly dtypes?: Readonly<Record<string, CsvDtype>>;
  /** Between values; a comma. */
  readonly delimiter?: string;
  /** For inputs that are classes by name: the names; a value becomes the place of its name. */
  readonly classes?: Readonly<Record<string, readonly string[]>>;
}

const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;
const INTEGER = /^[+-]?\d+$/;
const TRUE = ["1", "true"];
const FALSE = ["0", "false"];
const RANGES: Readonly<Record<string, readonly [bigint, bigint]>> = {
  int64: [-(2n ** 63n), 2n ** 63n - 1n],
  int32: [-(2n ** 31n), 2n ** 31n - 1n],
  uint8: [0n, 255n],
};

/**
 * Tensors of a CSV file, whose first line has the names of the columns: what `fit` and `Dataset` take.
 *
 * @param source - the text, or a file
 * @param columns - for each input of the model the column it is made of (one value a row), or several, which become a vector
 * @throws FeedError for a column that the file does not have, or a value that is none of its type, named by line and column
 */
export async function readCsv(
  source: string | Blob | Response,
  columns: Readonly<Record<string, string | readonly string[]>>,
  options: CsvOptions = {},
): Promise<Record<string, Tensor>> {
  const known = { dtypes: true, delimiter: true, classes: true } as const;
  const { dtypes = {}, delimiter = ",", classes = {} } = checkOptions("readCsv", options, known);
  const inputs = Object.entries(columns).map(([name, given]): Input => {
    const dtype = dtypes[name] ?? (name in classes ? "int64" : "float32");
    const wanted = typeof given === "string" ? [given] : given;
    return { name, dtype, classes: classes[name] ?? null, wanted, isVector: typeof given !== "string" };
  });
  for (const [name, dtype] of Object.entries(dtypes)) {
    if (!(name in columns)) {
      throw sessionError("CSV_INPUT", { name, names: Object.keys(columns).join(", ") });
    }
    if (!DTYPES.includes(dtype)) {
      throw sessionError("CSV_DTYPE", { name, dtype, names: DTYPES.join(", ") });
    }
  }
  if (typeof source !== "string" && typeof (source as Partial<Blob>)?.text !== "function") {
    throw sessionError("NOT_A_DATASET", { given: describe(source) });
  }
  const text = typeof source === "string" ? source : await source.text();
  return parseRows(linesOf(text, delimiter), inputs);
}

interface Input {
  readonly name: string;
  readonly dtype: CsvDtype;
  readonly classes: readonly string[] | null;
  readonly wanted: readonly string[];
  readonly isVector: boolean;
}

/** A row, and the line that it starts in. */
interface Line {
  readonly line: number;
  readonly values: readonly string[];
}

function linesOf(text: string, delimiter: string): Line[] {
  let next = 1;
  return dsvFormat(delimiter).parseRows(text.replace(/^\ufeff/, ""), (values) => {
    const line = next;
    // Values between quotes may have several lines.
    next += 1 + values.reduce((sum, value) => sum + (value.match(/\r\n|\n|\r/g)?.length ?? 0), 0);
    return { line, values };
  });
}

function parseRows([first, ...lines]: readonly Line[], inputs: readonly Input[]): Record<string, Tensor> {
  const header = first?.values ?? [];
  if (header.length === 0 || header.join("") === "") {
    throw sessionError("EMPTY_DATASET", {});
  }
  const places = inputs.map(({ wanted }) =>
    wanted.map((column) => {
      const place = header.indexOf(column);
      if (place < 0) {
        throw sessionError("CSV_COLUMN", { column, names: header.join(", ") });
      }
      return place;
    }),
  );
  const values = inputs.map((): (number | bigint)[] => []);
  let rows = 0;
  for (const { line, values: row } of lines) {
    if (row.length === 1 && row[0] === "") {
      continue;
    }
    if (row.length !== header.length) {
      throw sessionError("CSV_RAGGED", { line, given: row.length, expected: header.length });
    }
    inputs.forEach((input, k) => {
      for (const place of places[k] as number[]) {
        (values[k] as (number | bigint)[]).push(parse(row[place] as string, input, line, header[place] as string));
      }
    });
    rows++;
  }
  if (rows === 0) {
    throw sessionError("EMPTY_DATASET", {});
  }
  return Object.fromEntries(
    inputs.map(({ name, dtype, wanted, isVector }, k) => {
      const data = arrayOf(dtype, values[k] as (number | bigint)[]);
      // The overloads of Tensor go by type; dtype and array agree by construction.
      return [name, new Tensor(dtype as "float32", data as Float32Array, isVector ? [rows, wanted.length] : [rows])];
    }),
  );
}

function arrayOf(dtype: CsvDtype, values: readonly (number | bigint)[]): ArrayBufferView {
  switch (dtype) {
    case "float32":
      return Float32Array.from(values, Number);
    case "float64":
      return Float64Array.from(values, Number);
    case "int64":
      return BigInt64Array.from(values, BigInt);
    case "int32":
      return Int32Array.from(values, Number);
    default:
      return Uint8Array.from(values, Number);
  }
}

function parse(text: string, { dtype, classes }: Input, line: number, column: string): number | bigint {
  const value = text.trim();
  if (classes !== null) {
    const place = classes.indexOf(value);
    if (place < 0) {
      throw sessionError("CSV_CLASS", { line, column, value, names: classes.join(", ") });
    }
    return place;
  }
  const lower = value.toLowerCase();
  if (dtype === "bool" && [...TRUE, ...FALSE].includes(lower)) {
    return Number(TRUE.includes(lower));
  }
  if (dtype.startsWith("float") && NUMBER.test(value)) {
    return Number(value);
  }
  const range = RANGES[dtype];
  if (range !== undefined && INTEGER.test(value)) {
    const number = BigInt(value.replace(/^\+/, ""));
    if (number >= range[0] && number <= range[1]) {
      return number;
    }
  }
  throw sessionError("CSV_VALUE", { line, column, value, dtype });
}
