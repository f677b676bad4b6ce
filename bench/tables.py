"""Tables of results, as Markdown."""

from __future__ import annotations

from typing import Any

LOSS_TOLERANCE = 2e-3
"""Relative. Trainings that round differently drift apart over 8 steps of Adam, whose first steps are signs of the
gradients; an epsilon before or after the bias correction makes 1.5e-3."""
OURS = "trainweb"

Result = dict[str, Any]


def deviation(losses: list[float], reference: list[float]) -> tuple[float, float]:
    """Relative difference of the first loss, and the largest of all."""
    each = [abs(a - b) / max(abs(b), 1e-9) for a, b in zip(losses, reference, strict=False)]
    return each[0], max(each)


def reference_losses(results: list[Result], names: dict[int, str]) -> list[float] | None:
    """Losses to compare with: the reference's, else the losses of the first contender that has any."""
    with_losses = [r for r in results if r.get("losses")]
    chosen = [r for r in with_losses if r["contender"] in names.values()] or with_losses
    return chosen[0]["losses"] if chosen else None


def row(r: Result, found: Result, references: dict[int, Result], losses: list[float] | None) -> tuple[str, bool]:
    """One contender's line, and whether it is as it should be."""
    ours = r["contender"].startswith(OURS)
    if "error" in r:
        return f"| {r['label']} | fails: {' '.join(r['error'].split())[:150]} |", not ours
    reference = references.get(r["threads"])
    faster = ["", ""]
    if reference is not None and reference is not r and "error" not in reference:
        faster = [f"{reference[k] / r[k]:.2f}x" for k in ("min", "median")]
    rate = found["flops"] / r["min"] / 1e6
    share = rate / found["peak_gflops"] / r["threads"]
    first, worst = deviation(r["losses"], losses) if losses else (0.0, 0.0)
    same = worst <= LOSS_TOLERANCE
    parts = " / ".join(f"{p:.2f}" for p in r.get("parts") or [])
    memory = r.get("memory") or {}
    mib = memory.get("inUse", memory.get("total", 0)) / 2**20
    cells = [
        r["label"],
        f"{r['min']:.2f}",
        f"{r['median']:.2f}",
        *faster,
        f"{rate:.1f}",
        f"{100 * share:.0f} %",
        parts,
        f"{first:.0e}",
        f"{worst:.0e}" + ("" if same else " LOSSES DIFFER"),
        f"{mib:.0f}" if mib else "",
        f"{r['quiet']}/{len(r['blocks'])}" if "quiet" in r else "",
    ]
    return "| " + " | ".join(cells) + " |", same or not ours


def print_model(found: Result, names: dict[int, str]) -> bool:
    """Print one model's table; returns whether trainweb ran with the right losses."""
    results = found["results"]
    references = {t: r for t, n in names.items() for r in results if r["contender"] == n}
    losses = reference_losses(results, names)
    print(
        f"\n### {found['model']}: {found['n_params']} parameters, {found['flops'] / 1e6:.0f} MFLOP a step, "
        f"peak {found['peak_gflops']:.1f} GFLOP/s a core, load {found['load'][0]:.1f}\n"
    )
    print(
        "| contender | min ms | median ms | faster (min) | faster (median) | GFLOP/s | of peak "
        "| train / optimizer / reset ms | loss 1 off | losses off | MiB | quiet |"
    )
    print("|---|" + "---|" * 11)
    good = True
    for r in sorted(results, key=lambda r: (r["threads"], r.get("min", float("inf")))):
        line, right = row(r, found, references, losses)
        print(line, flush=True)
        good &= right
    return good


def startup_times(r: dict[str, Any]) -> str:
    """Two cells: min / median from the navigation, and from `create`."""
    session = "-" if r["session_min"] is None else f"{r['session_min']:.0f} / {r['session_median']:.0f}"
    return f"{r['min']:.0f} / {r['median']:.0f} | {session}"
