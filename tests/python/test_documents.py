"""The documents: their links lead somewhere, their Python runs and prints what they say, and skipped blocks say why."""

import ast
import asyncio
import contextlib
import gc
import io
import re
import shutil
import tomllib
import traceback
from concurrent.futures import ThreadPoolExecutor
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

import trainweb
from trainweb import errors, messages
from trainweb.settings import OTHER_NAMES
from trainweb.spelling import camel_case
from trainweb.training.core import free_abandoned

ROOT = Path(__file__).parents[2]
RAW = "https://raw.githubusercontent.com/trainweb/trainweb/main/"
"""Where pictures of the README lie for those who read it elsewhere."""
AROUND = [ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG", "SECURITY", "CODE_OF_CONDUCT")]
DOCUMENTS = {page.relative_to(ROOT).as_posix(): page for page in [*AROUND, *sorted((ROOT / "docs").glob("*.md"))]}
PAGES = sorted((ROOT / "site" / "pages").rglob("*.md"))
RUN = ("html", "js", "python")
"""Languages of blocks that tests run: Python here, JavaScript in test_guides.py, HTML in the tests of its subject."""
OTHERS = ("json", "nginx", "sh", "text", "toml", "ts")
GUIDES = ("pictures", "table", "series", "text", "elsewhere", "federated")
"""Projects, whose blocks print what stands behind them."""
FENCE = r"^```%s\n((?:(?!```).*\n)*)```\n"
CODE = re.compile(r"^ *```(?:js|python|html|sh|json|toml)\b.*\n((?:(?! *```).*\n)*)", re.MULTILINE)
MOST_COLUMNS = 60
"""Longer lines of code do not fit on a phone."""


def outside(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def prose(page: Path) -> str:
    return re.sub(r"```.*?```|`[^`\n]*`|^    .*?$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def slugs(page: Path) -> set[str]:
    """The anchors that GitHub and the site give to the headings of a page."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*]", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in plain}


def fault_of(page: Path, target: str) -> str | None:
    if target.startswith(RAW):
        return None if (ROOT / target.removeprefix(RAW)).exists() else "no such picture"
    if target.startswith(("http://", "https://")):
        return None
    path, _, anchor = target.partition("#")
    # The site's own pages lie beside README.md there.
    folder = ROOT if page in PAGES and not (page.parent / path).exists() else page.parent
    file = folder / unquote(path) if path else page
    if not file.exists():
        return "no such file"
    if anchor and file.suffix == ".md" and anchor not in slugs(file):
        return "no such heading"
    return None


def test_links_of_the_documents_resolve() -> None:
    links = [
        (page, link) for page in [*DOCUMENTS.values(), *PAGES] for link in re.findall(r"\]\(([^)]+)\)", prose(page))
    ]
    assert len(links) > 150
    faults = [(page.name, link, fault) for page, link in links if (fault := fault_of(page, link))]
    assert faults == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_blocks_of_code_run_or_say_why_not(name: str) -> None:
    fences = re.findall(r"^```(.*)\n(?:.*\n)*?^```$", DOCUMENTS[name].read_text(), re.MULTILINE)
    known = re.compile(rf"{'|'.join(OTHERS)}|({'|'.join(RUN)})( {{skip=\"[^\"]+\"}})?")
    assert [fence for fence in fences if not known.fullmatch(fence)] == []


def python_of(page: Path) -> str:
    """All Python of a page, as one program whose line numbers are the page's."""
    lines, is_inside = [], False
    for line in page.read_text().splitlines():
        is_fence = line.startswith("```")
        lines.append(line if is_inside and not is_fence else "")
        is_inside = (line == "```python") if is_fence and not is_inside else is_inside and not is_fence
    return "\n".join(lines)


def outputs_of(page: Path) -> list[str]:
    """The lines that stand behind the blocks of Python of a page."""
    texts = re.findall(f"{FENCE % 'python'}\n{FENCE % 'text'}", page.read_text(), re.MULTILINE)
    return "".join(output for _, output in texts).splitlines()


def guides() -> list[Path]:
    """The pages of docs/ that lead a user, in contrast to those that are looked up."""
    looked_up = load_hooks().LOOKED_UP
    return [page for name, page in DOCUMENTS.items() if name.startswith("docs/") and not looked_up.match(name)]


def test_code_of_the_guides_fits_on_a_phone() -> None:
    long = [
        (page.name, line)
        for page in guides()
        for code in CODE.findall(page.read_text())
        for line in code.splitlines()
        if len(line) > MOST_COLUMNS
    ]
    assert long == []


def test_code_of_the_guides_is_in_fences() -> None:
    """Tests do not see blocks that only their indentation marks."""
    indented = re.compile(r"\n\n    (?! *[-*\d])\S.*")
    assert [(page.name, line) for page in guides() for line in indented.findall(outside(page))] == []


WITH_PYTHON = [name for name, page in DOCUMENTS.items() if name != "README.md" and "\n```python\n" in page.read_text()]


@pytest.mark.parametrize("name", WITH_PYTHON)
def test_python_of_the_documents_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for model in ("docs/first.onnx", "tests/golden/mlp/base.onnx"):
        shutil.copy(ROOT / model, tmp_path)
    monkeypatch.chdir(tmp_path)
    before = ROOT / "tests" / "guides" / Path(name).with_suffix(".py").name
    names: dict[str, Any] = {"__file__": str(before)}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        if before.exists():
            exec(compile(before.read_text(), before, "exec"), names)
        page = compile(python_of(DOCUMENTS[name]), name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if (waiting := eval(page, names)) is not None:  # a page that awaits
            with ThreadPoolExecutor(1) as thread:  # tests of pages leave a loop running in this one
                thread.submit(asyncio.run, waiting).result()
    names.clear()
    gc.collect()
    free_abandoned()  # the sessions of the page
    if Path(name).stem in GUIDES:
        assert printed.getvalue().splitlines() == outputs_of(DOCUMENTS[name])


def load_hooks() -> Any:
    """The hooks of the site's builder."""
    found = spec_from_file_location("hooks", ROOT / "site" / "hooks.py")
    assert found is not None and found.loader is not None
    hooks = module_from_spec(found)
    found.loader.exec_module(hooks)
    return hooks


def test_the_menu_names_types_without_their_parameters(tmp_path: Path) -> None:
    page = tmp_path / "FitEvent.md"
    page.write_text("[trainweb](index.md)\n\n# FitEvent&lt;Values&gt;\n\nAn event.\n")
    assert load_hooks()._title(page) == "FitEvent"


def test_the_same_in_two_languages_becomes_tabs() -> None:
    script, python, output = "```js\na();\n```\n", '```python {skip="needs PyTorch"}\na()\n```\n', "```text\n1\n```\n"
    both = '===! "JavaScript"\n\n    ```js\n    a();\n    ```\n\n=== "Python"\n\n    ```python\n    a()\n    ```\n'
    tabs = load_hooks().tabs
    assert tabs(f"{script}\n{python}\n{output}") == f"{both}\n{output}"
    assert tabs(f"{python}\n{script}") == both
    apart = f"{script}\nText.\n\n```python\na()\n```\n"
    assert tabs(apart) == apart and tabs(f"{script}\n{output}\n{script}") == f"{script}\n{output}\n{script}"


def test_the_readme_leads_to_the_site_if_it_has_an_address() -> None:
    """The address is a setting, `Site` of the project's URLs."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    text = (ROOT / "README.md").read_text()
    assert (f"**Try it**: <{urls['Site']}>" in text) if "Site" in urls else ("Try it" not in text)


def test_nothing_raises_the_base_class_of_errors() -> None:
    """docs/errors.md says so."""
    bare = {name for name, m in vars(messages).items() if getattr(m, "error", None) is errors.TrainwebError}
    assert not bare
    raised = re.compile(r"raise TrainwebError\b|throw new TrainwebError\b")
    sources = [*(ROOT / "py_src").rglob("*.py"), *(ROOT / "web" / "src").rglob("*.ts")]
    assert not [path.name for path in sources if raised.search(path.read_text())]


def test_errors_have_a_section_and_name_it() -> None:
    page = (ROOT / "docs" / "errors.md").read_text()
    assert sorted(re.findall(r"^## (\w+)$", page, re.MULTILINE)) == errors.__all__
    address = "https://github.com/trainweb/trainweb/blob/main/docs/errors.md#modelerror"
    with pytest.raises(errors.ModelError) as caught:
        trainweb.InferenceSession(b"<html>")
    assert caught.value.documentation == address
    assert traceback.format_exception(caught.value)[-1] == f"See {address}\n"
    assert address not in str(caught.value)


def test_the_page_of_sessions_names_the_settings_that_have_two_names() -> None:
    text = " ".join((ROOT / "docs" / "sessions.md").read_text().split())
    for other, name in OTHER_NAMES.items():
        assert f"`{camel_case(other)}` is `{camel_case(name)}`" in text
