"""A copy of `examples/pytest_agent` whose tests run as its users run them, with the network refused."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from edited import edit
from no_network import GUARD

EXAMPLE = Path(__file__).parent.parent / "examples" / "pytest_agent"


@dataclass(frozen=True)
class Copy:
    """A copy of the example, and where what is refused is written."""

    folder: Path
    guard: Path

    @property
    def refused(self) -> list[str]:
        """What asked for the network, one line each."""
        log = self.guard / "refused"
        return log.read_text().splitlines() if log.exists() else []

    def run(self, *arguments: str, **environment: str) -> tuple[int, str]:
        """pytest in the copy: its exit code and output."""
        path = os.pathsep.join([str(self.guard), *filter(None, [os.environ.get("PYTHONPATH")])])
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("OPENAI_", "PYTEST_", "ROLLOUT_TRACE_"))}
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
            cwd=self.folder,
            env={**kept, "PYTHONPATH": path, "REFUSED": str(self.guard / "refused"), "CI": "1", **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
        return done.returncode, done.stdout + done.stderr

    def edit(self, file: str, old: str, new: str) -> None:
        """Changes a file of the copy."""
        path = self.folder / file
        assert path.read_text().count(old) == 1, f"{file} of the example should have {old!r} once"
        edit(path, old, new)


def copy_to(folder: Path) -> Copy:
    """The example in a subfolder."""
    left_out = shutil.ignore_patterns("__pycache__", ".*", "rollouts")
    copied = Path(shutil.copytree(EXAMPLE, folder / "pytest_agent", ignore=left_out))
    guard = folder / "guard"
    guard.mkdir()
    # For every Python that the test starts: the agent's tests, and the agent where it is a process of its own.
    (guard / "sitecustomize.py").write_text(GUARD)
    return Copy(copied, guard)


def outcomes(output: str) -> dict[str, int]:
    """Of pytest's last line: {"passed": 17}."""
    last = output.strip().splitlines()[-1]
    return {word: int(count) for count, word in re.findall(r"(\d+) ([a-z]+)", last.partition(" in ")[0])}
