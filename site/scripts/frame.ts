/** In the frame of run.html: execute a module and hand on what it prints. */

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

async function execute(code: string, print: (line: string) => void): Promise<void> {
  for (const name of ["log", "info", "warn", "error"] as const) {
    const original = console[name].bind(console);
    console[name] = (...values: unknown[]) => {
      original(...values);
      print(values.map(shown).join(" "));
    };
  }
  const failed = new Promise<never>((_, reject) => {
    window.addEventListener("unhandledrejection", (event) => reject(event.reason));
    window.addEventListener("error", (event) => reject(event.error ?? new Error(event.message)));
  });
  const address = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
  await Promise.race([import(address), failed]);
}

Object.assign(window, { execute });
