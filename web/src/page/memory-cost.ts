/** What a memory budget costs, for the log. */

import { log } from "../wire/log.js";
import type { SessionMemory } from "../wire/values.js";

export function logCost(memory: SessionMemory): void {
  const { arena, arenaWithoutBudget: full, recomputedInstructions: count, recomputedShare: share } = memory;
  const cost = `${count} instructions run again, for some ${Math.round(100 * share)} % more time`;
  log("info", `the workspace of a step takes ${arena} bytes instead of ${full}: ${cost}`);
}
