/** Progress of downloads. The worker fetches most files, and reports to the page. */

export interface FileProgress {
  readonly url: string;
  /** Bytes of its body so far; of a script, which the browser loads itself, nothing is known before its end. */
  readonly loaded: number;
  readonly isDone: boolean;
}

let listener: ((progress: FileProgress) => void) | null = null;

/** Report the progress of all files of this thread. */
export function followFiles(tell: (progress: FileProgress) => void): void {
  listener = tell;
}

export function tellProgress(url: string, loaded: number, isDone: boolean): void {
  listener?.({ url, loaded, isDone });
}
