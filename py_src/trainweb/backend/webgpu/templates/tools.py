"""Parts that templates share: sums over a workgroup in a fixed tree, labels, and places in several axes."""

from __future__ import annotations

from collections.abc import Sequence

from trainweb.backend.webgpu.shader import Kernel, Operand

FOLDS = {"sum": "a + b", "max": "larger(a, b)", "min": "smaller(a, b)", "prod": "a * b"}
"""The operation of a reduction on two values."""


def fold_over_lanes(k: Kernel, name: str, *, is_four: bool = False) -> str:
    """Declare `all_NAME(lane, value)`: the value of every lane is that of all, by halves, in one order."""
    kind, four = ("vec4f", "4") if is_four else ("f32", "")
    cells, fold = f"cells{four}", FOLDS[name].replace("larger", f"larger{four}")
    k.declare(f"var<workgroup> {cells}: array<{kind}, {k.lanes}>;")
    k.declare(
        f"fn fold_{name}{four}(a: {kind}, b: {kind}) -> {kind} {{ return {fold}; }}\n"
        f"fn all_{name}{four}(lane: u32, value: {kind}) -> {kind} {{\n"
        f"  {cells}[lane] = value;\n  workgroupBarrier();\n"
        f"  for (var half = {k.lanes // 2}u; half > 0u; half = half >> 1u) {{\n"
        f"    if (lane < half) {{ {cells}[lane] = fold_{name}{four}({cells}[lane], {cells}[lane + half]); }}\n"
        "    workgroupBarrier();\n  }\n"
        f"  let result = {cells}[0];\n  workgroupBarrier();\n  return result;\n}}"
    )
    return f"all_{name}{four}"


def over_lanes(k: Kernel, variable: str, count: str, *body: str) -> list[str]:
    """A loop in which each lane takes its share of so many steps."""
    return [f"for (var {variable} = lane; {variable} < {count}; {variable} += {k.lanes}u) {{", *body, "}"]


def sum_of(terms: Sequence[str]) -> str:
    """A sum of indices."""
    return " + ".join(terms) or "0u"


def wrapped_index(indices: Operand, at: str, dim: str) -> list[str]:
    """Statements for `index`: an index, of which negative ones count from the end."""
    return [f"var index = {indices.load(at)};", f"if (index < 0i) {{ index += i32({dim}); }}"]
