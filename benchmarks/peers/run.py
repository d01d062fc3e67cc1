"""Measures other recorders beside ours, and writes `results.json` and `docs/comparison.md`: `make bench-peers`.

.venvs/dev/bin/python -m benchmarks.peers.run --rounds 9
.venvs/dev/bin/python -m benchmarks.peers.run --only openinference langfuse --rounds 2 --output /tmp/rough.json
.venvs/dev/bin/python -m benchmarks.peers.run --render
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks.peers import alone, behaviour, proxies, rounds
from benchmarks.peers.page import write_page
from benchmarks.peers.peers import PEERS, PROXIES, PROXY_ENVIRONMENT, Peer
from benchmarks.peers.process import WorkerFailed, WorkerProcess, python_of

RESULTS = Path(__file__).parent / "results.json"
_BEGAN = time.monotonic()


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="that count, beside one that is thrown away")
    parser.add_argument(
        "--only", nargs="+", choices=[peer.name for peer in PEERS], help="these peers; no page is written"
    )
    parser.add_argument("--kept", type=int, default=1_000, help="calls that are kept, for memory")
    parser.add_argument("--output", type=Path, default=RESULTS, help="where the results go")
    parser.add_argument("--render", action="store_true", help="only write the page from the results there are")
    given = parser.parse_args(arguments)
    if given.only is not None and given.output == RESULTS:
        parser.error("with --only, --output has to name another file: the page is about all of them")
    if not given.render:
        chosen = [peer for peer in PEERS if given.only is None or peer.name in given.only]
        results = measure(chosen, given.rounds, given.kept, with_proxies=given.only is None)
        given.output.write_text(json.dumps(results, indent=1) + "\n")
        _progress(f"wrote {given.output}")
    if given.output == RESULTS:
        write_page(json.loads(RESULTS.read_text()))


def measure(peers: Sequence[Peer], number: int, kept: int, *, with_proxies: bool) -> dict[str, Any]:
    """All results, as JSON values."""
    results: dict[str, Any] = {
        "begun": _now(),
        "rounds": number,
        "kept": kept,
        "machine": _machine(),
        "load": [os.getloadavg()[0]],
    }
    missing = {peer.name: "its environment could not be made" for peer in peers if not _is_made(peer.environment)}
    peers = [peer for peer in peers if peer.name not in missing]
    with tempfile.TemporaryDirectory(prefix="bench-peers-") as name:
        folder = Path(name)
        found = {peer.name: _behaviour(peer, folder) for peer in peers}
        missing |= {name: one["failed"] for name, one in found.items() if "failed" in one}
        peers = [peer for peer in peers if peer.name not in missing]
        results["behaviour"] = {name: one["cells"] for name, one in found.items() if one.get("cells")}
        results["versions"] = {name: one["versions"] for name, one in found.items() if "versions" in one}
        results["calls"] = _rounds(peers, number, folder, missing)
        results["load"].append(os.getloadavg()[0])
        results["imports"] = alone.imports(peers, max(2, number // 2), folder, _progress)
        results["memory"] = alone.memory(peers, kept, folder, _progress)
        if with_proxies and _is_made(PROXY_ENVIRONMENT):
            results["proxies"] = proxies.run(max(2, number * 2 // 3), folder, _progress)
            results["versions"]["proxies"] = _proxy_versions(folder)
    results["missing"] = missing
    results["load"].append(os.getloadavg()[0])
    results["minutes"] = round((time.monotonic() - _BEGAN) / 60, 1)
    return results


def _behaviour(peer: Peer, folder: Path) -> dict[str, Any]:
    """Versions, and the cells of the table; a worker of its own, so that nothing of it is in the figures."""
    worker = WorkerProcess(peer.environment, peer.name, folder)
    try:
        versions = worker.ask("versions", names=[*peer.packages, "openai"])
        if not peer.counts:
            return {"versions": versions}

        def probe(scenario: str, base_url: str) -> dict[str, Any]:
            answer: dict[str, Any] = worker.ask("probe", scenario=scenario, base_url=base_url, patience=120)
            return answer

        return {"versions": versions, "cells": behaviour.cells(probe, worker.ask("reward"))}
    except WorkerFailed as failure:
        return {"failed": str(failure)}
    finally:
        worker.stop()
        _progress(f"behaviour, {peer.name}")


def _rounds(peers: Sequence[Peer], number: int, folder: Path, missing: dict[str, str]) -> dict[str, Any]:
    pairs, workers = rounds.pairs_of(peers, folder)
    try:
        rounds.run(pairs, number, _progress)
    finally:
        for worker in workers:
            worker.stop()
    missing |= {pair.peer.name: pair.failure for pair in pairs if pair.failure is not None}
    return {pair.peer.name: pair.summary() for pair in pairs if pair.failure is None}


def _proxy_versions(folder: Path) -> Any:
    worker = WorkerProcess(PROXY_ENVIRONMENT, "bare", folder)
    names = sorted({name for _, packages in PROXIES.values() for name in packages} | {"openai"})
    try:
        return worker.ask("versions", names=names)
    finally:
        worker.stop()


def _is_made(environment: str) -> bool:
    """Whether `make bench-peers` has made it; what it lacks is said by the worker that cannot import it."""
    return python_of(environment).exists()


def _machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{os.cpu_count()} cores ({models[0] if models else platform.machine()}), {platform.system()}"


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def _progress(what: str) -> None:
    print(f"{time.monotonic() - _BEGAN:6.0f} s  {what}", flush=True)


if __name__ == "__main__":
    main()
