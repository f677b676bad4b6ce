/** Logits of the next token: the valid rows of the caches, and steps that compute others; as `training/decoder.py`. */

import { PREPARED, STATE_LOADS, STATE_UPDATES } from "../engine/layout.js";
import { LimitError, ModelError } from "../wire/errors.js";
import { refuseIf, sessionError } from "../wire/messages.js";
import type { MaybePromise, NamedTensor, TokenTask } from "../wire/protocol.js";
import type { Declaration } from "./bundle/bundle.js";
import { CACHE, FEW, FIRST, LENGTHS, ROWS, SHORTEST } from "./constants.js";
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

/** All else that the rows of a text depend on. */
interface Circumstances {
  readonly plan: LoadedPlan;
  readonly adapter: boolean;
  readonly generation: number;
  readonly parameters: string;
}

/** The caches of a session, which one text fills at a time. */
export class Decoder {
  #tokens: number[] = [];
  #of: Circumstances | null = null;
  readonly #checked = new Set<string>();
  /** Lengths of caches, by the arguments of `#lengthFor` but the first two. */
  readonly #rooms = new Map<string, number>();

  /** The next token of a text. */
  async next(session: TokenHost, task: TokenTask): Promise<number> {
    const { tokens, place, maxTokens, output, sampling, adapter } = task;
    if (place === 0) {
      this.#start();
    }
    const most = tokens.length - place + maxTokens - 1; // no token follows the last one
    const length = await this.#lengthFor(session, tokens.length, output, most, adapter);
    const logits = await this.#logits(session, tokens, output, length, adapter);
    try {
      return chooseToken(logits, sampling, place, tokens.length - 1);
    } catch (error) {
      this.#start(); // rows of NaN would spread to other texts
      throw error;
    }
  }

  /** Forget and clear the rows, so that a text does not depend on the ones before. */
  #start(): void {
    this.#tokens = [];
    this.#of = null;
  }

  /** Room for the `count` tokens of a text that gets `most`: a multiple of LENGTHS, or all that the model takes. */
  async #lengthFor(session: TokenHost, count: number, output: string, most: number, adapter: boolean): Promise<number> {
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
    const needed = Math.max(count, SHORTEST);
    let room = this.#rooms.get(key) ?? 0;
    if (needed > room) {
      const doubled = FIRST * 2 ** Math.ceil(Math.log2(Math.ceil(needed / FIRST)));
      room = Math.min(doubled, Math.ceil(Math.max(most, SHORTEST) / LENGTHS) * LENGTHS);
      if ((await faultOf(room)) !== null) {
        const fault = await faultOf(needed);
        if (fault !== null) {
          // The length is not at fault if the least fails, too.
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

  async #logits(
    session: TokenHost,
    tokens: readonly number[],
    output: string,
    length: number,
    adapter: boolean,
  ): Promise<Float32Array> {
    const single = new Steps(session, output, length, 1, adapter);
    const several = new Steps(session, output, length, ROWS, adapter);
    const taken = tokens.length - this.#tokens.length > FEW && ROWS <= length ? await several.places() : null;
    if (!isSame(this.#of, await single.circumstances())) {
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
      const isShared = fits && JSON.stringify(taken) === JSON.stringify(await single.places());
      const part = tokens.slice(start, start + (isShared ? ROWS : 1));
      logits = await (isShared ? several : single).run(part, start);
      this.#tokens.push(...part);
    }
    this.#of = await single.circumstances();
    return logits;
  }
}

/** @throws ModelError unless logits of a token stay the same bytes with another token behind it */
async function checkCausal(single: Steps, token: number, output: string): Promise<void> {
  const first = await single.run([token], 0);
  await single.run([token], 1);
  const again = await single.run([token], 0);
  await single.clear();
  refuseIf(first.some((logit, k) => !Object.is(logit, again[k])), "NOT_CAUSAL", { name: output });
}

function isSame(a: Circumstances | null, b: Circumstances): boolean {
  return (
    a !== null &&
    a.plan === b.plan &&
    a.adapter === b.adapter &&
    a.generation === b.generation &&
    a.parameters === b.parameters
  );
}

/** Steps of so many new tokens. */
class Steps {
  readonly #session: TokenHost;
  readonly #kind: StepKind;
  readonly #output: string;
  readonly #rows: number;
  readonly #adapter: boolean;

  constructor(session: TokenHost, output: string, length: number, rows: number, adapter: boolean) {
    this.#session = session;
    this.#output = output;
    this.#rows = rows;
    this.#adapter = adapter;
    this.#kind = tokensKind(output, length, rows, adapter);
  }

  /** Missing tokens are zeros: no token sees them, and their rows are overwritten before a later one does. */
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
    return (await this.#session.runner.prepare(this.#kind, true, signature)).loaded;
  }

  /** Names, offsets and bytes of the caches; steps of the same places share them. */
  async places(): Promise<readonly (readonly [string, number, number])[]> {
    return (await this.#plan()).plan.kept.filter(([name]) => name.startsWith(CACHE));
  }

  async circumstances(): Promise<Circumstances> {
    const { host } = this.#session;
    const plan = await this.#plan();
    const parameters = [STATE_LOADS, STATE_UPDATES].map((word) => host.state.getUint32(4 * word, true)).join(" ");
    return { plan, adapter: this.#adapter, generation: host.generation, parameters };
  }

  /** Write the rows of these tokens, from position `start` on; logits of the last. */
  async run(tokens: readonly number[], start: number): Promise<Float32Array> {
    const feeds = await this.#feeds(tokens, start);
    const { results } = await this.#session.runner.run(this.#kind, true, feeds, [{ name: this.#output }]);
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
