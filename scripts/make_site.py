"""The documentation's site: dist/site, static files that work in any folder of any server.

`./build.sh site` runs this after the build. Pages are docs/*.md, the documents beside README.md and site/pages, made by
Material for MkDocs; the blocks of examples/ become editors. Beside them lie the package, the demo, a Pyodide with
trainweb and matplotlib, and what else the pages run.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import demo
import examples
import notebook_tools
import pyodide_dist
import pyodide_lockfile
from steps import BUILD, DIST, LOCKS, ROOT, BuildError, Step, locked, make_environment, run, run_step

SOURCES = ROOT / "site"
OUT = DIST / "site"
TOOLS = BUILD / "venv-site"
PAGES = BUILD / "site"
REQUIREMENTS = (
    "jupyter-server==2.21.1",
    "jupyterlite-core==0.8.6",
    "jupyterlite-pyodide-kernel==0.8.6",
    "mkdocs-material==9.8.1",
)
KERNEL_WHEELS = (
    "asttokens==3.0.2",
    "comm==0.2.3",
    "decorator==5.3.1",
    "executing==2.3.0",
    "ipython==9.18.1",
    "ipython-pygments-lexers==1.1.1",
    "jedi==0.20.1",
    "matplotlib-inline==0.2.2",
    "parso==0.8.7",
    "prompt-toolkit==3.0.53",
    "pure-eval==0.2.4",
    "pygments==2.21.0",
    "stack-data==0.6.3",
    "tqdm==4.70.1",
    "traitlets==5.16.1",
    "wcwidth==0.2.13",  # newer ones are not pure
)
"""What a kernel of JupyterLite takes besides Pyodide: IPython, and bars."""
CURVES = """\
%pip install -q matplotlib tqdm

from matplotlib import pyplot

history = session.fit({"points": points, "labels": labels}, epochs=3, batch_size=64)
history.plot()
pyplot.show()
"""
LAB = BUILD / "lab"
PYODIDE = BUILD / "site-pyodide"
LAB_SETTINGS = {
    "jupyter-lite-schema-version": 0,
    "jupyter-config-data": {
        "litePluginSettings": {
            "@jupyterlite/pyodide-kernel-extension:kernel": {
                # From lab/lab/index.html: the site's own, whose lock file has trainweb.
                "pyodideUrl": "../../pyodide/pyodide.mjs",
                "disablePyPIFallback": True,
            }
        }
    },
}
MOVED = {
    "../dist/npm/": "../trainweb/",
    "../README.md": "../overview.html",
    "../docs/sessions.md": "../docs/sessions.html",
    "../docs/federated.md": "../docs/federated.html",
}
"""What the pages of examples/ name, and where it lies in the site."""
DOCUMENTS = ("CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md", "THIRD_PARTY_LICENSES")
"""What lies beside README.md and is linked to."""
QUIET = {"NO_MKDOCS_2_WARNING": "1"}  # a banner of the theme about its successor, which reads the same mkdocs.yml
ISOLATED = '<head>\n    <script src="../isolate.js"></script>'
"""The head of pages that MkDocs does not make."""
UNUSED = ("404.html", "sitemap.xml", "sitemap.xml.gz")
"""What MkDocs writes for a site of a fixed address, which this has not."""


def setup() -> None:
    """Create the environment of the documentation's tools, apart from .venv, which users and tests have."""
    outputs = [TOOLS / "bin" / "mkdocs"]
    run_step(Step("site-tools", lambda: make_environment(TOOLS, "site"), inputs=[LOCKS / "site.txt"], outputs=outputs))


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def _moved(file: Path) -> str:
    """The text of a file of examples/, with the addresses of the site."""
    source = file.read_text()
    for old, new in MOVED.items():
        source = source.replace(old, new)
    return source


def _example_page(page: Path) -> str:
    """The source of an example's page in an editor, which runs it."""
    source = _moved(page)
    (title,) = re.findall("<title>(.*?)</title>", source)
    notebook = f'<a href="../lab/lab/index.html?path={page.stem}.ipynb">As a notebook</a>, in Python.'
    code = f'<div class="example" markdown>\n\n```html\n{source}```\n\n</div>'
    text = f"The page runs here; its source below can be changed and run again. {notebook}"
    return f"---\nhide: [toc]\n---\n\n# {title}\n\n{text}\n\n{code}\n"


def _gather_examples() -> None:
    target = PAGES / "examples"
    for name in ("README.md", "style.css", "pad.js"):
        _copy(examples.EXAMPLES / name, target / name)
    for name in ("data", "models"):
        _copy(examples.EXAMPLES / name, target / name)
    (target / "page.js").write_text(_moved(examples.EXAMPLES / "page.js"))
    for page in examples.EXAMPLES.glob("*.html"):
        (target / f"{page.stem}.md").write_text(_example_page(page))


def _gather_pages() -> None:
    """Lay all pages into one folder, as they lie in the repository, so that their links stay as they are."""
    shutil.rmtree(PAGES, ignore_errors=True)
    _copy(SOURCES / "pages", PAGES)
    _copy(SOURCES / "assets", PAGES / "assets")
    _copy(SOURCES / "examples", PAGES / "examples")
    _gather_examples()
    _copy(ROOT / "docs", PAGES / "docs")
    _copy(ROOT / "docs" / "first.onnx", PAGES / "examples" / "first.onnx")
    for name in DOCUMENTS:
        _copy(ROOT / name, PAGES / name)
    _copy(ROOT / "README.md", PAGES / "overview.md")  # MkDocs would take README.md for the first page
    examples.write_bundle(
        ROOT / "docs" / "first.onnx", ["points=float32[64,2]", "labels=int64[64]"], PAGES / "assets" / "first.bundle"
    )
    run("node", SOURCES / "build.mjs", PAGES / "assets")


