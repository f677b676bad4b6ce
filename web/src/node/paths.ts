/** Paths of Windows in the file system of Pyodide, which has drives as folders. */

const DRIVE = /^[A-Za-z]:[\\/]/;
const STEP = /^\.\.?\\/;

/** A path of Windows as Pyodide has it; other words, such as patterns of names, as they are. */
export function posixPath(word: string, exists: (path: string) => boolean): string {
  const drive = DRIVE.test(word);
  if (!drive && !STEP.test(word) && !exists(word)) {
    return word;
  }
  return `${drive ? "/" : ""}${word.replaceAll("\\", "/")}`;
}
