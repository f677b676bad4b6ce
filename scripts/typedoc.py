"""TypeDoc, which makes the API reference of JavaScript, in a separate environment under .build/.

It reads the sources with its own TypeScript: the one that builds the package is too new for it.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from steps import BUILD, LOCKS, ROOT, BuildError, Step, environment, run, run_step

FOLDER = BUILD / "typedoc"
LOCK = LOCKS / "typedoc"
SCRIPT = FOLDER / "node_modules" / "typedoc" / "bin" / "typedoc"
SOURCES = ROOT / "web" / "src"
KINDS = (
    *("Accessor", "Class", "Enum", "EnumMember", "Function", "Interface", "Method", "Property", "TypeAlias"),
    *("Variable", "GetSignature", "SetSignature"),
)
INTENDED = ("Without", "SessionCalls", "Of", "InGroups", "DTYPES", "NumberNames")
"""Types that only declare what the classes of the reference have."""


def entries() -> list[str]:
    """The sources of what package.json exports with types; its other exports are files to be loaded, not names."""
    exports = json.loads((ROOT / "package.json").read_text())["exports"].values()
    declared = {target["types"] for target in exports if isinstance(target, dict)}
    return sorted(str(SOURCES / re.sub(r"^\./dist/npm/(.*)\.d\.ts$", r"\1.ts", path)) for path in declared)


OPTIONS: dict[str, Any] = {
    "tsconfig": str(ROOT / "web" / "tsconfig.json"),
    "basePath": str(SOURCES),
    "entryPoints": entries(),
    "plugin": ["typedoc-plugin-markdown"],
    "name": "JavaScript and TypeScript",
    "readme": "none",
    "entryFileName": "index.md",
    "modulesFileName": "index.md",
    "hidePageHeader": True,
    "useHTMLEncodedBrackets": True,  # MkDocs would show the backslashes of the other escapes
    "disableSources": True,
    "excludePrivate": True,
    "excludeInternal": True,
    "skipErrorChecking": True,  # tsc, which builds the package, checks types
    "intentionallyNotExported": list(INTENDED),
    "requiredToBeDocumented": list(KINDS),
    "validation": {"notExported": True, "invalidLink": True, "notDocumented": True},
}


MARKDOWN = ("plugin", "entryFileName", "modulesFileName", "hidePageHeader", "useHTMLEncodedBrackets")
"""The options of the plugin that writes pages."""


def setup() -> None:
    """Install TypeDoc as its lock file says."""

    def install() -> None:
        FOLDER.mkdir(parents=True, exist_ok=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copyfile(LOCK / name, FOLDER / name)
        run("npm", "ci", "--no-audit", "--no-fund", "--loglevel=error", cwd=FOLDER)

    run_step(Step("typedoc", install, inputs=[LOCK], outputs=[SCRIPT]))


@cache
def describe() -> Any:
    """All public names with their types, as TypeDoc's JSON."""
    target = FOLDER / "names.json"
    own = {k: v for k, v in OPTIONS.items() if k not in MARKDOWN}
    _run({**own, "json": str(target), "emit": "docs"})
    return json.loads(target.read_text())


def run_typedoc(out: Path | None) -> list[str]:
    """Write the reference to `out`, or only read the sources; returns TypeDoc's warnings, a line each."""
    lines = _run({**OPTIONS, "out": str(out), "emit": "docs" if out else "none"})
    return [line for line in lines if line.startswith("[warning] ") and not line.startswith("[warning] Found ")]


def _run(options: dict[str, Any]) -> list[str]:
    """Run TypeDoc; what it printed, a line each."""
    if not SCRIPT.exists():
        raise BuildError("TypeDoc is not installed: run ./build.sh setup")
    file = FOLDER / "typedoc.json"
    file.write_text(json.dumps(options, indent=1))
    command = ("node", str(SCRIPT), "--options", str(file), "--pretty", "false")
    done = subprocess.run(command, cwd=FOLDER, env={**environment(), "NO_COLOR": "1"}, capture_output=True, text=True)
    lines = (done.stdout + done.stderr).splitlines()
    if done.returncode != 0:
        raise BuildError("\n".join(["TypeDoc failed:", *lines]))
    return lines
