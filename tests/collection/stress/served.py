"""The server in a process of its own, as a test holds it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from tests.file.processes import environment

ROOT = Path(__file__).resolve().parents[3]
Log = list[dict[str, Any]]


class Served:
    """A running server."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process = process
        self._folder = folder
        self.base_url = self._line()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the server has ended"
        return line.strip()

    def tell(self, command: str) -> str:
        """Has one command done; its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        return self._line()

    def log(self) -> Log:
        """What was asked and answered so far."""
        path = self._folder / "server.log"
        self.tell(f"log {path}")
        return [json.loads(line) for line in path.read_text().splitlines()]

    def count(self) -> int:
        """Requests so far."""
        return int(self.tell("count"))


@contextmanager
def serving(kind: Literal["plan", "plain"], folder: Path) -> Iterator[Served]:
    """A server, while the block runs. What it printed to stderr must be nothing."""
    with (folder / "server.errors").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.collection.stress.server", kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=ROOT,
            env=environment(),
        )
    try:
        yield Served(process, folder)
    finally:
        process.communicate(timeout=60)
    said = (folder / "server.errors").read_text()
    assert (process.returncode, said) == (0, "")


def by_asked(log: Log) -> dict[str, Log]:
    """The lines of each message that was asked, in their order."""
    found: dict[str, Log] = defaultdict(list)
    for line in log:
        found[line["asked"]].append(line)
    return found
