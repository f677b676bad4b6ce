/** Feeds that the page writes where the kernels read them, in memory that both share: one copy instead of two. */

import type { Tensor } from "onnxruntime-common";

import type { PlacedBytes, Workspace } from "../wire/protocol.js";
import { isTensor } from "../data/checks.js";
import { isOnCpu, type TakeBytes } from "./tensors.js";

/** A key for feeds that go to the same places; null if some must be fetched first. */
export function signatureOf(
  kind: string,
  inputNames: readonly string[],
  feeds: Readonly<Record<string, unknown>>,
): string | null {
  const tensors = inputNames.map((name) => feeds[name]);
  if (!tensors.every((tensor): tensor is Tensor => isTensor(tensor) && isOnCpu(tensor))) {
    return null;
  }
  return [kind, ...tensors.map(({ type, dims }) => `${type} ${dims.join("x")}`)].join();
}

/**
 * Places of the feeds in the plans of one session. The page only writes there while no running call uses or may move
 * the workspace of the session. All such calls are followed here. Other feeds travel with their calls.
 */
export class SharedFeeds {
  readonly #memory: WebAssembly.Memory;
  readonly #places = new Map<string, readonly PlacedBytes[]>();
  #generation = -1;
  #users = 0;

  constructor(memory: WebAssembly.Memory) {
    this.#memory = memory;
  }

  /** Make a writer for feeds of this signature, one after the other; null if they have to travel. */
  writer(signature: string | null): TakeBytes<PlacedBytes> | null {
    const places = signature !== null && this.#users === 0 ? this.#places.get(signature) : undefined;
    const { buffer } = this.#memory;
    // A worker grew the memory, and this page does not know it yet.
    if (!places?.every(({ ptr, nbytes }) => ptr + nbytes <= buffer.byteLength)) {
      return null;
    }
    let next = 0;
    return (view) => {
      const place = places[next++] as PlacedBytes;
      const bytes = new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
      // A feed that the plan does not read has no bytes.
      if (place.nbytes > 0) {
        new Uint8Array(buffer, place.ptr, place.nbytes).set(bytes);
      }
      return place;
    };
  }

  /** Follow a call to its end. @param signature - of the feeds that it ran with; the answer has their places */
  async follow<T>(answer: Promise<T>, signature: string | null = null): Promise<T> {
    this.#users++;
    let workspace: Workspace | undefined;
    try {
      const settled = await answer;
      workspace = (settled as { readonly workspace?: Workspace } | null)?.workspace;
      return settled;
    } finally {
      this.#users--;
      this.#learn(signature, workspace);
    }
  }

  #learn(signature: string | null, workspace: Workspace | undefined): void {
    if (workspace === undefined || workspace.generation !== this.#generation) {
      this.#places.clear();
    }
    if (workspace !== undefined) {
      this.#generation = workspace.generation;
      if (signature !== null) {
        this.#places.set(signature, workspace.feeds);
      }
    }
  }
}
