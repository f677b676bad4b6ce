"""GFLOP/s of the kernels in Chromium, and their share of what registers alone allow (peak.c, interleaved).

    python bench/kernels/bench_kernels.py [--build PATH] [--rounds 15] [--document] [pattern ...]

A pattern selects the cases whose name contains it.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from trainweb.ir import calls
from trainweb.ir.layout import PACKED_4, PACKED_8, PACKED_HALF

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

ENGINE = HERE.parents[1] / "py_src" / "trainweb" / "backend" / "wasm" / "engine"
CHROMIUM = "/usr/bin/chromium"
# The optimising compiler at once: on a busy machine its background threads may not get to run for seconds.
FLAGS = [
    "--no-sandbox",
    "--disable-background-networking",
    "--no-first-run",
    "--disable-sync",
    "--disable-component-update",
    "--disable-gpu",
    "--js-flags=--no-liftoff --no-wasm-dynamic-tiering",
]
SQUARES = [(64, 64, 32), (128, 128, 128), (256, 256, 256), (512, 512, 512), (1024, 1024, 1024)]
# Layers (rows, outputs, inputs) of SmolLM2-135M, whose weights may be quantized; one row is a token that is generated.
PACKED = [(rows, *shape) for rows in (128, 1) for shape in ((576, 576), (1536, 576), (576, 1536))]
# Layers (rows, inputs, outputs) of the model benchmarks: forward NT, gradient by the data NN, by the weights TN.
LAYERS = [
    (64, 784, 256),
    (64, 256, 128),
    (64, 128, 10),
    (128, 784, 1024),
    (128, 1024, 1024),
    (128, 1024, 10),
    (512, 128, 384),
    (512, 128, 128),
    (512, 128, 512),
    (512, 512, 128),
]
# (batch, input channels, output channels, height = width, kernel, stride, groups)
CONV_SHAPES = [
    (32, 1, 32, 28, 3, 1, 1),
    (32, 32, 64, 14, 3, 1, 1),
    (16, 3, 16, 32, 3, 1, 1),
    (16, 16, 16, 32, 3, 1, 1),
    (16, 16, 32, 32, 3, 2, 1),
    (16, 32, 32, 16, 3, 1, 1),
    (16, 32, 64, 16, 3, 2, 1),
    (16, 64, 64, 8, 3, 1, 1),
    (16, 16, 32, 32, 1, 2, 1),
    (16, 64, 128, 14, 1, 1, 1),
    (32, 3, 16, 64, 3, 2, 1),
    (32, 16, 32, 32, 3, 2, 1),
    (32, 32, 64, 16, 3, 2, 1),
    (32, 64, 128, 8, 3, 2, 1),
    (1, 64, 64, 56, 3, 1, 1),
    (4, 3, 32, 64, 7, 2, 1),
    (16, 64, 128, 16, 1, 2, 1),
    (8, 96, 24, 28, 1, 1, 1),
    (16, 256, 64, 7, 1, 1, 1),
    (4, 32, 32, 28, 3, 1, 32),
    (1, 32, 32, 112, 3, 1, 32),
    (1, 96, 96, 112, 3, 2, 96),
    (4, 32, 64, 28, 3, 1, 32),
    (4, 144, 144, 28, 5, 2, 144),
    (4, 240, 240, 14, 5, 1, 240),
    (4, 240, 240, 14, 3, 2, 240),
    (8, 256, 256, 7, 3, 1, 256),
    (4, 512, 512, 2, 3, 1, 1),
    (8, 256, 512, 4, 3, 2, 1),
    (4, 64, 128, 7, 5, 1, 1),
    (4, 512, 512, 7, 1, 1, 1),
    (1, 256, 256, 7, 3, 1, 1),
    (4, 256, 512, 4, 3, 2, 1),
    (4, 128, 256, 8, 3, 2, 1),
    (1, 256, 512, 8, 3, 2, 1),
    (16, 256, 256, 4, 1, 1, 1),
    (4, 256, 512, 4, 1, 2, 1),
]


def gemm_case(layout: str, m: int, n: int, k: int) -> dict[str, Any]:
    """One product; the layout says which operand is stored transposed."""
    ta, tb = layout[0] == "T", layout[1] == "T"
    args = {
        "a": 4 * m * k,
        "b": 4 * n * k,
        "bias": None,
        "c": 4 * m * n,
        "m": m,
        "n": n,
        "k": k,
        "a_row": 1 if ta else k,
        "a_col": m if ta else 1,
        "b_row": 1 if tb else n,
        "b_col": k if tb else 1,
        "c_row": n,
        "bias_row": 0,
        "bias_col": 0,
        "batch": [1, 1],
        "a_batch": [0, 0],
        "b_batch": [0, 0],
        "c_batch": [0, 0],
        "bias_batch": [0, 0],
        "alpha": 1,
        "beta": 1,
        "accumulate": 0,
        "activation": 0,
        "clears": 0,
        "wanted": None,
    }
    return {"name": f"gemm {layout} {m}x{n}x{k}", "flops": 2 * m * n * k, "kernel": "gemm_f32", "args": args}


def packed_cases(m: int, outputs: int, inputs: int) -> Iterator[dict[str, Any]]:
    """A product with a weight (outputs, inputs) in blocks of 32, forward and by the input, beside float32."""
    for turned, (n, k) in ((1, (outputs, inputs)), (0, (inputs, outputs))):
        layout, blocks = "NT" if turned else "NN", inputs // 32
        yield gemm_case(layout, m, n, k)
        for name, packing, halves in (("4", PACKED_4, 1), ("8", PACKED_8, 2), ("half", PACKED_HALF, 4)):
            other = ("b", "b_row", "b_col", "batch", "a_batch", "b_batch", "c_batch", "bias_batch")
            args = {key: value for key, value in gemm_case(layout, m, n, k)["args"].items() if key not in other}
            args |= {
                "w": outputs * inputs * halves // 2,
                "scale": None,
                "zero": None,
                "turned": turned,
                "pitch": inputs,
            }
            args |= {"packing": packing, "flip": 0, "center": 8, "block_rows": 1, "block_cols": 32}
            args |= dict.fromkeys(("scale_row", "zero_row"), blocks) | dict.fromkeys(("scale_col", "zero_col"), 1)
            if packing != PACKED_HALF:
                args["scale"] = 4 * outputs * blocks
            title = f"packed {name} {layout} {m}x{n}x{k}"
            yield {"name": title, "flops": 2 * m * n * k, "kernel": "gemm_quantized_f32", "args": args}


def conv_cases(n: int, c: int, m: int, size: int, kernel: int, stride: int, groups: int) -> Iterator[dict[str, Any]]:
    """Forward, data and weight gradient of one convolution."""
    pad = kernel // 2
    out = (size + 2 * pad - kernel) // stride + 1
    x, y, w = 4 * n * c * size**2, 4 * n * m * out**2, 4 * m * c // groups * kernel**2
    words = {
        "n": n,
        "c": c,
        "m": m,
        "groups": groups,
        "size": [1, size, size],
        "kernel": [1, kernel, kernel],
        "out": [1, out, out],
        "stride": [1, stride, stride],
        "dilation": [1, 1, 1],
        "pad": [0, pad, pad],
        "accumulate": 0,
        "activation": 0,
        "ordered": 1 << 24,
        "partial": 1 << 20,
        "columns": 1 << 25,
        "rows": 1 << 22,
        "table": 1 << 16,
    }
    name = f"{n}x{c}x{size}x{size} -> {m} {kernel}x{kernel}"
    name += f" s{stride}" * (stride > 1) + f" g{groups}" * (groups > 1)
    flops = 2 * n * m * out**2 * c // groups * kernel**2
    kinds: dict[str, dict[str, Any]] = {
        "conv": {"kernel": "conv_f32", "args": {"x": x, "w": w, "bias": 4 * m, "y": y}},
        "conv dx": {"kernel": "conv_data_gradient_f32", "args": {"dy": y, "w": w, "bias": None, "dx": x}},
        "conv dw": {"kernel": "conv_weight_gradient_f32", "args": {"x": x, "dy": y, "dw": w, "db": 4 * m}},
    }
    for kind, operands in kinds.items():
        operands["args"].update(words)
        case = {"name": f"{kind} {name}", "flops": flops, **operands}
        if groups == 1:
            case["kernel"] = chosen(kind, operands["kernel"], operands["args"])
        if case["kernel"].startswith("winograd"):
            case |= tiles_case(kind, operands["args"])
        if kernel == stride == groups == 1 and kind != "conv dw":
            case |= images_case("NN", n, m, c, size**2) if kind == "conv" else images_case("TN", n, c, m, size**2)
        yield case


def chosen(kind: str, otherwise: str, args: dict[str, Any]) -> str:
    """The kernel that the operator takes, which asks the same."""
    ends = {name: args[name] for name in ("n", "c", "m")}
    axes = {name: tuple(args[name]) for name in ("size", "kernel", "out", "stride", "dilation", "pad")}
    columns: Any = {
        "conv": calls.ColumnsConv,
        "conv dx": calls.ColumnsDataGradient,
        "conv dw": calls.ColumnsWeightGradient,
    }
    activation = {} if kind == "conv dw" else {"activation": 0}
    few = bool(columns[kind].pays(**ends, **axes, **activation))
    tiles = tiles_case(kind, args)["args"]
    shape = {name: tiles[name] for name in ("n", "c", "m", "size", "out", "stride", "pad")}
    tiled = axes["kernel"] == (1, 3, 3) and calls.WinogradConv.pays(**shape, flipped=tiles["flipped"], activation=0)
    if kind == "conv dw":
        tiled = tiled and calls.WinogradWeightGradient.pays(**shape)
    if tiled:
        return "winograd_weight_gradient_f32" if kind == "conv dw" else "winograd_conv_f32"
    return columns[kind].KERNEL if few else otherwise


def tiles_case(kind: str, args: dict[str, Any]) -> dict[str, Any]:
    """The kernel that a 3x3 convolution runs: Winograd's method, without the transformation of its weights."""
    back = kind == "conv dx"
    size, out = (args["out"], args["size"]) if back else (args["size"], args["out"])
    c, m = (args["m"], args["c"]) if back else (args["c"], args["m"])
    tiles = {
        "n": args["n"],
        "c": c,
        "m": m,
        "size": size[1:],
        "out": out[1:],
        "stride": args["stride"][1],
        "pad": args["pad"][1:],
        "accumulate": 0,
        "activation": 0,
        "flipped": int(back),
        "partial": 1 << 24,
        "u": 1 << 24,
    }
    if kind == "conv dw":
        return {"kernel": "winograd_weight_gradient_f32", "args": args | tiles}
    x, y = (args["dy"], args["dx"]) if back else (args["x"], args["y"])
    return {"kernel": "winograd_conv_f32", "args": {"x": x, "bias": args["bias"], "y": y, **tiles}}


