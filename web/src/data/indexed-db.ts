/** Rows that a page keeps in IndexedDB. */

import { FeedError } from "../wire/errors.js";
import { refuseSettingIf } from "./checks.js";
import { checkKnown } from "./nearest.js";

/** Values that are fetched at once: a transaction cannot wait for the steps of a fit. */
const CHUNK = 256;

/** The object store that holds the rows. */
export interface ObjectStoreSource {
  /** Name of the database, which must be there. */
  readonly database: string;
  /** Name of the object store. */
  readonly store: string;
}

/**
 * Read the values of an object store in the order of their keys, as rows. `new Dataset(() => readObjectStore(...))`
 * reads them again in each epoch. Rows are fetched in parts, so rows that are written meanwhile behind the current key
 * are read, too.
 *
 * @throws FeedError when the database or store does not exist
 */
export async function* readObjectStore(source: ObjectStoreSource): AsyncGenerator<object> {
  for (const name of ["database", "store"] as const) {
    refuseSettingIf(typeof source?.[name] !== "string", name, source?.[name], "a name");
  }
  checkKnown("The setting of readObjectStore", source, ["database", "store"]);
  const database = await open(source.database);
  try {
    if (!database.objectStoreNames.contains(source.store)) {
      const names = [...database.objectStoreNames].join(", ");
      throw new FeedError(`the database '${source.database}' has no object store '${source.store}'; it has ${names || "none"}.`);
    }
    let range: IDBKeyRange | null = null;
    for (;;) {
      const [keys, values] = await chunk(database, source.store, range);
      yield* values;
      if (keys.length < CHUNK) {
        return;
      }
      range = IDBKeyRange.lowerBound(keys.at(-1), true);
    }
  } finally {
    database.close();
  }
}

function chunk(
  database: IDBDatabase,
  store: string,
  range: IDBKeyRange | null,
): Promise<readonly [readonly IDBValidKey[], readonly object[]]> {
  return new Promise((resolve, reject) => {
    const transaction = database.transaction(store, "readonly");
    const objects = transaction.objectStore(store);
    const keys = objects.getAllKeys(range, CHUNK);
    const values = objects.getAll(range, CHUNK);
    transaction.oncomplete = () => resolve([keys.result, values.result as object[]]);
    transaction.onabort = () => reject(transaction.error as Error);
  });
}

/** The database, if it is there: to open another one would make it. */
function open(name: string): Promise<IDBDatabase> {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open(name);
    let isNew = false;
    request.onupgradeneeded = () => {
      isNew = true;
      request.transaction?.abort();
    };
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => {
      reject(isNew ? new FeedError(`there is no database '${name}'.`) : (request.error as Error));
    };
  });
}
