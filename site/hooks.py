"""Hooks of MkDocs: menu entries of generated pages, links by title, tabs, the gallery, and each page's head."""

from __future__ import annotations

import posixpath
import re
import textwrap
from pathlib import Path
from typing import Any

RAW = "https://raw.githubusercontent.com/trainweb/trainweb/main/"
"""Where the README's pictures lie for registries; here they lie beside it."""
EDIT = "https://github.com/trainweb/trainweb/edit/main/"
GUIDE_BOOST, REFERENCE_BOOST = 8, 0.001
"""Weights of pages in the search: guides answer before the reference, whose titles outweigh texts."""
LOOKED_UP = re.compile(r"docs/(architecture|migration|models|operators|performance|testing)")
"""Pages of docs/ that are no guides."""
DEMOS = {
    "mnist": ("Watch a network learn to read", "the demo: draw a digit while it learns"),
    "writes": ("Watch a network learn to write", "a language model from scratch, character by character"),
    "voice": ("Teach a language model your voice", "an adapter learns from a text of yours"),
    "teach": ("Teach your own classes", "with the camera or pictures"),
}
LANGUAGES = {"javascript": "JavaScript", "python": "Python"}
IMPORTS = """
<script type="importmap">{
  "imports": { "trainweb": "./trainweb/index.js", "trainweb/vis": "./trainweb/vis.js" }
}</script>"""
"""What the network on the first screen imports."""
BLOCK = r"^```%s(?: \{.*\})?\n((?:(?!```).*\n)*)```\n"
PAIR = re.compile(rf"{BLOCK % 'js'}\n{BLOCK % 'python'}|{BLOCK % 'python'}\n{BLOCK % 'js'}", re.MULTILINE)
"""A block in one language, and the same in the other right behind it."""


def _title(page: Path) -> str:
    """The first heading, without the parameters of a type."""
    for line in page.read_text().splitlines():
        if line.startswith("# "):
            return line[2:].partition("&lt;")[0].strip()
    return page.stem


def _entries(folder: Path, root: Path) -> list[Any]:
    """The pages of a folder, its index first, then its folders."""
    pages = sorted(folder.glob("*.md"), key=lambda page: (page.stem not in ("index", "README"), page.stem.lower()))
    entries: list[Any] = [{_title(page): page.relative_to(root).as_posix()} for page in pages]
    for inner in sorted(path for path in folder.iterdir() if path.is_dir()):
        found = _entries(inner, root)
        if found:
            entries.append({LANGUAGES.get(inner.name, inner.name): found})
    return entries


def _section(nav: list[Any], name: str) -> list[Any]:
    found: list[Any] = next(entry[name] for entry in nav if isinstance(entry, dict) and name in entry)
    return found


def on_config(config: Any) -> Any:
    """Add to the menu what was made: docs/api, which `./build.sh api` writes, and the pages of the examples."""
    root = Path(config.docs_dir)
    if (root / "docs" / "api").is_dir():
        _section(config.nav, "Reference").insert(0, {"API": _entries(root / "docs" / "api", root)})
    cards = (root / "examples" / "README.md").read_text()
    order = re.findall(r"^\| \[(\w+)\]", cards, re.MULTILINE)
    _section(config.nav, "Gallery")[1:1] = [
        {_title(root / "examples" / f"{name}.md"): f"examples/{name}.md"} for name in order
    ]
    version = (root.parents[1] / "py_src" / "trainweb" / "_version.py").read_text()
    (found,) = re.findall(r'"(\d[^"]*)"', version)
    config.copyright = f"trainweb {found}, MIT licence"
    return config


def _gallery(markdown: str, folder: Path) -> str:
    """A card for each demo and for each row of the table of examples."""

    def card(picture: str, link: str, title: str, text: str, more: str = "") -> str:
        image = f'<img src="../gallery/{picture}.jpg" alt="" loading="lazy">'
        return f'<li><a class="card-link" href="{link}">{image}<b>{title}</b></a><span>{text}{more}</span></li>'

    def of_row(row: re.Match[str]) -> str:
        name, text = row[1], re.sub(r"`(.*?)`", r"<code>\1</code>", row[2].strip())
        more = (
            f'. <a href="../lab/lab/index.html?path={name}.ipynb" aria-label="{name} as a notebook">As a notebook</a>'
        )
        return card(name, f"{name}.html", _title(folder / f"{name}.md"), text, more)

    demos = [card(name, f"../{name}/index.html", *texts) for name, texts in DEMOS.items()]
    rows = list(re.finditer(r"^\| \[(\w+)\]\(\w+\.html\) \| [^|]* \|(.*)\|$", markdown, re.MULTILINE))
    cards = "\n".join([*demos, *map(of_row, rows)])
    _, before = markdown[: markdown.index("| page |")].split("\n", 1)
    after = markdown[rows[-1].end() :]
    return f'# Gallery\n\n<ul class="gallery">\n{cards}\n</ul>\n{before}{after}'


