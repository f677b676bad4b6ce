"""The table of operators in docs/operators.md: `python -m trainweb.ops.table > docs/operators.md`."""

from __future__ import annotations

import re

from trainweb.ops.op import Op, registry

DOMAINS = {
    "": "ai.onnx",
    "com.microsoft": "com.microsoft: gradients, optimizers and fused operators of ONNX Runtime",
    "ai.trainweb": "ai.trainweb: inside a session only",
}
HEADER = """# Operators

Printed from the registry by `python -m trainweb.ops.table`; do not edit. *Since* is the oldest opset that is
accepted (models from opset 7 on), *changed* the opsets in which the definition changed since. *Gradient* tells
through which inputs it flows: `-` where the operator ends it. *Constant* inputs must be known when the model
is compiled, which includes what follows from shapes. Inputs count from 0.
"""


def operators_table() -> str:
    """The whole page."""
    classes = list(registry())
    parts = [HEADER]
    for domain, title in DOMAINS.items():
        rows = [cls for cls in classes if cls.domain == domain]
        parts.append(f"## {title} ({len(rows)})\n")
        parts.append("| operator | since | changed | gradient | constant | |\n|---|---|---|---|---|---|")
        parts.extend(_row(cls) for cls in rows)
        parts.append("")
    return "\n".join(parts)


def _row(cls: type[Op]) -> str:
    summary = (cls.__doc__ or "").strip().split("\n\n")[0].replace("\n", " ")
    link = re.search(r"https://onnx\.ai/\S+", summary)
    name = f"[{cls.op_type()}]({link[0]})" if link else cls.op_type()
    text = re.sub(r"\s*https://\S+", "", summary).replace("|", "\\|")
    changed = ", ".join(map(str, cls.versions[1:]))
    static = ", ".join(map(str, cls.static_inputs))
    return f"| {name} | {cls.versions[0]} | {changed} | {_gradient(cls)} | {static} | {text} |"


def _gradient(cls: type[Op]) -> str:
    inputs = cls.differentiable
    if not inputs:
        return "-"
    return "yes" if len(inputs) >= cls.max_inputs else f"of {', '.join(map(str, inputs))}"


if __name__ == "__main__":
    print(operators_table(), end="")
