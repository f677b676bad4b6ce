"""Functions of shaders in WGSL: the polynomials of wasm_kernels/math.h, with the same operations.

Those of WGSL differ from device to device: tanh is NaN beyond 88 on some, and log(0) is finite. NaN and infinity are
found and made by their bits, because shaders may be compiled as if there were none.
"""

from __future__ import annotations

import re

FUNCTIONS = {
    "is_nan": "fn is_nan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }",
    "is_infinite": "fn is_infinite(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) == 0x7f800000u; }",
    "from_bits": "fn from_bits(b: u32) -> f32 { return bitcast<f32>(b); }",
    "with_sign": "fn with_sign(y: f32, x: f32) -> f32 "
    "{ return bitcast<f32>(bitcast<u32>(y) | (bitcast<u32>(x) & 0x80000000u)); }",
    "larger": "fn larger(a: f32, b: f32) -> f32 "
    "{ if (is_nan(a)) { return a; } if (is_nan(b)) { return b; } return max(a, b); }",
    "smaller": "fn smaller(a: f32, b: f32) -> f32 "
    "{ if (is_nan(a)) { return a; } if (is_nan(b)) { return b; } return min(a, b); }",
    "p_max": "fn p_max(a: f32, b: f32) -> f32 { return select(a, b, !is_nan(a) && !is_nan(b) && a < b); }",
    "power_of_two": "fn power_of_two(n: i32) -> f32 { return bitcast<f32>((n << 23u) + 0x3f800000i); }",
    "reduced_exp": """fn reduced_exp(x: f32, n: f32) -> f32 {
  let r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  let s = r * r;
  let p0 = 1.6666665459e-1f * r + 5.0000001201e-1f;
  let p2 = 8.3334519073e-3f * r + 4.1665795894e-2f;
  let p4 = 1.9875691500e-4f * r + 1.3981999507e-3f;
  return ((p4 * s + p2) * s + p0) * s + r;
}""",
    "exp_": """fn exp_(x: f32) -> f32 {
  if (is_nan(x)) { return x; }
  let c = clamp(x, -104.0f, 89.0f);
  let n = round(c * 1.44269504f);
  let e = reduced_exp(c, n) + 1.0f;
  let half = i32(n) >> 1u;
  return e * power_of_two(half) * power_of_two(i32(n) - half);
}""",
    "expm1_": """fn expm1_(x: f32) -> f32 {
  if (is_nan(x) || abs(x) < 0x1p-30f) { return x; }
  let c = clamp(x, -20.0f, 89.0f);
  let n = round(c * 1.44269504f);
  let scale = power_of_two(i32(n) - 1i);
  let y = reduced_exp(c, n) * scale + (scale - 0.5f);
  return y + y;
}""",
    "log_of_parts": """fn log_of_parts(f: f32, e: f32) -> f32 {
  var p = 7.0376836292e-2f;
  p = p * f + -1.1514610310e-1f;
  p = p * f + 1.1676998740e-1f;
  p = p * f + -1.2420140846e-1f;
  p = p * f + 1.4249322787e-1f;
  p = p * f + -1.6668057665e-1f;
  p = p * f + 2.0000714765e-1f;
  p = p * f + -2.4999993993e-1f;
  p = p * f + 3.3333331174e-1f;
  let square = f * f;
  let y = (e * -2.12194440e-4f + (p * f) * square) - square * 0.5f;
  return e * 0.693359375f + (f + y);
}""",
    "log_": """fn log_(x: f32) -> f32 {
  let bits = bitcast<u32>(x);
  if (is_nan(x) || bits == 0x7f800000u) { return x; }
  if ((bits & 0x7fffffffu) == 0u) { return from_bits(0xff800000u); }
  if (bits > 0x7fffffffu) { return from_bits(0x7fc00000u); }
  let tiny = bits < 0x00800000u;
  let scaled = bitcast<i32>(select(x, x * 8388608.0f, tiny));
  let exponent = (scaled - 0x3f3504f3i) >> 23u;
  let f = bitcast<f32>(scaled - (exponent << 23u)) - 1.0f;
  let e = f32(exponent - select(0i, 23i, tiny));
  return log_of_parts(f, e);
}""",
    "log1p_": """fn log1p_(x: f32) -> f32 {
  if (abs(x) < 0x1p-30f) { return x; }
  if (x > -0.29f && x < 0.41f) { return log_of_parts(x, 0.0f); }
  return log_(1.0f + x);
}""",
    "sigmoid_": """fn sigmoid_(x: f32) -> f32 {
  if (is_nan(x)) { return x; }
  let e = exp_(-abs(x));
  return select(1.0f, e, x < 0.0f) / (e + 1.0f);
}""",
    "tanh_": """fn tanh_(x: f32) -> f32 {
  if (is_nan(x)) { return x; }
  let t = abs(x);
  if (t < 0.625f) {
    let s = x * x;
    var p = -5.70498872745e-3f;
    p = p * s + 2.06390887954e-2f;
    p = p * s + -5.37397155531e-2f;
    p = p * s + 1.33314422036e-1f;
    p = p * s + -3.33332819422e-1f;
    return (p * s) * x + x;
  }
  return with_sign(1.0f - 2.0f / (exp_(min(t + t, 20.0f)) + 1.0f), x);
}""",
    "erf_": """fn erf_(x: f32) -> f32 {
  if (is_nan(x)) { return x; }
  var c0 = vec4f(0.0f, 0.888388216f, 0.998537302f, 0.999998212f);
  var c1 = vec4f(1.12837923f, 0.318274021f, 0.00714231888f, 1.27517351e-05f);
  var c2 = vec4f(-9.90350145e-06f, -0.35805881f, -0.0160713755f, -4.57277238e-05f);
  var c3 = vec4f(-0.375850886f, 0.162447929f, 0.0217229221f, 9.27066867e-05f);
  var c4 = vec4f(-0.0028735057f, 0.0279999934f, -0.0190703068f, -9.98662072e-05f);
  var c5 = vec4f(0.127043605f, -0.0612620823f, 0.0106926486f, 0.000161425458f);
  var c6 = vec4f(-0.0355759673f, 0.0152828386f, -0.00295413169f, -0.000356918696f);
  var c7 = vec4f(0.0155323409f, 0.0093250908f, -0.000874206482f, 0.000114966293f);
  var c8 = vec4f(-0.0158444103f, -0.00512290699f, 0.00105507916f, 0.000273989775f);
  let t = min(abs(x), 3.93f);
  let n = round(t / 1.125f);
  let v = t - n * 1.125f;
  let k = min(u32(n), 3u);
  let s = v * v;
  let p2 = c3[k] * v + c2[k];
  let p4 = c5[k] * v + c4[k];
  let p6 = c8[k] * s + (c7[k] * v + c6[k]);
  let p = p6 * (s * s) + (p4 * s + p2);
  return with_sign((p * v + c1[k]) * v + c0[k], x);
}""",
    "sin_shifted": """fn sin_shifted(x: f32, quarter: i32) -> f32 {
  if (is_nan(x) || is_infinite(x)) { return from_bits(0x7fc00000u); }
  let k = round(x * 0.636619772f);
  let r = ((x - k * 1.5703125f) - k * 4.83751297e-4f) - k * 7.54978996e-8f;
  let turn = i32(k) + quarter;
  let s = r * r;
  var y = (((-1.9515295891e-4f * s + 8.3321608736e-3f) * s + -1.6666654611e-1f) * s) * r + r;
  if ((turn & 1i) == 1i) {
    let c = (2.443315711809948e-5f * s + -1.388731625493765e-3f) * s + 4.166664568298827e-2f;
    y = ((c * s) * s + s * -0.5f) + 1.0f;
  }
  return select(y, -y, (turn & 2i) == 2i);
}""",
    "sin_": "fn sin_(x: f32) -> f32 { if (x == 0.0f) { return x; } return sin_shifted(x, 0i); }",
    "cos_": "fn cos_(x: f32) -> f32 { return sin_shifted(x, 1i); }",
    "pow_": """fn pow_(x: f32, y: f32) -> f32 {
  if (y == 0.0f || x == 1.0f) { return 1.0f; }
  if (is_nan(x) || is_nan(y)) { return from_bits(0x7fc00000u); }
  let a = abs(x);
  if (a == 1.0f && is_infinite(y)) { return 1.0f; }
  let is_integer = is_infinite(y) || y == floor(y);
  let is_odd = is_integer && !is_infinite(y) && floor(y * 0.5f) != y * 0.5f;
  var r: f32;
  if (a == 0.0f || is_infinite(a)) {
    r = from_bits(select(0u, 0x7f800000u, (y < 0.0f) == (a == 0.0f)));
  } else if (is_infinite(y)) {
    r = from_bits(select(0u, 0x7f800000u, (y > 0.0f) == (a > 1.0f)));
  } else if (is_integer && abs(y) <= 32.0f) {
    r = 1.0f;
    for (var n = 0.0f; n < abs(y); n += 1.0f) { r = r * a; }
    if (y < 0.0f) { r = 1.0f / r; }
  } else {
    r = exp_(y * log_(a));
  }
  if (x < 0.0f && !is_integer && !is_infinite(x)) { return from_bits(0x7fc00000u); }
  if (is_odd) { return with_sign(r, x); }
  return r;
}""",
}
"""By name. pow is a product for small integers, else e^(y log x). Near 0, log1p takes the polynomial of log itself: a
shader may be compiled as if (1 + x) - 1 were x."""

NAME = re.compile(r"\b(\w+)\(")


def with_functions(text: str) -> str:
    """A text with the functions that it calls before it."""
    called: dict[str, None] = {}

    def visit(source: str) -> None:
        for name in NAME.findall(source):
            if name in FUNCTIONS and name not in called:
                called[name] = None
                visit(FUNCTIONS[name])

    visit(text)
    return "\n".join([*(FUNCTIONS[name] for name in FUNCTIONS if name in called), text])
