/** A page as a client of Flower: it speaks to `python -m trainweb.flower`, which speaks to the SuperLink. */

import type { ParameterTypeAndShape } from "./call-values.js";
import type { FederatedSession } from "./federated.js";
import { packFrame, unpackFrame, VERSION, type ArrayShape, type BridgeMessage, type ConfigValue, type PageMessage } from "../federated/frames.js";
import { checkVector, type WeightedUpdate } from "../federated/updates.js";
import { describe, refuseSettingIf } from "../data/checks.js";
import { checkKnown } from "../data/nearest.js";
import { isObject } from "../wire/kinds.js";
import { refuseIf, sessionError } from "../wire/messages.js";
import { concatenate } from "../wire/pieces.js";
import { bytesOf } from "./tensors.js";

/** A request of a server. */
export interface FlowerTask {
  /** The server's settings for its clients: "server-round", and others of its strategy. */
  readonly config: Readonly<Record<string, ConfigValue>>;
  /** The node that this page is. */
  readonly node: string;
}

/** The result of a training. */
export interface FlowerTraining extends WeightedUpdate {
  /** Numbers by name, for the server. */
  readonly metrics?: Readonly<Record<string, number>>;
}

/** The result of an evaluation. */
export interface FlowerEvaluation {
  /** Rows that were evaluated. */
  readonly examples: number;
  /** Numbers by name, for the server. */
  readonly metrics: Readonly<Record<string, number>>;
}

/** The actions of a page as a client. */
export interface FlowerOptions {
  /** Train from the common parameters; return the result of `FederatedClient.round`, for example. */
  readonly train: (parameters: Float32Array, task: FlowerTask) => Promise<FlowerTraining>;
  /** Evaluate the common parameters, which the session then has. Without it, the page answers that it cannot. */
  readonly evaluate?: (parameters: Float32Array, task: FlowerTask) => Promise<FlowerEvaluation>;
  /** "average": the server's parameters have the running statistics, and all others that are not trained. Default "local". */
  readonly statistics?: "local" | "average";
  /** Called when the page has become a node. */
  readonly onJoin?: (node: string) => void;
  /** Abort it to leave; `joinFlower` then resolves. Running training continues unless it has the signal, too. */
  readonly signal?: AbortSignal;
}

/** Methods of a session that pages need to be clients. */
export interface FlowerSession extends Pick<FederatedSession, "getParametersSize" | "loadParametersBuffer"> {
  /** Names of the (trained) parameters. */
  parameterNames(options: { readonly trainableOnly: boolean }): Promise<readonly string[]>;
  /** Type and dims of a parameter. */
  getParameterTypeAndShape(name: string): Promise<ParameterTypeAndShape>;
}

const OPTIONS = ["train", "evaluate", "statistics", "onJoin", "signal"];
/** The bridge is stopped, or the page left: both are good ends. */
const ENDS = [1000, 1001];
const COUNT = "num-examples";
/** Most characters of a failure's reason, which is in the server's log. */
const MAX_REASON = 500;

/**
 * Be a client of a Flower server until the bridge is stopped or the signal aborted.
 *
 * @param url - the address of the bridge: `wss://...`, or `ws://localhost:8765`
 * @param session - its trained parameters have the names and shapes of the server's; all parameters where statistics
 *   are averaged
 * @throws SessionError: there is no connection, it ended (the message says why), or the bridge sent an unexpected
 *   message
 * @throws ModelError: an option is wrong
 */
export async function joinFlower(url: string | URL, session: FlowerSession, options: FlowerOptions): Promise<void> {
  checkOptions(options);
  options.signal?.throwIfAborted();
  refuseIf(typeof WebSocket === "undefined", "NO_WEBSOCKET");
  const names = await session.parameterNames({ trainableOnly: options.statistics !== "average" });
  const shapes = await Promise.all(
    names.map(async (name) => ({ name, shape: (await session.getParameterTypeAndShape(name)).dims })),
  );
  await new FlowerNode(String(url), session, shapes, options).done;
}

function checkOptions(options: FlowerOptions): void {
  refuseSettingIf(!isObject(options), "options", options, "an object with 'train'");
  checkKnown("The option", options, OPTIONS);
  for (const name of ["train", "evaluate", "onJoin"] as const) {
    const isLeftOut = name !== "train" && options[name] === undefined;
    refuseSettingIf(!isLeftOut && typeof options[name] !== "function", name, describe(options[name]), "a function");
  }
  const { statistics = "local" } = options;
  refuseSettingIf(statistics !== "local" && statistics !== "average", "statistics", statistics, "local or average");
  refuseSettingIf(options.signal !== undefined && !(options.signal instanceof AbortSignal), "signal", describe(options.signal), "an AbortSignal");
}

