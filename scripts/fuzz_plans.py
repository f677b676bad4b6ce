"""Mutate plans and run them between walls: each must stay in its own memory, and must not trap or hang.

    python scripts/fuzz_plans.py [--minutes M] [--plans N] [--seed S] [--build kernels.relaxed]
    python scripts/fuzz_plans.py --only "mlp train True" --case 1234     # that case alone

Real plans are changed word by word, and calls of every kernel are invented. The plans come from the golden models, from
loops and from all samples of operators. Each runs natively, every segment between pages that nobody may touch, with
fuel for a second or two. A child process runs them: one that ends in a fault has touched memory outside, and the next
one goes on. Ends after so many minutes or plans, whatever is first.
"""

from __future__ import annotations

import argparse
import pickle
import random
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "py_src"), str(ROOT)]

from tests.fuzz.mutations import FILLERS, Layout, invent, mutate  # noqa: E402
from tests.fuzz.subjects import MAX_BYTES, Subject, golden_plans, loop_plans, operator_plans  # noqa: E402
from tests.fuzz.walls import Outcome, WalledEngine  # noqa: E402
from tests.python.kernel_description import kernels_of  # noqa: E402
from tests.python.plan_builder import place  # noqa: E402

ROUND = 40
"""Cases of a subject before the next one's turn; half of them with segments at the end of their pages."""
GOLDEN_WEIGHT = 8
"""How much more often than a sample of an operator a golden model or a loop has its turn."""
CALLS = "calls of "
CRASHES = (-11, -7)
"""Exit codes of a process that touched a protected page: SIGSEGV, SIGBUS."""


def subjects() -> list[Subject]:
    """All plans that are small enough, each once."""
    found: dict[bytes, Subject] = {}
    for subject in (*golden_plans(), *loop_plans()):
        found.setdefault(subject.plan.words, subject)
    golden = list(found)
    for subject in operator_plans():
        found.setdefault(subject.plan.words, subject)
    fitting = [s for s in found.values() if sum(s.sizes) <= MAX_BYTES and s.plan.words]
    return fitting + [s for s in fitting if s.plan.words in golden] * (GOLDEN_WEIGHT - 1)


def kept_subjects(file: Path) -> list[Subject]:
    """The plans in a file; compiled, and kept there for the next process, where it is empty."""
    if not file.stat().st_size:
        file.write_bytes(pickle.dumps(subjects()))
    found: list[Subject] = pickle.loads(file.read_bytes())
    return found


class Bench:
    """Runs cases on one engine and counts outcomes."""

    def __init__(self, build: str, seed: str) -> None:
        self.engine, self.seed = WalledEngine(build), seed
        self.kernels = kernels_of(self.engine)
        self.outcomes: Counter[Outcome] = Counter()

    def rng(self, name: str, case: int) -> random.Random:
        return random.Random(f"{self.seed}/{name}/{case}")

    def report(self, name: str, case: int, outcome: Outcome, words: str) -> None:
        self.outcomes[outcome] += 1
        if outcome.is_harm:
            print(f"{outcome.value}: --only {name!r} --case {case}: {words}", flush=True)

    def plan_cases(self, subject: Subject, cases: range) -> None:
        """Mutations of a plan."""
        engine, plan = self.engine, subject.plan
        original = list(struct.unpack(f"<{len(plan.words) // 4}I", plan.words))
        layout = Layout(original, self.kernels.values())
        code_base = engine.load_code(plan.code) if plan.code else 0
        for case in cases:
            tell(subject.name, case)
            rng = self.rng(subject.name, case)
            words = list(original)
            mutate(words, layout, rng)
            self.run(subject.name, case, struct.pack(f"<{len(words)}I", *words), subject.sizes, code_base, rng)
        if code_base:
            engine.unload_code(code_base)

    def call_cases(self, name: str, cases: range) -> None:
        """Calls of one kernel."""
        kernel = self.kernels[name.removeprefix(CALLS)]
        for case in cases:
            tell(name, case)
            rng = self.rng(name, case)
            plan = invent(kernel, self.engine.description.fingerprint, rng)
            self.run(name, case, plan.encode().tobytes(), [nbytes for _, nbytes, _ in plan.segments], 0, rng)

    def run(
        self, name: str, case: int, words: bytes, sizes: tuple[int, ...] | list[int], code_base: int, rng: random.Random
    ) -> None:
        """One plan over fresh segments."""
        engine = self.engine
        bases = self.walled(tuple(sizes), case % 2 == 0)
        fill = rng.choice(FILLERS)
        for base, nbytes in zip(bases, sizes, strict=True):
            if nbytes:
                engine.write(base, fill(rng, nbytes))
        block = engine.alloc(len(words))
        engine.write(block, words)
        outcome, text = Outcome.REFUSED, ""
        try:
            place(engine, block, list(zip(bases, sizes, strict=True)), code_base)
            outcome, text = engine.try_plan(block)
        except Exception as error:
            if "can be placed" not in str(error):
                raise
        finally:
            engine.free(block)
        self.report(name, case, outcome, text)

    _walls: tuple[tuple[int, ...], bool] | None = None
    _bases: list[int]

    def walled(self, sizes: tuple[int, ...], at_end: bool) -> list[int]:
        """Walls for segments of these sizes, as they stand if they are the same as last time."""
        if self._walls != (sizes, at_end):
            self._walls, self._bases = (sizes, at_end), self.engine.wall_in(sizes, at_end)
        return self._bases


