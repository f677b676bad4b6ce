/** Logits of the next token, from valid rows of caches and steps for the others. In Python `training/decoder.py`. */

import { PREPARED, STATE_LOADS, STATE_UPDATES } from "../engine/layout.js";
import { LimitError, ModelError } from "../wire/errors.js";
import { refuseIf, sessionError } from "../wire/messages.js";
import type { MaybePromise, NamedTensor, TokenTask } from "../wire/protocol.js";
import type { Declaration } from "./bundle/bundle.js";
import { CACHE, FEW, FIRST, LENGTHS, ROWS, SHORTEST } from "../wire/constants.js";
import { signatureOf } from "./feeds.js";
import type { LoadedPlan, StepHost } from "./host.js";
import type { PlanRunner } from "./runner.js";
import { chooseToken } from "./sampling.js";
import { tokensKind, type StepKind } from "./step-kind.js";

/** A session as the decoder sees it. */
export interface TokenHost {
  readonly host: StepHost;
  readonly runner: PlanRunner;
  /** The inputs of a step of new tokens. */
  openForward(kind: StepKind): MaybePromise<readonly Declaration[]>;
}

/** The caches of a session, which one text fills at a time. */
export class Decoder {
  #tokens: number[] = [];
  /** The other values that the rows depend on. */
  #origin: readonly unknown[] = [];
  readonly #checked = new Set<string>();
  /** Lengths of caches, by output, most tokens and adapter. */
  readonly #rooms = new Map<string, number>();

  /** The next token of a text. */
  async next(session: TokenHost, task: TokenTask): Promise<number> {
    const { tokens, place, maxTokens, sampling } = task;
    if (place === 0) {
      this.#start();
    }
    const most = tokens.length - place + maxTokens - 1; // no token follows the last one
    const length = await this.#lengthFor(session, task, most);
    const logits = await this.#logits(session, task, length);
    try {
      return chooseToken(logits, sampling, place, tokens.length - 1);
    } catch (error) {
      this.#start(); // rows of NaN would spread to other texts
      throw error;
    }
  }

  /** Forget the rows, so that a text does not depend on the texts before. */
  #start(): void {
    this.#tokens = [];
    this.#origin = [];
  }

  /** Length of the caches for a text of at most `most` tokens: a multiple of LENGTHS, or the limit of the model. */
  async #lengthFor(session: TokenHost, { tokens, output, adapter }: TokenTask, most: number): Promise<number> {
    const faultOf = async (length: number): Promise<Error | null> => {
      try {
        await session.openForward(tokensKind(output, length, 1, adapter));
        return null;
      } catch (error) {
        if (error instanceof ModelError || error instanceof LimitError) {
          return error;
        }
        throw error;
      }
    };
    const key = JSON.stringify([output, most, adapter]);
    const needed = Math.max(tokens.length, SHORTEST);
    let room = this.#rooms.get(key) ?? 0;
    if (needed > room) {
      const doubled = FIRST * 2 ** Math.ceil(Math.log2(Math.ceil(needed / FIRST)));
      room = Math.min(doubled, Math.ceil(Math.max(most, SHORTEST) / LENGTHS) * LENGTHS);
      if ((await faultOf(room)) !== null) {
        const fault = await faultOf(needed);
        if (fault !== null) {
          // If the shortest length fails, too, the length is not the cause.
          throw (await faultOf(SHORTEST)) ?? sessionError("SEQUENCE_TOO_LONG", { length: needed, fault: fault.message });
        }
        let least = needed;
        while (room - least > 1) {
          const middle = Math.floor((least + room) / 2);
          [least, room] = (await faultOf(middle)) === null ? [middle, room] : [least, middle];
        }
        room = least;
      }
      this.#rooms.set(key, room);
    }
    return room;
  }

  async #logits(session: TokenHost, task: TokenTask, length: number): Promise<Float32Array> {
    const { tokens, output, adapter } = task;
    const single = new Steps(session, task, length, 1);
    const several = new Steps(session, task, length, ROWS);
    const places = tokens.length - this.#tokens.length > FEW && ROWS <= length ? await several.places() : null;
    const origin = await single.origin();
    if (!origin.every((value, k) => value === this.#origin[k])) {
      this.#tokens = [];
      await single.clear();
    }
    const key = JSON.stringify([output, adapter]);
    if (!this.#checked.has(key)) {
      await checkCausal(single, tokens[0] as number, output);
      this.#checked.add(key);
    }
    while (this.#tokens.some((token, k) => token !== tokens[k]) || this.#tokens.length >= tokens.length) {
      this.#tokens.pop();
    }
    let logits: Float32Array = new Float32Array();
    while (this.#tokens.length < tokens.length) {
      const start = this.#tokens.length;
      const fits = tokens.length - start > FEW && start + ROWS <= length;
      const isShared = fits && JSON.stringify(places) === JSON.stringify(await single.places());
      const part = tokens.slice(start, start + (isShared ? ROWS : 1));
      logits = await (isShared ? several : single).run(part, start);
      this.#tokens.push(...part);
    }
    this.#origin = await single.origin();
    return logits;
  }
}