/** One connection. */
class FlowerNode {
  readonly done: Promise<void>;
  readonly #session: FlowerSession;
  readonly #shapes: readonly ArrayShape[];
  readonly #options: FlowerOptions;
  readonly #socket: WebSocket;
  #node = "";
  #isOpen = false;
  #fault: string | null = null;

  constructor(url: string, session: FlowerSession, shapes: readonly ArrayShape[], options: FlowerOptions) {
    this.#session = session;
    this.#shapes = shapes;
    this.#options = options;
    const socket = new WebSocket(url);
    this.#socket = socket;
    socket.binaryType = "arraybuffer";
    const leave = (): void => socket.close(1000, "the page left");
    options.signal?.addEventListener("abort", leave);
    socket.onerror = () => {}; // The package ws throws without one; a close follows.
    socket.onopen = () => {
      this.#isOpen = true;
      this.#send({ type: "join", version: VERSION, parameters: shapes });
    };
    socket.onmessage = ({ data }) => void this.#hear(data);
    this.done = new Promise((resolve, reject) => {
      socket.onclose = ({ code, reason }) => {
        options.signal?.removeEventListener("abort", leave);
        if (this.#fault !== null) {
          reject(sessionError("BAD_BRIDGE", { fault: this.#fault }));
        } else if (options.signal?.aborted === true || (this.#isOpen && ENDS.includes(code))) {
          resolve();
        } else if (this.#isOpen) {
          reject(sessionError("BRIDGE_CLOSED", { code, reason: reason || "no reason given" }));
        } else {
          reject(sessionError("NO_BRIDGE", { url }));
        }
      };
    });
  }

  /** Messages of a page that has left are dropped. */
  #send(header: PageMessage, shapes?: readonly ArrayShape[], numbers?: Float32Array<ArrayBuffer>): void {
    if (this.#socket.readyState === WebSocket.OPEN) {
      this.#socket.send(packFrame(header, shapes, numbers));
    }
  }

  async #hear(data: unknown): Promise<void> {
    const frame = unpackFrame(data);
    if (typeof frame === "string") {
      this.#end(frame);
      return;
    }
    const [message, arrays] = frame;
    if (message.type === "joined") {
      this.#node = message.node;
      this.#options.onJoin?.(message.node);
      return;
    }
    if (message.type !== "task") {
      this.#end(`a message '${String((message as { readonly type: unknown }).type)}'`);
      return;
    }
    const parts = this.#shapes.map(({ name, shape }) => {
      const array = arrays.get(name);
      return array !== undefined && array.shape.join() === shape.join() ? array.data : null;
    });
    if (parts.includes(null) || arrays.size !== parts.length) {
      this.#end("parameters of another model");
      return;
    }
    const bytes = concatenate((parts as Float32Array[]).map(bytesOf));
    await this.#do(message, new Float32Array(bytes.buffer));
  }

  async #do(task: Extract<BridgeMessage, { readonly type: "task" }>, parameters: Float32Array<ArrayBuffer>): Promise<void> {
    const { id, kind, config } = task;
    const details = { config, node: this.#node };
    try {
      if (kind === "train") {
        const { delta, examples, metrics } = await this.#options.train(parameters.slice(), details);
        checkVector("delta", delta, parameters.length);
        const learned = parameters.map((x, i) => x + (delta[i] as number));
        this.#send({ type: "result", id, metrics: { ...metrics, [COUNT]: examples } }, this.#shapes, learned);
        return;
      }
      if (this.#options.evaluate === undefined) {
        throw new Error("this page has no 'evaluate'. Give joinFlower one, or the strategy fraction_evaluate=0.0");
      }
      await this.#session.loadParametersBuffer(parameters.slice(), this.#options.statistics !== "average");
      const { examples, metrics } = await this.#options.evaluate(parameters.slice(), details);
      this.#send({ type: "result", id, metrics: { ...metrics, [COUNT]: examples } });
    } catch (error) {
      this.#send({ type: "failure", id, reason: String(error).slice(0, MAX_REASON) });
    }
  }

  #end(fault: string): void {
    this.#fault = fault;
    this.#socket.close(4000, fault.slice(0, 100));
  }
}
