"""Runs sessions of noxfile.py, for `make`: with nox and uv, which pip puts into .venvs/tools the first time.

    python bootstrap.py -s test -- -k segments

Only the standard library, and a pip of any age. uv reads no settings of pip's, so its index, certificate and so on are
passed on.
"""

from __future__ import annotations

import ast
import contextlib
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from zlib import crc32

ROOT = Path(__file__).parent
PINNED = ROOT / "requirements" / "tools.txt"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
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


def tools() -> Path:
    """The environment of the pinned nox and uv; it is made where it is not there.

    Raises:
        SystemExit: pip cannot install them; it has said why.
    """
    version = ".".join(map(str, sys.version_info[:2]))
    folder = ROOT / ".venvs" / f"tools-{version}-{crc32(PINNED.read_bytes()):08x}"
    if not folder.exists():
        print(f"{folder.relative_to(ROOT)}: installing nox and uv, 60 MB", flush=True)
        # Under another name until it is whole: two of these may run at once.
        folder.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as made:
            unpacked = Path(made) / "tools"
            # Debian's python3 cannot make an environment that has pip; and old releases of pip install into none but
            # their own, save by --target.
            venv.create(unpacked, symlinks=True)
            target = next(unpacked.glob("lib/python*/site-packages"))
            command = (*PIP, "install", "--quiet", "--target", str(target), "--require-hashes", "-r", str(PINNED))
            if subprocess.run(command, check=False).returncode:
                sys.exit("nox and uv could not be installed: pip says why above.")
            with contextlib.suppress(OSError):  # the other was faster
                unpacked.rename(folder)
    return folder


def main() -> None:
    folder = tools()
    python = folder / "bin" / "python"
    uv = next(folder.glob("lib/python*/site-packages/bin"))
    listed = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True, check=False).stdout
    # What the user has set for uv itself counts.
    environment = {**variables(listed), **os.environ}
    environment["PATH"] = os.pathsep.join((str(uv), os.environ.get("PATH", os.defpath)))
    # The tests start thousands of processes, which would each compile what they import: it is written.
    environment["PYTHONDONTWRITEBYTECODE"] = ""
    os.execve(python, [str(python), "-m", "nox", *sys.argv[1:]], environment)


if __name__ == "__main__":
    main()
