/**
 * TensorFlow.js 4.22 in NHWC, the only layout of its wasm and cpu backends. query.backend: wasm, cpu or webgpu.
 *
 * query.tuned works around what the wasm backend lacks, as an expert would: matMul's gradient by explicit transposes
 * (its own falls off XNNPACK into a scalar loop), a filter gradient written as a forward convolution
 * (Conv2DBackpropFilter has no wasm kernel), the embedding as a product with one-hot rows (UnsortedSegmentSum has none).
 * query.cores pretends to have more cores: the backend's pool takes half of them, so two threads need four.
 */

const DIST = "/node_modules/@tensorflow/tfjs-backend-wasm/dist/";

async function start({ query, script, threads }) {
  if (query.cores) {
    Object.defineProperty(navigator, "hardwareConcurrency", { get: () => Number(query.cores) });
  }
  await script("/node_modules/@tensorflow/tfjs/dist/tf.min.js");
  const { tf } = window;
  if (query.backend === "wasm") {
    await script(`${DIST}tf-backend-wasm.min.js`);
    tf.wasm.setWasmPaths(DIST);
    tf.wasm.setThreadsCount(threads);
    if (threads === 1) {
      tf.env().set("WASM_HAS_MULTITHREAD_SUPPORT", false);
    }
  }
  if (query.backend === "webgpu") {
    await script("/node_modules/@tensorflow/tfjs-backend-webgpu/dist/tf-backend-webgpu.min.js");
  }
  if (!(await tf.setBackend(query.backend))) {
    throw new Error(`tf.setBackend(${query.backend}) returned false`);
  }
  await tf.ready();
  tf.enableProdMode();
  return tf;
}

/** Weights in the layouts that TensorFlow users have: [in, out] and HWIO. */
async function variables(tf, env) {
  const result = {};
  for (const [name, { data, shape, trainable }] of Object.entries(await env.parameters())) {
    let value = tf.tensor(data, shape);
    if (shape.length === 4) {
      value = value.transpose([2, 3, 1, 0]);
    }
    if (env.manifest.kind === "lenet" && name === "fc1.weight") {
      // Its input is flattened from NHWC here.
      value = value.reshape([128, 64, 7, 7]).transpose([0, 2, 3, 1]).reshape([128, 3136]);
    }
    if (shape.length === 2 && name.endsWith(".weight")) {
      value = value.transpose();
    }
    result[name] = tf.variable(value, trainable, name);
  }
  return result;
}

/** Layers on the variables P. */
function layersOf(tf, P, tuned) {
  const swap = (t) => {
    const order = t.shape.map((_, i) => i);
    order.push(...order.splice(-2).reverse());
    return tf.transpose(t, order);
  };
  const tunedMatMul = tf.customGrad((a, b, save) => {
    save([a, b]);
    const gradFunc = (dy, [a, b]) => [tf.matMul(dy, swap(b)), tf.matMul(swap(a), dy)];
    return { value: tf.matMul(a, b), gradFunc };
  });
  const matMul = tuned ? tunedMatMul : tf.matMul;

  const tunedConv = (stride, pad, isFirst) =>
    tf.customGrad((x, w, save) => {
      save([x, w]);
      const gradFunc = (dy, [x, w]) => {
        const [height, width] = w.shape;
        const dx = isFirst ? tf.zerosLike(x) : tf.conv2dTranspose(dy, w, x.shape, stride, pad);
        // dW[i,j,c,o]: x as [C,H,W,N] convolved with dy as filter [oh,ow,N,O], dilated by the stride.
        const filter = tf.transpose(dy, [1, 2, 0, 3]);
        const full = tf.conv2d(tf.transpose(x, [3, 1, 2, 0]), filter, 1, pad, "NHWC", stride);
        const dw = tf.transpose(tf.slice(full, [0, 0, 0, 0], [-1, height, width, -1]), [1, 2, 0, 3]);
        return [dx, dw];
      };
      return { value: tf.conv2d(x, w, stride, pad), gradFunc };
    });

  return {
    matMul,
    dense: (x, name) => tf.add(matMul(x, P[`${name}.weight`]), P[`${name}.bias`]),
    conv(x, name, stride = 1, pad = 1) {
      const w = P[`${name}.weight`];
      const isFirst = name === "conv1" || name === "stem";
      const y = tuned ? tunedConv(stride, pad, isFirst)(x, w) : tf.conv2d(x, w, stride, pad);
      const bias = P[`${name}.bias`];
      return bias ? tf.add(y, bias) : y;
    },
    pool: (x) => tf.maxPool(x, 2, 2, "valid"),
    batchNorm(x, name) {
      const { mean, variance } = tf.moments(x, [0, 1, 2]);
      return tf.batchNorm(x, mean, variance, P[`${name}.bn.beta`], P[`${name}.bn.gamma`], 1e-5);
    },
    layerNorm(x, name) {
      const centred = tf.sub(x, tf.mean(x, -1, true));
      const variance = tf.mean(tf.square(centred), -1, true);
      const unit = tf.mul(centred, tf.rsqrt(tf.add(variance, 1e-5)));
      return tf.add(tf.mul(unit, P[`${name}.g`]), P[`${name}.b`]);
    },
    gelu: (x) => tf.mul(tf.mul(x, 0.5), tf.add(tf.erf(tf.mul(x, Math.SQRT1_2)), 1)),
    project(x, name) {
      const [batch, length, width] = x.shape;
      const y = tf.add(matMul(tf.reshape(x, [batch * length, width]), P[`${name}.w`]), P[`${name}.b`]);
      return tf.reshape(y, [batch, length, -1]);
    },
  };
}

