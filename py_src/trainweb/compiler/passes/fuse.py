"""Fusion of elementwise calls: a producer is computed inside its consumer, or a consumer inside its producer.

The merged call stands in the place of the consumer. If others read the producer's results before that, it stands in the
place of the producer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from trainweb.compiler.context import Context
from trainweb.ir.expr import MATH, Expr, inputs_of, walk
from trainweb.ir.instructions import Buf, ElementwiseCall, Instruction
from trainweb.ir.layout import ARENA
from trainweb.ir.program import Program

MAX_BUFFERS = 12
"""Addresses a fused function may hold: more spill."""
MAX_OPERATIONS = 48
"""Operations of a fused function."""
CHEAP_OPERATIONS = 4
"""Operations, no functions among them, that take less time than it takes to store a result and to read it again."""


def fuse_elementwise(program: Program, _: Context) -> None:
    """Merge chains of elementwise calls of one iteration space; results stay the same bytes."""
    for part in (program, *program.hoisted.values()):
        fuser = _Fuser(part)
        for fuse in (fuser.fuse_producers, fuser.fuse_into_producer):
            for e in part:
                if isinstance(e, ElementwiseCall):
                    fuse(e)
        fuser.finish()


def repeat_cheap(program: Program, _: Context) -> None:
    """Repeat a cheap result in the elementwise calls that read both it and its operands.

    They are not kept until then, such as x / sqrt(2) of a GELU for its gradient, which reads x. The bytes are the same.
    """
    fuser = _Fuser(program)
    for e in program:
        if isinstance(e, ElementwiseCall):
            fuser.repeat_results(e)
    fuser.finish()


@dataclass(eq=False, slots=True)
class _Chain:
    """An elementwise call whose expressions are of tensors instead of numbers: merged, they need no new numbers."""

    shape: tuple[int, ...]
    size: int
    ins: dict[Expr, Buf]
    """Tensors by the expressions that stand for them in `roots`, all of which need each."""
    outs: list[Buf]
    roots: list[Expr]
    node: str
    operations: int
    """At most so many distinct operations."""


class _Fuser:
    """Merges elementwise calls of a program; `finish` gives the merged ones their expressions."""

    def __init__(self, program: Program) -> None:
        self.program, self.emitter = program, program.emitter
        self.tensors: dict[tuple[object, ...], Expr] = {}
        """Expression of a tensor, by its place and shape."""
        self.chains: dict[Instruction, _Chain] = {}

    # Calls and chains.

    def _tensor(self, b: Buf) -> Expr:
        key = (b.storage, b.shift, b.dtype, b.shape)
        tensor = self.tensors.get(key)
        if tensor is None:
            tensor = self.tensors[key] = Expr("input", b.dtype, (), len(self.tensors))
        return tensor

    def _chain(self, call: ElementwiseCall) -> _Chain:
        chain = self.chains.get(call)
        if chain is None:
            inputs, operations = _needs(call.roots)
            numbered = {x: call.ins[int(x.imm or 0)] for x in sorted(inputs, key=_number)}
            ins, roots = self._renamed(numbered, call.roots)
            chain = _Chain(call.shape, prod(call.shape), ins, call.outs, roots, call.node, operations)
            self.chains[call] = chain
        return chain

    def _renamed(self, ins: dict[Expr, Buf], roots: Sequence[Expr]) -> tuple[dict[Expr, Buf], list[Expr]]:
        """`ins` by what stands for these tensors, and `roots` over that."""
        names = {old: self._tensor(b) for old, b in ins.items()}
        return {names[old]: b for old, b in ins.items()}, self.emitter.substitute(roots, names)

    def _call(self, chain: _Chain) -> ElementwiseCall:
        """The call of a chain; its expressions come with `finish`."""
        call = ElementwiseCall(chain.shape, list(chain.ins.values()), chain.outs, [], chain.node)
        self.chains[call] = chain
        return call

    def finish(self) -> None:
        """Give every new call its expressions, of numbered inputs."""
        for call, chain in self.chains.items():
            if isinstance(call, ElementwiseCall) and not call.roots and call.position >= 0:
                numbers = {x: self.emitter.input(k, b.dtype) for k, (x, b) in enumerate(chain.ins.items())}
                call.roots = self.emitter.substitute(chain.roots, numbers)

    # Producers and consumers.

    def fuse_producers(self, e: ElementwiseCall) -> None:
        """Compute in `e` what elementwise calls before it make for it, as long as that is possible."""
        merged: _Chain | None = None
        for b in e.ins:
            source = self._producer(b, e)
            if source is None or not self._may_pass(source, source, e):
                continue
            target = merged or self._chain(e)
            if self._tensor(b) not in target.ins:
                continue
            fused = self._merge(self._chain(source), target, (source, e))
            if fused is not None:
                self.program.remove(source)
                merged = fused
        if merged:
            self.program.replace(e, self._call(merged))

    def fuse_into_producer(self, e: ElementwiseCall) -> None:
        """Compute `e` in an elementwise call before it that makes an operand, where that keeps no more memory."""
        if not all(self.program.is_temporary(b.storage) for b in e.outs):
            return  # what fails between the two must change no state
        for b in e.ins:
            source = self._producer(b, e)
            if source is None or not self._may_pass(e, source, e) or not self._keeps_no_more(source, e):
                continue
            fused = self._merge(self._chain(source), self._chain(e), (source, e))
            if fused is not None:
                self.program.remove(e)
                merged = self._call(fused)
                self.program.replace(source, merged)
                self.fuse_into_producer(merged)
                return

    def _producer(self, b: Buf, e: ElementwiseCall) -> ElementwiseCall | None:
        """The elementwise call that wrote `b` last before `e`, if it was one."""
        before = [w for w in self.program.writers(b.storage) if w.position < e.position]
        source = before[-1] if before else None
        return source if isinstance(source, ElementwiseCall) else None

    def _may_pass(self, moved: ElementwiseCall, first: ElementwiseCall, last: ElementwiseCall) -> bool:
        """Return whether nobody between the two reads what `moved`, one of them, writes, or writes what it uses."""
        program = self.program
        if any(program.is_read_between(b.storage, first, last) for b in moved.outs):
            return False
        return not any(program.is_written_between(b.storage, first, last) for b in (*moved.ins, *moved.outs))

    def _keeps_no_more(self, source: ElementwiseCall, e: ElementwiseCall) -> bool:
        """Return whether `e` in the place of `source` frees as many bytes until then as its results take."""
        program = self.program
        results = {b.storage for b in e.outs if program.writers(b.storage)[0] is e}
        freed = {b.storage for b in e.ins if program.is_temporary(b.storage) and not self._is_needed(b, source, e)}
        return sum(s.nbytes for s in results) <= sum(s.nbytes for s in freed)

    def _merge(
        self, source: _Chain, target: _Chain, pair: tuple[ElementwiseCall, ElementwiseCall] | None
    ) -> _Chain | None:
        """`target` with `source` computed inside, or None where that is not possible.

        `pair`: the calls whose chains these are. Without it, no result of `source` is stored.
        """
        if source.size != target.size:
            return None
        source_ins, source_roots = source.ins, source.roots
        if source.shape != target.shape:
            if any(b.size not in (1, source.size) for b in source_ins.values()):
                return None
            seen = {x: b.view(target.shape if b.size == target.size else ()) for x, b in source_ins.items()}
            source_ins, source_roots = self._renamed(seen, source_roots)
        results = list(zip(source.outs, source_roots, strict=True))
        ins, substitutes = dict(source_ins), dict[Expr, Expr]()
        for x, b in target.ins.items():
            for out, root in results:
                if b.storage is out.storage:
                    # Every use of the producer's results in the consumer must be element by element.
                    if not out.same_place(b):
                        return None
                    substitutes.setdefault(x, root)
            if x not in substitutes:
                ins.setdefault(x, b)
        outs, roots = list(target.outs), self.emitter.substitute(target.roots, substitutes)
        is_whole = True
        for out, root in results:
            overwritten = any(o.same_place(out) for o in target.outs)
            if pair and not overwritten and self._is_needed(out, *pair):
                outs.append(out.view(target.shape))
                roots.append(root)
            elif root not in substitutes.values():
                is_whole = False
        # A result that lies across an operand or another result would be seen half written.
        if any(o.storage is b.storage and o.collides(b) for o in outs for b in (*ins.values(), *outs)):
            return None
        operations = source.operations + target.operations
        if len(ins) + len(outs) > MAX_BUFFERS:
            return None
        if operations > MAX_OPERATIONS or not is_whole:
            needed, operations = _needs(roots)
            ins = _only(ins, needed)
        if operations > MAX_OPERATIONS:
            return None
        return _Chain(target.shape, target.size, ins, outs, roots, target.node, operations)

    def _is_needed(self, b: Buf, first: ElementwiseCall, e: ElementwiseCall) -> bool:
        """Return whether anything but `e` reads `b` after `first`."""
        if b.storage.segment != ARENA or b.storage in self.program.output_storages:
            return True
        return any(r.position > first.position and r is not e for r in self.program.readers(b.storage))

    # Cheap results.

    def repeat_results(self, e: ElementwiseCall) -> None:
        """Compute results of `e` in the calls that read them, where they are cheap."""
        program = self.program
        stored = []
        for k, out in enumerate(e.outs):
            readers = [r for r in program.readers(out.storage) if r is not e]
            is_value = program.is_temporary(out.storage) and program.writers(out.storage) == (e,)
            is_read_later = bool(readers) and readers[0].position > e.position
            if not is_value or not is_read_later or not self._repeat(e, k, readers):
                stored.append(k)
        if not stored:
            program.remove(e)
        elif len(stored) < len(e.outs):
            chain = self._chain(e)
            outs, roots = [chain.outs[k] for k in stored], [chain.roots[k] for k in stored]
            needed, operations = _needs(roots)
            ins = _only(chain.ins, needed)
            program.replace(e, self._call(_Chain(chain.shape, chain.size, ins, outs, roots, chain.node, operations)))

    def _repeat(self, e: ElementwiseCall, number: int, readers: Sequence[Instruction]) -> bool:
        """Compute a result of `e` in all that read it; False where it is not cheap or one had to read anything more."""
        calls = [r for r in readers if isinstance(r, ElementwiseCall)]
        if len(calls) < len(readers):
            return False
        if e.roots:  # rejects most calls before a chain is made of them
            made_of = [e.ins[k] for k in inputs_of(e.roots[number : number + 1])]
            if not _is_cheap(e.roots[number]) or not all(_reads_all(reader, made_of) for reader in calls):
                return False
        chain = self._chain(e)
        out, root = chain.outs[number], chain.roots[number]
        needed, operations = _needs([root])
        ins = _only(chain.ins, needed)
        if not _is_cheap(root) or any(self.program.is_written_from(b.storage, e, readers[-1]) for b in ins.values()):
            return False
        alone = _Chain(chain.shape, chain.size, ins, [out], [root], chain.node, operations)
        repeated = []
        for reader in calls:
            fused = self._merge(alone, self._chain(reader), None)
            if fused is None or not _reads_all(reader, list(fused.ins.values())):
                return False
            repeated.append(fused)
        for reader, fused in zip(calls, repeated, strict=True):
            self.program.replace(reader, self._call(fused))
        return True


def _reads_all(e: ElementwiseCall, bufs: Sequence[Buf]) -> bool:
    return all(any(b.same_place(x) for x in e.ins) for b in bufs)


def _number(x: Expr) -> int:
    return int(x.imm or 0)


def _needs(roots: Sequence[Expr]) -> tuple[set[Expr], int]:
    """The inputs of `roots`, and how many operations they are."""
    inputs, operations = set[Expr](), 0
    for x in walk(roots):
        if x.op == "input":
            inputs.add(x)
        elif x.op != "const":
            operations += 1
    return inputs, operations


def _only(ins: dict[Expr, Buf], needed: set[Expr]) -> dict[Expr, Buf]:
    return {x: b for x, b in ins.items() if x in needed}


def _is_cheap(root: Expr) -> bool:
    operations, reads = 0, False
    for x in walk([root]):
        if x.op in MATH:
            return False
        reads |= x.op == "input"
        operations += x.op not in ("input", "const")
        if operations > CHEAP_OPERATIONS:
            return False
    return reads
