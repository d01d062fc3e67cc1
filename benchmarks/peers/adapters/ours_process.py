"""rollout_trace, with a wrapped client, to a file that another process writes."""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers.adapters import ours_file


class Peer(ours_file.Peer):
    """The process starts before a block of calls: in a training run it does so once."""

    writer = "process"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.begin()

    def clear(self) -> None:
        super().clear()
        self.begin()