/** @throws ModelError if a later token changes the logits of a token */
async function checkCausal(single: Steps, token: number, output: string): Promise<void> {
  const first = await single.run([token], 0);
  await single.run([token], 1);
  const again = await single.run([token], 0);
  await single.clear();
  refuseIf(first.some((logit, k) => !Object.is(logit, again[k])), "NOT_CAUSAL", { name: output });
}

/** Steps of so many new tokens. */
class Steps {
  readonly #session: TokenHost;
  readonly #task: TokenTask;
  readonly #rows: number;
  readonly #kind: StepKind;

  constructor(session: TokenHost, task: TokenTask, length: number, rows: number) {
    this.#session = session;
    this.#task = task;
    this.#rows = rows;
    this.#kind = tokensKind(task.output, length, rows, task.adapter);
  }

  /** Missing tokens are zeros. No token sees them, and their rows are overwritten before a later token does. */
  async #feeds(tokens: readonly number[], start: number): Promise<NamedTensor[]> {
    const inputs = await this.#session.openForward(this.#kind);
    const values: Readonly<Record<string, readonly number[]>> = {
      "trainweb.ids": Array.from({ length: this.#rows }, (_, k) => tokens[k] ?? 0),
      "trainweb.positions": Array.from({ length: this.#rows }, (_, k) => start + k),
      "trainweb.last": [tokens.length - 1],
      "trainweb.last_position": [start + tokens.length - 1],
    };
    return inputs.map(({ name, dtype, dims }) => ({
      name,
      dtype,
      dims: (dims ?? []) as number[],
      data: integers(dtype, values[name] as readonly number[]),
    }));
  }

  async #plan(): Promise<LoadedPlan> {
    const feeds = await this.#feeds([0], 0);
    const inputs = await this.#session.openForward(this.#kind);
    const signature = signatureOf(inputs, feeds, ({ data }) => data as Uint8Array);
    return this.#session.runner.prepare(this.#kind, true, signature);
  }

  /** Names, offsets and bytes of the caches; steps of the same places share them. */
  async places(): Promise<readonly (readonly [string, number, number])[]> {
    return (await this.#plan()).plan.kept.filter(([name]) => name.startsWith(CACHE));
  }

  /** The plan and its place, the adapter, and counts of the parameters' changes. */
  async origin(): Promise<readonly unknown[]> {
    const { host } = this.#session;
    const plan = await this.#plan();
    const changes = [STATE_LOADS, STATE_UPDATES].map((word) => host.state.getUint32(4 * word, true));
    return [plan, this.#task.adapter, host.generation, ...changes];
  }

  /** Write the rows of these tokens, from position `start` on; logits of the last. */
  async run(tokens: readonly number[], start: number): Promise<Float32Array> {
    const feeds = await this.#feeds(tokens, start);
    const { results } = await this.#session.runner.run(this.#kind, true, feeds, [{ name: this.#task.output }]);
    const { data } = results[0] as NamedTensor;
    return new Float32Array(data.slice().buffer);
  }

  /** Fill the caches with zeros: a NaN in a row would spread even to tokens that do not see it. */
  async clear(): Promise<void> {
    for (const [, offset, nbytes] of await this.places()) {
      await this.#session.host.clear(PREPARED, offset, nbytes);
    }
  }
}

function integers(dtype: string, values: readonly number[]): Uint8Array {
  const array = dtype === "int64" ? BigInt64Array.from(values, BigInt) : Int32Array.from(values);
  return new Uint8Array(array.buffer);
}
