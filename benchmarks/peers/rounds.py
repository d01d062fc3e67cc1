"""The interleaved run: every round asks every peer once, beside the bare client of the same environment."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import quantiles
from typing import Any

from benchmarks.peers.peers import Peer
from benchmarks.peers.process import WorkerFailed, WorkerProcess

CALLS = {"small": 60, "large": 20, "stream": 6}
TASK_CALLS = {"small": 3, "large": 1}
BLOCK_SECONDS = 1.5
"""A block that took longer in the round that is thrown away has fewer calls in the others."""
FEWEST = 3
Values = dict[str, list[float]]


class Pair:
    """A peer and the bare client of its environment."""

    def __init__(self, peer: Peer, bare: WorkerProcess, recording: WorkerProcess) -> None:
        self.peer = peer
        self.failure: str | None = None
        self._workers = {"bare": bare, "peer": recording}
        self._sizes = {f"calls {kind}": times for kind, times in CALLS.items()}
        self._found: dict[str, Values] = {}

    def round(self, number: int, order: random.Random) -> None:
        """One block of each kind by each of the two; the first round sets the sizes and is thrown away."""
        if self.failure is not None:
            return
        try:
            for kind in CALLS:
                self._calls(kind, number, order)
            for kind, calls in TASK_CALLS.items():
                self._both(f"tasks {kind}", number, order, "tasks", kind=kind, calls=calls)
        except WorkerFailed as failure:
            self.failure = str(failure)

    def _calls(self, kind: str, number: int, order: random.Random) -> None:
        what = f"calls {kind}"
        times = self._sizes[what]
        found = self._both(what, number, order, "calls", kind=kind, times=times)
        if self.peer.counts and number == 0 and found["peer"]["counted"] < times:
            raise WorkerFailed(f"{found['peer']['counted']} of {times} calls ({kind}) were recorded")
        if number == 0:
            slowest = max(found["peer"]["wall"], found["peer"]["process"])
            self._sizes[what] = max(FEWEST, min(times, int(BLOCK_SECONDS / slowest)))

    def _both(
        self, what: str, number: int, order: random.Random, do: str, **arguments: Any
    ) -> dict[str, dict[str, float]]:
        names = list(self._workers)
        order.shuffle(names)
        found = {name: self._workers[name].ask(do, **arguments) for name in names}
        if number:
            for name, values in found.items():
                kept = self._found.setdefault(what, {})
                for measure, value in values.items():
                    kept.setdefault(f"{name} {measure}", []).append(value)
        return found

    def summary(self) -> dict[str, Any]:
        """Medians and quartiles of the ratios to the bare client, round by round; seconds are of one call."""
        return {what: _summary(values) for what, values in self._found.items()} | {"block": self._sizes}


def _summary(values: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for measure in ("cpu", "wall", "process", "rate"):
        if f"peer {measure}" in values:
            with_it, without = values[f"peer {measure}"], values[f"bare {measure}"]
            found[measure] = {
                "ratio": three([one / other for one, other in zip(with_it, without, strict=True)]),
                "added": three([one - other for one, other in zip(with_it, without, strict=True)]),
                "bare": three(without),
                "peer": three(with_it),
            }
    return found


def three(values: Sequence[float]) -> list[float]:
    """Lower quartile, median, upper quartile."""
    found = quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return [float(f"{value:.4g}") for value in found]


def run(pairs: Iterable[Pair], rounds: int, progress: Callable[[str], None]) -> None:
    """All rounds; in each, the peers are in a new random order."""
    order = random.Random(0)
    shuffled = list(pairs)
    for number in range(rounds + 1):
        order.shuffle(shuffled)
        for pair in shuffled:
            pair.round(number, order)
        progress(f"round {number} of {rounds}" + (", thrown away" if not number else ""))


def pairs_of(peers: Sequence[Peer], folder: Path) -> tuple[list[Pair], list[WorkerProcess]]:
    """A worker for each peer and for the bare client of each environment, and all of them."""
    bare = {environment: WorkerProcess(environment, "bare", folder) for environment in {p.environment for p in peers}}
    recording = [WorkerProcess(peer.environment, peer.name, folder) for peer in peers]
    found = [Pair(peer, bare[peer.environment], worker) for peer, worker in zip(peers, recording, strict=True)]
    return found, [*bare.values(), *recording]
