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
 * @throws Error for an unknown level
 */
export function setLogLevel(level: LogLevel): void {
  if (!LOG_LEVELS.includes(level)) {
    throw new Error(`Unsupported logging level: ${String(level)}`);
  }
  least = level;
}

/** The level that onnxruntime numbers so: 0 verbose, 4 fatal. */
export function levelOf(severity: number): LogLevel {
  return LOG_LEVELS[severity] as LogLevel;
}

/**
 * Write to the console a message, if the level lets it through.
 *
 * @param from - the least level that is written; default: the page's level
 */
export function log(level: LogLevel, message: string, from: LogLevel = least): void {
  if (LOG_LEVELS.indexOf(level) >= LOG_LEVELS.indexOf(from)) {
    console[METHODS[level]](`trainweb: ${message}`);
  }
}
