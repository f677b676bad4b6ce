"""Recurrent layers: one product for the inputs of all steps, and one node for the steps (`ops/recurrent/cell.py`).

With other gates than the usual ones the steps are written out, each with one or two small products.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from trainweb.ir.dims import UndecidedError, equal, static
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import TRAINWEB
from trainweb.ops.frame.composite import Composite
from trainweb.ops.frame.emission import Emission
from trainweb.ops.frame.op import Attr, Float, Floats, Int, Str, Strs
from trainweb.ops.frame.symbolic import Var, constant, integers

MAX_STEPS = 1024
"""Longer sequences are refused where steps are written out: each is a few nodes of the compiled graph."""

DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
"""True for each direction that is reverse."""

_COMMON: dict[str, Attr] = {
    "activation_alpha": Floats(),
    "activation_beta": Floats(),
    "activations": Strs(),
    "clip": Float(),
    "direction": Str("forward", among=DIRECTIONS),
    "hidden_size": Int(),
    "layout": Int(0),
}

_ACTIVATIONS: dict[str, tuple[str, float | None, float | None]] = {
    "sigmoid": ("Sigmoid", None, None),
    "tanh": ("Tanh", None, None),
    "relu": ("Relu", None, None),
    "softsign": ("Softsign", None, None),
    "softplus": ("Softplus", None, None),
    "affine": ("", 1.0, 0.0),
    "leakyrelu": ("LeakyRelu", 0.01, None),
    "thresholdedrelu": ("ThresholdedRelu", 1.0, None),
    "scaledtanh": ("", 1.0, 1.0),
    "hardsigmoid": ("HardSigmoid", 0.2, 0.5),
    "elu": ("Elu", 1.0, None),
}
"""Activations: the operator, "" for several, and alpha and beta where they have them."""

Activation = tuple[str, float | None, float | None]
"""Name, alpha, beta."""


def activate(x: Var, activation: Activation) -> Var:
    """The nodes of an activation."""
    name, alpha, beta = activation
    if name == "affine":
        return x * (alpha or 0.0) + (beta or 0.0)
    if name == "scaledtanh":
        return (x * (beta or 0.0)).op("Tanh") * (alpha or 0.0)
    settings: dict[str, Any] = {k: v for k, v in (("alpha", alpha), ("beta", beta)) if v is not None}
    return x.op(_ACTIVATIONS[name][0], **settings)


class RecurrentLayer(Composite, abstract=True):
    """A layer of X (steps, batch, features), W (directions, gates * H, features) and R (directions, gates * H, H).

    Optional are B (directions, 2 * gates * H), sequence_lens (batch) and initial states (directions, batch, H).
    """

    attrs = _COMMON
    min_inputs, max_inputs, n_outputs = 3, 6, 2
    differentiable: ClassVar[Sequence[int]] = (0, 1, 2, 3, 5)
    gates: int
    default_activations: tuple[str, ...]
    n_states: int = 1

    def infer(self, x: TensorType, w: TensorType, r: TensorType, *others: TensorType | None) -> tuple[TensorType, ...]:
        bias, lengths, *states = others
        peepholes = states.pop() if len(states) > self.n_states else None
        self.need_float32(x, w, r, bias, *states, peepholes)
        if (x.rank, w.rank, r.rank) != (3, 3, 3):
            raise self.error(f"X, W, R have the shapes {list(x.shape)}, {list(w.shape)}, {list(r.shape)}: not 3-D.")
        steps, batch = x.shape[:2] if not self.layout else (x.shape[1], x.shape[0])
        directions, hidden = len(DIRECTIONS[self.direction]), r.shape[2]
        rows = self.gates * hidden
        if static(r.shape[1]) and not r.shape[1] % self.gates and r.shape[1] > rows:
            # As torch's dynamo exporter writes nn.LSTM(proj_size=...), whose projections it drops.
            cells = r.shape[1] // self.gates
            raise self.error(
                f"R has shape {list(r.shape)}: {cells} cells, and a state of {hidden} numbers. ONNX has "
                "no projected states: export an LSTM without proj_size, or nn.LSTMCell and nn.Linear in a loop."
            )
        state = (directions, batch, hidden) if not self.layout else (batch, directions, hidden)
        self.need_shape("W", w, (directions, rows, x.shape[2]))
        self.need_shape("R", r, (directions, rows, hidden))
        self.need_shape("B", bias, (directions, 2 * rows))
        self.need_shape("sequence_lens", lengths, (batch,))
        self.need_shape("P", peepholes, (directions, 3 * hidden))
        for t in states:
            self.need_shape("an initial state", t, state)
        if self.hidden_size is not None and not equal(hidden, self.hidden_size):
            raise self.error(f"hidden_size is {self.hidden_size}, R is for {hidden}.")
        if lengths is not None and lengths.dtype != "int32":
            raise self.error(f"sequence_lens is {lengths.dtype}, not int32.")
        self._activations()
        y = (steps, directions, batch, hidden) if not self.layout else (batch, steps, directions, hidden)
        return TensorType("float32", y), *[TensorType("float32", state)] * self.n_states

    def _activations(self) -> list[list[Activation]]:
        """Return the activations of each direction."""
        directions, each = len(DIRECTIONS[self.direction]), len(self.default_activations)
        names = [n if isinstance(n, str) else n.decode() for n in self.activations or ()]
        names = names or [*self.default_activations * directions]
        if len(names) != each * directions:
            raise self.error(f"there are {len(names)} activations; {each} for each direction are needed.")
        alphas, betas = iter(self.activation_alpha or ()), iter(self.activation_beta or ())
        activations: list[Activation] = []
        for name in names:
            if name.lower() not in _ACTIVATIONS:
                raise self.unsupported(f"the activation {name!r}")
            _, alpha, beta = _ACTIVATIONS[name.lower()]
            alpha = alpha if alpha is None else next(alphas, alpha)
            activations.append((name.lower(), alpha, beta if beta is None else next(betas, beta)))
        return [activations[k * each : (k + 1) * each] for k in range(directions)]

    def expand(self, g: Emission, *ins: Var | None) -> Sequence[Var | None]:
        x, w, r, bias, lengths, *states = ins
        assert x is not None and w is not None and r is not None
        peepholes = states.pop() if len(states) > self.n_states else None
        if self.layout:
            x, *states = (None if t is None else t.op("Transpose", perm=[1, 0, 2]) for t in (x, *states))
            assert x is not None
        sequences, finals = [], []
        for k, (reverse, activations) in enumerate(zip(DIRECTIONS[self.direction], self._activations(), strict=True)):
            parameters = [None if t is None else self.direction_of(t, k) for t in (w, r, bias, peepholes, *states)]
            is_usual = peepholes is None and self.clip is None
            cell = self.usual_cell(activations) if is_usual else None
            if cell is not None:
                wanted = [True] * (1 + self.n_states)
                rows, *last = self.at_once(g, x, parameters, cell, lengths, wanted, reverse=reverse)
            else:
                order = range(self._steps(x))[:: -1 if reverse else 1]
                rows, last = self._run(g, x, parameters, activations, lengths, order)
            sequences.append(rows.unsqueeze(1))
            finals.append([t.unsqueeze(0) for t in last])
        y = _joined(sequences, 1)
        ends = [_joined([final[k] for final in finals], 0) for k in range(self.n_states)]
        if self.layout:
            return [y.op("Transpose", perm=[2, 0, 1, 3]), *(t.op("Transpose", perm=[1, 0, 2]) for t in ends)]
        return [y, *ends]

    def _steps(self, x: Var) -> int:
        """Return the number of steps that are written out."""
        steps = x.shape[0]
        if not isinstance(steps, int):
            raise UndecidedError("the length of the sequence")
        if steps > MAX_STEPS:
            raise self.unsupported(
                f"a sequence of {steps} steps with clip, peepholes, input_forget or "
                f"activations other than the usual ones (at most {MAX_STEPS})"
            )
        return steps

    def usual_cell(self, activations: list[Activation]) -> str | None:
        """The cell as `Recurrence` names it; None: it has no such cell."""
        raise NotImplementedError

    def forward_cell(self) -> str:
        """The cell of a layer that runs forward with the usual gates, as `Recurrence` names it."""
        cell = self.usual_cell(self._activations()[0])
        if cell is None or self.clip is not None or self.direction != "forward" or self.layout:
            raise self.unsupported("any other form than one forward direction with the usual activations, unclipped,")
        return cell

    def at_once(
        self,
        g: Emission,
        x: Var,
        parameters: list[Var | None],
        cell: str,
        lengths: Var | None,
        wanted: list[bool],
        *,
        reverse: bool,
    ) -> list[Var]:
        """The `wanted` outputs of one direction's `Recurrence`; `parameters` are W, R, B, P and the first states."""
        w, r, bias, _, *states = parameters
        assert w is not None and r is not None
        hidden = r.shape[1]
        inputs = x.op("MatMul", w.op("Transpose", perm=[1, 0]))
        shared = self._input_bias(bias, hidden)
        inputs = inputs if shared is None else inputs + shared
        of_product = self._product_bias(bias, hidden)
        names = ["" if t is None else t.name for t in (inputs, r, of_product, lengths, *states)]
        results = g.ops("Recurrence", names, wanted, domain=TRAINWEB, cell=cell, reverse=int(reverse))
        return [Var(g, name, x.dtype) for name in results if name]

    def direction_of(self, x: Var, k: int) -> Var:
        one = x.part(0, k, k + 1) if len(DIRECTIONS[self.direction]) > 1 else x
        return one.squeeze(0)

    def _run(
        self,
        g: Emission,
        x: Var,
        parameters: list[Var | None],
        activations: list[Activation],
        lengths: Var | None,
        order: Sequence[int],
    ) -> tuple[Var, list[Var]]:
        """The states of all steps in the order of time, and those after the last step."""
        w, r, bias, peepholes, *first_states = parameters
        assert w is not None and r is not None
        hidden = r.shape[1]
        inputs = x.op("MatMul", w.op("Transpose", perm=[1, 0]))
        cell = self._cell(r, bias, peepholes, hidden, activations)
        shared = self._input_bias(bias, hidden)
        inputs = inputs if shared is None else inputs + shared
        states = [t if t is not None else zero_state(x, hidden) for t in first_states]
        rows: dict[int, Var] = {}
        for t in order:
            row = inputs.part(0, t, t + 1).squeeze(0)
            new = cell(row, states)
            rows[t] = new[0]
            if lengths is not None:
                runs = (lengths > t).unsqueeze(1)
                rows[t] = runs.where(new[0], 0.0)
                new = [runs.where(n, s) for n, s in zip(new, states, strict=True)]
            states = new
        return _joined([rows[t].unsqueeze(0) for t in sorted(rows)], 0), states

    def _clipped(self, x: Var) -> Var:
        if self.clip is None:
            return x
        if x.g.opset < 11:
            return x.op("Clip", min=-self.clip, max=self.clip)
        return x.op("Clip", -self.clip, self.clip)

    def _gate(self, gates: Var, k: int, hidden: int) -> Var:
        return gates if self.gates == 1 else gates.part(1, k * hidden, (k + 1) * hidden)

    def _input_bias(self, bias: Var | None, hidden: int) -> Var | None:
        """Return the bias of the inputs of all steps: the sum of both biases."""
        if bias is None:
            return None
        rows = self.gates * hidden
        return bias.part(0, 0, rows) + bias.part(0, rows, 2 * rows)

    def _product_bias(self, bias: Var | None, hidden: int) -> Var | None:
        """Return the bias of the products of all steps with the recurrent weights."""
        return None

    def _cell(
        self, r: Var, bias: Var | None, peepholes: Var | None, hidden: int, activations: list[Activation]
    ) -> Callable[[Var, list[Var]], list[Var]]:
        """A step: (what comes from the input, states) -> states."""
        raise NotImplementedError


