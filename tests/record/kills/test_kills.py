"""Whatever moment a process is killed at, what its agents saw returned is in the files exactly once.

2 kills in ``make test``, 20 in ``make test-all``, 200 in ``make kills``. Further ones are of programs with writer
processes, of these, or of both.
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import pytest

import rollout_trace as rt
from rollout_trace.testing import RequestRecord, ScriptedServer
from tests.amount import amount
from tests.forked import Started
from tests.record.started import ROOT, starter

KILLS = amount(2, 10, 200)
WRITER_KILLS = amount(2, 6, 80)
SUFFIXES = ("", ".gz", ".zst")
CALLS = 128
"""Requests that the program makes if it is not killed."""


class Killer:
    """The script of the server. It kills the program when a certain request comes.

    ``writers``: the file with the numbers of its writer processes, which are killed too, or alone.
    """

    def __init__(self, at: int | None, writers: Path | None = None, *, alone: bool = False) -> None:
        self.at = at
        self.pid: int | None = None
        self.killed: set[int] = set()
        self._writers = writers
        self._alone = alone

    def __call__(self, request: Mapping[str, Any], record: RequestRecord) -> str:
        if self.at is not None and record.index >= self.at and self.pid is not None:
            pids = [] if self._alone else [self.pid]
            if self._writers is not None and self._writers.exists():
                pids += map(int, self._writers.read_text().split("\n")[:-1])
            # Once each: a number may be that of another process later.
            for pid in set(pids) - self.killed:
                self.killed.add(pid)
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        said = request["messages"][-1]["content"]
        return f"the answer to {said!r}, number {record.index}" + " and more" * (record.index % 7)


def fault(own: random.Random) -> str:
    """A system call in whose middle the program is killed, each as often."""
    name, most = own.choice([("writev", 300), ("write", 40), ("rename", 8), ("unlink", 20), ("rmdir", 3)])
    return f"{name}:{own.randint(1, most)}:{own.choice([0.0, own.random(), 1.0])}"


@pytest.mark.amount
@pytest.mark.parametrize("seed", range(KILLS))
def test_what_was_seen_is_there_once(seed: int, tmp_path: Path) -> None:
    own = random.Random(seed)
    suffixes = [own.choice(SUFFIXES), own.choice(SUFFIXES)]
    in_a_call = own.random() < 0.5
    killer = Killer(None if in_a_call else own.randrange(CALLS))
    with ScriptedServer(killer, seed=seed) as server:
        with (tmp_path / "errors").open("wb") as errors:
            args = [server.base_url, str(tmp_path), *suffixes, fault(own) if in_a_call else ""]
            child = start("target", args, errors)
            killer.pid = child.pid
            code = child.wait()
    # Its end may come before the kill does.
    assert code in (-signal.SIGKILL, 0), (tmp_path / "errors").read_text()
    outputs = [tmp_path / f"{name}.jsonl{suffix}" for name, suffix in zip("ab", suffixes, strict=True)]
    for _ in range(own.randrange(4)):
        with (tmp_path / "errors").open("ab") as errors:
            recovery = start("recoverer", [recovery_fault(own), *map(str, outputs)], errors)
            code = recovery.wait()
        assert code in (-signal.SIGKILL, 0), (tmp_path / "errors").read_text()
    for output in outputs:
        report = rt.recover(output, write=True).report
        troubles = [*report.live, *report.unread, *report.not_written, *report.kept]
        assert troubles == [], str(report)
        assert not os.path.exists(f"{output}.journal")
        assert list(rt.recover(output, write=True)) == []
    assert_seen_once(tmp_path / "seen", outputs)


@pytest.mark.amount
@pytest.mark.parametrize("seed", range(WRITER_KILLS))
def test_with_processes_that_write(seed: int, tmp_path: Path) -> None:
    """Where the program alone is killed, or its writer processes are, there is nothing to recover."""
    own = random.Random(10_000 + seed)
    suffixes = [own.choice(SUFFIXES), own.choice(SUFFIXES)]
    whom = ("program", "writers", "both", "in a call")[seed % 4]
    writers = tmp_path / "writers" if whom in ("writers", "both") else None
    at = None if whom == "in a call" else own.randrange(CALLS)
    killer = Killer(at, writers, alone=whom == "writers")
    with ScriptedServer(killer, seed=seed) as server:
        args = [server.base_url, str(tmp_path), *suffixes, fault(own) if whom == "in a call" else "", "process"]
        reads, errors = os.pipe()
        with os.fdopen(reads, "rb") as told:
            with os.fdopen(errors, "wb") as file:
                program = start("target", args, file)
                killer.pid = program.pid
            # Its writer processes have its standard error, until they end.
            said = told.read().decode()
        code = program.wait()
    assert code in ((0,) if whom == "writers" else (-signal.SIGKILL, 0)), said
    outputs = [tmp_path / f"{name}.jsonl{suffix}" for name, suffix in zip("ab", suffixes, strict=True)]
    for output in outputs:
        found = rt.recover(output, write=True)
        assert found.report.is_clean or whom == "both", said + str(found.report)
        assert list(found) == [] or whom == "both", said + str(found.report)
        assert not os.path.exists(f"{output}.journal")
    assert_seen_once(tmp_path / "seen", outputs)


def start(program: str, args: list[str], errors: BinaryIO) -> Started:
    """Starts one of the programs beside this file; what it prints goes to ``errors``."""
    begin = f"import sys\nfrom tests.record.kills import {program}\n{program}.begin(sys.argv[1:])"
    with open(os.devnull, "rb") as nothing:
        fds = (nothing.fileno(), errors.fileno(), errors.fileno())
        return starter().start(begin, args, cwd=ROOT, fds=fds)


def recovery_fault(own: random.Random) -> str:
    name, most = own.choice([("write", 20), ("unlink", 4), ("rmdir", 2), ("ftruncate", 1)])
    return f"{name}:{own.randint(1, most)}:{own.choice([0.0, own.random(), 1.0])}"


def assert_seen_once(seen: Path, outputs: list[Path]) -> None:
    """Every line parses, nothing is doubled, and every answer that an agent saw is there as it saw it."""
    trajectories = [one for output in outputs if output.exists() for one in rt.read(output)]
    assert len({one.id for one in trajectories}) == len(trajectories)
    steps = [step for one in trajectories for step in one.steps]
    assert len({step.id for step in steps}) == len(steps)
    answers = Counter(step.response_id for step in steps if step.response_id is not None)
    by_response = {step.response_id: step for step in steps}
    lines = seen.read_text().splitlines() if seen.exists() else []
    for response_id, text in map(json.loads, lines):
        assert answers[response_id] == 1, response_id
        step = by_response[response_id]
        assert step.status == "ok"
        assert step.completion is not None
        assert step.completion.content == text
        assert step.completion_token_ids is not None
    for one in trajectories:
        assert one.status in ("completed", "aborted")
        assert [step.index for step in one.steps] == list(range(len(one.steps)))
        assert (one.reward is not None) or one.status == "aborted"
