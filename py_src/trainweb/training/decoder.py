"""Logits of the next token: which rows of the caches are valid, and the steps that bring them up to date."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from trainweb import messages
from trainweb.errors import LimitError, ModelError, TrainwebError
from trainweb.generation.incremental import CACHE, IDS, LAST, LAST_POSITION, POSITIONS, SHORTEST
from trainweb.ir.layout import PREPARED, STATE_LOADS, STATE_UPDATES
from trainweb.model.graph import Tensor
from trainweb.training.forward import Forward
from trainweb.training.step_kind import StepKind, tokens_kind

if TYPE_CHECKING:
    from trainweb.backend.base import Host
    from trainweb.backend.plan import LoadedPlan

ROWS = 32
"""Tokens of a prompt that one step takes: products are then bound by arithmetic, not by reading weights."""
FEW = 4
"""So many tokens are taken one by one, with the plan of new tokens, instead of with another plan."""
LENGTHS = 128
"""Room in the cache comes in multiples of this, so that texts of similar lengths share plans."""
FIRST = 1024
"""The most room at first. It doubles when a text fills it: a text may end long before its last possible token."""


class TokenHost(Protocol):
    """A session as the decoder sees it."""

    @property
    def host(self) -> Host:
        """Kernel memory."""

    def forward(self, kind: StepKind) -> Forward | None:
        """The step of a kind."""

    def token_plan(self, kind: StepKind, feeds: Mapping[str, Tensor]) -> LoadedPlan:
        """The plan of a step of new tokens."""


class Decoder:
    """The caches of a session, which one text fills at a time."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        """The tokens whose rows are in the caches."""
        self._of: object = None
        """All else that the rows depend on: plans, their place and the parameters."""
        self._checked: set[tuple[str, bool]] = set()
        self._rooms: dict[tuple[str, bool, int], int] = {}
        """Lengths of caches, by the arguments of `length_for` but `count`."""

    def start(self) -> None:
        """Forget and clear the rows, so that a text does not depend on the ones before."""
        self._tokens, self._of = [], None

    def length_for(self, session: TokenHost, output: str, count: int, most: int, *, adapter: bool) -> int:
        """Room for the `count` tokens of a text that gets `most`: a multiple of LENGTHS, or all that the model takes.

        Raise ModelError if the model does not take so many, or makes no tokens.
        """

        def fault_of(length: int) -> TrainwebError | None:
            try:
                session.forward(tokens_kind(output, length, 1, adapter=adapter))
            except (ModelError, LimitError) as error:
                return error
            return None

        key, needed = (output, adapter, most), max(count, SHORTEST)
        if needed > self._rooms.get(key, 0):
            doubled = FIRST << (-(-needed // FIRST) - 1).bit_length()
            room = min(doubled, -(-max(most, SHORTEST) // LENGTHS) * LENGTHS)
            if fault_of(room) is not None:
                fault = fault_of(needed)
                if fault is not None:
                    # The length is not at fault if the least fails, too.
                    raise fault_of(SHORTEST) or messages.SEQUENCE_TOO_LONG(length=needed, fault=str(fault))
                room = needed + bisect_left(range(needed, room), True, key=lambda n: fault_of(n) is not None) - 1
            self._rooms[key] = room
        return self._rooms[key]

    def logits(self, session: TokenHost, tokens: Sequence[int], output: str, length: int, *, adapter: bool) -> bytes:
        """float32 logits after these tokens; only rows that are not in the caches are computed.

        Raise ModelError if the model is not causal.
        """
        single, several = (_Steps(session, output, length, rows, adapter) for rows in (1, ROWS))
        taken = several.places() if len(tokens) - len(self._tokens) > FEW and length >= ROWS else None
        if self._of != self._state(single):
            self._tokens = []
            single.clear()
        if (output, adapter) not in self._checked:
            self._check_causal(single, tokens[0], output)
            self._checked.add((output, adapter))
        while self._tokens != tokens[: len(self._tokens)] or len(self._tokens) >= len(tokens):
            self._tokens.pop()
        result = b""
        while (start := len(self._tokens)) < len(tokens):
            fits = len(tokens) - start > FEW and start + ROWS <= length and taken == single.places()
            part = list(tokens[start : start + (ROWS if fits else 1)])
            result = (several if fits else single).run(part, start)
            self._tokens += part
        self._of = self._state(single)
        return result

    def _state(self, single: _Steps) -> object:
        host = single.session.host
        words = [host.read_state(word) for word in (STATE_LOADS, STATE_UPDATES)]
        return single.plan(), single.adapter, host.sizes[PREPARED], words

    def _check_causal(self, single: _Steps, token: int, output: str) -> None:
        """Raise unless logits of a token stay the same bytes with another token behind it."""
        first = single.run([token], 0)
        single.run([token], 1)
        again = single.run([token], 0)
        single.clear()
        if first != again:
            raise messages.NOT_CAUSAL(name=output)


class _Steps:
    """Steps of so many new tokens."""

    def __init__(self, session: TokenHost, output: str, length: int, rows: int, adapter: bool) -> None:
        self.session, self.output, self.rows, self.adapter = session, output, rows, adapter
        self.kind = tokens_kind(output, length, rows, adapter=adapter)

    def _feeds(self, tokens: Sequence[int], start: int) -> dict[str, Tensor]:
        """Missing tokens are zeros: no token sees them, and their rows are overwritten before a later one does."""
        forward = self.session.forward(self.kind)
        assert forward is not None
        values = {
            IDS: [*tokens, *[0] * (self.rows - len(tokens))],
            POSITIONS: range(start, start + self.rows),
            LAST: [len(tokens) - 1],
            LAST_POSITION: [start + len(tokens) - 1],
        }
        shapes = {name: tuple(d for d in v.shape or () if isinstance(d, int)) for name, v in forward.inputs.items()}
        return {n: Tensor.of(n, v.dtype, shapes[n], values[n]) for n, v in forward.inputs.items()}

    def plan(self) -> LoadedPlan:
        """The plan, loaded."""
        return self.session.token_plan(self.kind, self._feeds([0] * self.rows, 0))

    def places(self) -> dict[str, tuple[int, int]]:
        """Offsets and bytes of the caches; steps of the same places share them."""
        return {name: place for name, place in self.plan().plan.kept.items() if name.startswith(CACHE)}

    def run(self, tokens: Sequence[int], start: int) -> bytes:
        """Write the rows of these tokens, from position `start` on; logits of the last."""
        feeds, host = self._feeds(tokens, start), self.session.host
        loaded = self.session.token_plan(self.kind, feeds)
        host.write_feeds(loaded, feeds)
        host.run(loaded)
        return bytes(host.read_outputs(loaded, [self.output])[self.output].data)

    def clear(self) -> None:
        """Fill the caches with zeros: a NaN in a row would spread even to tokens that do not see it."""
        host = self.session.host
        for offset, nbytes in self.places().values():
            host.write_segment(PREPARED, offset, bytes(nbytes))
