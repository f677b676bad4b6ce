/**
 * jax-js, one jitted function a step: loss, gradients and Adam together. Its pool has as many workers as the machine has
 * cores, which query.threads sets here. query.device is wasm or webgpu. Arrays are consumed by the calls that use them; `.ref` keeps one.
 */

function layersOf({ numpy: np, lax }) {
  const normalised = (x, axes) => {
    const centred = x.ref.sub(np.mean(x, axes, { keepdims: true }));
    const variance = np.mean(centred.ref.mul(centred.ref), axes, { keepdims: true });
    return centred.mul(np.reciprocal(np.sqrt(variance.add(1e-5))));
  };
  const addBias = (x, bias) => x.add(bias.reshape([1, bias.shape[0], 1, 1]));
  return {
    addBias,
    dense: (x, P, name) => np.matmul(x, P[`${name}.weight`]).add(P[`${name}.bias`]),
    project: (x, P, name) => np.matmul(x, P[`${name}.w`]).add(P[`${name}.b`]),
    conv(x, P, name, stride = 1, pad = 1) {
      const y = lax.conv(x, P[`${name}.weight`], [stride, stride], [[pad, pad], [pad, pad]]);
      const bias = P[`${name}.bias`];
      return bias ? addBias(y, bias) : y;
    },
    layerNorm: (x, P, name) => normalised(x, -1).mul(P[`${name}.g`]).add(P[`${name}.b`]),
    batchNorm(x, P, name) {
      const vector = [1, x.shape[1], 1, 1];
      const gamma = P[`${name}.bn.gamma`].reshape(vector);
      return normalised(x, [0, 2, 3]).mul(gamma).add(P[`${name}.bn.beta`].reshape(vector));
    },
    pool(x) {
      const [batch, channels, height, width] = x.shape;
      const windows = x.reshape([batch, channels, height / 2, 2, width / 2, 2]);
      return np.max(np.max(windows, 5), 3);
    },
    gelu: (x) => x.ref.mul(0.5).mul(lax.erf(x.mul(Math.SQRT1_2)).add(1)),
  };
}

function gptOf({ numpy: np, nn }, layers, { batch, S, D, H, L, V }) {
  const { layerNorm, project, gelu } = layers;
  const mask = np
    .array(Float32Array.from({ length: S * S }, (_, k) => (k % S > Math.floor(k / S) ? -1e9 : 0)))
    .reshape([S, S]);
  const heads = (t) => np.transpose(t.reshape([batch, S, H, D / H]), [0, 2, 1, 3]);
  return (P, ids) => {
    let x = np.matmul(nn.oneHot(ids, V), P.wte).add(P.wpe);
    for (let layer = 0; layer < L; layer++) {
      const at = (name) => `h${layer}.${name}`;
      const [q, k, v] = np.split(project(layerNorm(x.ref, P, at("ln1")), P, at("qkv")), 3, 2).map(heads);
      const scores = np.matmul(q, np.transpose(k, [0, 1, 3, 2])).mul(1 / Math.sqrt(D / H));
      const context = np.matmul(nn.softmax(scores.add(mask.ref)), v);
      const y = np.transpose(context, [0, 2, 1, 3]).reshape([batch, S, D]);
      x = x.add(project(y, P, at("proj")));
      x = x.ref.add(project(gelu(project(layerNorm(x, P, at("ln2")), P, at("fc"))), P, at("fcproj")));
    }
    return np.matmul(layerNorm(x, P, "lnf").reshape([batch * S, D]), P["head.w"]);
  };
}

function forwardOf(jax, layers, manifest) {
  const { numpy: np, nn } = jax;
  const { dense, conv, pool, batchNorm } = layers;
  const unit = (x, P, name, stride = 1, pad = 1) => {
    const y = conv(x, P, name, stride, pad);
    return manifest.bn ? batchNorm(y, P, name) : y;
  };
  return {
    mlp(P, x) {
      const last = manifest.dims.length - 1;
      for (let k = 1; k <= last; k++) {
        x = dense(x, P, `fc${k}`);
        x = k < last ? nn.relu(x) : x;
      }
      return x;
    },
    lenet(P, x) {
      x = pool(nn.relu(conv(x, P, "conv1")));
      x = pool(nn.relu(conv(x, P, "conv2")));
      x = x.reshape([manifest.batch, 64 * 7 * 7]);
      return dense(nn.relu(dense(x, P, "fc1")), P, "fc2");
    },
    resnet(P, x) {
      x = nn.relu(unit(x, P, "stem"));
      for (let stage = 0; stage < 3; stage++) {
        const stride = stage ? 2 : 1;
        const y = unit(nn.relu(unit(x.ref, P, `s${stage}.a`, stride)), P, `s${stage}.b`);
        x = nn.relu(y.add(stage ? unit(x, P, `s${stage}.sc`, stride, 0) : x));
      }
      return dense(np.mean(x, [2, 3]), P, "fc");
    },
    transfer: (P, features) => dense(features, P, "fc"),
    gpt: manifest.kind === "gpt" ? gptOf(jax, layers, manifest) : null,
  }[manifest.kind];
}

