"""Mutate bundles and run them as a page's worker does: see tests/fuzz/bundles.mjs.

    python scripts/fuzz_bundles.py [--minutes M] [--bundles N] [--seed S]
    python scripts/fuzz_bundles.py --case 1234     # that case alone

Node runs them, by the worker's own code and the kernels of pages. A case that takes seconds hangs,
is counted, and the next one goes on. Ends after so many minutes or bundles, whatever is first.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "py_src"), str(ROOT), str(ROOT / "scripts")]

from tests.browser.bundles import MLP, Signature, compile_bundle  # noqa: E402

from trainweb.ir.shapes import TensorType  # noqa: E402

SIGNATURES: dict[str, Signature] = {
    "mlp": MLP,
    "cnn": {"image": TensorType("float32", (4, 1, 12, 12)), "labels": TensorType("int64", (4,))},
    "transformer": {"ids": TensorType("int64", (1, 6)), "labels": TensorType("int64", (6,))},
}
KERNELS = ROOT / "py_src" / "trainweb" / "backend" / "wasm" / "engine" / "kernels.wasm"
HANG_S = 20
"""Seconds of the processor on one case, after which it hangs. By the clock twenty times as many: others work, too."""
POLL_S = 1
NO_HARM = ("RAN", "REFUSED", "FAILED")


def prepare(folder: Path) -> Path:
    """Write the bundles that are mutated, and the script that does it; returns where that is."""
    for case, signature in SIGNATURES.items():
        (folder / f"{case}.bundle").write_bytes(compile_bundle(case, [signature], models=case == "mlp"))
    script = folder / "fuzz.mjs"
    esbuild = ROOT / "node_modules" / ".bin" / "esbuild"
    source = ROOT / "tests" / "fuzz" / "bundles.mjs"
    options = ["--bundle", "--platform=node", "--format=esm", "--log-level=warning", f"--outfile={script}"]
    subprocess.run([esbuild, source, *options], check=True)
    return script


def processor_seconds(pid: int) -> float:
    """Processor time of a process so far; by the clock where the system does not tell."""
    try:
        fields = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return time.monotonic()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def watched(command: list[str | Path], now: Path) -> tuple[list[str], bool]:
    """Run a child; what it said, and whether it hung and was ended."""
    with tempfile.TemporaryFile("w+") as output, subprocess.Popen(command, stdout=output) as child:
        last, used, since, hung = "", 0.0, time.monotonic(), False
        while child.poll() is None:
            text = now.read_text()
            if text != last:
                last, used, since = text, processor_seconds(child.pid), time.monotonic()
            elif processor_seconds(child.pid) - used > HANG_S or time.monotonic() - since > 20 * HANG_S:
                hung = True
                child.kill()
            time.sleep(POLL_S)
        output.seek(0)
        lines = output.read().splitlines()
    if child.returncode and not hung:
        raise SystemExit("\n".join([*lines, f"the fuzzer failed with {child.returncode} at case {last.strip()}"]))
    return lines, hung


def fuzz(seed: str, first: int, count: int, seconds: float) -> Counter[str]:
    """Run cases; returns how many ended how. Harm is printed with its case."""
    counts: Counter[str] = Counter()
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        script, now = prepare(Path(folder)), Path(folder) / "now"
        at, last = first, first + count
        while at < last and (left := end - time.monotonic()) > 0:
            now.write_text("")
            arguments: list[str | Path] = [KERNELS, folder, seed, str(at), str(last - at), str(left), now]
            lines, hung = watched(["node", script, *arguments], now)
            for line in lines:
                if line.startswith("counts "):
                    counts.update(json.loads(line.removeprefix("counts ")))
                else:
                    print(line, flush=True)
            if not hung:
                break
            case = int(now.read_text() or at)
            counts.update({"HUNG": 1, "RAN OR REFUSED": case - at})
            print(f"HUNG: --case {case}", flush=True)
            at = case + 1
    return counts


def main() -> int:
    """Parse the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--bundles", type=int, default=2**31)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--case", type=int)
    options = parser.parse_args()
    first, count = (0, options.bundles) if options.case is None else (options.case, 1)
    counts = fuzz(options.seed, first, count, 60 * options.minutes)
    harm = sum(n for kind, n in counts.items() if kind not in (*NO_HARM, "RAN OR REFUSED"))
    print(f"{counts.total()} bundles: " + ", ".join(f"{n} {kind.lower()}" for kind, n in sorted(counts.items())))
    return bool(harm)


if __name__ == "__main__":
    sys.exit(main())
