/**
 * A lane of words in shared memory. The page asks there for a step that the worker has run before, while the worker looks.
 * All else is a message, and each side may turn to messages at any time.
 */

/** Positions of words: a state; the step that is asked for and the number of its call; how many messages were sent. */
export const [STATE, STEP, CALL, SENT] = [0, 1, 2, 3] as const;

/**
 * States. AWAY: the worker reads messages. READY: it looks at the lane. ASKED: a step is to run, and the page looks for its
 * end. OVERDUE: the page waits for a message instead. ANSWERED: its results lie where they lay when it ran before.
 */
export const [AWAY, READY, ASKED, OVERDUE, ANSWERED] = [0, 1, 2, 3, 4] as const;

/** The time that a side looks for the other's turn, in milliseconds. */
export const TURN_MS = 0.05;
/** Looks between two at the clock, and looks at most, for clocks that hardly move. */
const CLOCK = 32;
const MOST_LOOKS = 50_000;

/** Look until something is over, at most so many milliseconds. */
export function look(isOver: () => boolean, milliseconds: number): void {
  const end = performance.now() + milliseconds;
  for (let k = 1; k < MOST_LOOKS && !isOver(); k++) {
    if (k % CLOCK === 0 && performance.now() > end) {
      return;
    }
  }
}
