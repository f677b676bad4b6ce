"""The vector functions against float64, over dense samples of all magnitudes."""

from math import erf

import numpy as np
import pytest
import wasmtime
from tests.python.plan_builder import RawPlan, check_status, flat, stating, ulp_error

from trainweb.backend.wasm.engine.wasmtime import WasmtimeEngine

NAMES = ("exp", "log", "tanh", "erf", "sigmoid", "sin", "cos", "log1p", "expm1")
BUILDS = ("kernels", "kernels.relaxed")

# Bounds stated in wasm_kernels/math.h.
ULP = {
    "exp": 1.5,
    "log": 1.5,
    "tanh": 2.0,
    "erf": 2.5,
    "sigmoid": 2.5,
    "sin": 1.5,
    "cos": 1.5,
    "log1p": 2.5,
    "expm1": 2.0,
}
POW_ULP = 1.0

with np.errstate(all="ignore"):
    EXACT = {
        "exp": np.exp,
        "log": np.log,
        "tanh": np.tanh,
        "erf": np.vectorize(erf, otypes=[np.float64]),
        "sigmoid": lambda x: np.where(x < 0, np.exp(np.minimum(x, 0)), 1.0) / (1 + np.exp(-np.abs(x))),
        "sin": np.sin,
        "cos": np.cos,
        "log1p": np.log1p,
        "expm1": np.expm1,
    }


def module_text() -> str:
    """f0, f1, ...: y[i:i+4] = v_name(x[i:i+4]); the last is pow of two inputs."""
    imports, functions = [], []
    for k, name in enumerate((*NAMES, "pow")):
        n_args = 2 if name == "pow" else 1
        params = " ".join(["v128"] * n_args)
        imports.append(f'(import "kernels" "v_{name}" (func $v{k} (param {params}) (result v128)))')
        loads = " ".join(
            f"(v128.load (i32.add (i32.load offset={4 * j} (local.get 0)) (local.get 3)))" for j in range(n_args)
        )
        functions.append(f"""
          (func (export "f{k}") (param i32 i32 i32) (local i32)
            (local.set 3 (i32.shl (local.get 1) (i32.const 2)))
            (loop $next
              (v128.store
                (i32.add (i32.load offset={4 * n_args} (local.get 0)) (local.get 3))
                (call $v{k} {loads}))
              (local.set 3 (i32.add (local.get 3) (i32.const 16)))
              (br_if $next
                (i32.lt_s (local.get 3) (i32.shl (local.get 2) (i32.const 2))))))""")
    memory = '(import "env" "memory" (memory 0))'
    section = stating(*(flat(2 if name == "pow" else 1) for name in (*NAMES, "pow")))
    return f"(module {memory} {' '.join(imports)} {' '.join(functions)} {section})"


class VectorMath:
    """Calls the functions on arrays, through plans with `generated` instructions."""

    def __init__(self, build: str) -> None:
        self.engine = WasmtimeEngine(build)
        self.slot = self.engine.load_code(bytes(wasmtime.wat2wasm(module_text())))

    def __call__(self, name: str, *arrays: np.ndarray) -> np.ndarray:
        n = arrays[0].size
        padded = -(-n // 4) * 4
        inputs = [np.zeros(padded, np.float32) for _ in arrays]
        for out, array in zip(inputs, arrays, strict=True):
            out[:n] = array
        blocks = [self.engine.alloc(4 * padded) for _ in range(len(arrays) + 1)]
        for block, data in zip(blocks, inputs, strict=False):
            self.engine.write(block, data)
        plan = RawPlan(self.engine.description.fingerprint, code_base=self.slot, n_functions=10)
        plan.segments = [[block, 4 * padded, 1] for block in blocks]
        plan.buffers = [[k, 0, 4 * padded] for k in range(len(blocks))]
        pointers = [w for k in range(len(blocks)) for w in (k, 4 * padded, k == len(arrays))]
        args = [(*NAMES, "pow").index(name), padded, 1024, len(blocks), 0, *pointers]
        plan.code = [[len(args) << 16, *map(int, args)]]
        encoded = plan.encode()
        address = self.engine.alloc(encoded.nbytes)
        self.engine.write(address, encoded)
        plan.place(self.engine, address)
        check_status(self.engine, address, self.engine.run(address))
        result = np.frombuffer(self.engine.read(blocks[-1], 4 * n), np.float32)
        for block in (address, *blocks):
            self.engine.free(block)
        return result


@pytest.fixture(scope="module", params=BUILDS)
def math(request: pytest.FixtureRequest) -> VectorMath:
    return VectorMath(request.param)


def magnitudes(name: str) -> np.ndarray:
    """All exponents and both signs, denser where results are finite and interesting."""
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 1 << 31, 100_000, dtype=np.int64)
    bits = np.concatenate([bits, bits | 1 << 31]).astype(np.uint32)
    wide = bits.view(np.float32)
    wide = wide[np.isfinite(wide)]
    near = rng.uniform(-110, 110, 200_000).astype(np.float32)
    close = rng.uniform(-1.5, 1.5, 200_000).astype(np.float32)
    x = np.concatenate([wide, near, close, rng.uniform(-1e4, 1e4, 100_000).astype(np.float32)])
    if name in ("sin", "cos"):
        x = x[np.abs(x) < 1e6]
        multiples = (np.arange(1, 6366) * (np.pi / 2)).astype(np.float32)
        x = np.concatenate([x, multiples, -multiples])
    return x