function gptOf(tf, P, layers, manifest, tuned) {
  const { batch, S, D, H, L, V } = manifest;
  const { layerNorm, project, gelu, matMul } = layers;
  const mask = tf.tensor(
    Float32Array.from({ length: S * S }, (_, k) => (k % S > Math.floor(k / S) ? -1e9 : 0)),
    [S, S],
  );
  const heads = (t) => tf.transpose(tf.reshape(t, [batch, S, H, D / H]), [0, 2, 1, 3]);
  const embed = (ids) => {
    if (!tuned) {
      return tf.gather(P.wte, ids);
    }
    const rows = tf.cast(tf.oneHot(tf.reshape(ids, [-1]), V), "float32");
    return tf.reshape(matMul(rows, P.wte), [batch, S, D]);
  };
  return (ids) => {
    let x = tf.add(embed(ids), P.wpe);
    for (let layer = 0; layer < L; layer++) {
      const at = (name) => `h${layer}.${name}`;
      const [q, k, v] = tf.split(project(layerNorm(x, at("ln1")), at("qkv")), 3, 2).map(heads);
      const scores = tf.mul(tf.matMul(q, k, false, true), 1 / Math.sqrt(D / H));
      const context = tf.matMul(tf.softmax(tf.add(scores, mask)), v);
      const y = tf.reshape(tf.transpose(context, [0, 2, 1, 3]), [batch, S, D]);
      x = tf.add(x, project(y, at("proj")));
      x = tf.add(x, project(gelu(project(layerNorm(x, at("ln2")), at("fc"))), at("fcproj")));
    }
    return matMul(tf.reshape(layerNorm(x, "lnf"), [batch * S, D]), P["head.w"]);
  };
}

function forwardOf(tf, P, manifest, tuned) {
  const layers = layersOf(tf, P, tuned);
  const { dense, conv, pool, batchNorm } = layers;
  const unit = (x, name, stride = 1, pad = 1) => {
    const y = conv(x, name, stride, pad);
    return manifest.bn ? batchNorm(y, name) : y;
  };
  const kinds = {
    mlp(x) {
      const last = manifest.dims.length - 1;
      for (let k = 1; k <= last; k++) {
        x = dense(x, `fc${k}`);
        x = k < last ? tf.relu(x) : x;
      }
      return x;
    },
    lenet(x) {
      x = pool(tf.relu(conv(x, "conv1")));
      x = pool(tf.relu(conv(x, "conv2")));
      return dense(tf.relu(dense(tf.reshape(x, [manifest.batch, -1]), "fc1")), "fc2");
    },
    resnet(x) {
      x = tf.relu(unit(x, "stem"));
      for (let stage = 0; stage < 3; stage++) {
        const stride = stage ? 2 : 1;
        const y = unit(tf.relu(unit(x, `s${stage}.a`, stride)), `s${stage}.b`);
        x = tf.relu(tf.add(y, stage ? unit(x, `s${stage}.sc`, stride, 0) : x));
      }
      return dense(tf.mean(x, [1, 2]), "fc");
    },
    transfer: (features) => dense(features, "fc"),
    gpt: manifest.kind === "gpt" ? gptOf(tf, P, layers, manifest, tuned) : null,
  };
  const frozen = (x) => {
    for (let k = 1; k <= 4; k++) {
      x = tf.relu(conv(x, `feat${k}`, 2));
    }
    return tf.mean(x, [1, 2]);
  };
  return { forward: kinds[manifest.kind], features: manifest.kind === "transfer" ? frozen : (x) => x };
}

/** Batches in NHWC, made once; sending them to the backend is part of every step. */
function channelsLast({ xs, manifest: { xshape } }) {
  if (xshape.length !== 4) {
    return { xs, shape: xshape };
  }
  const [batch, channels, height, width] = xshape;
  const pixels = height * width;
  const turned = xs.map((x) => {
    const out = new Float32Array(x.length);
    for (let k = 0; k < x.length; k++) {
      const image = Math.floor(k / (channels * pixels));
      const channel = Math.floor(k / pixels) % channels;
      out[(image * pixels + (k % pixels)) * channels + channel] = x[k];
    }
    return out;
  });
  return { xs: turned, shape: [batch, height, width, channels] };
}

export async function create(env) {
  const { manifest, query } = env;
  const tf = await start(env);
  const P = await variables(tf, env);
  const trained = manifest.params.filter(({ trainable }) => trainable).map(({ name }) => P[name]);
  const { forward, features } = forwardOf(tf, P, manifest, query.tuned === "1");
  const { xs, shape } = channelsLast(env);
  const { lr, b1, b2, eps } = manifest.adamw;
  const optimizer = tf.train.adam(lr, b1, b2, eps);
  const { nb } = manifest;
  return {
    info: {
      version: tf.version.tfjs,
      backend: tf.getBackend(),
      threads: query.backend === "wasm" ? tf.wasm.getThreadsCount() : 1,
    },
    async step(i) {
      const loss = tf.tidy(() => {
        const x = features(tf.tensor(xs[i % nb], shape, manifest.xdtype));
        const y = tf.oneHot(tf.tensor1d(env.ys[i % nb], "int32"), manifest.classes);
        return optimizer.minimize(() => tf.losses.softmaxCrossEntropy(y, forward(x)), true, trained);
      });
      const [value] = await loss.data();
      loss.dispose();
      return value;
    },
  };
}