/** Trainable parameters with their moments, and the frozen ones. */
async function stateOf({ numpy: np }, env) {
  const params = {};
  const m = {};
  const v = {};
  const frozen = {};
  for (const [name, { data, shape, trainable }] of Object.entries(await env.parameters())) {
    let value = np.array(data).reshape(shape);
    if (shape.length === 2 && name.endsWith(".weight")) {
      value = np.transpose(value);
    }
    if (!trainable) {
      frozen[name] = value;
      continue;
    }
    params[name] = value;
    m[name] = np.zeros(value.shape);
    v[name] = np.zeros(value.shape);
  }
  return { state: [params, m, v], frozen };
}

function stepOf(jax, env, frozen) {
  const { manifest } = env;
  const { numpy: np, nn, lax, tree, valueAndGrad } = jax;
  const layers = layersOf(jax);
  const forward = forwardOf(jax, layers, manifest);
  const lossOf = (P, x, y) => {
    const picked = nn.logSoftmax(forward(P, x), -1).mul(nn.oneHot(y, manifest.classes));
    return np.sum(picked).mul(-1 / manifest.ysize);
  };
  const featuresOf = (x) => {
    for (let k = 1; k <= 4; k++) {
      const y = lax.conv(x, frozen[`feat${k}.weight`].ref, [2, 2], [[1, 1], [1, 1]]);
      x = nn.relu(layers.addBias(y, frozen[`feat${k}.bias`].ref));
    }
    return np.mean(x, [2, 3]);
  };
  const { lr, b1, b2, eps } = manifest.adamw;
  return (P, M, V, x, y, correction1, correction2) => {
    const input = manifest.kind === "transfer" ? featuresOf(x) : x;
    const [loss, gradients] = valueAndGrad(lossOf)(tree.ref(P), input, y);
    const next = [{}, {}, {}];
    for (const name of Object.keys(P)) {
      const g = gradients[name];
      const m = M[name].mul(b1).add(g.ref.mul(1 - b1));
      const v = V[name].mul(b2).add(g.ref.mul(g).mul(1 - b2));
      const root = np.sqrt(v.ref.mul(correction2.ref)).add(eps);
      next[0][name] = P[name].sub(m.ref.mul(correction1.ref).mul(lr).div(root));
      next[1][name] = m;
      next[2][name] = v;
    }
    correction1.dispose();
    correction2.dispose();
    return [loss, ...next];
  };
}

export async function create(env) {
  const { manifest, threads } = env;
  Object.defineProperty(navigator, "hardwareConcurrency", { get: () => threads });
  const jax = await import("/node_modules/@jax-js/jax/dist/index.js");
  const { device = "wasm" } = env.query;
  const devices = await jax.init(device);
  if (!devices.includes(device)) {
    throw new Error(`no device ${device}: ${devices}`);
  }
  jax.defaultDevice(device);
  const { numpy: np } = jax;
  let { state, frozen } = await stateOf(jax, env);
  const train = jax.jit(stepOf(jax, env, frozen));
  const { nb, adamw } = manifest;
  return {
    info: { devices, threads },
    async step(i) {
      const x = np.array(env.xs[i % nb]).reshape(manifest.xshape);
      const y = np.array(env.ys[i % nb]);
      const correction = (decay) => np.array(1 / (1 - decay ** (i + 1)));
      const [loss, ...next] = train(...state, x, y, correction(adamw.b1), correction(adamw.b2));
      state = next;
      const [value] = await loss.data();
      // The update may still be in the workers' queue.
      await jax.blockUntilReady(state);
      return value;
    },
  };
}