def _joined(parts: list[Var], axis: int) -> Var:
    return parts[0] if len(parts) == 1 else parts[0].op("Concat", *parts[1:], axis=axis)


def zero_state(x: Var, hidden: int) -> Var:
    """An initial state for the batch of X."""
    batch = x.shape[1]
    if isinstance(batch, int):
        return constant(x.g, "float32", (batch, hidden), [0.0] * (batch * hidden))
    shape = x.extent(1).unsqueeze(0).op("Concat", integers(x.g, [hidden]), axis=0)
    return constant(x.g, "float32", (1, hidden), [0.0] * hidden).op("Expand", shape)


def _turned(r: Var) -> Var:
    return r.op("Transpose", perm=[1, 0])


class RNN(RecurrentLayer):
    """Elman network: H = f(X W' + H R' + b). https://onnx.ai/onnx/operators/onnx__RNN.html"""

    versions = (7, 14, 22)
    gates = 1
    default_activations = ("Tanh",)

    def usual_cell(self, activations: list[Activation]) -> str | None:
        name = activations[0][0]
        return f"rnn_{name}" if name in ("tanh", "relu") else None

    def _cell(
        self, r: Var, bias: Var | None, peepholes: Var | None, hidden: int, activations: list[Activation]
    ) -> Callable[[Var, list[Var]], list[Var]]:
        weights = _turned(r)
        return lambda row, states: [activate(self._clipped(row + states[0].op("MatMul", weights)), activations[0])]


