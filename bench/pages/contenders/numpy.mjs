/** numpy in Pyodide, with the backward pass by hand: models A and B. */

const PROGRAM = `
import json
import numpy as np

manifest = json.loads(manifest_json)
initial = np.frombuffer(initial_bytes.to_py(), np.float32)
theta, layers, offset = initial.copy(), [], 0
gradient, m, v = np.zeros_like(theta), np.zeros_like(theta), np.zeros_like(theta)


def view(flat, p):
    return flat[p["offset"]:p["offset"] + p["size"]].reshape(p["shape"])


pairs = list(zip(manifest["params"][::2], manifest["params"][1::2]))
layers = [[view(flat, p) for flat in (theta, gradient) for p in pair] for pair in pairs]
adamw, count = manifest["adamw"], 0


def step(x, y):
    global count
    x = np.asarray(x.to_py()).reshape(manifest["xshape"])
    y = np.asarray(y.to_py())
    inputs = []
    for k, (weight, bias, _, _) in enumerate(layers):
        inputs.append(x)
        x = x @ weight.T + bias
        if k < len(layers) - 1:
            np.maximum(x, 0, out=x)
    x -= x.max(1, keepdims=True)
    total = np.exp(x)
    norm = total.sum(1, keepdims=True)
    rows = np.arange(len(y))
    loss = float(np.mean(np.log(norm[:, 0]) - x[rows, y]))
    dy = total / norm
    dy[rows, y] -= 1
    dy /= np.float32(len(y))
    for k in range(len(layers) - 1, -1, -1):
        weight, _, dweight, dbias = layers[k]
        np.matmul(dy.T, inputs[k], out=dweight)
        np.sum(dy, 0, out=dbias)
        if k:
            dy = (dy @ weight) * (inputs[k] > 0)
    update()
    return loss


def update():
    global count
    count += 1
    b1, b2 = adamw["b1"], adamw["b2"]
    m[:] = np.float32(b1) * m + np.float32(1 - b1) * gradient
    v[:] = np.float32(b2) * v + np.float32(1 - b2) * gradient * gradient
    rate = np.float32(adamw["lr"] * (1 - b2**count) ** 0.5 / (1 - b1**count))
    theta[:] -= rate * m / (np.sqrt(v) + np.float32(adamw["eps"]))


step
`;

export async function create(env) {
  if (env.manifest.kind !== "mlp") {
    throw new Error(`no ${env.manifest.kind} in numpy`);
  }
  const { loadPyodide } = await import("/pyodide/pyodide.mjs");
  const pyodide = await loadPyodide({ indexURL: "/pyodide/" });
  await pyodide.loadPackage("numpy");
  pyodide.globals.set("manifest_json", JSON.stringify(env.manifest));
  const initial = await (await fetch(`${env.base}init.bin`)).arrayBuffer();
  pyodide.globals.set("initial_bytes", new Uint8Array(initial));
  const step = pyodide.runPython(PROGRAM);
  const { nb } = env.manifest;
  return {
    info: { pyodide: pyodide.version },
    step: async (i) => step(env.xs[i % nb], env.ys[i % nb]),
  };
}
