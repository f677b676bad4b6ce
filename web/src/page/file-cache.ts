/**
 * Large files that were fetched, in this origin's private file system (OPFS), for the option `cache`. A file counts while
 * its server answers with the same ETag and Last-Modified. Behind its bytes it has a record with the hash of each piece.
 */

import { openFolder } from "../storage/slots.js";
import { throwIf } from "../wire/errors.js";
import { log } from "../wire/log.js";
import { sizeOf, type FileHashes, type Pieces } from "../wire/pieces.js";
import type { BridgeArguments, KnownHashes } from "../wire/protocol.js";
import { bytesOfHex, hasHashes, hexOf, sha256 } from "../wire/sha256.js";

const FOLDER = "trainweb";
const FOLDERS = [FOLDER, "files"];
/** Bytes of the number at the end of a file, which says how many the record before it has. */
const LENGTH_BYTES = 4;

/** Headers by which a server says that its file is another one. */
const VALIDATORS = ["ETag", "Last-Modified"];

interface FileRecord {
  readonly validators: readonly (string | null)[];
  readonly nbytes: number;
  readonly hashes: readonly string[];
}

/** Of files that are kept. */
const known = new WeakMap<object, FileHashes>();

/** The hashes of the files among some arguments for the worker, which names compiled sessions by them. */
export function knownHashes(args: BridgeArguments): KnownHashes {
  return args.filter((arg) => typeof arg !== "string").map((file) => known.get(file as object) ?? null);
}

function validatorsOf({ headers }: Response): FileRecord["validators"] {
  return VALIDATORS.map((name) => headers.get(name));
}

async function hashOf(text: string | Uint8Array): Promise<string> {
  return hexOf(await sha256(typeof text === "string" ? new TextEncoder().encode(text) : text));
}

/**
 * Find a file that was kept.
 *
 * @param response - the server's answer, of which only the headers are read
 * @param areChecked - false: the worker will check its bytes
 * @returns null: there is none, the server has another one, or it is damaged, which is logged
 */
export async function findKept(url: string, response: Response, areChecked: boolean): Promise<Blob | null> {
  let file: File;
  const name = await hashOf(url);
  try {
    file = await (await (await openFolder(FOLDERS)).getFileHandle(name)).getFile();
  } catch (error) {
    log("info", `${url} is not in the cache: ${String(error)}`);
    return null;
  }
  const contents = await readKept(file, validatorsOf(response), areChecked);
  if (contents === "damaged") {
    log("warning", `${url} is damaged in the cache, and is fetched again.`);
    return null;
  }
  return contents;
}

async function readKept(
  file: File,
  validators: FileRecord["validators"],
  areChecked: boolean,
): Promise<Blob | "damaged" | null> {
  try {
    const end = file.size - LENGTH_BYTES;
    const length = new DataView(await file.slice(Math.max(end, 0)).arrayBuffer()).getUint32(0, true);
    const record = JSON.parse(await file.slice(end - length, end).text()) as FileRecord;
    if (String(record.validators) !== String(validators)) {
      return null;
    }
    const data = file.slice(0, record.nbytes);
    const pieces = record.hashes.map(bytesOfHex);
    const isWhole = data.size === record.nbytes && record.nbytes === end - length;
    if (!isWhole || (areChecked && !(await hasHashes(data, pieces)))) {
      return "damaged";
    }
    known.set(data, { pieces, areChecked });
    return data;
  } catch {
    return "damaged";
  }
}

/** Keep a file. If that is impossible, a warning says why, and the next visit fetches it again. */
export async function keepFile(url: string, response: Response, pieces: Pieces): Promise<void> {
  try {
    const validators = validatorsOf(response);
    throwIf(validators.every((value) => value === null), Error, `its server sends neither ${VALIDATORS.join(" nor ")} (from another origin it must expose one)`);
    const nbytes = sizeOf(pieces);
    const hashes = await Promise.all(pieces.map(hashOf));
    known.set(pieces, { pieces: hashes.map(bytesOfHex), areChecked: true });
    const record = new TextEncoder().encode(JSON.stringify({ validators, nbytes, hashes } satisfies FileRecord));
    const length = new DataView(new ArrayBuffer(LENGTH_BYTES));
    length.setUint32(0, record.length, true);
    const folder = await openFolder(FOLDERS);
    await checkRoom(nbytes);
    const handle = await folder.getFileHandle(await hashOf(url), { create: true });
    const file = await handle.createWritable();
    try {
      for (const part of [...pieces, record, length.buffer]) {
        await file.write(part);
      }
    } catch (error) {
      await file.abort();
      throw error;
    }
    // The file is replaced as a whole, now.
    await file.close();
  } catch (error) {
    log("warning", `${url} is not kept, and the next visit fetches it again: ${String(error)}.`);
  }
}

async function checkRoom(nbytes: number): Promise<void> {
  const { quota = Infinity, usage = 0 } = await navigator.storage.estimate();
  throwIf(quota - usage < nbytes, Error, `it has ${nbytes} bytes, and the browser gives this origin ${quota - usage} more (clearCache() frees some)`);
}

/**
 * Empty the cache: files and compiled sessions that the option `cache` keeps. Checkpoints stay.
 *
 * @throws the errors of the storage
 */
export async function clearCache(): Promise<void> {
  for (const name of ["files", "bundles"]) {
    const folder = await openFolder([FOLDER, name]);
    for await (const entry of folder.keys()) {
      await folder.removeEntry(entry);
    }
  }
}
