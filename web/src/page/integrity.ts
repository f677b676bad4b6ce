/** Hashes that files must have, as the attribute `integrity` of HTML gives them. */

import { brief } from "../data/nearest.js";
import { sha256 } from "../wire/sha256.js";
import { isObject } from "../wire/kinds.js";
import { throwIf } from "../wire/errors.js";

/** The files of a session. */
export type FileName = "trainModel" | "checkpointState" | "evalModel" | "optimizerModel" | "model" | "bundle";

const FILES: readonly string[] = [
  "trainModel",
  "checkpointState",
  "evalModel",
  "optimizerModel",
  "model",
  "bundle",
] satisfies FileName[];

/** From the weakest on: of several hashes only the strongest kind counts, as in HTML. */
const BYTES = { sha256: 32, sha384: 48, sha512: 64 } as const;

type Algorithm = keyof typeof BYTES;

interface Hash {
  readonly algorithm: Algorithm;
  readonly digest: string;
}

/** The option `integrity`, checked: hashes by files, or hashes of the only file by `ONLY`. */
export type Integrity = ReadonlyMap<string, readonly Hash[]>;

const ONLY = "";

/** @throws TypeError for a hash without one of the files of the call: it would protect nothing */
export function expectFiles(integrity: Integrity, files: readonly FileName[]): void {
  for (const name of integrity.keys()) {
    throwIf(name === ONLY && files.length !== 1, TypeError, `'integrity' must be an object with a hash for each of the files ${files.join(", ")}.`);
    throwIf(name !== ONLY && !files.includes(name as FileName), TypeError, `'integrity' has a hash of '${name}', which is not given; the files are ${files.join(", ")}.`);
  }
}

/** The hashes of which a file must have one; null if any bytes are allowed. */
export function hashesOf(integrity: Integrity, file: FileName): readonly Hash[] | null {
  return integrity.get(ONLY) ?? integrity.get(file) ?? null;
}

/** Read the option. @throws TypeError when it says nothing that could be checked */
export function checkIntegrity(value: unknown): Integrity {
  if (value === undefined || typeof value === "string") {
    return new Map(value === undefined ? [] : [[ONLY, parse("integrity", value)]]);
  }
  throwIf(!isObject(value), TypeError, "'integrity' must be a string, or an object of them by the names of files.");
  const entries = Object.entries(value as object).map(([name, text]: [string, unknown]) => {
    const file = name === "checkpoint" ? "checkpointState" : name;
    throwIf(!FILES.includes(file), TypeError, `'integrity.${brief(name)}' is not a file; there are ${FILES.join(", ")}.`);
    return [file, parse(`integrity.${name}`, text)] as const;
  });
  return new Map(entries);
}

function parse(name: string, text: unknown): Hash[] {
  const parts = typeof text === "string" ? text.split(/\s+/).filter((part) => part !== "") : [];
  throwIf(parts.length === 0, TypeError, `'${name}' must be a hash such as "sha256-..." in Base64.`);
  return parts.map((part) => parseHash(name, part));
}

function parseHash(name: string, part: string): Hash {
  const [, algorithm, text] = /^(sha256|sha384|sha512)-([A-Za-z0-9+/_-]+={0,2})(?:\?.*)?$/.exec(part) ?? [];
  const digest = text?.replaceAll("-", "+").replaceAll("_", "/");
  if (algorithm === undefined || digest === undefined || byteLength(digest) !== BYTES[algorithm as Algorithm]) {
    throw new TypeError(`'${name}' has "${brief(part)}", which is not a hash such as "sha256-..." in Base64.`);
  }
  return { algorithm: algorithm as Algorithm, digest };
}

function byteLength(base64: string): number {
  try {
    return atob(base64).length;
  } catch {
    return -1;
  }
}

/** Describe the fault of bytes that should have one of these hashes; null without a fault. */
export async function findFault(bytes: Uint8Array<ArrayBuffer>, hashes: readonly Hash[]): Promise<string | null> {
  const strongest = Math.max(...hashes.map(({ algorithm }) => BYTES[algorithm]));
  const wanted = hashes.filter(({ algorithm }) => BYTES[algorithm] === strongest);
  const algorithm = (wanted[0] as Hash).algorithm;
  const digest = await digestOf(algorithm, bytes);
  if (digest === null) {
    return `its ${algorithm} cannot be checked, since browsers hash with it in secure contexts alone; give its sha256`;
  }
  const actual = btoa(String.fromCharCode(...digest));
  return wanted.some((hash) => atob(hash.digest) === atob(actual))
    ? null
    : `its hash is ${algorithm}-${actual}, and integrity wants ${wanted.map((hash) => `${algorithm}-${hash.digest}`).join(" or ")}`;
}

async function digestOf(algorithm: Algorithm, bytes: Uint8Array<ArrayBuffer>): Promise<Uint8Array | null> {
  if (algorithm === "sha256") {
    return sha256(bytes);
  }
  const { subtle } = globalThis.crypto ?? {};
  return subtle === undefined
    ? null
    : new Uint8Array(await subtle.digest(algorithm.replace("sha", "SHA-"), bytes));
}
