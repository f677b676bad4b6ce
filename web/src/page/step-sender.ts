/** Sends the steps of a session: their feeds travel, or are written where the kernels read them. */

import type { ReturnType, RunArguments } from "./arguments.js";
import type { Channel } from "./channel.js";
import type { Answer, Call, Method, PlacedBytes } from "../wire/protocol.js";
import { callOf, type WorkerClient } from "./client.js";
import { SharedFeeds, signatureOf } from "./shared-feeds.js";
import { describeFetch, ownBytes, packFeeds, SpareBuffers, unpackResults } from "./tensors.js";

export class StepSender {
  readonly spare = new SpareBuffers();
  readonly #client: WorkerClient;
  readonly #channel: Channel;
  readonly #handle: number;
  /** True if values of feeds select the plan: such feeds travel. */
  readonly #valuesDecide: boolean;
  /** Null if the page shares no memory with the kernels. */
  readonly #shared: SharedFeeds | null;

  constructor(client: WorkerClient, channel: Channel, info: { readonly handle: number; readonly valuesDecide: boolean }) {
    const { handle, valuesDecide } = info;
    this.#client = client;
    this.#channel = channel;
    this.#handle = handle;
    this.#valuesDecide = valuesDecide;
    this.#shared = client.memory === null ? null : new SharedFeeds(client.memory);
  }

  /** Let no feed be written in place while a call is under way that may use the workspace or move it. */
  follow<T>(answer: Promise<T>): Promise<T> {
    return this.#shared?.follow(answer) ?? answer;
  }

  /** Send a call that may use the workspace, after all earlier ones of the session. */
  send<M extends Method>(make: () => Call<M>): Promise<Answer<M>> {
    this.#client.wakeThreads();
    return this.follow(this.#channel.post(null, make));
  }

  /** Run a step of this kind, and return its results. */
  async run(kind: "train" | "eval" | "inference", inputNames: readonly string[], args: RunArguments): Promise<ReturnType> {
    const { feeds, fetches, options } = args;
    const wanted = [...fetches].map(([name, target]) => describeFetch(name, target));
    this.#client.wakeThreads();
    const shared = this.#shared;
    const signature = shared === null || this.#valuesDecide ? null : signatureOf(kind, inputNames, feeds);
    const { signal, ema = false } = options;
    // Feeds of a step that waits may not lie where the one before it runs.
    const writer = signal === undefined && !options.transfer ? shared?.writer(signature) : undefined;
    const packed = packFeeds(inputNames, feeds, writer ?? (options.transfer ? ownBytes : this.spare.copy));
    const answer = this.#channel.step(signal, packed, (inputs, mayStop) => {
      const places = inputs.map(({ data }) => (data as PlacedBytes).ptr);
      const key = writer ? `${this.#handle} ${signature} ${ema} ${places} ${JSON.stringify(wanted)}` : undefined;
      return callOf("step", [this.#handle, kind, inputs, wanted, mayStop, ema], undefined, key);
    });
    const { results, buffers } = await (shared?.follow(answer, signature) ?? answer);
    this.spare.keep(buffers);
    return unpackResults(results, fetches);
  }
}
