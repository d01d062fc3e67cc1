"""A process of one environment with one peer in it, which stays alive and is told by lines of JSON what to do.

    .venvs/peers-langfuse/bin/python -m benchmarks.peers.worker langfuse FOLDER

Only the standard library, openai and the peer are imported.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.peers import hop, measure, probes
from benchmarks.peers.adapters.base import Adapter


class Worker:
    """Commands, each a method that takes and returns JSON values."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._calls: dict[str, measure.Calls] = {}
        self._crowds: dict[str, measure.Crowd] = {}

    def versions(self, names: list[str]) -> dict[str, Any]:
        """Of packages of this environment, and of Python."""
        found = {name: metadata.version(name) for name in names}
        return {"python": sys.version.partition(" ")[0], **found}

    def calls(self, kind: str, times: int) -> dict[str, float]:
        """A block of calls on this thread."""
        if kind not in self._calls:
            self._calls[kind] = measure.Calls(self._adapter, kind)
            _settle()
        return self._calls[kind].block(times)

    def tasks(self, kind: str, calls: int) -> dict[str, float]:
        """A block of calls of 64 tasks."""
        if kind not in self._crowds:
            self._crowds[kind] = measure.Crowd(self._adapter, kind)
            _settle()
        return self._crowds[kind].block(calls)

    def memory(self, calls: int) -> dict[str, float]:
        """What the process grows by."""
        return measure.memory(self._adapter, calls)

    def probe(self, scenario: str, base_url: str) -> dict[str, Any]:
        """What was recorded of a scenario's calls to a scripted server."""
        return probes.probe(self._adapter, scenario, base_url)

    def reward(self) -> Any:
        """The reward of a trace that was given none."""
        value = self._adapter.reward()
        return "NotImplemented" if value is NotImplemented else value

    def hop(self, kind: str, base_url: str, times: int) -> dict[str, Any]:
        """A block of calls over loopback."""
        return hop.block(kind, base_url, times)

    def hop_tasks(self, kind: str, base_url: str, calls: int) -> dict[str, Any]:
        """A block of calls of 64 tasks over loopback."""
        return hop.crowd(kind, base_url, calls)


def _settle() -> None:
    """Takes what importing made out of the collector's sight: a full collection would hit one block by chance."""
    gc.collect()
    gc.freeze()


def load(name: str, folder: Path) -> Adapter:
    """The adapter of that name, set up."""
    module = importlib.import_module(f"benchmarks.peers.adapters.{name.replace('-', '_')}")
    made: Adapter = module.Peer(folder)
    return made


def main() -> None:
    """Answers each line on the standard input by one on the standard output, which nothing else in the process gets."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    name, folder = sys.argv[1:]
    worker: Worker | None = None
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if worker is None:
                worker = Worker(load(name, Path(folder)))
            method: Callable[..., Any] = getattr(worker, asked.pop("do"))
            answer = {"found": method(**asked)}
        except BaseException as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    # A peer's threads may wait for a network that is not there.
    os._exit(0)


if __name__ == "__main__":
    main()
