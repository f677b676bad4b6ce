"""The fuzzer's changes to a plan, and the calls that it invents."""

import random
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tests.python.kernel_description import Arg, Kernel
from tests.python.plan_builder import RawPlan

from trainweb.ir.layout import (
    BUFFER_WORDS,
    GENERATED_WORDS,
    HEADER_N_BUFFERS,
    HEADER_N_CODE,
    HEADER_N_SEGMENTS,
    HEADER_WORDS,
    PLAN_NO_BUFFER,
    POINTER_WORDS,
    SEGMENT_WORDS,
)

NUMBERS = (0, 1, 2, 3, 4, 5, 7, 8, 16, 63, 64, 65, 256, 1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 30, (1 << 31) - 1)
BITS = (0x7F800000, 0xFF800000, 0x7FC00000, 0x80000000, 1, 0x00800000, 0x7F7FFFFF, 0x3F800000)
"""Infinities, NaN, -0.0, the smallest and the largest float32, 1.0."""


@dataclass(frozen=True)
class Word:
    """A word of a plan: where it is, and what it means: "buffer", "number", "float" or "other"."""

    at: int
    meaning: str
    instruction: int


class Layout:
    """Which word of a plan is what."""

    def __init__(self, words: Sequence[int], known: Iterable[Kernel]) -> None:
        kernels = {kernel.opcode: kernel for kernel in known}
        self.n_buffers = words[HEADER_N_BUFFERS]
        self.buffers = HEADER_WORDS + SEGMENT_WORDS * words[HEADER_N_SEGMENTS]
        self.code = self.buffers + BUFFER_WORDS * self.n_buffers
        self.end = self.code + words[HEADER_N_CODE]
        self.words: list[Word] = []
        self.instructions: list[list[Word]] = []
        at = self.code
        while at < self.end:
            number, count = len(self.instructions), words[at] >> 16
            opcode = words[at] & 0xFFFF
            meanings = _meanings(kernels[opcode]) if opcode else _generated(words[at + 1 : at + 1 + count])
            found = [Word(at, "other", number)]
            found += [Word(at + 1 + k, meaning, number) for k, meaning in enumerate(meanings)]
            self.instructions.append(found)
            self.words += found
            at += 1 + count


def _meanings(kernel: Kernel) -> list[str]:
    names = {"f32": "float", "i32": "number", "s32": "number"}
    return [names.get(arg.kind, "buffer") for arg in kernel.args for _ in range(arg.count)]


def _generated(args: Sequence[int]) -> list[str]:
    n_pointers = args[3]
    pointers = ["buffer", *["number"] * (POINTER_WORDS - 1)] * n_pointers
    return ["number"] * GENERATED_WORDS + pointers + ["number"] * (len(args) - GENERATED_WORDS - len(pointers))


def any_word(rng: random.Random, words: Sequence[int], old: int) -> int:
    """A value for a word of which nothing is known."""
    return rng.choice(
        [
            *(rng.choice(NUMBERS), rng.choice(BITS), rng.getrandbits(32), 0xFFFFFFFF, 0x80000000, 0xFFFFFFFC),
            *(old ^ 1 << rng.randrange(32), old + rng.choice([-4, -1, 1, 4]), words[rng.randrange(len(words))]),
        ]
    )


