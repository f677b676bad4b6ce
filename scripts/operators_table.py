"""Operators and optimizers in docs/operators.md: `python scripts/operators_table.py > docs/operators.md`."""

from __future__ import annotations

import re
import sys
from inspect import signature
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "py_src"))
from trainweb.control import CONTROL_OPERATORS
from trainweb.control.expansion import UNROLLED_NODES
from trainweb.control.repeat import OPEN_TRIPS, WRITTEN_OUT_NODES
from trainweb.ir.layout import LOOP_TRIPS
from trainweb.model.graph import LOOP_ITERATIONS
from trainweb.onnxblock.loss import LOSSES
from trainweb.onnxblock.optim import OPTIMIZERS
from trainweb.ops.frame.op import Op, registry
from trainweb.schedules import SCHEDULES

DOMAINS = {
    "": "ai.onnx",
    "com.microsoft": "com.microsoft: gradients, optimizers and fused operators of ONNX Runtime",
    "ai.onnx.ml": "ai.onnx.ml: preprocessing of scikit-learn",
    "ai.trainweb": "ai.trainweb: operators that ONNX Runtime does not have",
}
HEADER = """<!-- `python scripts/operators_table.py` prints this page from the registry; do not edit it. -->

# Operators

These are the operators that a model may have. Inputs count from 0.

- *Since* is the oldest opset that trainweb accepts. Models start from opset 7.
- *Changed* lists the opsets in which the definition changed since.
- *Gradient* lists the inputs with a gradient. `-` means that the operator has none.
- *Constant* inputs must be known when trainweb compiles the model. They may depend on shapes. If they depend on a feed,
  each value gets its own plan.
"""
CONTROL_HEADER = """## Control flow and sequences

trainweb replaces these operators of ai.onnx by others, forward and backward:

{names}.

**If.**

- With a known condition, only the chosen branch remains.
- With a condition from data, both branches run, and the results are selected. They must have the same sizes.
  A branch that draws random numbers or updates state needs a known condition.
- With a condition from sizes, or from feeds of integers or bools, each branch has its own plan. Results may differ in
  size, but not in rank.
- Results of different ranks need a condition that is known when you build artifacts. Set the sizes that decide it:
  `dims` of `build_artifacts` and `createFromModel`, or `trainweb artifacts --dim NAME=SIZE`. A branch that cannot run
  with these sizes is an error only if it is chosen.

**Loop and Scan with a known number of iterations.** Training needs the number when you build artifacts, inference when
the model is compiled.

- Up to {written:,} nodes, trainweb unrolls the iterations.
- Longer ones become a loop in the plan, with at most {trips:,} iterations. The loop stores the start of each iteration
  for the gradient.
- Bodies with sequences, or with other sizes in each iteration, are unrolled up to {limit:,} nodes. A list may start
  empty and grow by one tensor in each iteration.

**Lengths that vary.** A Scan may run along a varying size. A Loop may take its number of iterations from such a size or
a feed, and collect as many rows or list elements. Each length has its own plan. Carried tensors keep their sizes.

**Loops that end at run time.** The condition or trip count of such a Loop depends on data.

- It becomes a loop in the plan. A constant trip count limits its iterations. Without one, or beyond {open:,}, the limit
  is `limits.loopIterations` (`limits={{"loop_iterations": ...}}`), {limit_open:,} by default.
- A step beyond the limit is a `LimitError`, and changes nothing.
- The loop has memory for the start of each iteration. The gradient goes back through the iterations that ran.
- With a constant trip count and up to {written:,} nodes, trainweb unrolls the loop and selects the results.
- You cannot use its scan outputs, because their number of rows is unknown.
- Its body must not draw random numbers or update state. The loop does not run in a branch that is not chosen.

**Sequences and optionals** need a known length. They cannot be inputs or outputs of a model.
"""

TIES = """## Gradients at ties, at bounds and at zero

Some functions have no derivative at some points. There the gradient is PyTorch's (2.15), as recorded in
`tests/golden/ties`:

- Equal inputs of Max and Min share the gradient, and so do equal elements in ReduceMax and ReduceMin. MaxPool,
  GlobalMaxPool, MaxRoiPool and TopK take the first one.
- In PyTorch `x.max(dim)` and `x.min(dim)` take the first one, but `amax` and `amin` share. The dynamo exporter notes
  which function it was, and trainweb follows. TorchScript does not, so both share.
- Clip has a gradient of 0 at a constant bound, like `clamp`. A computed or trained bound shares the gradient with the
  input.
- PRelu and LeakyRelu have the slope at 0. Relu, Abs and Shrink have 0 at their bounds.
- Sqrt, and Pow with an exponent below 1, have an infinite derivative at 0. It is 0 if the input is a sum of squares, as
  in PyTorch's `std`, `norm` and `cdist`. If the module itself contains such a root, PyTorch has NaN instead.
- GridSample has no gradient through a position on the border of the image, unless padding_mode is zeros. In mode cubic
  with padding_mode border, each pixel outside is the nearest one inside, as in PyTorch and ONNX Runtime. ONNX's
  reference evaluator moves the position first.

Files do not record the following differences, so gradients may differ from PyTorch's:

- `adaptive_max_pool` with one output element is a ReduceMax in files of the dynamo exporter, and shares. PyTorch takes
  the first one.
- `topk` of equal elements takes the first ones, as ONNX says. PyTorch does not define which ones.
- `clamp` to a constant tensor counts as `clamp` to a number.
- `cosine_similarity` of TorchScript applies its smallest divisor to the product of both norms, PyTorch to each norm.
"""

