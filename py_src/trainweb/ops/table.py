"""Operators and optimizers in docs/operators.md: `python -m trainweb.ops.table > docs/operators.md`."""

from __future__ import annotations

import re
from inspect import signature

from trainweb.ir.layout import LOOP_TRIPS
from trainweb.model.graph import LOOP_ITERATIONS
from trainweb.ops.op import Op, registry

DOMAINS = {
    "": "ai.onnx",
    "com.microsoft": "com.microsoft: gradients, optimizers and fused operators of ONNX Runtime",
    "ai.onnx.ml": "ai.onnx.ml: preprocessing of scikit-learn",
    "ai.trainweb": "ai.trainweb: what ONNX Runtime does not have",
}
HEADER = """# Operators

Printed from the registry by `python -m trainweb.ops.table`; do not edit. *Since* is the oldest opset that is
accepted (models from opset 7 on), *changed* the opsets in which the definition changed since. *Gradient* tells
through which inputs it flows: `-` where the operator ends it. *Constant* inputs must be known when the model
is compiled, which includes what follows from shapes; where a feed decides them, a plan is compiled for each
value. Inputs count from 0.
"""

CONTROL_HEADER = """## Control flow and sequences

These operators of ai.onnx are written out as others, forward and backward: {names}.

- If with a condition that is known: the nodes of the chosen branch.
- If with a condition from data: both branches run, and results are chosen. The results must have the same sizes.
  A branch that draws or updates needs a known condition.
- If with a condition from sizes or from feeds of integers or bools: results may have other sizes of the same rank.
  A plan is compiled for each branch. Results of other ranks need a condition that is known when artifacts are built:
  `dims` of `build_artifacts` and `createFromModel`, or `trainweb artifacts --dim NAME=SIZE`, gives the sizes
  that decide it. A branch that these sizes cannot run is an error only where it is chosen.
- Loop and Scan of a known number of iterations (when the model is compiled; for training, when artifacts are built):
  iteration by iteration up to {written:,} nodes, beyond that as a loop in the plan of at most {trips:,} iterations.
  The loop keeps the start of each iteration for the gradient. Bodies with sequences, or with other sizes
  in each iteration, are written out up to {limit:,} nodes. A list that starts empty and grows by one tensor in each
  iteration is no obstacle.
- Scan along a size that varies, and Loop with as many rows or list elements as such a size or a feed says: a loop in
  the plan, which is compiled for each length. Carried tensors keep their sizes.
- Loop whose condition or trip count only the run decides: a loop in the plan that ends then. It has at most as many
  iterations as a constant trip count. Without one, or beyond {open:,}, the limit is `limits.loopIterations`
  (`limits={{"loop_iterations": ...}}`), {limit_open:,} by default. A step that would go on is a `LimitError` and
  changes nothing. There is room for the start of each of these iterations, and the gradient goes back through the
  iterations that ran. Up to {written:,} nodes a loop with a constant trip count is written out, and results are
  chosen. Scan outputs of such a loop must not be read, for their number of rows is not known. Its body neither draws
  nor updates. It does not run in a branch that is not chosen.
- Sequences and optionals whose length is known; they are no inputs or outputs of a model.
"""


TIES = """## Gradients at ties, at bounds and at zero

Where a function has no derivative, its gradient is PyTorch's (2.15), as `tests/golden/ties` records it:

- Equal inputs of Max and Min share the gradient, and so do equal elements in ReduceMax and ReduceMin. MaxPool,
  GlobalMaxPool, MaxRoiPool and TopK take the first one.
- PyTorch's `x.max(dim)` and `x.min(dim)` take the first one, too, where `amax` and `amin` share. The dynamo exporter
  notes which one it was, and is followed. TorchScript does not: there both share.
- Clip has a gradient of 0 at a bound that is a constant, as `clamp` has. A bound that is computed or trained shares
  with the input.
- PRelu and LeakyRelu have the slope at 0. Relu, Abs and Shrink have 0 at their bounds.
- Sqrt, and Pow with an exponent below 1, have an infinite derivative at 0. Where the input is a sum of squares it is 0,
  as PyTorch has it in `std`, `norm` and `cdist`. A root that the module wrote so itself has 0 here and NaN in PyTorch.
- GridSample has no gradient through a place on the border of the image, unless padding_mode is zeros. In mode cubic
  with padding_mode border each pixel beyond the image is the nearest one within, as in PyTorch and ONNX Runtime; ONNX's
  reference evaluator moves the place first.

Files do not tell these apart, so that gradients may differ:

- `adaptive_max_pool` of the dynamo exporter is a ReduceMax where the output has one element, and shares. PyTorch takes
  the first one.
- `topk` of equal elements takes the first ones, as ONNX says; PyTorch leaves open which ones.
- `clamp` to a tensor that is a constant of the file counts as `clamp` to a number.
- `cosine_similarity` of TorchScript has its least divisor for the product of both norms, PyTorch for each norm.
"""


