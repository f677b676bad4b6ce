/** CSV files as data; trainweb/data/files.py is the same in Python. */

import { dsvFormat } from "d3-dsv";
import { Tensor } from "onnxruntime-common";

import { FALSE, MISSING_NUMBERS, OTHERS, TREATMENTS, TRUE } from "../wire/constants.js";
import { areTexts, isRecord } from "../wire/kinds.js";
import { raise, refuseIf, sessionError } from "../wire/messages.js";
import { FeedError, shortened } from "../wire/errors.js";
import { messageOf } from "../wire/fetch-file.js";
import { otherPlatform } from "../wire/platform.js";
import { badSetting, describe, mustBe, refuseSettingIf } from "./checks.js";
import { checkOptions } from "./nearest.js";

const DTYPES = ["float32", "float64", "int64", "int32", "uint8", "bool", "string"] as const;
/** Types that values of a CSV file may become. */
export type CsvDtype = (typeof DTYPES)[number];

/** Options of `readCsv`. */
export interface CsvOptions {
  /**
   * Types of inputs. Default: float32, and int64 for inputs with `classes`. Text is "string", which `oneHot` and
   * `categories` of `Dataset` make numbers of.
   */
  readonly dtypes?: Readonly<Record<string, CsvDtype>>;
  /** Between values: one character; a comma. */
  readonly delimiter?: string;
  /** Before the decimals of a number: a point (default) or a comma. */
  readonly decimal?: "." | ",";
  /** Names of the classes of an input; a value becomes the index of its name. */
  readonly classes?: Readonly<Record<string, readonly string[]>>;
  /**
   * Treatment of missing values: raise an error (default), drop their rows, use NaN, or use a value for each
   * column. `{ "*": "keep", colour: "none" }` uses NaN in all other columns. A value is missing if it is empty; a number also if it is NA, N/A, NaN, null or ?, in any case. "keep"
   * needs
   * inputs of floats, which `fillMean` and `fillMedian` of `Dataset` fill.
   */
  readonly missing?: "error" | "drop" | "keep" | Readonly<Record<string, string | number | bigint | boolean>>;
}

