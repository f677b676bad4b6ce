"""The `Host` of the kernels: loaded plans and the segments they run on. Knows bytes and addresses, no numpy."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from trainweb import messages
from trainweb.backend.base import ALL, N_SEGMENTS, STATE_BYTES, StagedBatches, Stop
from trainweb.backend.engine import MORE, Engine, NumberRange
from trainweb.backend.plan import SEEN, LoadedPlan, Plan, TensorPlace
from trainweb.errors import EngineError, FeedError
from trainweb.ir import layout
from trainweb.model.graph import Tensor

SLICE_MS = 10.0
"""Milliseconds between questions whether a run is to end: short for whoever waits, long beside what asking takes."""
FEED_FAULTS = {
    "TW_BAD_LABEL": "BAD_LABEL",
    "TW_BAD_INDEX": "BAD_INDEX",
    "TW_BAD_VALUE": "BAD_VALUE",
    "TW_LOOP_LIMIT": "LOOP_LIMIT",
}
"""Statuses that feeds are at fault for, and their messages."""
IMAGE_PADDING = 255
"""The label of pixels that do not count, where labels are images of uint8."""


class SegmentMemory:
    """Segments of a session in kernel memory, at these addresses."""

    def __init__(self, engine: Engine, bases: list[int]) -> None:
        self.engine, self.bases = engine, bases
        self.released = False

    def check(self) -> None:
        if self.released:
            raise messages.RELEASED()

    def read_segment(self, segment: int, offset: int, nbytes: int) -> bytes:
        self.check()
        return self.engine.read(self.bases[segment] + offset, nbytes) if nbytes else b""

    def read_segment_into(self, segment: int, offset: int, out: memoryview) -> None:
        self.check()
        if not self.bases[segment]:
            raise EngineError(f"Segment {segment} has no memory.")
        if out.nbytes:
            self.engine.read_into(self.bases[segment] + offset, out)

    def write_segment(self, segment: int, offset: int, data: bytes | bytearray | memoryview) -> None:
        self.check()
        if len(data):
            self.engine.write(self.bases[segment] + offset, data)
        if segment == layout.PARAMETERS:
            self.write_state(layout.STATE_LOADS, (self.read_state(layout.STATE_LOADS) + 1) % 2**32)

    def read_state(self, word: int) -> int | float:
        pattern = "<" + layout.STATE_TYPES[word]
        (value,) = struct.unpack(pattern, self.read_segment(layout.STATE, 4 * word, struct.calcsize(pattern)))
        return value if isinstance(value, float) else int(value)

    def write_state(self, word: int, value: float) -> None:
        self.write_segment(layout.STATE, 4 * word, struct.pack("<" + layout.STATE_TYPES[word], value))


class PlanHost(SegmentMemory):
    """A session of the kernels (`wasm_kernels/session/`): segments, and the plans that use them.

    `Host` explains the calls. The arena and what is prepared grow beyond `segment_bytes` as plans need it.
    """

    def __init__(self, engine: Engine, segment_bytes: list[int]) -> None:
        super().__init__(engine, [0] * N_SEGMENTS)
        self.sizes = [0] * N_SEGMENTS
        self.observer: Callable[[LoadedPlan, Stop], None] | None = None
        """Runs plans in the place of `run`, with `timed`."""
        self.loaded: list[LoadedPlan] = []
        self._staging = 0, 0
        """Address and bytes of the block of batches, 0: there is none."""
        self.session = engine.call("tw_session_open")
        if not self.session:
            raise engine.no_memory(engine.call("tw_missing"))
        try:
            for segment, nbytes in enumerate(segment_bytes):
                if segment not in (layout.ARENA, layout.CONSTANTS, layout.LARGE_CONSTANTS):
                    self._reserve(segment, STATE_BYTES if segment == layout.STATE else nbytes)
        except BaseException:
            self.release()
            raise

    def call(self, name: layout.SessionCall, *args: float) -> int:
        """Call a function of `wasm_kernels/session/` on the session; its result."""
        return self.engine.call(name, self.session, *args)

    def demand(self, name: layout.SessionCall, *args: float) -> None:
        """Call a function of `wasm_kernels/session/` on the session, which must not fail."""
        self.engine.demand(name, self.session, *args)

    def _reserve(self, segment: int, nbytes: int) -> None:
        if nbytes <= self.sizes[segment]:
            return
        if nbytes >= 2**32:
            raise self.engine.no_memory(nbytes)
        try:
            self.demand("tw_session_reserve", segment, nbytes)
        finally:
            self.bases[segment] = self.call("tw_session_base", segment)
            self.sizes[segment] = self.call("tw_session_bytes", segment)

    def set_trained(self, runs: Sequence[tuple[int, int]]) -> None:
        table = self.engine.alloc(8 * len(runs))
        self.engine.write(table, struct.pack(f"<{2 * len(runs)}I", *(word for run in runs for word in run)))
        try:
            self.demand("tw_session_trained", table)
        except BaseException:
            self.engine.free(table)
            raise

    # Plans.

    def load(self, plan: Plan, *, is_step: bool = True) -> LoadedPlan:
        self.check()
        self._reserve(layout.ARENA, plan.arena_bytes)
        self._reserve(layout.PREPARED, plan.prepared_bytes)
        loaded = LoadedPlan(plan, 0, 0, 0, 0)
        kind = layout.LOAD_STEP if is_step else layout.LOAD_FEEDS if plan.inputs else layout.LOAD_NO_FEEDS
        try:
            loaded.code_base = self.engine.load_code(plan.code) if plan.code else 0
            self._load_constants(loaded)
            loaded.ptr = self.engine.alloc(len(plan.words))
            self.engine.write(loaded.ptr, plan.words)
            self.demand("tw_session_load", loaded.ptr, loaded.constants, loaded.large, loaded.code_base, kind)
        except BaseException:
            self._drop(loaded)
            raise
        for name, (offset, nbytes) in plan.kept.items():
            # Another value may have been cached at this offset before.
            if name.startswith(SEEN):
                self.engine.write(self.bases[layout.PREPARED] + offset, bytes(nbytes))
        self.loaded.append(loaded)
        return loaded

    def _load_constants(self, loaded: LoadedPlan) -> None:
        """Write the constants of a plan; blocks of equal ones are there once."""
        plan = loaded.plan
        if plan.constants:
            same = (other.constants for other in self.loaded if other.plan.constants == plan.constants)
            loaded.constants = next(same, 0) or self._write([(0, plan.constants)], len(plan.constants))
        if plan.large:
            held = next((other for other in self.loaded if other.plan.large == plan.large), None)
            if held is None:
                loaded.large = self._write(plan.large.pieces(), len(plan.large))
            else:
                loaded.large, plan.large = held.large, held.plan.large

    def _write(self, pieces: Iterable[tuple[int, bytes | bytearray | memoryview]], nbytes: int) -> int:
        """Return the address of a new block with these pieces at their offsets."""
        ptr = self.engine.alloc(nbytes)
        try:
            for offset, piece in pieces:
                self.engine.write(ptr + offset, piece)
        except BaseException:
            self.engine.free(ptr)
            raise
        return ptr

    def _drop(self, loaded: LoadedPlan) -> None:
        """Free what a plan has that the session did not take over."""
        self.engine.free(loaded.ptr)
        shared = {block for other in self.loaded for block in (other.constants, other.large)}
        for block in {loaded.constants, loaded.large} - shared:
            self.engine.free(block)
        if loaded.code_base:
            self.engine.unload_code(loaded.code_base)

    def plan_bytes(self) -> int:
        blocks = {loaded.constants: len(loaded.plan.constants) for loaded in self.loaded}
        blocks |= {loaded.large: len(loaded.plan.large) for loaded in self.loaded}
        return sum(len(loaded.plan.words) for loaded in self.loaded) + sum(blocks.values())

    def unload(self, loaded: LoadedPlan) -> None:
        self.loaded.remove(loaded)
        self.demand("tw_session_unload", loaded.ptr)
        if loaded.code_base:
            self.engine.unload_code(loaded.code_base)

    def excess(self, most: int) -> LoadedPlan | None:
        ptr = self.call("tw_session_excess", most)
        return next(one for one in self.loaded if one.ptr == ptr) if ptr else None

    def run(self, loaded: LoadedPlan, stop: Stop = None) -> None:
        if self.observer is not None:
            self.observer(loaded, stop)
            return
        status = self.engine.run(loaded.ptr) if stop is None else self._run_in_slices(loaded, stop)
        if status:
            raise self.explain(loaded, status)

    def _run_in_slices(self, loaded: LoadedPlan, stop: Callable[[], bool]) -> int:
        with self.undone(layout.COPY_STEP, self.engine.written(loaded.ptr)):
            status = self.engine.run_slice(loaded.ptr, anew=True, milliseconds=SLICE_MS)
            while status == MORE:
                if stop():
                    raise messages.TERMINATED()
                status = self.engine.run_slice(loaded.ptr, anew=False, milliseconds=SLICE_MS)
        return status

    def save(self, copy: int, segments: int = ALL) -> None:
        self.demand("tw_session_save", copy, segments)

    def forget(self, copy: int) -> None:
        self.demand("tw_session_forget", copy)

    def put_back(self, copy: int) -> None:
        self.demand("tw_session_put_back", copy)

    def go_back(self, copy: int) -> None:
        self.demand("tw_session_go_back", copy)

    def has_copy(self, copy: int, segment: int) -> bool:
        return self.call("tw_session_copy", copy, segment) != 0

    def exchange_averages(self) -> None:
        self.demand("tw_session_exchange")

    def fit(self, name: layout.FitCall, *args: float) -> bytes:
        self.check()
        self.engine.demand(f"tw_fit_{name}", self.session, *args)
        return self._position()

    def _position(self) -> bytes:
        return self.engine.read(self.call("tw_fit_at"), 4 * layout.FIT_WORDS)

    def run_batches(self, batches: StagedBatches, count: int) -> tuple[bytes, list[float], Exception | None]:
        self.check()
        steps, clip = (batches.train, batches.adding), batches.clip
        inputs = [
            (memoryview(batches.feeds[name].data), slot.nbytes, [step.plan.inputs[name].offset for step in steps])
            for name, slot in batches.train.plan.inputs.items()
            if slot.nbytes and count > 1
        ]
        if clip is not None:
            (slot,) = clip.plan.inputs.values()
            inputs.append((memoryview(batches.limits), slot.nbytes, [slot.offset] * 2))
        losses = 4 * (layout.BATCHES_WORDS + 4 * len(inputs))
        numbers = batches.train.plan.outputs[batches.loss].nbytes // 4
        rates = losses + 4 * count * numbers
        place = rates + 4 * (count + 1)
        words, pieces = list[int](), []
        for step in steps:
            outputs = [name and step.plan.outputs[name] for name in (batches.loss, batches.count)]
            words += [step.ptr, *(self.address(slot, step) if slot else 0 for slot in outputs)]
        words += [batches.update.ptr, 0 if clip is None else clip.ptr, batches.rows, rates if batches.rates else 0]
        words += [len(inputs) - (clip is not None), 0, numbers]
        for data, nbytes, targets in inputs:
            words += [place, nbytes, *targets]
            pieces.append((place, data))
            place += len(data)
        block = self._staged(place)
        self.engine.write(block, struct.pack(f"<{len(words)}I", *words))
        self.engine.write(block + rates, struct.pack(f"<{len(batches.rates)}f", *batches.rates))
        for at, data in pieces:
            self.engine.write(block + at, data)
        if count == 1:
            self.write_feeds(batches.train, batches.feeds)
        status = self.engine.run_batches(self.session, block, count)
        error = self._explain_batches(block, status) if status else None
        results = struct.unpack(f"<{count * numbers}f", self.engine.read(block + losses, rates - losses))
        return self._position(), list(results), error

    def _explain_batches(self, block: int, status: int) -> Exception:
        ran = self.engine.last_plan(block)
        loaded = next((one for one in self.loaded if one.ptr == ran), None)
        return self.engine.failure("tw_fit_run", status) if loaded is None else self.explain(loaded, status)

    def _staged(self, nbytes: int) -> int:
        """A block of at least so many bytes, which lasts until the fit ends."""
        if nbytes > self._staging[1]:
            self._unstage()
            self._staging = self.engine.alloc(nbytes), nbytes
        return self._staging[0]

    def _unstage(self) -> None:
        if self._staging[0]:
            self.engine.free(self._staging[0])
        self._staging = 0, 0

    def end_fit(self) -> None:
        self._unstage()
        self.demand("tw_fit_end")

    @contextmanager
    def undone(self, copy: int, segments: int = ALL) -> Iterator[None]:
        self.save(copy, segments)
        try:
            yield
        except BaseException:
            self.put_back(copy)
            raise
        finally:
            self.forget(copy)

    def timed(self, loaded: LoadedPlan, stop: Stop = None) -> list[float]:
        observer, self.observer = self.observer, None
        try:
            with self.timer(loaded.plan) as times:
                return self._profile(loaded, lambda: self.run(loaded, stop), 1, times)
        finally:
            self.observer = observer

    def explain(self, loaded: LoadedPlan, status: int) -> Exception:
        """The error behind a non-zero status of the plan's last run."""
        outcome = self.engine.plan_status(loaded.ptr)
        failed, value, position = outcome.instruction, outcome.value, outcome.position
        name = self.engine.description.status_name(status)
        plan = loaded.plan
        fault = {
            "node": plan.nodes[failed] if failed is not None and failed < len(plan.nodes) else "the plan",
            "value": value,
            "position": position,
            "last": outcome.classes - 1,
        }
        if name in FEED_FAULTS:
            is_padding = name == "TW_BAD_LABEL" and (value < 0 or value == IMAGE_PADDING)
            error: Exception = getattr(messages, "PADDED_LABEL" if is_padding else FEED_FAULTS[name])(**fault)
            if isinstance(error, FeedError):
                error.value, error.position = value, position
            return error
        line = plan.text[failed] if failed is not None and failed < len(plan.text) else ""
        return messages.PLAN_FAILED(status=name, code=status, instruction=failed, line=line, **fault)

    def write_feeds(self, loaded: LoadedPlan, feeds: Mapping[str, Tensor]) -> None:
        for name, slot in loaded.plan.inputs.items():
            if slot.nbytes:
                self.engine.write(self.address(slot, loaded), feeds[name].data)

    def read_outputs(self, loaded: LoadedPlan, names: Iterable[str]) -> dict[str, Tensor]:
        results = {}
        for name in names:
            slot = loaded.plan.outputs[name]
            data = self.engine.read(self.address(slot, loaded), slot.nbytes) if slot.nbytes else b""
            results[name] = Tensor(name, slot.dtype, slot.shape, data)
        return results

    def output_range(self, loaded: LoadedPlan, slot: TensorPlace) -> NumberRange:
        return self.engine.range(self.address(slot, loaded), slot.nbytes // 4)

    def segment_range(self, segment: int, offset: int, count: int, copy: int | None = None) -> NumberRange:
        base = self.bases[segment] if copy is None else self.call("tw_session_copy", copy, segment)
        return self.engine.range(base + offset, count)

    @contextmanager
    def timer(self, plan: Plan) -> Iterator[int]:
        n = len(plan.nodes)
        times = self.engine.alloc(8 * max(n, 1))
        try:
            self.engine.write(times, bytes(8 * n))
            yield times
        finally:
            self.engine.free(times)

    def profile(self, loaded: LoadedPlan, feeds: Mapping[str, Tensor], runs: int, times: int) -> list[float]:
        def run() -> None:
            self.write_feeds(loaded, feeds)
            self.run(loaded)

        return self._profile(loaded, run, runs, times)

    def _profile(self, loaded: LoadedPlan, run: Callable[[], None], runs: int, times: int) -> list[float]:
        n = len(loaded.plan.nodes)
        self.engine.profile(loaded.ptr, times)
        try:
            for _ in range(runs):
                run()
            return [t / runs for t in struct.unpack(f"<{n}d", self.engine.read(times, 8 * n))]
        finally:
            self.engine.profile(loaded.ptr, 0)

    # Memory.

    def address(self, slot: TensorPlace, loaded: LoadedPlan) -> int:
        """Return the address of a slot of a loaded plan."""
        blocks = {layout.CONSTANTS: loaded.constants, layout.LARGE_CONSTANTS: loaded.large}
        return blocks.get(slot.segment, self.bases[slot.segment]) + slot.offset

    def release(self) -> None:
        if self.released:
            return
        for loaded in list(self.loaded):
            self.unload(loaded)
        self._unstage()
        self.demand("tw_session_close")
        self.bases = [0] * N_SEGMENTS
        self.released = True
