/** Messages to the console, of the page and of its workers alike. */

export type LogLevel = "verbose" | "info" | "warning" | "error" | "fatal";

const METHODS = { verbose: "debug", info: "info", warning: "warn", error: "error", fatal: "error" } as const;
const LOG_LEVELS = Object.keys(METHODS) as readonly LogLevel[];

let least: LogLevel = "warning";

/** The level from which on messages are written. */
export function getLogLevel(): LogLevel {
  return least;
}

/**
 * Write messages from this level on.
 *
 * @throws Error when there is no such level
 */
export function setLogLevel(level: LogLevel): void {
  if (!LOG_LEVELS.includes(level)) {
    throw new Error(`Unsupported logging level: ${String(level)}`);
  }
  least = level;
}

/** Write to the console what the level lets through. */
export function log(level: LogLevel, message: string): void {
  if (LOG_LEVELS.indexOf(level) >= LOG_LEVELS.indexOf(least)) {
    console[METHODS[level]](`trainweb: ${message}`);
  }
}