OPTIMIZERS_HEADER = """## Optimizers

You choose an optimizer by name: `OptimType` in Python, `trainweb artifacts --optimizer`, or `optimizer` in a page's
configuration. There are two ways to give settings:

- arguments of the class in `trainweb.onnxblock.optim`, along with `clip_grad=ClipGradNorm(max_norm)`;
- members of `{"type": "AdamW", ...}`, for `build_artifacts` and `createFromModel`. A page writes them in camelCase, as
  `weightDecay`, and `epsilon` for `eps`.

These members also take `learning_rate`, `decay_biases_and_norms` and `groups`. A group has `parameters`,
`learning_rate_factor` and other settings. `learning_rate`, `clip_grad_norm`, `clip_grad_value` and `ema` are arguments
beside the optimizer.

*Moments* are state tensors of each trainable parameter. Checkpoints call them momentum0, momentum1 and so on. Some
exist only with certain settings.

Optimizer models with an operator of ai.trainweb run only in trainweb. These are SGD with any setting, and all
optimizers with groups or clipped by value. The trained parameters work in any runtime.

| optimizer | operator | moments | settings | description |
|---|---|---|---|---|"""


LOSSES_HEADER = """## Losses

You choose a loss by name: `LossType` in Python, `trainweb artifacts --loss`, or `loss` in a page's configuration. The
classes are in `trainweb.onnxblock.loss`. Settings work as for optimizers. A page writes `weights` for `weight` and
`positiveWeights` for `pos_weight`. *Outputs* is the number of model outputs that the loss takes.

| loss | outputs | settings | description |
|---|---|---|---|"""


SCHEDULES_HEADER = """## Schedules

Python has classes in `trainweb.schedules`; a page has `schedule({ type, learningRate, ... })`. `rate(step)` returns the
learning rate for optimizer step `step`, counted from 0. Set it with `set_learning_rate` before the step. A function of
the step is a schedule, too.

`start`, `end`, `least` and `warmup_start` are shares of `learning_rate`: a rate of 1e-3 with `end=0.01` ends at 1e-5.

| schedule | settings | description |
|---|---|---|"""


def operators_table() -> str:
    """The whole page."""
    classes = list(registry())
    parts = [HEADER]
    for domain, title in DOMAINS.items():
        rows = [cls for cls in classes if cls.domain == domain]
        parts.append(f"## {title} ({len(rows)})\n")
        parts.append("| operator | since | changed | gradient | constant | description |\n|---|---|---|---|---|---|")
        parts.extend(_row(cls) for cls in rows)
        parts.append("")
    return "\n".join([*parts, TIES, _control(), *_optimizers(), *_losses(), *_schedules()])


def _control() -> str:
    return CONTROL_HEADER.format(
        names=", ".join(CONTROL_OPERATORS),
        limit=UNROLLED_NODES,
        written=WRITTEN_OUT_NODES,
        trips=LOOP_TRIPS,
        open=OPEN_TRIPS,
        limit_open=LOOP_ITERATIONS,
    )


def _optimizers() -> list[str]:
    parts = [OPTIMIZERS_HEADER]
    for name, cls in OPTIMIZERS.items():
        operator = f"{cls._operator.domain}.{cls._operator.op_type()}"
        settings = ", ".join(
            f"{p.name}={p.default!r}" for p in signature(cls).parameters.values() if p.name != "clip_grad"
        )
        fewest, most = len(cls()._moments), len(cls._moments)
        moments = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        parts.append(f"| {name} | {operator} | {moments} | {settings} | {_summary(cls)} |")
    return [*parts, ""]


def _losses() -> list[str]:
    parts = [LOSSES_HEADER]
    for name, cls in LOSSES.items():
        settings = ", ".join(f"{p.name}={p.default!r}" for p in signature(cls).parameters.values())
        parts.append(f"| {name} | {cls._n_inputs} | {settings} | {_summary(cls)} |")
    return [*parts, ""]


def _schedules() -> list[str]:
    parts = [SCHEDULES_HEADER]
    for name, cls in SCHEDULES.items():
        settings = ", ".join(
            p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in signature(cls).parameters.values()
        )
        parts.append(f"| {name} | {settings} | {_summary(cls)} |")
    return [*parts, ""]


def _first_paragraph(cls: type) -> str:
    return " ".join((cls.__doc__ or "").strip().split("\n\n")[0].split())


def _summary(cls: type) -> str:
    return re.sub(r",?\s*https://\S+?(?=\.?(\s|$))", "", _first_paragraph(cls)).replace("|", "\\|")


def _row(cls: type[Op]) -> str:
    link = re.search(r"https://onnx\.ai/\S+", _first_paragraph(cls))
    name = f"[{cls.op_type()}]({link[0]})" if link else cls.op_type()
    text = _summary(cls)
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
