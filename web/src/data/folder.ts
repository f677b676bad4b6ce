/** The files of a folder that has a folder for each class; `list_folder` of trainweb/data/images.py is the same in Python. */

import { SHOWN_FILES } from "../wire/constants.js";
import { areTexts, isObject } from "../wire/kinds.js";
import { refuseIf, sessionError, warnIf } from "../wire/messages.js";
import { describe, refuseSettingIf } from "./checks.js";
import { checkOptions } from "./nearest.js";

/**
 * A folder: a handle (`showDirectoryPicker()`, or `navigator.storage.getDirectory()` for the browser's private files), or the
 * files of an `<input type="file" webkitdirectory>`, whose outermost folder is the folder.
 */
export type FolderSource = FileSystemDirectoryHandle | Iterable<File>;

/** The contents of a folder. */
export interface ListedFolder {
  /** By class and name. */
  readonly files: readonly File[];
  /** For each file the place of its class. */
  readonly labels: BigInt64Array<ArrayBuffer>;
  /** The folders in the order of their labels. */
  readonly classes: readonly string[];
}

/** A file of a folder. */
export interface Listed {
  /** Folders and name, from the folder on. */
  readonly path: readonly string[];
  readonly file: File;
}

/** Classes of labels, by the arrays that have them. */
export const CLASSES = new WeakMap<object, readonly string[]>();
/** Names of folders that are parts of the data, each with a folder for each class. */
const PART = /^(train(ing)?|val(id|idation)?|test(ing)?|dev)$/iu;
/** Names of pictures: an ending of theirs, or none. */
const PICTURE = /^[^.]*$|\.(apng|avif|bmp|gif|heic|heif|ico|jfif|jpe|jpeg|jpg|pjp|pjpeg|png|tif|tiff|webp)$/iu;

/**
 * List the files of a folder that has a folder for each class. Hidden files, and files that are no pictures by
 * their names, are left out with a notice. Files of an input may all be in one part of its folder, such as "train".
 *
 * @param options - `classes`: the folders in the order of their labels, with a notice of those without pictures; by default all, by name.
 * @throws FeedError when there is no picture, one is in the folder of no class, or a folder is a part of the data, such as "train"
 */
export async function listFolder(
  source: FolderSource,
  options: { readonly classes?: readonly string[] } = {},
): Promise<ListedFolder> {
  const { classes } = checkOptions("listFolder", options, { classes: true });
  refuseSettingIf(classes !== undefined && !areTexts(classes), "classes", classes, "an array of names");
  const found = await folderFiles(source);
  const all = [...(isHandle(source) ? found : withoutPart(found, classes))].sort(byPath);
  const files = all.filter(isPicture);
  const others = all.filter((one) => !isPicture(one)).map(({ path }) => path.join("/"));
  warnIf(others.length > 0, "NOT_PICTURES", { count: others.length, names: others.slice(0, SHOWN_FILES).join(", ") });
  refuseIf(files.length === 0, "NO_PICTURES");
  const lost = files.find(({ path }) => path.length === 1);
  refuseIf(lost !== undefined, "FILE_WITHOUT_CLASS", { file: lost?.file.name });
  const folders = [...new Set(files.map(({ path }) => path[0] as string))];
  const parts = files.filter(({ path }) => path.length > 2 && PART.test(path[0] as string));
  if (classes === undefined && parts.length > 0) {
    const [parents, deeper] = [0, 1].map((k) => [...new Set(parts.map(({ path }) => path[k] as string))]) as [string[], string[]];
    throw sessionError("PARTS_OF_DATA", { names: parents.join(", "), deeper: deeper.slice(0, SHOWN_FILES).join(", ") });
  }
  const inFolders = all.filter(({ path }) => path.length > 1 && !path[0]?.startsWith("."));
  const there = [...inFolders.map(({ path }) => path[0] as string), ...(isHandle(source) ? await foldersIn(source) : [])];
  const names = [...(classes ?? folders)];
  const stray = folders.find((folder) => !names.includes(folder));
  refuseIf(stray !== undefined, "FOLDER_WITHOUT_CLASS", { folder: stray, names: names.join(", ") });
  const emptyFolders = [...new Set(there)].sort().filter((folder) => !names.includes(folder));
  const emptyClasses = names.filter((name) => !folders.includes(name));
  warnIf(emptyClasses.length > 0, "EMPTY_CLASSES", { names: emptyClasses.join(", ") });
  warnIf(emptyFolders.length > 0, "EMPTY_FOLDERS", { names: emptyFolders.join(", ") });
  const labels = BigInt64Array.from(files, ({ path }) => BigInt(names.indexOf(path[0] as string)));
  CLASSES.set(labels, names);
  return { files: files.map(({ file }) => file), labels, classes: names };
}

/** The files of one part of the data, as of "photographs/train/cat/1.png", in this part. */
function withoutPart(files: readonly Listed[], classes: readonly string[] = []): readonly Listed[] {
  const part = files[0]?.path[0] as string;
  const isPart = PART.test(part) && !classes.includes(part) && files.every(({ path }) => path[0] === part);
  return isPart && files.some(({ path }) => path.length > 2) ? files.map(({ path, file }) => ({ path: path.slice(1), file })) : files;
}

function isPicture({ path }: Listed): boolean {
  return !path.some((part) => part.startsWith(".")) && PICTURE.test(path.at(-1) as string);
}

/**
 * All files of a folder.
 *
 * @throws ModelError when it is not a folder
 */
export async function folderFiles(source: FolderSource): Promise<readonly Listed[]> {
  const isFolder = isObject(source) && (isHandle(source) || Symbol.iterator in source);
  refuseSettingIf(!isFolder, "source", source, "a folder, as of showDirectoryPicker, or its files");
  return isHandle(source) ? listed(source, []) : [...source].map(pathOf);
}

function isHandle(source: object): source is FileSystemDirectoryHandle {
  return (source as Partial<FileSystemDirectoryHandle>).kind === "directory";
}

async function foldersIn(folder: FileSystemDirectoryHandle): Promise<string[]> {
  const names: string[] = [];
  for await (const { kind, name } of folder.values()) {
    names.push(...(kind === "directory" && !name.startsWith(".") ? [name] : []));
  }
  return names;
}

async function listed(folder: FileSystemDirectoryHandle, above: readonly string[]): Promise<Listed[]> {
  const files: Listed[] = [];
  for await (const handle of folder.values()) {
    const path = [...above, handle.name];
    if (handle.kind === "directory") {
      files.push(...(await listed(handle as FileSystemDirectoryHandle, path)));
    } else {
      files.push({ path, file: await (handle as FileSystemFileHandle).getFile() });
    }
  }
  return files;
}

/** The path of an input's file, without the chosen folder. */
function pathOf(file: File): Listed {
  refuseIf(!(file instanceof File), "NOT_A_DATASET", { actual: describe(file) });
  const path = file.webkitRelativePath.split("/").slice(1);
  return { path: path.length > 0 ? path : [file.name], file };
}

/** Folder by folder, each name by its UTF-16. */
function byPath({ path: a }: Listed, { path: b }: Listed): number {
  const k = a.findIndex((part, place) => part !== b[place]);
  const [one, other] = k < 0 ? [a.length, b.length] : [a[k] as string, b[k] ?? ""];
  return one < other ? -1 : Number(one > other);
}