def images_case(layout: str, images: int, m: int, k: int, area: int) -> dict[str, Any]:
    """The kernel that a pointwise convolution runs: weights by the planes of each image."""
    args = gemm_case(layout, m, area, k)["args"]
    args |= {
        "b": 4 * images * k * area,
        "c": 4 * images * m * area,
        "batch": [1, images],
        "b_batch": [0, k * area],
        "c_batch": [0, m * area],
    }
    return {"kernel": "gemm_f32", "args": args}


def pool_cases(planes: int, size: int, kernel: int, stride: int, pad: int) -> Iterator[dict[str, Any]]:
    """Counts one operation an element of the input, so that the rate is elements a nanosecond."""
    out = (size + 2 * pad - kernel) // stride + 1
    x, y = 4 * planes * size**2, 4 * planes * out**2
    words = {
        "planes": planes,
        "size": [1, size, size],
        "kernel": [1, kernel, kernel],
        "out": [1, out, out],
        "stride": [1, stride, stride],
        "dilation": [1, 1, 1],
        "pad": [0, pad, pad],
        "pad_end": [0, pad, pad],
        "count_include_pad": 0,
    }
    name = f"{planes}x{size}x{size} {kernel}x{kernel} s{stride}"
    for kind, kernel_name, operands in [
        ("max", "max_pool_f32", {"x": x, "y": y, "indices": 2 * y}),
        ("average", "average_pool_f32", {"x": x, "y": y}),
        ("average dx", "average_pool_gradient_f32", {"dy": y, "dx": x}),
    ]:
        yield {"name": f"pool {kind} {name}", "flops": x // 4, "kernel": kernel_name, "args": {**operands, **words}}


def all_cases() -> list[dict[str, Any]]:
    cases = [gemm_case(layout, *shape) for shape in SQUARES for layout in ("NN", "NT", "TN")]
    for rows, inputs, outputs in LAYERS:
        cases.append(gemm_case("NT", rows, outputs, inputs))
        cases.append(gemm_case("NN", rows, inputs, outputs))
        cases.append(gemm_case("TN", outputs, inputs, rows))
        # The weights of MatMul lie the other way.
        cases.append(gemm_case("TN", inputs, outputs, rows))
    for packed in PACKED:
        cases += packed_cases(*packed)
    cases += [gemm_case("NN", 1, 1024, 1024), gemm_case("NT", 1, 1024, 1024), gemm_case("NN", 1024, 1, 1024)]
    for shape in CONV_SHAPES:
        cases += conv_cases(*shape)
    for pool in [(32 * 32, 28, 2, 2, 0), (32 * 64, 14, 2, 2, 0), (16 * 64, 32, 3, 2, 1), (16 * 64, 8, 8, 1, 0)]:
        cases += pool_cases(*pool)
    return cases


def compile_peak(target: Path, relaxed: bool) -> None:
    """peak.c with the flags of the kernels."""
    flags = ["-mrelaxed-simd", "-DTW_RELAXED"] if relaxed else []
    subprocess.run(
        [
            sys.executable,
            "-m",
            "ziglang",
            "cc",
            "--target=wasm32-freestanding",
            "-O3",
            "-nostdlib",
            "-msimd128",
            "-fno-sanitize=all",
            "-Wl,--no-entry",
            *flags,
            str(HERE / "peak.c"),
            "-o",
            str(target),
        ],
        check=True,
    )


def serve(folder: Path) -> tuple[http.server.ThreadingHTTPServer, str]:
    """A quiet server on a free port."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        extensions_map = {**http.server.SimpleHTTPRequestHandler.extensions_map, ".mjs": "text/javascript"}

        def end_headers(self) -> None:
            # Isolated pages have a clock of 5 us.
            self.send_header("Cross-Origin-Opener-Policy", "same-origin")
            self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
            super().end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("localhost", 0), functools.partial(Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, f"http://localhost:{server.server_port}"


def in_page(origin: str, options: dict[str, Any]) -> list[dict[str, Any]]:
    """Measure in a fresh Chromium."""
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page()
        page.goto(origin + "/index.html")
        result = page.evaluate("async (o) => (await import('/kernels.mjs')).measure(o)", options)
        browser.close()
        return list(result)


def run(build: Path, cases: list[dict[str, Any]], rounds: int, milliseconds: float) -> list[dict[str, Any]]:
    """The measurements of all cases."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        compile_peak(folder / "peak.wasm", "relaxed" in build.name)
        (folder / "kernels.wasm").write_bytes(build.read_bytes())
        (folder / "kernels.mjs").write_bytes((HERE / "kernels.mjs").read_bytes())
        (folder / "index.html").write_text("<!doctype html>")
        server, origin = serve(folder)
        options = {
            "kernelsUrl": "/kernels.wasm",
            "peakUrl": "/peak.wasm",
            "cases": cases,
            "rounds": rounds,
            "milliseconds": milliseconds,
        }
        try:
            return in_page(origin, options)
        finally:
            server.shutdown()


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def rates(result: dict[str, Any]) -> list[float]:
    """GFLOP/s of each round."""
    return [result["flops"] / t / 1e6 for t in result["times"]]


def peaks_of(results: list[dict[str, Any]]) -> list[float]:
    """GFLOP/s of registers alone, before each round of each case."""
    return [rate for r in results for rate in r["peaks"]]


def report(results: list[dict[str, Any]], write: Callable[[str], None] = print) -> None:
    """One line a case."""
    peaks = peaks_of(results)
    write(f"peak: {max(peaks):.1f} GFLOP/s max, {median(peaks):.1f} median")
    for r in results:
        found = rates(r)
        write(
            f"{r['name']:40} {min(r['times']):9.4f} ms {max(found):6.1f} GFLOP/s max {median(found):6.1f} median"
            f" {100 * max(found) / max(peaks):5.1f} % of peak"
        )


def product_rows(cells: dict[str, str]) -> list[str]:
    """One row a layer: its three products."""
    rows = ["| product | forward NT | by the data NN | by the weights TN |", "|---|---|---|---|"]
    squares = [(f"{m}x{n}x{k}", [(m, n, k)] * 3) for m, n, k in SQUARES]
    layers = [(f"{m} rows, {i} -> {o}", [(m, o, i), (m, i, o), (o, i, m)]) for m, i, o in LAYERS]
    for title, shapes in squares + layers:
        names = [f"gemm {kind} {m}x{n}x{k}" for kind, (m, n, k) in zip(("NT", "NN", "TN"), shapes, strict=True)]
        rows.append(f"| {title} | " + " | ".join(cells[n] for n in names) + " |")
    return rows


def convolution_rows(cells: dict[str, str]) -> list[str]:
    """One row a convolution: forward and both gradients."""
    rows = ["| convolution | forward | by the data | by the weights |", "|---|---|---|---|"]
    for name in [n.removeprefix("conv ") for n in cells if n.startswith("conv ") and n[5].isdigit()]:
        row = [cells[f"{kind} {name}"] for kind in ("conv", "conv dx", "conv dw")]
        rows += [f"| {name} | {' | '.join(row)} |"]
    return rows


def cell(result: dict[str, Any], peak: float) -> str:
    """Best GFLOP/s and its share of the peak."""
    best = max(rates(result))
    return f"{best:.1f} ({100 * best / peak:.0f} %)"


def document(results: list[dict[str, Any]], page: Path) -> None:
    """Write the tables between the markers of the page."""
    peaks = peaks_of(results)
    cells = {r["name"]: cell(r, max(peaks)) for r in results}
    text = page.read_text()
    start, end = (text.index(f"<!-- {mark} -->") for mark in ("kernels", "/kernels"))
    lines = ["<!-- kernels -->", f"Peak: {max(peaks):.1f} GFLOP/s at most, median {median(peaks):.1f}.", ""]
    lines += [*product_rows(cells), "", *convolution_rows(cells)]
    page.write_text(text[:start] + "\n".join(lines) + "\n" + text[end:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("patterns", nargs="*", help="parts of names of cases")
    parser.add_argument("--build", default=str(ENGINE / "kernels.relaxed.wasm"), help="path of a build of the kernels")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--milliseconds", type=float, default=4, help="length of one measurement")
    parser.add_argument("--json", help="also write the measurements to this file")
    parser.add_argument(
        "--document", action="store_true", help="tables into docs/performance-notes.md; needs all cases"
    )
    options = parser.parse_args()
    cases = [c for c in all_cases() if not options.patterns or any(p in c["name"] for p in options.patterns)]
    results = run(Path(options.build), cases, options.rounds, options.milliseconds)
    report(results)
    if options.document:
        document(results, HERE.parents[1] / "docs" / "performance-notes.md")
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