const NUMBER = /^[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?$/i;
const WITH_UNIT = /^[+-]?\d[\d.,]{0,20} ?[^\s\d.,:/"'-]+$/;
/** Most digits of an integer, the same as in Python. */
const MOST_DIGITS = 4300;
const INTEGER = /^[+-]?\d+$/;
const POINT = ".";
/** Characters shown of a text that is not a file. */
const SHOWN = { head: 80, tail: 0 };
const LINE_END = /\r\n|\n|\r/g;
const RANGES: Readonly<Record<string, readonly [bigint, bigint]>> = {
  int64: [-(2n ** 63n), 2n ** 63n - 1n],
  int32: [-(2n ** 31n), 2n ** 31n - 1n],
  uint8: [0n, 255n],
};

/** Source of `readCsv`. */
export type CsvSource = string | Blob | Response;

/** For each input of the model its column (one value a row), or several, which become a vector. */
export type CsvColumns = Readonly<Record<string, string | readonly string[]>>;

/** Tensors of a CSV file; `readCsv` says more. */
export async function readColumns(
  source: CsvSource,
  columns: CsvColumns,
  options: CsvOptions,
): Promise<Record<string, Tensor>> {
  const known = { dtypes: true, delimiter: true, classes: true, missing: true, decimal: true } as const;
  const { dtypes = {}, delimiter = ",", classes = {}, missing = "error", decimal = POINT } = checkOptions("readCsv", options, known);
  if (typeof delimiter !== "string" || !/^[^"\r\n]$/.test(delimiter)) {
    throw badSetting("delimiter", delimiter, "one character, and neither a quote nor the end of a line");
  }
  refuseSettingIf(![POINT, ","].includes(decimal), "decimal", decimal, "a point or a comma");
  const labels = new Map(
    Object.entries(checkObject("classes", classes)).map(([name, names]) => {
      const places = checkTexts(`classes['${name}']`, names).map((label, k) => [label, k] as const);
      return [name, new Map(places.reverse())]; // the first place of each name
    }),
  );
  const inputs = Object.entries(checkObject("columns", columns)).map(([name, columnNames]): Input => {
    const dtype = dtypes[name] ?? (name in classes ? "int64" : "float32");
    const wanted = typeof columnNames === "string" ? [columnNames] : checkTexts(`columns['${name}']`, columnNames);
    refuseSettingIf(wanted.length === 0, `columns['${name}']`, columnNames, "a column, or several");
    return { name, dtype, classes: labels.get(name) ?? null, wanted, isVector: typeof columnNames !== "string" };
  });
  for (const name of [...Object.keys(checkObject("dtypes", dtypes)), ...Object.keys(classes)]) {
    refuseIf(!(name in columns), "CSV_INPUT", { name, names: Object.keys(columns).join(", ") });
  }
  for (const [name, dtype] of Object.entries(dtypes)) {
    refuseIf(!DTYPES.includes(dtype), "CSV_DTYPE", { name, dtype, names: DTYPES.join(", ") });
  }
  const { rest, fills } = treatmentOf(missing);
  const inputColumns = inputs.flatMap(({ wanted }) => wanted);
  for (const column of fills.keys()) {
    refuseIf(!inputColumns.includes(column), "CSV_FILL", { column, names: inputColumns.join(", ") });
  }
  return parseRows(await textOf(source), delimiter, inputs, { rest, fills, decimal });
}

async function textOf(source: CsvSource): Promise<string> {
  if (typeof source === "string") {
    if (source !== "" && !/[\r\n]/.test(source)) {
      const platform = otherPlatform();
      if (platform !== null) {
        return textOf(await platform.fetch(source).catch((error: unknown) => {
          throw new FeedError(`'source', '${shortened(source, SHOWN)}', could not be read: ${messageOf(error)}`);
        }));
      }
      throw new FeedError(
        `'source' is text of one line, '${shortened(source, SHOWN)}', and a CSV file has the names of its columns and rows. ` +
          "If it is a path or URL, give its contents: await fetch(url), or a Blob of the file.",
      );
    }
    return source;
  }
  mustBe(!(source instanceof Promise), "source", "awaited: await fetch(url)", source);
  refuseIf(typeof (source as Partial<Blob>)?.arrayBuffer !== "function", "NOT_A_DATASET", { actual: describe(source) });
  if ("ok" in source && !source.ok) {
    throw new FeedError(`the file was answered with HTTP status ${source.status}.`);
  }
  const bytes = await source.arrayBuffer();
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    throw new FeedError("the file is not a text in UTF-8: save it as such.");
  }
}

function checkObject<T extends object>(name: string, value: T): T {
  mustBe(isRecord(value), name, "an object", value);
  return value;
}

function checkTexts(name: string, value: readonly string[]): readonly string[] {
  mustBe(areTexts(value), name, "an array of strings", value);
  return value;
}

interface Input {
  readonly name: string;
  readonly dtype: CsvDtype;
  /** Names of classes and their places. */
  readonly classes: ReadonlyMap<string, number> | null;
  readonly wanted: readonly string[];
  readonly isVector: boolean;
}

type Value = number | bigint | string;

/**
 * Give `take` the rows of a text, and the line that each starts in. A blank line has no values.
 *
 * The parser reads wrong quotes somehow, and says nothing of places: where each value ends in the text tells both.
 */
function eachRow(source: string, delimiter: string, take: (values: readonly string[], line: number) => void): void {
  const text = source.replace(/^\ufeff/, "");
  const ends = `${delimiter}\r\n`;
  let [at, line] = [0, 1];
  // It parses by the first character alone; its regular expression for writing would be invalid for a sole "-".
  dsvFormat(`${delimiter}~`).parseRows(text, (values) => {
    const [start, first] = [at, line];
    for (const value of values) {
      const isQuoted = text[at] === '"';
      at += value.length + (isQuoted ? 2 + count(value, /"/g) : 0);
      if (isQuoted && (text[at - 1] !== '"' || !ends.includes(text.charAt(at)))) {
        throw sessionError("CSV_QUOTES", { line: first });
      }
      // Values between quotes may have several lines.
      line += isQuoted ? count(value, LINE_END) : 0;
      at++;
    }
    at += text[at - 1] === "\r" && text[at] === "\n" ? 1 : 0;
    line++;
    take(values.length === 1 && values[0] === "" && text[start] !== '"' ? [] : values, first);
    return null;
  });
}

function count(text: string, pattern: RegExp): number {
  return text.match(pattern)?.length ?? 0;
}

/** The use of missing values: texts that stand for them by column, and what happens in the other columns. */
interface Treatment {
  readonly rest: string;
  readonly fills: ReadonlyMap<string, string>;
  readonly decimal: string;
}

function treatmentOf(missing: NonNullable<CsvOptions["missing"]>): Omit<Treatment, "decimal"> {
  if (typeof missing === "string" && TREATMENTS.includes(missing)) {
    return { rest: missing, fills: new Map() };
  }
  refuseSettingIf(!isRecord(missing), "missing", missing, '"error", "drop", "keep", or a value for each column');
  const { [OTHERS]: rest = "error", ...columns } = missing as Readonly<Record<string, unknown>>;
  refuseSettingIf(!TREATMENTS.includes(rest as string), "missing['*']", rest, '"error", "drop" or "keep"');
  return { rest: rest as string, fills: new Map(Object.entries(columns).map(([column, value]) => [column, String(value)])) };
}

function isMissing(value: string, { dtype, classes }: Input): boolean {
  if (classes !== null || dtype === "string") {
    return value === "" && classes?.has("") !== true;
  }
  return MISSING_NUMBERS.includes(value.toLowerCase());
}

/** The places of the columns of each input. */
function findPlaces(header: readonly string[], inputs: readonly Input[], delimiter: string): readonly (readonly number[])[] {
  const placeOf = new Map(header.map((column, k) => [column, k]));
  const twice = new Set(header.filter((column, k) => placeOf.get(column) !== k));
  return inputs.map(({ wanted }) =>
    wanted.map((column) => {
      refuseIf(!placeOf.has(column) && header.length === 1, "CSV_DELIMITER", { column, names: header[0], delimiter });
      const place = placeOf.get(column) ?? raise("CSV_COLUMN", { column, names: header.join(", ") });
      refuseIf(twice.has(column), "CSV_COLUMN_TWICE", { column });
      return place;
    }),
  );
}

function parseRows(
  text: string,
  delimiter: string,
  inputs: readonly Input[],
  treatment: Treatment,
): Record<string, Tensor> {
  const { rest, fills } = treatment;
  const values = inputs.map((): Value[] => []);
  let header: readonly string[] | null = null;
  let places: readonly (readonly number[])[] = [];
  let rows = 0;
  eachRow(text, delimiter, (row, line) => {
    if (header === null) {
      refuseIf(row.length === 0, "EMPTY_DATASET");
      header = row;
      places = findPlaces(header, inputs, delimiter);
      return;
    }
    if (row.length === 0) {
      return;
    }
    refuseIf(row.length !== header.length, "CSV_RAGGED", { line, actual: row.length, expected: header.length });
    const texts = places.map((of) => of.map((place) => (row[place] as string).trim()));
    const isUnfilled = (value: string, input: Input, i: number): boolean =>
      isMissing(value, input) && !fills.has(input.wanted[i] as string);
    if (rest === "drop" && inputs.some((input, k) => texts[k]?.some((value, i) => isUnfilled(value, input, i)))) {
      return;
    }
    inputs.forEach((input, k) => {
      (texts[k] as string[]).forEach((value, i) => {
        const isKept = rest === "keep" && input.classes === null && input.dtype.startsWith("float") && isUnfilled(value, input, i);
        (values[k] as Value[]).push(isKept ? NaN : valueOf(value, input, line, input.wanted[i] as string, treatment));
      });
    });
    rows++;
  });
  refuseIf(rows === 0, "EMPTY_DATASET");
  const columns = inputs.map(({ name, dtype, wanted, isVector }, k) => {
    // The overloads of Tensor go by type; dtype and values agree by construction.
    return [name, new Tensor(dtype as "float32", values[k] as number[], isVector ? [rows, wanted.length] : [rows])] as const;
  });
  return Object.fromEntries(columns);
}

function valueOf(text: string, input: Input, line: number, column: string, { rest, fills, decimal }: Treatment): Value {
  const isGap = isMissing(text, input);
  const isText = input.classes !== null || input.dtype === "string";
  refuseIf(isGap && isText && rest === "keep" && !fills.has(column), "CSV_MISSING_TEXT", { line, column });
  const value = isGap ? (fills.get(column) ?? raise("CSV_MISSING", { line, column, value: text })) : text;
  return input.dtype === "string" && input.classes === null ? value : parse(value, input, line, column, isGap ? POINT : decimal);
}

function parse(value: string, { name, dtype, classes }: Input, line: number, column: string, decimal: string): number | bigint {
  if (classes !== null) {
    return classes.get(value) ?? raise("CSV_CLASS", { line, column, value, names: [...classes.keys()].reverse().join(", ") });
  }
  const lower = value.toLowerCase();
  if (dtype === "bool" && [...TRUE, ...FALSE].includes(lower)) {
    return Number(TRUE.includes(lower));
  }
  // With a decimal comma, a point is none.
  const text = decimal === POINT ? value : value.replace(/[.,]/g, (sign) => (sign === POINT ? "," : POINT));
  if (dtype.startsWith("float") && NUMBER.test(text)) {
    const number = Number(text);
    if (Number.isFinite(dtype === "float32" ? Math.fround(number) : number)) {
      return number;
    }
  }
  const range = RANGES[dtype];
  const digits = text.replace(/^[+-]/, "");
  if (range !== undefined && INTEGER.test(text) && digits.length <= MOST_DIGITS) {
    const number = BigInt(text.startsWith("-") ? text : digits);
    if (number >= range[0] && number <= range[1]) {
      return dtype === "int64" ? number : Number(number);
    }
  }
  refuseIf(dtype !== "bool" && !NUMBER.test(text), WITH_UNIT.test(value) ? "CSV_UNIT" : "CSV_TEXT", { line, column, value, name });
  throw sessionError("CSV_VALUE", { line, column, value, dtype });
}
