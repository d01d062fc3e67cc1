"""The trajectories of OpenPipe's ART."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from art.trajectories import Trajectory

from benchmarks.peers.adapters.base import Adapter, Record


class Peer(Adapter):
    """`with Trajectory()` records the HTTP exchanges of its block, on httpx, aiohttp and requests."""

    imports = "from art.trajectories import Trajectory"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._kept: list[tuple[str, Any]] = []

    @contextmanager
    def trace(self, name: str) -> Iterator[None]:
        with Trajectory() as trajectory:
            self._kept.append((name, trajectory))
            yield

    def count(self) -> int:
        return sum(len(trajectory.exchanges.chat_completions) for _, trajectory in self._kept)

    def records(self) -> list[Record]:
        return [
            Record(name, exchange.model_dump(mode="json"))
            for name, trajectory in self._kept
            for exchange in trajectory.exchanges.chat_completions
        ]

    def clear(self) -> None:
        self._kept.clear()

    def reward(self) -> Any:
        with Trajectory() as trajectory:
            pass
        return trajectory.reward
