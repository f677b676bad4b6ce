#!/usr/bin/env bash
# Finds a Python, then hands over to scripts/build.py, which sets everything else up.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

usable() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    local candidate
    if [[ -n "${TRAINWEB_PYTHON:-}" ]]; then
        if usable "$TRAINWEB_PYTHON"; then
            echo "$TRAINWEB_PYTHON"
            return 0
        fi
        echo "build.sh: TRAINWEB_PYTHON=$TRAINWEB_PYTHON is not a Python >= 3.11 with venv" >&2
        return 1
    fi
    for candidate in python3.11 python3.12 python3.13 python3.14 python3 python \
        "$HOME"/.pyenv/versions/3.1[1-9]*/bin/python; do
        if command -v "$candidate" >/dev/null 2>&1 && usable "$candidate"; then
            echo "$candidate"
            return 0
        fi
    done
    echo "build.sh: no Python >= 3.11 with the venv and ensurepip modules was found." >&2
    echo "Install one (Debian: apt-get install python3 python3-venv) or name it in TRAINWEB_PYTHON." >&2
    return 1
}

if ! python="$(find_python)"; then
    exit 1
fi
exec "$python" scripts/build.py "$@"
