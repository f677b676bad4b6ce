"""Parts that templates share: folds over the lanes of a workgroup in a fixed order, and computed indices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil

from trainweb.backend.webgpu.shader import Kernel, Operand

FOLDS = {
    "sum": ("a + b", "0.0f"),
    "max": ("larger(a, b)", "from_bits(0xff800000u)"),
    "min": ("smaller(a, b)", "from_bits(0x7f800000u)"),
    "prod": ("a * b", "1.0f"),
    "sum4": ("a + b", "vec4f(0.0f)"),
    "max4": ("larger4(a, b)", "vec4f(from_bits(0xff800000u))"),
}
"""The operation of a fold on two values, or on two times four, and the value to begin with."""
COLUMNS = 16
"""A workgroup that folds columns has some side by side. Its lanes share the steps of each."""


def fold_over_lanes(k: Kernel, fold: str) -> str:
    """Declare `all_FOLD(lane, value, by)`: the fold of every `by`th lane's value, by halves, in one order."""
    kind, cells = ("vec4f", "cells4") if fold.endswith("4") else ("f32", "cells")
    k.declare(f"var<workgroup> {cells}: array<{kind}, {k.lanes}>;")
    k.declare(f"fn fold_{fold}(a: {kind}, b: {kind}) -> {kind} {{ return {FOLDS[fold][0]}; }}")
    k.declare(
        f"fn all_{fold}(lane: u32, value: {kind}, by: u32) -> {kind} {{\n"
        f"  {cells}[lane] = value;\n  workgroupBarrier();\n"
        f"  for (var half = {k.lanes // 2}u; half >= by; half = half >> 1u) {{\n"
        f"    if (lane < half) {{ {cells}[lane] = fold_{fold}({cells}[lane], {cells}[lane + half]); }}\n"
        "    workgroupBarrier();\n  }\n"
        f"  let result = {cells}[lane % by];\n  workgroupBarrier();\n  return result;\n}}"
    )
    return f"all_{fold}"


def fold_steps(k: Kernel, fold: str, end: str, *body: str, start: str = "lane", **terms: str) -> None:
    """Fold terms over steps, which the lanes share: variables of their names, the same for every lane."""
    all_of = fold_over_lanes(k, fold)
    k.add(*(f"var {name} = {FOLDS[fold][1]};" for name in terms))
    folds = [f"{name} = fold_{fold}({name}, {term});" for name, term in terms.items()]
    k.each_step(end, *body, *folds, start=start)
    k.add(*(f"{name} = {all_of}(lane, {name}, 1u);" for name in terms))


def fold_columns(k: Kernel, fold: str, size: tuple[str, str, str], *body: str, **terms: str) -> str:
    """Fold terms over the middle of three axes, by the names of their sizes; the kernel has a multiple of 16 lanes.

    `at` is the element of a `step`, and `column` that of the results, which lanes hold for which the condition is true
    that this returns.
    """
    (outer, steps, inner), all_of = size, fold_over_lanes(k, fold)
    k.count("strips", ceil(k.value(inner) / COLUMNS))
    k.blocks(outer=outer, strip="strips")
    k.add(f"let place = strip * {COLUMNS}u + lane % {COLUMNS}u;", f"let column = outer * u.{inner} + place;")
    k.add(*(f"var {name} = {FOLDS[fold][1]};" for name in terms), f"if (place < u.{inner}) {{")
    k.add(f"for (var step = lane / {COLUMNS}u; step < u.{steps}; step += {k.lanes // COLUMNS}u) {{")
    k.add(f"let at = (outer * u.{steps} + step) * u.{inner} + place;", *body)
    k.add(*(f"{name} = fold_{fold}({name}, {term});" for name, term in terms.items()), "}", "}")
    k.add(*(f"{name} = {all_of}(lane, {name}, {COLUMNS}u);" for name in terms))
    return f"lane < {COLUMNS}u && place < u.{inner}"


def middle_axis(k: Kernel, outer: str, n: str, inner: str) -> str:
    """Run a workgroup for each line along the middle axis; returns the element of `step`."""
    k.blocks(outer=outer, column=inner)
    k.add(f"let start = outer * u.{n} * u.{inner} + column;")
    return f"start + step * u.{inner}"


def unrolled(name: str, start: str, end: str, at_once: Sequence[int], body: Callable[[int], list[str]]) -> list[str]:
    """Loops over steps, which take so many at once; `body` has the statements for so many steps.

    A software adapter stores a variable after each of its statements: one statement should add several products.
    """
    lines = [f"var {name} = {start};"]
    for steps in at_once:
        lines += [f"for (; {name} + {steps - 1}u < {end}; {name} += {steps}u) {{", *body(steps), "}"]
    return lines


def sum_of(terms: Sequence[str]) -> str:
    """A sum of indices."""
    return " + ".join(terms) or "0u"


def wrapped_index(indices: Operand, at: str, dim: str) -> list[str]:
    """Statements for `index`: an index, of which negative ones count from the end."""
    return [f"var index = {indices[at]};", f"if (index < 0i) {{ index += i32({dim}); }}"]