class GRU(RecurrentLayer):
    """Gated recurrent unit, https://arxiv.org/abs/1406.1078. https://onnx.ai/onnx/operators/onnx__GRU.html"""

    versions: ClassVar[tuple[int, ...]] = (7, 14, 22)
    attrs = {**_COMMON, "linear_before_reset": Int(0)}
    gates = 3
    default_activations = ("Sigmoid", "Tanh")

    def _input_bias(self, bias: Var | None, hidden: int) -> Var | None:
        if bias is None or not self.linear_before_reset:
            return super()._input_bias(bias, hidden)
        # The bias of the recurrent product is multiplied by the reset gate, so it is added there.
        return bias.part(0, 0, 3 * hidden)

    def _product_bias(self, bias: Var | None, hidden: int) -> Var | None:
        return bias.part(0, 3 * hidden, 6 * hidden) if bias is not None and self.linear_before_reset else None

    def usual_cell(self, activations: list[Activation]) -> str | None:
        usual = [name for name, _, _ in activations] == ["sigmoid", "tanh"]
        return ("gru_linear" if self.linear_before_reset else "gru") if usual else None

    def _cell(
        self, r: Var, bias: Var | None, peepholes: Var | None, hidden: int, activations: list[Activation]
    ) -> Callable[[Var, list[Var]], list[Var]]:
        f, g = activations
        linear = bool(self.linear_before_reset)
        weights = _turned(r) if linear else _turned(r.part(0, 0, 2 * hidden))
        candidate = None if linear else _turned(r.part(0, 2 * hidden, 3 * hidden))
        recurrent_bias = self._product_bias(bias, hidden)

        def step(row: Var, states: list[Var]) -> list[Var]:
            (h,) = states
            product = h.op("MatMul", weights)
            if recurrent_bias is not None:
                product = product + recurrent_bias
            z, reset = (
                activate(self._clipped(self._gate(row, k, hidden) + product.part(1, k * hidden, (k + 1) * hidden)), f)
                for k in (0, 1)
            )
            if candidate is None:
                memory = reset * product.part(1, 2 * hidden, 3 * hidden)
            else:
                memory = (reset * h).op("MatMul", candidate)
            new = activate(self._clipped(self._gate(row, 2, hidden) + memory), g)
            return [(1.0 - z) * new + z * h]

        return step


