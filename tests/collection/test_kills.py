"""Whatever moment ``collect`` is killed at: resumed until it is complete, its file is that of an uninterrupted run.

One kill for each way of running in ``make test``, 3 in ``make test-all``, 10 in ``make kills``.
"""

from __future__ import annotations

import functools
import json
import os
import random
import select
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt
from tests.amount import amount, some
from tests.collection.stress import target
from tests.collection.stress.account import assert_answered
from tests.collection.stress.served import ROOT, Log, Served, serving
from tests.file.processes import environment
from tests.forked import Started, Starter

PROGRAM = "import sys\nfrom tests.collection.stress import target\ntarget.main(*sys.argv[1:])"
KILLS = amount(1, 2, 10)
REQUESTS = target.TASKS * target.SAMPLES * target.CALLS
"""Of an uninterrupted run."""
PLANNED = {(f"t{number}", index) for number in range(target.TASKS) for index in range(target.SAMPLES)}
WAYS = {
    "local": ("", "rollouts.jsonl"),
    "gzip": ("", "rollouts.jsonl.gz"),
    "folder": ("", "runs/"),
    "process": ("process", "rollouts.jsonl"),
    "process-folder": ("process", "runs/"),
}


@pytest.mark.more
@pytest.mark.parametrize("way", some(WAYS, "gzip"))
def test_a_run_that_was_killed_is_completed(way: str, tmp_path: Path) -> None:
    executor, output = WAYS[way]
    own = random.Random(f"{executor} {output}")
    with serving("plain", tmp_path) as server:
        whole = Collection(server, tmp_path / "whole", executor, output)
        assert whole.run() == 0, whole.errors()
        killed = Collection(server, tmp_path / "killed", executor, output)
        for _ in range(KILLS):
            # A run that is nearly complete may end before it is killed.
            assert killed.run_and_kill(own) in (-signal.SIGKILL, 0), killed.errors()
        assert killed.run() == 0, killed.errors()
        log = server.log()
    running = [sender for sender in {int(record["sender"]) for record in log} if is_running(sender)]
    assert not running, f"workers that run still: {running}"
    assert_complete(whole, log)
    assert_complete(killed, log)
    assert counting(killed) == counting(whole)


@functools.lru_cache
def starter() -> Starter:
    return Starter("from tests.collection.stress import target\ntarget.warm()", cwd=ROOT)


class Collection:
    """The program that collects, in a process of its own, with its output."""

    def __init__(self, server: Served, folder: Path, executor: str, output: str) -> None:
        folder.mkdir()
        self._server = server
        self._folder = folder
        # A path that ends with a slash is a folder of shards.
        self.output = f"{folder}/{output}"
        self._executor = executor
        self.senders: set[int] = set()

    def run(self) -> int:
        """Runs it to its end."""
        return self._start().wait(timeout=300)

    def run_and_kill(self, own: random.Random) -> int:
        """Runs it, and has it killed when a random request comes: itself, or the worker that asks."""
        at = self._server.count() + own.randrange(1, REQUESTS // 2)
        process = self._start()
        is_worker = bool(self._executor) and own.random() < 0.4
        self._server.tell(f"kill {at}" if is_worker else f"kill {at} {process.pid}")
        return process.wait(timeout=300)

    def _start(self) -> subprocess.Popen[bytes] | Started:
        args = [self._server.base_url, self.output, self._executor, str(self._folder / "seen")]
        with (self._folder / "errors").open("ab") as errors, open(os.devnull, "rb") as nothing:
            if not self._executor:
                fds = (nothing.fileno(), errors.fileno(), errors.fileno())
                return starter().start(PROGRAM, args, cwd=ROOT, fds=fds)
            # Its workers are new processes, which import the program that it began with.
            command = [sys.executable, "-m", "tests.collection.stress.target", *args]
            return subprocess.Popen(command, cwd=ROOT, stderr=errors, env=environment())

    def errors(self) -> str:
        """What it wrote to stderr."""
        return (self._folder / "errors").read_text()

    def seen(self) -> list[tuple[str, str]]:
        """Ids and texts of the answers that its agents saw. A line of an agent that was killed may be cut."""
        lines = (self._folder / "seen").read_text().splitlines()
        return [tuple(json.loads(line)) for line in lines if line.endswith("]")]

    def read(self) -> list[rt.Trajectory]:
        """What its output holds."""
        return list(rt.read(self.output))


def attempt_of(one: rt.Trajectory) -> int:
    assert one.metadata is not None
    attempt: int = one.metadata["collect"]["attempt"]
    return attempt


def last_attempts(collection: Collection) -> dict[tuple[str, int], rt.Trajectory]:
    """By task and index, the attempts that count."""
    found: dict[tuple[str, int], rt.Trajectory] = {}
    for one in collection.read():
        assert one.task is not None
        assert one.task.id is not None
        assert one.rollout_index is not None
        key = (one.task.id, one.rollout_index)
        if key not in found or attempt_of(one) > attempt_of(found[key]):
            found[key] = one
    return found


def counting(collection: Collection) -> dict[tuple[str, int], Any]:
    """What the attempts that count hold, without ids of ours and times."""
    return {
        key: (
            one.status,
            one.reward,
            one.name,
            one.group_id,
            one.error and one.error.type,
            list(map(content, one.steps)),
        )
        for key, one in last_attempts(collection).items()
    }


def content(step: rt.Step) -> Any:
    ids = [None if array is None else array.tolist() for array in (step.prompt_token_ids, step.completion_token_ids)]
    logprobs = None if step.logprobs is None else step.logprobs.tolist()
    return (step.status, step.index, list(step.messages or ()), step.completion, ids, logprobs, step.token_issue)


def assert_complete(collection: Collection, log: Log) -> None:
    """All rollouts are there, each answer once, as the server gave it; nothing that an agent saw is missing."""
    assert last_attempts(collection).keys() == PLANNED
    trajectories = collection.read()
    assert len({one.id for one in trajectories}) == len(trajectories)
    attempts = Counter((one.task and one.task.id, one.rollout_index, attempt_of(one)) for one in trajectories)
    assert set(attempts.values()) == {1}, "two attempts have one number"
    answers = {record["id"]: record for record in log if record.get("id")}
    steps = [step for one in trajectories for step in one.steps]
    ids = Counter(step.response_id for step in steps if step.response_id)
    assert set(ids.values()) == {1}
    for step in steps:
        if step.status in ("ok", "superseded"):
            assert_answered(step, answers[str(step.response_id)])
    for answer_id, text in collection.seen():
        assert ids[answer_id] == 1, f"an agent has seen {text!r}, which is not in the output"
        assert answers[answer_id]["text"] == text
    for key, one in last_attempts(collection).items():
        assert one.status == ("failed" if target.is_failing(*key) else "completed")
        assert [step.status for step in one.steps] == ["ok"] * target.CALLS
    assert not list(Path(collection.output).parent.rglob("*journal*/*")), "a journal is left"


def is_running(pid: int) -> bool:
    """Whether a process is there still, after up to 30 seconds in which it may end."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        return not select.select([process], [], [], 30)[0]
    finally:
        os.close(process)