def _titled_links(markdown: str, page: Any, root: Path) -> str:
    """Give links that read like a file's name the title of the page."""

    def titled(link: re.Match[str]) -> str:
        file = root / posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), link[2]))
        return f"[{_title(file)}]({link[2]}{link[3]})" if file.is_file() else link[0]

    return re.sub(r"\[([\w/.-]+\.md)\]\(([^)#]+\.md)(#[^)]*|)\)", titled, markdown)


def tabs(markdown: str) -> str:
    """Put a block in JavaScript and the same in Python into tabs, and take out the notes for tests in fences."""

    def tab(mark: str, title: str, kind: str, code: str) -> str:
        return f'{mark} "{title}"\n\n' + textwrap.indent(f"```{kind}\n{code}```\n", "    ")

    def of_pair(pair: re.Match[str]) -> str:
        script, python = (pair[1], pair[2]) if pair[1] is not None else (pair[4], pair[3])
        # The first mark begins new tabs, also right behind others.
        return tab("===!", "JavaScript", "js", script) + "\n" + tab("===", "Python", "python", python)

    return re.sub(r"^(```\w+) \{skip=.*\}$", r"\1", PAIR.sub(of_pair, markdown), flags=re.MULTILINE)


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Turn links and pictures to those of the site, and weigh the page for the search."""
    source = page.file.src_uri
    if "/namespaces/" in source:  # of onnxruntime-common, with types of a GPU that is not used here
        page.meta["search"] = {"exclude": True}
    elif source.startswith("docs/api/"):
        page.meta.setdefault("search", {"boost": REFERENCE_BOOST})
    elif source.startswith("docs/") and not LOOKED_UP.match(source):
        page.meta.setdefault("search", {"boost": GUIDE_BOOST})
    if source == "examples/README.md":
        page.meta["hide"] = ["toc"]
        return _gallery(markdown, Path(config.docs_dir) / "examples")
    # MkDocs does not know the pages of demos and the check, and leaves links in HTML as they are.
    folders = r"\[([^\]]+)\]\(\.\./(?:web/demo|site/pages)/(\w+)\)"
    markdown = re.sub(folders, r'<a href="../\2/index.html">\1</a>', tabs(markdown))
    markdown = markdown.replace("](../site/pages/", "](../")
    markdown = re.sub(r"\]\(\.\./examples/(\w+)\.html\)", r"](../examples/\1.md)", markdown)
    markdown = markdown.replace("](../README.md", "](../overview.md").replace("](README.md", "](overview.md")
    return _titled_links(markdown.replace(f"]({RAW}", "]("), page, Path(config.docs_dir))


def on_page_content(html: str, **_: Any) -> str:
    """An empty cell of a table's head is no header."""
    return re.sub(r"<th[^>]*>\s*</th>", "<td></td>", html)


def on_page_context(context: Any, page: Any, **_: Any) -> Any:
    """Let the source be edited, where it is one that people write, and list only names beside the reference."""
    source = page.file.src_uri
    if source.startswith("docs/api/"):
        for group in (group for title in page.toc for group in title.children):
            for name in group.children:
                name.children = []
    is_ours = not source.startswith(("docs/api/", "THIRD_PARTY"))
    if source.startswith("examples/") and source != "examples/README.md":
        source = source.replace(".md", ".html")
    elif source in ("index.md", "examples.md", "start.md"):
        source = f"site/pages/{source}"
    elif source == "overview.md":
        source = "README.md"
    page.edit_url = EDIT + source if is_ours else None
    return context


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Isolate the page, so that it has threads, and name the dialog of the search."""
    root = "../" * page.url.count("/")
    head = f'<head>\n<script src="{root}isolate.js"></script>' + (IMPORTS if page.is_homepage else "")
    dialog = 'data-md-component="search" role="dialog"'
    return output.replace("<head>", head, 1).replace(dialog, f'{dialog} aria-label="Search"')
