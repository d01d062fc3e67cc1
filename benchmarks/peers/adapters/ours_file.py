"""rollout_trace, with a wrapped client, to a file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

import rollout_trace as rt
from benchmarks.peers.adapters import ours
from benchmarks.peers.adapters.base import Record


class Peer(ours.Peer):
    """Every trace is a line of a JSONL file; `flush` closes the file, so that all is written."""

    imports = "import rollout_trace as rt; rt.wrap_openai, rt.recording, rt.trajectory"
    keeps_in_memory = False
    writer: Literal["thread", "process"] = "thread"
    """Who decodes the calls and writes the file."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._path = folder / "rollouts.jsonl"
        self._open = ExitStack()
        self._recording = False

    def begin(self) -> None:
        """Opens the file, unless it is open."""
        if not self._recording:
            self._open.enter_context(rt.recording(self._path, writer=self.writer))
            self._recording = True

    @contextmanager
    def trace(self, name: str) -> Iterator[None]:
        self.begin()
        with rt.trajectory(name=name):
            yield

    def flush(self) -> None:
        self._open.close()
        self._recording = False
        self._kept = []

    def count(self) -> int:
        self._load()
        return super().count()

    def records(self) -> list[Record]:
        self._load()
        return super().records()

    def clear(self) -> None:
        super().clear()
        self._path.unlink(missing_ok=True)

    def _load(self) -> None:
        self._kept = list(rt.read(self._path)) if self._path.exists() else []
