"""An agent for the tests of faults, and the account of what became of its trajectories.

``begin([FAULT, FOLDER])`` runs it in a process of its own, for the faults that a whole process has, and prints what it
saw as JSON.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai

import rollout_trace as rt
from rollout_trace.record import sink
from rollout_trace.testing import ScriptedServer
from tests.record.kills.faults import plain_write

ROLLOUTS = 6
TURNS = 3
ASKED: dict[str, Any] = {"model": "m", "logprobs": True, "extra_body": {"return_token_ids": True}}

Between = Callable[[int, int], object]
"""Called with the numbers of a rollout and of its turn, before the turn."""


def script(request: dict[str, Any]) -> str:
    """The answer depends on what was said."""
    return f"answer to {request['messages'][-1]['content']}"


def agent(
    client: Any,
    opened: Callable[[int], AbstractContextManager[object]] = lambda number: nullcontext(),
    between: Between = lambda number, turn: None,
) -> list[list[str]]:
    """What the agent sees: the answers of each rollout. The middle turn of each is streamed."""
    results = []
    for number in range(ROLLOUTS):
        with opened(number):
            messages: list[Any] = []
            answers = []
            for turn in range(TURNS):
                between(number, turn)
                messages.append({"role": "user", "content": f"{number}.{turn}"})
                answers.append(one_turn(client, messages, is_streamed=turn == 1))
                messages.append({"role": "assistant", "content": answers[-1]})
            results.append(answers)
    return results


def one_turn(client: Any, messages: list[Any], *, is_streamed: bool) -> str:
    """One call."""
    if not is_streamed:
        content: str = client.chat.completions.create(messages=messages, **ASKED).choices[0].message.content
        return content
    chunks = client.chat.completions.create(messages=messages, stream=True, **ASKED)
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def on_a_server(work: Callable[[Any], list[list[str]]], *, wraps: bool) -> list[list[str]]:
    """Runs an agent with a client of a new server."""
    with ScriptedServer(script) as server:
        with openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
            return work(rt.wrap_openai(client) if wraps else client)


@dataclass
class Run:
    """What a recorded run of the agent gave."""

    path: Path
    results: list[list[str]]
    lost: list[rt.Trajectory] = field(default_factory=list)
    error: rt.WriteError | None = None


def recorded(path: Path, between: Between, **options: Any) -> Run:
    """Runs the agent in a recording. The agent's results come whatever happens to the recording."""
    results: list[list[str]] = []

    def work(client: Any) -> list[list[str]]:
        with rt.recording(path, **options):
            results.extend(agent(client, lambda number: rt.trajectory(f"{number}"), between))
        return results

    try:
        on_a_server(work, wraps=True)
    except rt.WriteError as error:
        return Run(path, results, [one for one, _ in error.lost], error)
    return Run(path, results)


def answers_of(trajectory: rt.Trajectory) -> list[str | None]:
    """The answers as a trajectory has them."""
    return [None if step.completion is None else str(step.completion.content) for step in trajectory.steps]


def said(trajectories: Iterable[rt.Trajectory]) -> dict[str, list[str | None]]:
    """The answers by the trajectory's name; each is there once."""
    found = list(trajectories)
    assert len({one.id for one in found}) == len({one.name for one in found}) == len(found)
    for one in found:
        assert all(step.completion_token_ids is not None and step.trainable for step in one.steps)
    return {one.name: answers_of(one) for one in found}


# In a process of its own


def limited(folder: Path) -> None:
    """The file may not grow past what it is before the third rollout: as a full disk, or a quota, has it."""
    path = folder / "rollouts.jsonl"
    with rt.JSONLWriter(path) as out:
        # The limit is for each file: the journal is to fit in it.
        out.write(rt.Trajectory(name="earlier", metadata={"noise": "x" * 100_000}))

    def between(number: int, turn: int) -> None:
        if (number, turn) == (2, 0):
            assert flush(path)
            size = path.stat().st_size + 700
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    run = recorded(path, between)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    _print(run)


def killed(folder: Path) -> None:
    """The third line is half written when the process is killed, with the rollout after it under way."""
    path = folder / "rollouts.jsonl"
    is_there = threading.Event()

    def write(file: int, data: bytes) -> int:
        is_there.wait(60)
        plain_write(file, bytes(data)[: len(data) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    def between(number: int, turn: int) -> None:
        if (number, turn) == (2, 2):
            assert flush(path)
            os.write = write  # type: ignore[assignment]
        if (number, turn) == (3, 2):
            _show({"path": str(path)})
            is_there.set()
            threading.Event().wait(60)

    recorded(path, between)


def forbidden(folder: Path) -> None:
    """The file is moved away, and its folder may not be written any more; a user without rights runs it."""
    path = folder / "rollouts.jsonl"
    # Whatever is imported is imported: the other user may not read it.
    recorded(folder / "warm.jsonl", lambda number, turn: None)
    list(rt.read(folder / "warm.jsonl"))
    if os.geteuid() == 0:
        os.chown(folder, 65534, 65534)
        os.seteuid(65534)

    def between(number: int, turn: int) -> None:
        if (number, turn) == (2, 0):
            assert flush(path)
            path.rename(folder / "moved.jsonl")
            folder.chmod(0o500)

    run = recorded(path, between)
    folder.chmod(0o700)
    _print(run)


def no_place(folder: Path) -> None:
    """The file may be written, and its folder may not: there is no place for a journal."""
    path = folder / "rollouts.jsonl"
    recorded(folder / "warm.jsonl", lambda number, turn: None)
    path.touch()
    path.chmod(0o666)
    if os.geteuid() == 0:
        os.seteuid(65534)
    else:
        folder.chmod(0o500)
    run = recorded(path, lambda number, turn: None)
    if os.geteuid() != 65534:
        folder.chmod(0o700)
    _print(run)


def flush(path: Path) -> bool:
    """Waits until what has closed is in the file."""
    from rollout_trace.record.recording import open_recordings

    (one,) = [one for one in open_recordings() if one.name == str(path)]
    return one.flush(60)


class _Messages(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.all: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.all.append(record.getMessage())


_messages = _Messages()


def _print(run: Run) -> None:
    saved = 0
    if run.error is not None:
        saved = run.error.write(run.path.with_name("saved.jsonl"))
    stats = rt.stats()
    counts = {"written": stats.trajectories_written, "lost": stats.trajectories_lost, "errors": stats.recorder_errors}
    lost = [one.name for one in run.lost]
    _show({"results": run.results, "lost": lost, "saved": saved, "counts": counts, "error": str(run.error or "")})


def _show(value: dict[str, Any]) -> None:
    os.writev(1, [json.dumps({"messages": _messages.all, **value}).encode() + b"\n"])


def begin(args: list[str]) -> None:
    """The program."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    logging.getLogger("rollout_trace").addHandler(_messages)
    sink.FIRST_RETRY = 0.001
    {one.__name__: one for one in (limited, killed, forbidden, no_place)}[args[0]](Path(args[1]))