OPTIMIZERS_HEADER = """## Optimizers

What `OptimType` in Python, `trainweb artifacts --optimizer` and `optimizer` in a page's configuration name. Settings
are arguments of the class in `trainweb.onnxblock.optim`, besides `clip_grad=ClipGradNorm(max_norm)`, and members of
`{"type": "AdamW", ...}` for `build_artifacts` and `createFromModel`, where a page writes `weightDecay`, and `epsilon`
for `eps`. Two more are `groups`, each with `parameters`, `learning_rate_factor` and settings of its own, and
`decay_biases_and_norms`; `clip_grad_norm`, `clip_grad_value` and `ema` stand beside the optimizer. *Moments* are
kept of each trainable parameter, in checkpoints as momentum0, momentum1 and so on; some only with certain settings.
Optimizer models with an operator of ai.trainweb (SGD: with any setting; all: in groups, or clipped by value) run in
trainweb only; parameters that they trained go anywhere.

| optimizer | operator | moments | settings | |
|---|---|---|---|---|"""


LOSSES_HEADER = """## Losses

What `LossType` in Python, `trainweb artifacts --loss` and `loss` in a page's configuration name: classes of
`trainweb.onnxblock.loss`, with settings as optimizers have them; a page writes `weights` for `weight` and
`positiveWeights` for `pos_weight`. *Outputs* are how many of the model's outputs the loss takes.

| loss | outputs | settings | |
|---|---|---|---|"""


SCHEDULES_HEADER = """## Schedules

Classes of `trainweb.schedules` in Python; `schedule({ type, learningRate, ... })` in a page. `rate(step)` is the
learning rate for `set_learning_rate` before optimizer step `step`, from 0 on. A function of the step is one, too.

| schedule | settings | |
|---|---|---|"""


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
    return "\n".join([*parts, TIES, _control(), *_optimizers(), *_losses(), *_schedules()])


def _control() -> str:
    # Imported here, because the expansion of control flow imports the operators.
    from trainweb.control import CONTROL_OPERATORS
    from trainweb.control.expansion import UNROLLED_NODES
    from trainweb.control.repeat import OPEN_TRIPS, WRITTEN_OUT_NODES

    return CONTROL_HEADER.format(
        names=", ".join(CONTROL_OPERATORS),
        limit=UNROLLED_NODES,
        written=WRITTEN_OUT_NODES,
        trips=LOOP_TRIPS,
        open=OPEN_TRIPS,
        limit_open=LOOP_ITERATIONS,
    )


def _optimizers() -> list[str]:
    # Imported here, because onnxblock imports the operators.
    from trainweb.onnxblock.optim import OPTIMIZERS

    parts = [OPTIMIZERS_HEADER]
    for name, cls in OPTIMIZERS.items():
        operator = f"{cls.operator.domain}.{cls.operator.op_type()}"
        settings = ", ".join(
            f"{p.name}={p.default!r}" for p in signature(cls).parameters.values() if p.name != "clip_grad"
        )
        fewest, most = len(cls().moments), len(cls.moments)
        moments = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        parts.append(f"| {name} | {operator} | {moments} | {settings} | {_summary(cls)} |")
    return [*parts, ""]


def _losses() -> list[str]:
    from trainweb.onnxblock.loss import LOSSES

    parts = [LOSSES_HEADER]
    for name, cls in LOSSES.items():
        settings = ", ".join(f"{p.name}={p.default!r}" for p in signature(cls).parameters.values())
        parts.append(f"| {name} | {cls.n_inputs} | {settings} | {_summary(cls)} |")
    return [*parts, ""]


def _schedules() -> list[str]:
    from trainweb.schedules import SCHEDULES

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
