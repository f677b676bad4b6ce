"""Find a Chromium and its headless shell, or get them: $TRAINWEB_CHROMIUM, PATH, apt, Playwright's own builds."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from steps import BUILD, PYTHON, BuildError, environment, say

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SHELL = "chromium-headless-shell"
BROWSERS = BUILD / "browsers"
PATH_FILE = BUILD / "chromium.path"
SHELL_TRIED = BUILD / "headless-shell.tried"


def runs(path: str | Path) -> bool:
    """True if the binary starts at all (a snap stub without snapd does not)."""
    try:
        done = subprocess.run([str(path), "--version", "--no-sandbox"], capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def on_path(*names: str) -> str | None:
    """Return the first working browser of these names on PATH."""
    for name in names:
        found = shutil.which(name)
        if found and runs(found):
            return found
    return None


IN_PLAYWRIGHT = ("chromium-*/chrome-linux*/chrome", "chromium-*/chrome-mac*/*.app/Contents/MacOS/*")
SHELL_IN_PLAYWRIGHT = ("chromium_headless_shell-*/*/*headless?shell",)


def playwright_browser(patterns: Sequence[str] = IN_PLAYWRIGHT) -> str | None:
    """Return the browser that Playwright put under .build/browsers, if there is one."""
    for pattern in patterns:
        for found in sorted(BROWSERS.glob(pattern), reverse=True):
            if runs(found):
                return str(found)
    return None


def _attempt(command: list[str]) -> str | None:
    """Run one installation command; None when it succeeded, else the reason."""
    env = {**environment(), "DEBIAN_FRONTEND": "noninteractive"}
    env["PLAYWRIGHT_BROWSERS_PATH"] = str(BROWSERS)
    say("chromium: " + " ".join(command))
    try:
        done = subprocess.run(
            command,
            env=env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=900,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return None
    lines = done.stdout.strip().splitlines()
    telling = [line.strip() for line in lines if re.search(r"^E:|[Ee]rror[: ]", line)] or lines[-4:]
    return f"exit status {done.returncode}: " + "; ".join(dict.fromkeys(telling[:4]))


def _install_with_apt(package: str = "chromium") -> str | None:
    if not shutil.which("apt-get"):
        return "apt-get is not on this machine"
    if os.geteuid() != 0:
        return "not root"
    # Without fresh lists the package may still be known, so a failed update alone ends nothing.
    update = _attempt(["apt-get", "update", "-q"])
    problem = _attempt(["apt-get", "install", "-y", "-q", "--no-install-recommends", package])
    if problem and update:
        return f"update: {update}; install: {problem}"
    return problem


def _install_with_playwright() -> str | None:
    command = [str(PYTHON), "-m", "playwright", "install"]
    if os.geteuid() == 0 and shutil.which("apt-get"):
        command.append("--with-deps")
    return _attempt([*command, "chromium"])


def find_chromium(install: bool = True) -> str:
    """Path of a Chromium that runs; installs one where there is none.

    Raises BuildError with every way that was tried and why it failed.
    """
    named = os.environ.get("TRAINWEB_CHROMIUM")
    if named:
        if runs(named):
            return named
        raise BuildError(f"TRAINWEB_CHROMIUM={named} does not run")
    found = on_path(*NAMES) or playwright_browser()
    tried = []
    if not found and install:
        for how, installer in (("apt", _install_with_apt), ("playwright", _install_with_playwright)):
            problem = installer()
            found = on_path(*NAMES) or playwright_browser()
            if found:
                break
            tried.append(f"  {how}: {problem or 'installed, but no binary that runs came of it'}")
    if not found:
        raise BuildError(
            f"no Chromium. On PATH: none of {', '.join(NAMES)} runs.\n"
            + "\n".join(tried)
            + "\nInstall Chromium or Chrome by hand, or name the binary in TRAINWEB_CHROMIUM."
        )
    BUILD.mkdir(exist_ok=True)
    PATH_FILE.write_text(found)
    return found


def find_headless(install: bool = True) -> str:
    """Path of Chromium's headless shell, or of Chromium where there is none or TRAINWEB_CHROMIUM names it.

    The shell has the same engine and no windows: to open a page takes half the processor time.
    """
    if os.environ.get("TRAINWEB_CHROMIUM"):
        return find_chromium(install)

    found = on_path(SHELL) or playwright_browser(SHELL_IN_PLAYWRIGHT)
    if not found and install and not SHELL_TRIED.exists():
        SHELL_TRIED.touch()  # once: where apt does not have it, Chromium itself serves
        _install_with_apt(SHELL)
        return find_headless(install=False)
    return found or find_chromium(install)
