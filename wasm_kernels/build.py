"""Compile the kernels to the four WebAssembly builds with the compiler of the `ziglang` package.

    python wasm_kernels/build.py [--force]

Writes wasm_kernels/build/*.wasm and copies them to py_src/trainweb/backend/wasm/engine/; writes ir/calls.py, which git
has, and ir/layout.py and layout.ts, which it ignores. A build whose sources and flags did not change is left alone.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from generate import generate, generated_sources, write_if_changed

HERE = Path(__file__).resolve().parent
BUILD = HERE / "build"
PACKAGE = HERE.parent / "py_src" / "trainweb" / "backend" / "wasm" / "engine"

FOLDERS = (".", "conv", "session")

STACK_BYTES = 256 << 10
MAX_MEMORY = 1 << 32

CFLAGS = [
    "--target=wasm32-freestanding",
    "-std=c11",
    "-O3",
    "-ffreestanding",
    "-nostdlib",
    "-fno-builtin",
    "-fno-strict-aliasing",
    "-fwrapv",
    "-ffp-contract=off",
    "-fno-sanitize=all",
    "-fno-stack-protector",
    "-fvisibility=hidden",
    # Register tiles are written in the order that keeps the fewest vectors alive; other schedulers undo that. Loop
    # strength reduction turns constant offsets, which a load has for free, into additions.
    "-mllvm",
    "-pre-RA-sched=source",
    "-mllvm",
    "-disable-lsr",
    "-msimd128",
    "-mbulk-memory",
    "-mmutable-globals",
    "-mnontrapping-fptoint",
    "-msign-ext",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unused-command-line-argument",
]
THREAD_CFLAGS = ["-matomics", "-DTW_THREADS"]
RELAXED_CFLAGS = ["-mrelaxed-simd", "-DTW_RELAXED"]
LDFLAGS = [
    "--no-entry",
    "--import-memory",
    "--export-table",
    "--growable-table",
    "--export=__stack_pointer",
    "--export=__heap_base",
    "--strip-all",
    "--gc-sections",
    "-z",
    f"stack-size={STACK_BYTES}",
    "--stack-first",
]
THREAD_LDFLAGS = ["--shared-memory", f"--max-memory={MAX_MEMORY}"]

BUILDS = {
    "kernels": (False, False),
    "kernels.relaxed": (True, False),
    "kernels.threads": (False, True),
    "kernels.relaxed.threads": (True, True),
}
"""Name -> (relaxed, threads)."""


def tool(*args: str) -> None:
    """Run a tool of the ziglang package; its messages go to the terminal."""
    subprocess.run([sys.executable, "-m", "ziglang", *args], check=True)


def digest(flags: list[str], paths: list[Path]) -> str:
    """Hash of the flags and of the contents of the files."""
    h = hashlib.sha256(repr(flags).encode())
    for path in sorted(paths):
        h.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return h.hexdigest()


def files(ending: str) -> list[Path]:
    """The sources or headers of the kernels."""
    return [path for folder in FOLDERS for path in (HERE / folder).glob(f"*.{ending}")]


def up_to_date(target: Path, key: str) -> bool:
    """Return True if `target` was made from inputs with this key."""
    stamp = target.with_name(target.name + ".key")
    return target.exists() and stamp.exists() and stamp.read_text() == key


def compile_source(source: Path, build: str, flags: list[str], force: bool) -> Path:
    """One object file."""
    target = BUILD / build / source.relative_to(HERE).with_suffix(".o")
    headers = [*files("h"), BUILD / "kernels_gen.h", BUILD / "kernels_tables.h"]
    if source.name != "executor.c":
        headers.remove(BUILD / "kernels_tables.h")
    key = digest(flags, [source, *headers])
    if force or not up_to_date(target, key):
        target.parent.mkdir(parents=True, exist_ok=True)
        tool("cc", *flags, f"-I{HERE}", f"-I{BUILD}", "-c", str(source), "-o", str(target))
        target.with_name(target.name + ".key").write_text(key)
    return target


def make(build: str, pool: ThreadPoolExecutor, force: bool = False) -> Path:
    """One .wasm; returns its path."""
    relaxed, threads = BUILDS[build]
    cflags = CFLAGS + RELAXED_CFLAGS * relaxed + THREAD_CFLAGS * threads
    ldflags = LDFLAGS + THREAD_LDFLAGS * threads
    sources = sorted(files("c"))
    objects = list(pool.map(lambda source: compile_source(source, build, cflags, force), sources))
    target = BUILD / f"{build}.wasm"
    key = digest(ldflags, objects)
    if force or not up_to_date(target, key):
        tool("wasm-ld", *ldflags, *map(str, objects), "-o", str(target))
        target.with_name(target.name + ".key").write_text(key)
    return target


def install(path: Path) -> None:
    """Replace the package's copy at once, so that nobody loads half a file."""
    copy = PACKAGE / path.name
    if not copy.exists() or copy.read_bytes() != path.read_bytes():
        temporary = copy.with_name(f".{path.name}.{os.getpid()}")
        shutil.copyfile(path, temporary)
        os.replace(temporary, copy)


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Hold the lock of the build folder, where the platform has such locks."""
    BUILD.mkdir(exist_ok=True)
    with (BUILD / "lock").open("w") as lock:
        try:
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)
        except ImportError:
            pass
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--force", action="store_true", help="rebuild everything")
    options = parser.parse_args()
    with one_at_a_time(), ThreadPoolExecutor(2) as pool:
        generate(HERE / "kernels.def", BUILD)
        for path, text in generated_sources(HERE / "kernels.def").items():
            write_if_changed(HERE.parent / path, text)
        paths = [make(build, pool, options.force) for build in BUILDS]
        for path in paths:
            install(path)
            print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
