"""Installs packages into an environment, for the Makefile: with uv, which takes seconds where pip takes a minute.

    python tests/environment.py FOLDER -r requirements/dev.txt
    python tests/environment.py FOLDER -e . -e ./integrations/rollout-trace-strands

What is installed is the same: the requirement files name every package with its hashes. uv reads no settings of pip's,
so its index, certificate and so on are passed on. Where uv cannot be had, or fails, pip does the work. Only the
standard library.
"""

from __future__ import annotations

import ast
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
PINNED = ROOT / "requirements" / "uv.txt"
_QUIET = ("--quiet", "--disable-pip-version-check")
_VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "no-index": "UV_NO_INDEX",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "timeout": "UV_HTTP_TIMEOUT",
    "cert": "SSL_CERT_FILE",
    "proxy": "ALL_PROXY",
}
"""uv's variables for settings of pip's."""


def variables(listed: str) -> dict[str, str]:
    """uv's settings for those that ``pip config list`` printed, as environment variables."""
    # pip takes each release from any of its indexes.
    found = {"UV_INDEX_STRATEGY": "unsafe-best-match"}
    # Those of the environment last: they count.
    for line in sorted(listed.splitlines(), key=lambda line: line.startswith(":env:")):
        name, separator, value = line.partition("=")
        variable = _VARIABLES.get(name.rpartition(".")[2])
        if separator and variable is not None and (text := _text(value)):
            found[variable] = " ".join(text.split())
    return found


def _text(value: str) -> str:
    try:
        return str(ast.literal_eval(value))
    except (SyntaxError, ValueError):
        return ""


def with_uv(folder: str, arguments: list[str]) -> bool:
    """Installs with uv; False if that cannot be had, or fails."""
    found = uv(_pip(folder))
    if found is None:
        return False
    program, settings = found
    command = (str(program), "pip", "install", "--quiet", "--python", _python(folder))
    return _run(*command, *_flags(arguments), *arguments, environment=settings)


def uv(pip: Sequence[str]) -> tuple[Path, dict[str, str]] | None:
    """The program, and the process's environment with pip's settings in it; None if pip cannot install it."""
    program = _uv(pip)
    if program is None:
        return None
    listed = subprocess.run([*pip, "config", "list"], capture_output=True, text=True, check=False).stdout
    # What the user has set for uv itself counts.
    return program, {**variables(listed), **os.environ}


def _uv(pip: Sequence[str]) -> Path | None:
    """The pinned release, installed in a folder of its own; None if pip cannot install it."""
    pinned = PINNED.read_text()
    folder = ROOT / ".venvs" / pinned.split()[0].replace("==", "-")
    if not folder.exists():
        # Under another name until it is whole: two of these may run at once.
        folder.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as made:
            unpacked = Path(made) / "uv"
            if not _run(*pip, "install", *_QUIET, "--target", str(unpacked), "--require-hashes", "-r", str(PINNED)):
                return None
            with contextlib.suppress(OSError):  # the other was faster
                unpacked.rename(folder)
    return folder / "bin" / "uv"


def with_pip(folder: str, arguments: list[str]) -> bool:
    """Installs with pip; False if it fails."""
    return _run(*_pip(folder), "install", *_QUIET, *_flags(arguments), *arguments)


def _pip(folder: str) -> list[str]:
    """The environment's own pip; where the system's venv could not make one, the system's."""
    if (Path(folder) / "bin" / "pip").exists():
        return [_python(folder), "-m", "pip"]
    return [sys.executable, "-m", "pip", "--python", _python(folder)]


def _flags(arguments: list[str]) -> Iterator[str]:
    if "-r" in arguments:
        # Every package is named: one may hold a release older than another asks for, on purpose.
        yield from ("--no-deps", "--require-hashes")
    if "-e" in arguments:
        yield from ("--no-deps", "--no-build-isolation")


def _python(folder: str) -> str:
    return str(Path(folder) / "bin" / "python")


def _run(*command: str, environment: Mapping[str, str] | None = None) -> bool:
    return subprocess.run(command, env=environment, check=False).returncode == 0


def main() -> None:
    folder, *arguments = sys.argv[1:]
    if with_uv(folder, arguments):
        return
    print(f"{folder}: uv did not install it, pip does", flush=True)
    if not with_pip(folder, arguments):
        sys.exit(1)


if __name__ == "__main__":
    main()
