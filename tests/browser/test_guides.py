"""The JavaScript of the documents runs in a page and prints what they say.

README's: test_readme.py. Python: tests/python/test_documents.py.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page
from tests.guides.classifier import classifier, part
from tests.guides.people import people
from tests.guides.wines import steps_of_wines
from tests.python.test_documents import FENCE
from tests.python.test_documents import GUIDES as PROJECTS

from .conftest import watched_page
from .server import ROOT, Site

IMPORTS = {
    "trainweb": "/dist/npm/index.js",
    "@huggingface/tokenizers": "/tokenizers/tokenizers.mjs",
    "@huggingface/transformers": "/transformers.mjs",
}
TRANSFORMERS = """
const apply_chat_template = (chat) => chat.map(({ content }) => content).join("");
export const env = {};
export const AutoTokenizer = { from_pretrained: async () => ({ ...globalThis.tokenizer, apply_chat_template }) };
"""
"""The part of the package that docs/language-models.md takes, around the page's own tokenizer."""
MAP = f'<script type="importmap">{json.dumps({"imports": IMPORTS})}</script>'
RUN = """async (code) => {
    const address = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
    const [lines, { log }] = [[], console];
    console.log = (...words) => lines.push(words.join(" "));
    await import(address).finally(() => { console.log = log; });
    return lines;
}"""


DECLARED = re.compile(r"^(?:const|let|class|function|async function) ([\w$]+|[{\[].*?[}\]]) ?[=({]", re.MULTILINE)
"""A name, or a pattern of names, that a program declares for all its blocks."""
EVERYTHING = 'import * as trainweb from "trainweb"; Object.assign(globalThis, trainweb);'
BEFORE = ROOT / "tests" / "guides"


def declared(code: str) -> set[str]:
    """The names that a block declares for blocks behind it."""
    return {name for found in DECLARED.findall(code) for name in re.findall(r"[\w$]+", found)}


def programs_of(page: Path) -> list[str]:
    """The programs of a page.

    A block that imports, or declares a name that stands before it, begins one. Other blocks continue it. In a project
    only imports begin one. The page's file in tests/guides comes first, and makes globals of what the page takes.
    """
    before = BEFORE / f"{page.stem}.js"
    programs = [f"{EVERYTHING}\n{before.read_text()}"] if before.exists() else []
    starts = len(programs)
    for code in re.findall(r"^```js\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        words = set(re.findall(r"[\w$]+", programs[-1])) if programs and page.stem not in PROJECTS else set()
        if len(programs) > starts and not declared(code) & words and not code.startswith("import "):
            programs[-1] += code
        else:
            programs.append(code)
    return programs


GUIDES = {page.name: programs_of(page) for page in sorted((ROOT / "docs").glob("*.md"))}
MODELS = {"language-models.md": "generate/llama.onnx", "lora.md": "generate/llama.onnx"}
"""What `model.onnx` is on a page; elsewhere it is the README's model."""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """The package, the models and data that the documents name, and folders of language models."""
    folders = {
        "dist/npm": "dist/npm",
        "golden": "tests/golden",
        "smollm2": "tests/golden/pretrained/folder",
        "sonnets": "web/demo/voice/model",
        "tokenizers": "node_modules/@huggingface/tokenizers/dist",
    }
    mounts = {f"/{prefix}/": [ROOT / folder] for prefix, folder in folders.items()}
    site = Site(mounts={**mounts, "/": [ROOT / folder for folder in ("docs", "examples/data", "examples/models")]})
    site.add("/sonnets/generation_config.json", "{}", "application/json")
    site.add("/people.onnx", people())
    site.add("/steps.json", steps_of_wines(), "application/json")
    site.add("/features.onnx", part("image", "features"))
    site.add("/last.onnx", part("features", "logits"))
    site.add("/transformers.mjs", TRANSFORMERS, "text/javascript")
    site.add("/models/smollm2/chat_template.jinja", "{{ messages }}", "text/plain")
    site.add("/diary.txt", (ROOT / "web" / "demo" / "voice" / "example.txt").read_bytes())
    yield site
    site.close()


@pytest.fixture(scope="module")
def guide(browser: Browser, site: Site) -> Iterator[Page]:
    """One page for all, with the package by its name."""
    page, errors = watched_page(browser)
    page.goto(site.add("/guide.html", f'<!doctype html><base href="/"><link rel="icon" href="data:,">{MAP}'))
    yield page
    page.context.close()
    assert errors.messages == []


@pytest.mark.parametrize("name", [name for name, programs in GUIDES.items() if programs])
def test_javascript_of_the_documents_runs(guide: Page, site: Site, name: str) -> None:
    model = ROOT / "tests" / "golden" / MODELS[name] if name in MODELS else ROOT / "docs" / "first.onnx"
    site.add("/model.onnx", classifier() if name == "pictures.md" else model.read_bytes())
    lines = [line for program in GUIDES[name] for line in guide.evaluate(RUN, program)]
    if Path(name).stem in PROJECTS:
        text = (ROOT / "docs" / name).read_text()
        blocks = re.findall(f"{FENCE % 'js'}\n(?:{FENCE % 'python'}\n)?{FENCE % 'text'}", text, re.MULTILINE)
        assert lines == "".join(output for *_, output in blocks).splitlines()


def test_errors_of_the_page_name_their_section(guide: Page) -> None:
    address = guide.evaluate("""async () => {
        const { InferenceSession } = await import("trainweb");
        return InferenceSession.create(new Uint8Array(8)).catch((error) => error.documentation);
    }""")
    assert address == "https://github.com/trainweb/trainweb/blob/main/docs/errors.md#modelerror"


def test_the_guides_tokenizer_adds_no_tokens_to_text_of_a_template(guide: Page) -> None:
    code = re.search(r"^const tokenizer = .*?^};$", (ROOT / "docs" / "text.md").read_text(), re.MULTILINE | re.DOTALL)
    assert code is not None
    rows = guide.evaluate(
        """async (code) => {
            const { Dataset } = await import("trainweb");
            const ids = (text) => Array.from(text, (letter) => letter.charCodeAt(0) - 96);
            const encode = (text, { add_special_tokens: adds = true } = {}) =>
              ({ ids: adds ? [1, ...ids(text)] : ids(text) });
            const tokenizer = new Function("coder", `${code} return tokenizer;`)({ encode });
            tokenizer.apply_chat_template = (turns) => `a${turns.map(({ content }) => content).join("")}`;
            const messages = [{ role: "user", content: "b" }, { role: "assistant", content: "c" }];
            const { columns } = Dataset.fromText([{ messages }], tokenizer, { length: 4, pack: false });
            return Array.from(columns.get("input_ids").data, Number);
        }""",
        code[0],
    )
    assert rows == [1, 2, 0, 0]