NOW: TextIO
"""The file that tells the parent what runs."""


def tell(name: str, case: int) -> None:
    """Let the parent know what runs, in case it is the last."""
    NOW.seek(0)
    NOW.write(f"--only {name!r} --case {case}\n".ljust(200))
    NOW.flush()


def turns(plans: list[Subject], kernels: list[str], seed: str, first: int) -> Iterator[tuple[Subject | str, range]]:
    """Endless pairs of a subject and its cases."""
    turn = first
    while True:
        everyone: list[Subject | str] = [*plans, *(CALLS + name for name in kernels)]
        random.Random(f"{seed}/{turn}").shuffle(everyone)
        seen: Counter[str] = Counter()
        for one in everyone:
            name = one if isinstance(one, str) else one.name
            start = (turn * GOLDEN_WEIGHT + seen[name]) * ROUND
            seen[name] += 1
            # Even cases, then odd ones: the walls move once.
            yield one, range(start, start + ROUND, 2)
            yield one, range(start + 1, start + ROUND, 2)
        turn += 1


def child(options: argparse.Namespace) -> int:
    """Run cases until the time is up; prints counts last."""
    bench = Bench(options.build, options.seed)
    plans = kept_subjects(options.subjects)
    if options.only:
        one = next((s for s in plans if s.name == options.only), options.only)
        order = iter([(one, range(options.case, options.case + 1))])
    else:
        order = turns(plans, sorted(bench.kernels), options.seed, options.turn)
    end = time.monotonic() + options.seconds
    for one, cases in order:
        if time.monotonic() > end or bench.outcomes.total() >= options.plans:
            break
        if isinstance(one, str):
            bench.call_cases(one, cases)
        else:
            bench.plan_cases(one, cases)
    print("counts " + " ".join(f"{outcome.name}={count}" for outcome, count in bench.outcomes.items()), flush=True)
    return 0


def parent(options: argparse.Namespace) -> int:
    """Run children until the time is up; returns the exit status."""
    counts: Counter[str] = Counter()
    end = time.monotonic() + 60 * options.minutes
    turn = 0
    while (left := end - time.monotonic()) > 0 and counts.total() < options.plans and not (options.only and turn):
        command = [sys.executable, __file__, "--child", f"--seconds={left}", f"--seed={options.seed}"]
        command += [f"--build={options.build}", f"--turn={turn}", f"--plans={options.plans - counts.total()}"]
        command += [f"--subjects={options.subjects}"]
        command += ["--only", options.only, "--case", str(options.case)] if options.only else []
        with open(options.now, "w+") as now:
            done = subprocess.run([*command, f"--now={options.now}"], stdout=subprocess.PIPE, text=True, check=False)
            last = now.read().strip()
        for line in done.stdout.splitlines():
            if line.startswith("counts "):
                counts.update({k: int(v) for k, v in (pair.split("=") for pair in line.split()[1:])})
            else:
                print(line, flush=True)
        if done.returncode in CRASHES:
            counts[Outcome.OUTSIDE.name] += 1
            print(f"{Outcome.OUTSIDE.value}, in bulk: {last}", flush=True)
        elif done.returncode:
            print(f"the fuzzer failed with {done.returncode} at {last}")
            return 1
        turn += 1
    harm = sum(counts[outcome.name] for outcome in Outcome if outcome.is_harm)
    text = ", ".join(f"{counts[outcome.name]} {outcome.value}" for outcome in Outcome)
    print(f"{counts.total()} plans: {text}")
    return bool(harm)


def main() -> int:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--plans", type=int, default=sys.maxsize)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--build", default="kernels", choices=["kernels", "kernels.relaxed"])
    parser.add_argument("--only", help="name of a plan, or 'calls of KERNEL'")
    parser.add_argument("--case", type=int, default=0)
    parser.add_argument("--subjects", type=Path, help="file that keeps compiled plans; may be empty")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--turn", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--now", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        global NOW
        NOW = open(options.now, "r+")  # noqa: SIM115
        return child(options)
    import tempfile

    with tempfile.NamedTemporaryFile() as file, tempfile.NamedTemporaryFile() as plans:
        options.now = file.name
        options.subjects = options.subjects or Path(plans.name)
        return parent(options)


if __name__ == "__main__":
    sys.exit(main())
