/** Output of code in a frame: values as one line of text, and a hook on the console and on uncaught errors. */

function shown(value: unknown): string {
  if (typeof value === "string") {
    return value;
  }
  if (value instanceof Error) {
    return String(value);
  }
  const text = JSON.stringify(
    value,
    (_, inner: unknown) => {
      if (typeof inner === "bigint") {
        return Number(inner);
      }
      return ArrayBuffer.isView(inner) ? Array.from(inner as Float32Array, Number) : inner;
    },
    1,
  );
  return text === undefined ? String(value) : text.replace(/\n\s*/g, " ");
}

/** Print the console's output, too. */
export function printConsole(print: (line: string) => void): void {
  for (const name of ["log", "info", "warn", "error"] as const) {
    const original = console[name].bind(console);
    console[name] = (...values: unknown[]) => {
      original(...values);
      print(values.map(shown).join(" "));
    };
  }
}

/** Call back with every uncaught error. */
export function onUncaught(fail: (error: unknown) => void): void {
  window.addEventListener("unhandledrejection", (event) => fail(event.reason));
  window.addEventListener("error", (event) => fail(event.error ?? new Error(event.message)));
}
