"""Agents for processes and clusters: found there by their names, told by each task what they need."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path
from typing import Any

import rollout_trace as rt
from tests.collection import asking


def tasks(url: str, count: int, **more: Any) -> list[dict[str, Any]]:
    """Tasks with the address of the server."""
    return [{"id": f"t{number}", "url": url, "question": f"number {number}", **more} for number in range(count)]


def ask(task: dict[str, Any], *texts: str) -> str:
    """Asks the model for each text in one conversation; returns the last answer."""
    messages: list[Any] = []
    for text in texts:
        messages.append({"role": "user", "content": text})
        messages.append({"role": "assistant", "content": asking.ask(task["url"], messages)})
    return str(messages[-1]["content"])


def solve(task: dict[str, Any], rollout: rt.Rollout) -> str:
    """Two turns."""
    return ask(task, task["question"], f"sample {rollout.index}, seed {rollout.seed}")


async def solve_async(task: dict[str, Any], rollout: rt.Rollout) -> str:
    """The same in an event loop."""
    texts = [task["question"], f"sample {rollout.index}, seed {rollout.seed}"]
    messages: list[Any] = []
    for text in texts:
        messages.append({"role": "user", "content": text})
        messages.append({"role": "assistant", "content": await asking.ask_async(task["url"], messages)})
    return str(messages[-1]["content"])


def reward(task: dict[str, Any], result: str, trajectory: rt.Trajectory) -> float:
    """The length of what came out, and a place of its own for each task."""
    return len(result) + float(task["id"][1:]) / 10


def _first_time(task: dict[str, Any], rollout: rt.Rollout) -> bool:
    marker = Path(task["folder"], f"{task['id']}-{rollout.index}")
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def solve_or_die(task: dict[str, Any], rollout: rt.Rollout) -> str:
    """In the first attempt at each task's first sample its process is killed between two calls."""
    if rollout.index == 0 and _first_time(task, rollout):
        ask(task, task["question"])
        os.kill(os.getpid(), signal.SIGKILL)
    return solve(task, rollout)


def die(task: dict[str, Any]) -> None:
    """Its process is killed after one call, each time."""
    ask(task, task["question"])
    os.kill(os.getpid(), signal.SIGKILL)


def solve_or_hang(task: dict[str, Any], rollout: rt.Rollout) -> str:
    """In the first attempt at task t0, after a call, nothing in its process runs any more."""
    if task["id"] == "t0" and rollout.index == 0 and _first_time(task, rollout):
        ask(task, task["question"])
        ctypes.PyDLL(None).pause()
    return solve(task, rollout)


def sleep_in_c(task: dict[str, Any]) -> None:
    """Cannot be stopped in its thread, and lets others run; leaves the name of its process."""
    Path(task["folder"], f"{task['id']}-{os.getpid()}").touch()
    ask(task, task["question"])
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    signal.sigwait([signal.SIGUSR1])


def account(output: Any) -> list[tuple[Any, ...]]:
    """What the rollouts of an output are, whatever process made them and when. Those that count, in order."""
    found: dict[tuple[Any, ...], rt.Trajectory] = {}
    for one in rt.read(output):
        known = (one.metadata or {}).get("collect")
        if known is None:
            continue
        key = (one.name, one.task.id if one.task else None, one.rollout_index)
        before = found.get(key)
        if before is None or attempt(before) < attempt(one):
            found[key] = one
    return sorted(
        (*key[1:], one.status, one.reward, one.group_id, one.parent_id, one.episode_id in (None, one.id), _steps(one))
        for key, one in found.items()
    )


def attempt(one: rt.Trajectory) -> int:
    """The number of the attempt that made a trajectory."""
    number: int = (one.metadata or {})["collect"]["attempt"]
    return number


def _steps(one: rt.Trajectory) -> list[Any]:
    return [
        (
            step.status,
            str(step.messages),
            str(step.completion),
            None if step.prompt_token_ids is None else step.prompt_token_ids.tolist(),
            None if step.completion_token_ids is None else step.completion_token_ids.tolist(),
        )
        for step in one.steps
    ]