def _build_pages() -> None:
    _gather_pages()
    shutil.rmtree(OUT, ignore_errors=True)
    run(TOOLS / "bin" / "mkdocs", "build", "--quiet", "--strict", "--config-file", SOURCES / "mkdocs.yml", env=QUIET)
    for name in UNUSED:
        (OUT / name).unlink(missing_ok=True)


def _code_cell(name: str, source: str) -> dict[str, object]:
    return {
        "cell_type": "code",
        "id": name,
        "metadata": {},
        "execution_count": None,
        "outputs": [],
        "source": source,
    }


def _first_notebook() -> dict[str, object]:
    """The README's cell as a notebook, and curves and a bar."""
    readme, places = ((ROOT / name).read_text() for name in ("README.md", "docs/notebooks.md"))
    (code,) = re.findall(r"^```python\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    (install,) = re.findall(r"^\| JupyterLite \| `(.*?)`", places, re.MULTILINE)
    cells = [_code_cell("first", f"{install}\n\n{code}"), _code_cell("curves", CURVES)]
    kernel = {"name": "python", "display_name": "Python (Pyodide)", "language": "python"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def _build_lab() -> None:
    """Write a JupyterLite site with the README's cell and the notebooks of examples/ to .build/lab/site."""
    shutil.rmtree(LAB, ignore_errors=True)
    wheels, files = LAB / "wheels", LAB / "source" / "files"
    files.mkdir(parents=True)
    pip = (TOOLS / "bin" / "python", "-m", "pip", "--quiet", "--disable-pip-version-check")
    run(*pip, "download", "--no-deps", "--dest", wheels, *locked("lab-wheels"))
    (files / "first.ipynb").write_text(json.dumps(_first_notebook()))
    _copy(ROOT / "docs" / "first.onnx", files / "first.onnx")
    for notebook in examples.EXAMPLES.glob("*.ipynb"):
        _copy(notebook, files / notebook.name)
    for name in ("data", "models"):
        _copy(examples.EXAMPLES / name, files / name)
    (files.parent / "jupyter-lite.json").write_text(json.dumps(LAB_SETTINGS))
    given = [word for wheel in sorted(wheels.glob("*.whl")) for word in ("--piplite-wheels", wheel)]
    folders = ("--lite-dir", ".", "--contents", "files", "--output-dir", LAB / "site")
    only = ("--apps", "lab", "--no-libarchive", "--no-sourcemaps")
    run(TOOLS / "bin" / "jupyter-lite", "build", *folders, *only, *given, cwd=files.parent)


def _lay_beside() -> None:
    """Copy what the pages run."""
    _copy(DIST / "npm", OUT / "trainweb")
    _copy(DIST / "npm" / "isolate.js", OUT / "isolate.js")
    _copy(PYODIDE, OUT / "pyodide")
    for page in demo.PAGES:
        _copy(page, OUT / page.name)
    for name in (*(page.name for page in demo.PAGES), "check"):
        page = OUT / name / "index.html"
        page.write_text(page.read_text().replace("<head>", ISOLATED, 1))
    _copy(LAB / "site", OUT / "lab")


def _build_pyodide() -> None:
    """Write a Pyodide with trainweb and matplotlib to .build/site-pyodide."""
    notebook_tools.build_release(notebook_tools.OURS)
    folder = notebook_tools.OURS.folder
    (wheel,) = DIST.glob("trainweb-*.whl")
    run_step(
        Step(
            "site-pyodide",
            lambda: pyodide_lockfile.build_distribution(wheel, folder, PYODIDE),
            inputs=[Path(pyodide_lockfile.__file__), wheel, folder / pyodide_dist.LOCAL_LOCK.name],
            outputs=[PYODIDE / "pyodide-lock.json"],
        )
    )


def build() -> None:
    """Write dist/site; the package and the tools of pyodide-build must be there."""
    setup()
    demo.build_pages()
    examples.make_bundle()
    examples.make_backbone()
    _build_pyodide()
    documents = [ROOT / name for name in (*DOCUMENTS, "README.md")]
    run_step(
        Step(
            "site-pages",
            _build_pages,
            inputs=[
                Path(__file__),
                SOURCES,
                ROOT / "docs",
                examples.EXAMPLES,
                *documents,
                ROOT / "package-lock.json",
                LOCKS / "site.txt",
            ],
            outputs=[OUT / "index.html"],
        )
    )
    run_step(
        Step(
            "site-lab",
            _build_lab,
            inputs=[
                ROOT / "README.md",
                ROOT / "docs" / "notebooks.md",
                LOCKS / "site.txt",
                LOCKS / "lab-wheels.txt",
                examples.EXAMPLES,
                CURVES,
                json.dumps(LAB_SETTINGS),
            ],
            outputs=[LAB / "site" / "index.html"],
        )
    )
    _lay_beside()


def main() -> int:
    """Build; exit status 1 when something that the site needs could not be had."""
    try:
        build()
    except BuildError as error:
        print(f"site: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