def number_near(rng: random.Random, words: Sequence[int], word: Word, layout: Layout) -> int:
    """A count, stride or flag like those around it, or one that breaks it."""
    old = words[word.at]
    peers = [w.at for w in layout.instructions[word.instruction] if w.meaning == "number"]
    return rng.choice(
        [
            *(0, 1, 2, old + 1, old - 1, old * 2, old // 2, old * 4, -old),
            *(words[rng.choice(peers)], words[rng.choice(peers)] * old, rng.choice(NUMBERS)),
        ]
    )


def mutate(words: list[int], layout: Layout, rng: random.Random) -> None:
    """Change a few words of a plan, in place: mostly of one instruction and the buffers it names."""
    focus = rng.choice(layout.instructions) if layout.instructions and rng.random() < 0.7 else layout.words
    for _ in range(rng.choice([1, 1, 1, 2, 2, 3, 5])):
        draw = rng.random()
        if draw < 0.1 or not focus:
            at = rng.randrange(2, layout.end)
            words[at] = any_word(rng, words, words[at])
        elif draw < 0.25 and layout.n_buffers:
            at = layout.buffers + BUFFER_WORDS * rng.randrange(layout.n_buffers)
            other = layout.buffers + BUFFER_WORDS * rng.randrange(layout.n_buffers)
            field = rng.randrange(BUFFER_WORDS)
            words[at + field] = rng.choice(
                [words[other + field], words[at + field] + rng.choice([-64, -4, 4, 64]), rng.choice(NUMBERS)]
            )
        elif draw < 0.3 and len(layout.instructions) > 1:
            _swap(words, layout, rng)
        else:
            word = rng.choice(focus)
            if word.meaning == "buffer":
                words[word.at] = rng.choice([PLAN_NO_BUFFER, *[rng.randrange(max(1, layout.n_buffers))] * 5])
            elif word.meaning == "number":
                words[word.at] = number_near(rng, words, word, layout)
            elif word.meaning == "float":
                words[word.at] = rng.choice(BITS)
            else:
                words[word.at] = any_word(rng, words, words[word.at])
    words[:] = [w & 0xFFFFFFFF for w in words]


def _swap(words: list[int], layout: Layout, rng: random.Random) -> None:
    """Exchange the arguments of two instructions of one kernel, or an opcode with another of as many arguments."""
    first, second = rng.sample(layout.instructions, 2)
    a, b = first[0].at, second[0].at
    if len(first) == len(second):
        n = len(first)
        words[a : a + n], words[b : b + n] = words[b : b + n], words[a : a + n]


# ---- calls made up

SEGMENT_BYTES = 1 << 12


def invent(kernel: Kernel, fingerprint: int, rng: random.Random) -> RawPlan:
    """One call with counts that are mostly 1, sometimes none, sometimes enormous, over segments of 4 KiB."""
    plan = RawPlan(fingerprint)
    pointers = sum(arg.is_pointer for arg in kernel.args)
    plan.segments = [[0, SEGMENT_BYTES, 1] for _ in range(max(1, pointers))]
    plan.buffers = [[k, 0, SEGMENT_BYTES] for k in range(max(1, pointers))]
    used = rng.choice([0.05, 0.2, 0.5])
    words: list[int] = []
    for arg in kernel.args:
        words += [_argument(arg, rng, used, len(plan.buffers)) for _ in range(arg.count)]
    plan.code = [[kernel.opcode | len(words) << 16, *words]]
    return plan


def _argument(arg: Arg, rng: random.Random, used: float, n_buffers: int) -> int:
    if arg.is_pointer:
        return PLAN_NO_BUFFER if arg.optional and rng.random() < 0.4 else rng.randrange(n_buffers)
    if arg.kind == "f32":
        return rng.choice(BITS)
    if arg.name.endswith("size") and arg.count == 1 and rng.random() < 0.8:
        return rng.choice([1, 4, 8])
    if rng.random() < used:
        return rng.choice(NUMBERS)
    return rng.choice([1, 1, 1, 0])


# ---- contents of segments

Filler = Callable[[random.Random, int], bytes]


def _floats(rng: random.Random, nbytes: int) -> bytes:
    values = [rng.uniform(-2, 2) for _ in range(64)]
    return (struct.pack("<64f", *values) * (nbytes // 256 + 1))[:nbytes]


def _words(rng: random.Random, nbytes: int) -> bytes:
    values = [rng.choice([0, 1, 2, 3, 0xFFFFFFFF, rng.getrandbits(32), *BITS]) for _ in range(64)]
    return (struct.pack("<64I", *values) * (nbytes // 256 + 1))[:nbytes]


FILLERS: tuple[Filler, ...] = (
    lambda _, nbytes: bytes(nbytes),
    lambda _, nbytes: bytes(nbytes),
    _floats,
    lambda _, nbytes: (struct.pack("<2I", 1, 0) * (nbytes // 8 + 1))[:nbytes],
    _words,
    lambda rng, nbytes: rng.randbytes(nbytes),
)
"""Zeros (indices that are valid), numbers, ones as int64, words that are often small, anything."""
