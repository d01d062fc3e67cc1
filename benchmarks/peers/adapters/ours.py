"""rollout_trace, with a wrapped client, kept in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import rollout_trace as rt
from benchmarks.peers.adapters.base import Adapter, Record
from rollout_trace.data.model import STEP_FIELDS


class Peer(Adapter):
    """Trajectories stay in memory; reading their steps decodes them."""

    imports = "import rollout_trace as rt; rt.wrap_openai, rt.trajectory"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._kept: list[rt.Trajectory] = []
        self._earlier: set[str] = set()

    def wrap(self, client: Any) -> Any:
        return rt.wrap_openai(client)

    @contextmanager
    def trace(self, name: str) -> Iterator[None]:
        with rt.trajectory(name=name) as trajectory:
            self._kept.append(trajectory)
            yield

    def flush(self) -> None:
        for trajectory in self._kept:
            len(trajectory.steps)

    def count(self) -> int:
        return sum(len({step.call_id for step in trajectory.steps}) for trajectory in self._kept)

    def records(self) -> list[Record]:
        named = [(trajectory.name, step) for trajectory in self._kept for step in trajectory.steps]
        outside = [(None, step) for step in rt.orphans() if step.call_id not in self._earlier]
        calls: dict[str, tuple[str | None, list[rt.Step]]] = {}
        for name, step in [*named, *outside]:
            calls.setdefault(step.call_id, (name, []))[1].append(step)
        return [_record(name, steps) for name, steps in calls.values()]

    def clear(self) -> None:
        self._kept.clear()
        self._earlier.update(step.call_id for step in rt.orphans())

    def reward(self) -> Any:
        with rt.trajectory() as trajectory:
            pass
        return trajectory.reward


def _record(name: str | None, steps: list[rt.Step]) -> Record:
    fields = [{field: getattr(step, field) for field in STEP_FIELDS} for step in steps]
    return Record(name, fields, failed=any(step.status != "ok" for step in steps))
