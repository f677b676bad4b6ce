"""A Program keeps its instructions in order, and knows who reads and writes what after any change."""

import itertools

import numpy as np
import pytest

from trainweb.ir import calls
from trainweb.ir.builder import Builder
from trainweb.ir.instructions import Buf, Instruction, Storage
from trainweb.ir.layout import ARENA
from trainweb.ir.program import Program

BYTES = 64


def buffer(name: str) -> Buf:
    return Buf(Storage(ARENA, BYTES), "uint8", (BYTES,), name=name)


def move(source: Buf, target: Buf) -> calls.Copy:
    return calls.Copy(src=source, dst=target, n=BYTES)


def chain(n: int) -> tuple[Program, list[Buf]]:
    """b1 = b0, b2 = b1, ..."""
    bufs = [buffer(f"b{k}") for k in range(n + 1)]
    builder = Builder()
    return Program(builder, bufs[:1], bufs[-1:], itertools.starmap(move, itertools.pairwise(bufs))), bufs


def check_index(program: Program) -> None:
    """Compare with what the instructions themselves say."""
    now = list(program.instructions)
    assert list(program) == now and len(program) == len(now)
    assert all(a.position < b.position for a, b in itertools.pairwise(now))
    for s in {b.storage for i in now for b in (*i.reads, *i.writes)}:
        reads = [i for i in now if any(b.storage is s for b in i.reads)]
        writes = [i for i in now if any(b.storage is s for b in i.writes)]
        assert program.readers(s) == tuple(reads)
        assert program.writers(s) == tuple(writes)
        assert program.users(s) == [i for i in now if i in reads or i in writes]


def test_readers_and_writers_follow_every_change() -> None:
    program, bufs = chain(4)
    first, second, third, fourth = program
    check_index(program)
    program.replace(second, move(bufs[0], bufs[2]))
    assert program.readers(bufs[1].storage) == ()
    program.remove(first)
    assert program.writers(bufs[1].storage) == ()
    program.insert_before(third, move(bufs[3], bufs[1]), move(bufs[1], bufs[0]))
    program.append(move(bufs[4], bufs[0]))
    program.insert_first(move(bufs[4], bufs[1]))
    program.replace(fourth)
    assert [i.src.name + i.dst.name for i in program if isinstance(i, calls.Copy)] == [
        *("b4b1", "b0b2", "b3b1", "b1b0", "b2b3", "b4b0"),
    ]
    check_index(program)


def test_one_instruction_that_reads_and_writes_a_storage_is_one_user() -> None:
    program, bufs = chain(1)
    b = bufs[0]
    inner = calls.Copy(src=b.view((8,)), dst=b.view((8,), 8), n=8)
    program.append(inner)
    assert program.users(b.storage) == [program.instructions[0], inner]
    check_index(program)


@pytest.mark.parametrize("seed", range(20))
def test_random_changes_leave_the_index_right(seed: int) -> None:
    rng = np.random.default_rng(seed)
    program, bufs = chain(6)
    for _ in range(60):
        some = [move(bufs[rng.integers(7)], bufs[rng.integers(7)]) for _ in range(rng.integers(3))]
        at = program.instructions[rng.integers(len(program))]
        change = rng.integers(5)
        if change == 0 and len(program) > 3:
            program.remove(at)
        elif change == 1 and (some or len(program) > 3):
            program.replace(at, *some)
        elif change == 2:
            program.insert_before(at, *some)
        elif change == 3:
            program.append(*some)
        else:
            program.insert_first(*some)
        check_index(program)


def test_there_is_always_room_between_two_instructions() -> None:
    program, bufs = chain(2)
    last = program.instructions[-1]
    for _ in range(200):
        last, before = move(bufs[0], bufs[1]), last
        program.insert_before(before, last)
    assert len(program) == 202
    check_index(program)


def test_a_loop_sees_what_comes_behind_and_not_what_has_left() -> None:
    program, bufs = chain(3)
    seen: list[Instruction] = []
    first, second, third = program
    behind = [move(bufs[0], bufs[1]) for _ in range(40)]
    for i in program:
        seen.append(i)
        if i is first:
            program.replace(first, move(bufs[0], bufs[1]))
            program.remove(second)
            for new in behind:  # more than there is room for: positions are spread
                program.insert_before(third, new)
    assert seen == [first, *behind, third]


def test_what_may_lie_between_two_instructions() -> None:
    program, bufs = chain(3)
    first, second, third = program
    middle = bufs[1].storage
    assert program.is_written_from(middle, first, third) and not program.is_written_between(middle, first, third)
    assert program.is_read_between(middle, first, third) and not program.is_read_between(middle, second, third)
    assert program.is_used_from(middle, second, third) and not program.is_used_from(middle, third, third)


def test_temporaries_are_seen_by_instructions_alone() -> None:
    fed = Buf(Storage(ARENA, BYTES, is_feed=True), "uint8", (BYTES,))
    program, bufs = chain(2)
    assert program.is_temporary(bufs[1].storage)
    assert not program.is_temporary(bufs[2].storage), "an output"
    assert not program.is_temporary(fed.storage)
    assert not program.is_temporary(program.builder.state.storage)
