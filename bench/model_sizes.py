"""Memory, seconds of a step and tokens a second of language models by size, in Chromium on one thread.

    .venv/bin/python bench/model_sizes.py [SIZE:BITS:LENGTH ...]

A row is a page of its own: files from a URL, LoRA of rank 8 on two products of each layer, AdamW, three steps of 1 x
LENGTH tokens, then `generate`. A step is the faster one of the second and third, in processor seconds of the tab's
process, which do not count other work of the machine. Memory is as in bench/large_model.py.
"""

from __future__ import annotations

import argparse
from math import prod

import smol
from chrome import open_profile, open_site
from large_model import TIMEOUT_MS, Watch, files_of, served

ROWS = [
    f"{size}:{bits}:{length}"
    for size, some in {"4M": (32,), "25M": (32,), "135M": (32, 8, 4), "360M": (8, 4)}.items()
    for bits in some
    for length in (128, 512)
]
PROMPT, TOKENS = 32, 48

PAGE = """
async ({ model, weights, length, prompt, tokens }) => {
  const { env, Tensor, TrainingSession } = await import("/dist/index.js");
  env.wasm.numThreads = 1;
  const config = { loss: "CrossEntropyLoss", optimizer: "AdamW", lora: { rank: 8, targets: ["q_proj", "v_proj"] } };
  const session = await TrainingSession.createFromModel(model, config, weights ? { weights } : {});
  await mark("start");
  const word = (_, k) => (37 * k) % 8192;
  const ids = new Tensor("int64", BigInt64Array.from({ length }, (_, k) => BigInt(word(_, k))), [1, length]);
  const feeds = Object.fromEntries(session.trainingInputNames.map((name) => [name, ids]));
  for (const step of ["first step", "step", "step"]) {
    await session.runTrainStep(feeds);
    await session.runOptimizerStep();
    await session.lazyResetGrad();
    await mark(step);
  }
  let count = 0;
  for await (const _ of session.generate(Array.from({ length: prompt }, word), { maxTokens: tokens + 1 })) {
    await mark(count++ === 0 ? "prompt" : "token");
  }
}
"""


def measure(row: str) -> str:
    """One row of the table."""
    name, bits, length = row.split(":")
    parameters = sum(prod(shape) for shape in smol.shapes(smol.SIZES[name]).values())
    with open_profile() as context, open_site() as site:
        page = context.new_page()
        page.set_default_timeout(TIMEOUT_MS)
        page.goto(site.add("/sizes/", "<!doctype html>", "text/html"))
        watch = Watch(page)
        page.expose_function("mark", watch.mark)
        files = served(site, files_of(int(bits), name))
        job = {"weights": None, **files, "length": int(length), "prompt": PROMPT, "tokens": TOKENS}
        with watch.sampling():
            page.evaluate(PAGE, job)
    processor: dict[str, list[float]] = {}
    for phase, seconds, _, _ in watch.rows:
        processor.setdefault(phase, []).append(seconds)
    trained = max(peak for phase, _, _, peak in watch.rows if phase not in {"prompt", "token"})
    rate = TOKENS / sum(processor["token"])
    start = processor["start"][0] + processor["first step"][0]
    return (
        f"| {parameters / 1e6:.0f} million | {bits} | {length} | {trained / 1e6:.0f} MB | {start:.1f} s "
        f"| {min(processor['step']):.2f} s | {rate:.1f} |"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", default=ROWS)
    print("| parameters | bits | tokens of a step | peak of the tab | start and first step | step | tokens a second |")
    print("|---|---|---|---|---|---|---|")
    for row in parser.parse_args().rows:
        print(measure(row), flush=True)


if __name__ == "__main__":
    main()