@pytest.mark.parametrize("name", NAMES)
def test_error_stays_within_the_stated_bound(math: VectorMath, name: str) -> None:
    x = magnitudes(name)
    with np.errstate(all="ignore"):
        exact = EXACT[name](x.astype(np.float64))
        rounded = exact.astype(np.float32)
    y = math(name, x)
    error = ulp_error(y, exact)
    assert error <= ULP[name], f"{name}: {error} ulp"
    np.testing.assert_array_equal(np.isnan(y), np.isnan(rounded))
    infinite = np.isinf(rounded)
    np.testing.assert_array_equal(y[infinite], rounded[infinite])
    large = np.abs(rounded) < np.finfo(np.float32).max * 0.999999
    assert np.isfinite(y[large & ~np.isnan(rounded)]).all()


@pytest.mark.parametrize("name", NAMES)
def test_special_values(math: VectorMath, name: str) -> None:
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, 1.0, 1e-45, -1e-45], np.float32)
    with np.errstate(all="ignore"):
        expected = EXACT[name](x.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(math(name, x), expected, rtol=3e-7, atol=0)
    zeros = math(name, np.array([0.0, -0.0], np.float32))
    if expected[0] == 0:
        np.testing.assert_array_equal(np.signbit(zeros), [False, True])


def test_pow_error(math: VectorMath) -> None:
    rng = np.random.default_rng(2)
    x = np.exp(rng.uniform(-80, 80, 200_000)).astype(np.float32)
    y = (rng.uniform(-88, 88, x.size) / np.log(x.astype(np.float64))).astype(np.float32)
    exact = np.power(x.astype(np.float64), y.astype(np.float64))
    assert ulp_error(math("pow", x, y), exact) <= POW_ULP
    near = rng.uniform(0.9, 1.1, 100_000).astype(np.float32)
    powers = rng.uniform(-800, 800, near.size).astype(np.float32)
    exact = np.power(near.astype(np.float64), powers.astype(np.float64))
    assert ulp_error(math("pow", near, powers), exact) <= POW_ULP


def test_pow_special_cases(math: VectorMath) -> None:
    values = np.array(
        [
            0.0,
            -0.0,
            1,
            -1,
            2,
            -2,
            0.5,
            -0.5,
            3,
            -3,
            np.inf,
            -np.inf,
            np.nan,
            1e-40,
            -1e-40,
            16777216,
            -16777217,
            3e38,
            1e30,
            0.1,
        ],
        np.float32,
    )
    x, y = (a.ravel() for a in np.meshgrid(values, values))
    with np.errstate(all="ignore"):
        expected = np.power(x.astype(np.float64), y.astype(np.float64)).astype(np.float32)
    actual = math("pow", x, y)
    np.testing.assert_allclose(actual, expected, rtol=1.3e-7, atol=1e-45)
    zero = expected == 0
    np.testing.assert_array_equal(np.signbit(actual[zero]), np.signbit(expected[zero]))