class LSTM(RecurrentLayer):
    """Long short-term memory (Hochreiter and Schmidhuber 1997). https://onnx.ai/onnx/operators/onnx__LSTM.html"""

    versions: ClassVar[tuple[int, ...]] = (7, 14, 22)
    attrs = {**_COMMON, "input_forget": Int(0)}
    max_inputs, n_outputs = 8, 3
    differentiable: ClassVar[Sequence[int]] = (0, 1, 2, 3, 5, 6, 7)
    gates = 4
    n_states = 2
    default_activations = ("Sigmoid", "Tanh", "Tanh")

    def usual_cell(self, activations: list[Activation]) -> str | None:
        usual = [name for name, _, _ in activations] == ["sigmoid", "tanh", "tanh"]
        return "lstm" if usual and not self.input_forget else None

    def _cell(
        self, r: Var, bias: Var | None, peepholes: Var | None, hidden: int, activations: list[Activation]
    ) -> Callable[[Var, list[Var]], list[Var]]:
        f, g, h = activations
        weights = _turned(r)
        peeps = None if peepholes is None else [peepholes.part(0, k * hidden, (k + 1) * hidden) for k in range(3)]

        def step(row: Var, states: list[Var]) -> list[Var]:
            hidden_state, c = states
            gates = row + hidden_state.op("MatMul", weights)

            def gate(k: int, cell: Var, peep: int | None, activation: Activation) -> Var:
                x = self._gate(gates, k, hidden)
                if peeps is not None and peep is not None:
                    x = x + peeps[peep] * cell
                return activate(self._clipped(x), activation)

            i = gate(0, c, 0, f)
            forget = 1.0 - i if self.input_forget else gate(2, c, 2, f)
            new = forget * c + i * gate(3, c, None, g)
            return [gate(1, new, 1, f) * activate(self._clipped(new), h), new]

        return step
