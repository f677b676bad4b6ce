"""Records expected.npz with optax and Keras, which agree: `python record.py` where both are installed, with jax.

Five steps of Lion from zero moments on 33 parameters, with and without weight decay.
"""

import os
from pathlib import Path

os.environ["KERAS_BACKEND"] = "jax"

import jax
import keras
import numpy as np
import optax

jax.config.update("jax_enable_x64", True)
RATE, BETAS, STEPS, SIZE = 0.01, (0.85, 0.97), 5, 33

rng = np.random.default_rng(20230213)
start = rng.standard_normal(SIZE)
gradients = rng.standard_normal((STEPS, SIZE)) * rng.choice([1e-3, 1, 1e3], SIZE)
gradients[:, 0] = 0  # never moves but by decay
arrays = {"start": start, "gradients": gradients}
for name, decay in (("plain", 0.0), ("decayed", 0.1)):
    transform = optax.lion(RATE, *BETAS, weight_decay=decay)
    w, state, path = start, transform.init(start), []
    variable = keras.Variable(start, dtype="float64")
    other = keras.optimizers.Lion(RATE, *BETAS, weight_decay=decay or None)
    for g in gradients:
        updates, state = transform.update(g, state, w)
        w = optax.apply_updates(w, updates)
        other.apply([g], [variable])
        np.testing.assert_allclose(np.asarray(variable), w, rtol=1e-6, atol=1e-8)  # its rate is a float32
        path.append(np.asarray(w))
    arrays[f"{name}/weights"] = np.stack(path)
    arrays[f"{name}/moment"] = np.asarray(state[0].mu)
np.savez(Path(__file__).with_name("expected.npz"), **arrays)
print(optax.__version__, keras.__version__, jax.__version__)
