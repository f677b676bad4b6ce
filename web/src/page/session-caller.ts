/** Sends the calls of a training session. */

import { sessionError } from "../wire/messages.js";
import type { Call, SessionCall, SessionInfo } from "../wire/protocol.js";
import type { SessionCalls } from "../wire/session-calls.js";
import type { Channel } from "./channel.js";
import { callOf } from "./client.js";

export class SessionCaller {
  readonly #info: SessionInfo;
  readonly #channel: Channel;

  constructor(info: SessionInfo, channel: Channel) {
    this.#info = info;
    this.#channel = channel;
  }

  /** @throws ReleasedError after `release`; SessionError without an optimizer model */
  checkOptimizer(): void {
    this.#channel.check();
    if (!this.#info.hasOptimizer) {
      throw sessionError("NO_OPTIMIZER_MODEL", {});
    }
  }

  /** A call that does not use the workspace or move it. */
  async call<Name extends keyof SessionCalls>(
    name: Name,
    ...args: SessionCalls[Name]["args"]
  ): Promise<SessionCalls[Name]["result"]> {
    this.#channel.check();
    const buffers = args.flatMap((arg: unknown) => (arg instanceof Uint8Array ? [arg.buffer as ArrayBuffer] : []));
    const answer = this.#channel.post(null, () => this.callOf(name, args, buffers));
    return answer as Promise<SessionCalls[Name]["result"]>;
  }

  /** A call before it is sent. */
  callOf<Name extends keyof SessionCalls>(
    name: Name,
    args: SessionCalls[Name]["args"],
    buffers: readonly ArrayBuffer[] = [],
  ): Call<"call"> {
    return callOf("call", [this.#info.handle, { name, args } as SessionCall], buffers);
  }
}
