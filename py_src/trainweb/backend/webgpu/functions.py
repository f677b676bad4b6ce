"""Functions of shaders in WGSL: the polynomials of wasm_kernels/math.h. WGSL's own differ from device to device."""

from __future__ import annotations

import re

from trainweb.ir import layout

TEXT = (
    """fn is_nan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
fn is_infinite(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) == 0x7f800000u; }
fn from_bits(b: u32) -> f32 { return bitcast<f32>(b); }
fn with_sign(y: f32, x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(y) | (bitcast<u32>(x) & 0x80000000u)); }
fn larger(a: f32, b: f32) -> f32 { return select(select(max(a, b), b, is_nan(b)), a, is_nan(a)); }
fn smaller(a: f32, b: f32) -> f32 { return select(select(min(a, b), b, is_nan(b)), a, is_nan(a)); }
fn p_max(a: f32, b: f32) -> f32 { return select(a, b, !is_nan(a) & !is_nan(b) & (a < b)); }
fn larger4(a: vec4f, b: vec4f) -> vec4f {
  return vec4f(larger(a.x, b.x), larger(a.y, b.y), larger(a.z, b.z), larger(a.w, b.w));
}
fn are_nan(x: vec4f) -> vec4<bool> { return (bitcast<vec4u>(x) & vec4u(0x7fffffffu)) > vec4u(0x7f800000u); }
fn are_hidden(mask: vec4f) -> vec4<bool> { return bitcast<vec4u>(mask) == vec4u(0xff800000u); }
fn masked4(score: vec4f, mask: vec4f, fill: f32) -> vec4f {
  return select(score + mask, vec4f(fill), are_hidden(mask));
}
fn finite4(top: vec4f) -> vec4f { return select(top, vec4f(0.0f), are_hidden(top)); }
fn mul_high(a: u32, b: u32) -> u32 {
  let low = (a & 0xffffu) * (b & 0xffffu);
  let middle = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
  let other = (a & 0xffffu) * (b >> 16u) + (middle & 0xffffu);
  return (a >> 16u) * (b >> 16u) + (middle >> 16u) + (other >> 16u);
}
fn philox(counter: u32, salt: u32, offset: vec2u, seed: vec2u) -> vec4u {
  var c = vec4u(counter, salt, offset);
  var key = seed;
  for (var round = 0u; round < 10u; round++) {
    let high = vec2u(mul_high(c.x, 0xD2511F53u), mul_high(c.z, 0xCD9E8D57u));
    c = vec4u(high.y ^ c.y ^ key.x, c.z * 0xCD9E8D57u, high.x ^ c.w ^ key.y, c.x * 0xD2511F53u);
    key += vec2u(0x9E3779B9u, 0xBB67AE85u);
  }
  return c;
}
fn half_of_random(i: u32, salt: u32, offset: vec2u, seed: vec2u) -> u32 {
  let bits = philox((i >> 5u) * 4u + ((i >> 1u) & 3u), salt, offset, seed);
  return (bits[(i >> 3u) & 3u] >> (16u * (i & 1u))) & 0xffffu;
}
fn uniform_of(bits: u32) -> f32 { return f32(bits >> 8u) * 0x1p-24f; }
fn power_of_two(n: i32) -> f32 { return bitcast<f32>((n << 23u) + 0x3f800000i); }
fn reduced_exp(x: f32, n: f32) -> f32 {
  let r = (x - n * LN2_0) - n * LN2_1;
  let s = r * r;
  let p0 = EXP_TERMS_4 * r + EXP_TERMS_5;
  let p2 = EXP_TERMS_2 * r + EXP_TERMS_3;
  let p4 = EXP_TERMS_0 * r + EXP_TERMS_1;
  return ((p4 * s + p2) * s + p0) * s + r;
}
fn exp_(x: f32) -> f32 {
  let c = clamp(select(x, 0.0f, is_nan(x)), -104.0f, 89.0f);
  let n = round(c * LN2_2);
  let e = reduced_exp(c, n) + 1.0f;
  let half = i32(n) >> 1u;
  return select(e * power_of_two(half) * power_of_two(i32(n) - half), x, is_nan(x));
}
fn exp4(x: vec4f) -> vec4f { return vec4f(exp_(x.x), exp_(x.y), exp_(x.z), exp_(x.w)); }
fn expm1_(x: f32) -> f32 {
  if (is_nan(x) || abs(x) < 0x1p-30f) { return x; }
  let c = clamp(x, -20.0f, 89.0f);
  let n = round(c * LN2_2);
  let scale = power_of_two(i32(n) - 1i);
  let y = reduced_exp(c, n) * scale + (scale - 0.5f);
  return y + y;
}
fn log_of_parts(f: f32, e: f32) -> f32 {
  let p = ((((((((LOG_TERMS_0 * f + LOG_TERMS_1) * f + LOG_TERMS_2) * f + LOG_TERMS_3) * f + LOG_TERMS_4)
    * f + LOG_TERMS_5) * f + LOG_TERMS_6) * f + LOG_TERMS_7) * f + LOG_TERMS_8);
  let square = f * f;
  let y = (e * LN2_1 + (p * f) * square) - square * 0.5f;
  return e * LN2_0 + (f + y);
}
fn log_(x: f32) -> f32 {
  let bits = bitcast<u32>(x);
  let of_negative = from_bits(select(0x7fc00000u, 0xff800000u, (bits << 1u) == 0u));
  let special = select(of_negative, x, is_nan(x) | (bits == 0x7f800000u));
  let tiny = bits < 0x00800000u;
  let scaled = bitcast<i32>(select(x, x * 8388608.0f, tiny));
  let exponent = (scaled - 0x3f3504f3i) >> 23u;
  let f = bitcast<f32>(scaled - (exponent << 23u)) - 1.0f;
  let e = f32(exponent - select(0i, 23i, tiny));
  return select(log_of_parts(f, e), special, bits - 1u >= 0x7f7fffffu);
}
fn log1p_(x: f32) -> f32 {
  if (abs(x) < 0x1p-30f) { return x; }
  if (x > -0.29f && x < 0.41f) { return log_of_parts(x, 0.0f); }
  return log_(1.0f + x);
}
fn sigmoid_(x: f32) -> f32 {
  let e = exp_(-abs(x));
  return select(1.0f, e, x < 0.0f) / (e + 1.0f);
}
fn tanh_(x: f32) -> f32 {
  if (is_nan(x)) { return x; }
  let t = abs(x);
  if (t < 0.625f) {
    let s = x * x;
    let p = ((((TANH_TERMS_0 * s + TANH_TERMS_1) * s + TANH_TERMS_2) * s + TANH_TERMS_3) * s + TANH_TERMS_4);
    return (p * s) * x + x;
  }
  return with_sign(1.0f - 2.0f / (exp_(min(t + t, 20.0f)) + 1.0f), x);
}
fn erf_(x: f32) -> f32 {
  if (is_nan(x)) { return x; }
"""
    + "".join(f"  var c{n} = vec4f({', '.join(f'ERF_TERMS_{4 * n + part}' for part in range(4))});\n" for n in range(9))
    + """  let t = min(abs(x), 3.93f);
  let n = round(t / 1.125f);
  let v = t - n * 1.125f;
  let k = min(u32(n), 3u);
  let s = v * v;
  let p2 = c3[k] * v + c2[k];
  let p4 = c5[k] * v + c4[k];
  let p6 = c8[k] * s + (c7[k] * v + c6[k]);
  let p = p6 * (s * s) + (p4 * s + p2);
  return with_sign((p * v + c1[k]) * v + c0[k], x);
}
fn sin_shifted(x: f32, quarter: i32) -> f32 {
  if (is_nan(x) || is_infinite(x)) { return from_bits(0x7fc00000u); }
  let k = round(x * 0.636619772f);
  let r = ((x - k * 1.5703125f) - k * 4.83751297e-4f) - k * 7.54978996e-8f;
  let turn = i32(k) + quarter;
  let s = r * r;
  var y = (((SIN_TERMS_0 * s + SIN_TERMS_1) * s + SIN_TERMS_2) * s) * r + r;
  if ((turn & 1i) == 1i) {
    let c = (COS_TERMS_0 * s + COS_TERMS_1) * s + COS_TERMS_2;
    y = ((c * s) * s + s * -0.5f) + 1.0f;
  }
  return select(y, -y, (turn & 2i) == 2i);
}
fn sin_(x: f32) -> f32 { if (x == 0.0f) { return x; } return sin_shifted(x, 0i); }
fn cos_(x: f32) -> f32 { return sin_shifted(x, 1i); }
fn pow_(x: f32, y: f32) -> f32 {
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
}"""
)
FUNCTIONS = {text[3 : text.index("(")]: text for text in re.split(r"\n(?=fn )", TEXT)}
"""By name, with numbers that wasm_kernels/kernels.def declares. pow is a product for small integers, else e^(y log x).
Near 0, log1p takes the polynomial of log itself: a shader may be compiled as if (1 + x) - 1 were x."""

NAME = re.compile(r"\b(\w+)\(")
NUMBER = re.compile(r"\b([A-Z][A-Z0-9]*(?:_TERMS)?)_(\d+)\b")


def with_functions(text: str) -> str:
    """A text with the functions that it calls before it."""
    called = {*NAME.findall(text)}
    for name in reversed(FUNCTIONS):  # a function calls those before it
        if name in called:
            called |= {*NAME.findall(FUNCTIONS[name])}
    functions = "\n".join(FUNCTIONS[name] for name in FUNCTIONS if name in called)
    return "\n".join([NUMBER.sub(lambda match: getattr(layout, match[1])[int(match[2])], functions), text])
