/** The worker's side of the lane. */

import { ANSWERED, ASKED, AWAY, CALL, look, OVERDUE, READY, SENT, STATE, STEP, TURN_MS } from "../wire/lane.js";
import type { Request, RunAnswer, Workspace } from "../wire/protocol.js";

/** The time that an answer by message takes to the page, and its next call back. */
const MESSAGE_MS = 0.1;
/** Steps that take longer gain little, and threads of the kernels need the cores. */
const SHORT_MS = 0.25;
/** After so many milliseconds the worker reads messages again, and serves its timers and stores. */
const LONGEST_MS = 10;
/** Fewer steps are not worth the look. After n such looks in sequence, all but one of 2 ** n are left out. */
const WORTHWHILE = 8;
const MOST_VAIN = 7;

/** Answers a request: by a message, unless `keep` takes the answer. Returns an answer that is there at once. */
type Answerer = (request: Request, keep?: (answer: unknown) => boolean) => unknown;

/** Requests that the page may ask for again. */
interface KnownStep {
  readonly requests: readonly Request[];
  /** Of the latest answer by message; undefined: the page knows no answer. */
  workspace: Workspace | undefined;
  /** Looks after such an answer that were not worthwhile, and looks to leave out. */
  vain: number;
  pause: number;
}

export class WorkerLane {
  readonly words = new Int32Array(new SharedArrayBuffer(16));
  readonly #steps = new Map<number, KnownStep>();
  readonly #answer: Answerer;
  readonly #reply: (id: number, answer: unknown) => void;
  #heard = 0;
  /** Send the answer that lies there. */
  #send = (): void => {};

  constructor(answer: Answerer, reply: (id: number, answer: unknown) => void) {
    this.#answer = answer;
    this.#reply = reply;
  }

  /** Answer a message; if it is of a short step, look for the same again. */
  hear(requests: readonly Request[]): void {
    this.#heard++;
    const number = requests.at(-1)?.step;
    const begin = performance.now();
    const answers = requests.map((request) => this.#answer(request));
    if (number === undefined) {
      return;
    }
    const workspace = (answers.at(-1) as RunAnswer | undefined)?.workspace;
    const known = { vain: 0, pause: 0, ...this.#steps.get(number), requests, workspace };
    this.#steps.set(number, known);
    if (known.pause > 0) {
      known.pause--;
    } else if (workspace !== undefined && performance.now() - begin < SHORT_MS) {
      known.vain = this.#attend() >= WORTHWHILE ? 0 : Math.min(known.vain + 1, MOST_VAIN);
      known.pause = 2 ** known.vain - 1;
    }
  }

  /** Run what the page asks for, until nothing comes in time, or a message does; the number of steps. */
  #attend(): number {
    const { words } = this;
    const begin = performance.now();
    let [count, patience] = [0, MESSAGE_MS];
    const isAsked = (): boolean => Atomics.load(words, STATE) === ASKED || Atomics.load(words, STATE) === OVERDUE;
    const isCalled = (): boolean => Atomics.load(words, SENT) !== this.#heard;
    Atomics.store(words, STATE, READY);
    while (true) {
      look(() => isAsked() || isCalled(), patience);
      if (isAsked()) {
        const start = performance.now();
        const isKept = this.#run(Atomics.load(words, STEP), Atomics.load(words, CALL));
        const now = performance.now();
        count++;
        patience = now - start > SHORT_MS || now - begin > LONGEST_MS ? 0 : isKept ? TURN_MS : MESSAGE_MS;
        continue;
      }
      const isUntaken = Atomics.compareExchange(words, STATE, ANSWERED, AWAY) === ANSWERED;
      if (isUntaken) {
        this.#send();
      }
      if (isUntaken || Atomics.compareExchange(words, STATE, READY, AWAY) === READY) {
        return count;
      }
    }
  }

  /** Run a step again; false: its answer is a message. */
  #run(number: number, id: number): boolean {
    const known = this.#steps.get(number) as KnownStep;
    const { requests, workspace } = known;
    let isKept = false;
    // Of an error, or an answer that takes time, the page learns something else.
    known.workspace = undefined;
    requests.forEach((request, k) => {
      const isLast = k === requests.length - 1;
      this.#answer(isLast ? { ...request, id } : request, (answer) => {
        if (isLast) {
          known.workspace = (answer as RunAnswer).workspace;
          this.#send = () => this.#reply(id, answer);
          isKept = known.workspace === workspace && Atomics.compareExchange(this.words, STATE, ASKED, ANSWERED) === ASKED;
        }
        return isKept;
      });
    });
    if (!isKept) {
      Atomics.store(this.words, STATE, READY);
    }
    return isKept;
  }
}
