"""Checks the arguments of ``rt.collect``, before anything runs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollout_trace.collection import options, places
from rollout_trace.collection.agents import Agent, agent_of
from rollout_trace.collection.executor import Executor
from rollout_trace.collection.hashes import hashes_of
from rollout_trace.collection.job import Work
from rollout_trace.collection.process_main import leave_if_preparing
from rollout_trace.collection.rewards import rewards_of
from rollout_trace.collection.session import Session
from rollout_trace.collection.tasks import load_tasks
from rollout_trace.data import user_values
from rollout_trace.data.model import new_id
from rollout_trace.data.user_values import brief
from rollout_trace.file.addresses import absolute, is_address, is_folder_target
from rollout_trace.record.recording import recording


def prepare(given: Mapping[str, Any]) -> Session:
    """Checks the arguments of ``rt.collect``. Makes nothing, and writes nothing.

    Raises:
        TypeError, ValueError, ImportError, OSError: as ``rt.collect``.
    """
    leave_if_preparing()
    agent: Agent = agent_of(given["agent"])
    name = agent.name if given["name"] is None else user_values.text_id(given["name"], "name")
    output = _output(given["output"])
    concurrency = options.whole(given["concurrency"], "concurrency", least=1)
    rewards = rewards_of(given["reward"], options.seconds(given["reward_timeout"], "reward_timeout"))
    if rewards is not None:
        rewards.check()
    logs = given["logs"]
    work = Work(
        run_id=new_id(),
        name=name,
        agent=agent,
        rewards=rewards,
        retries=options.retry_policy(given["retries"], given["retry_on"], given["retry_wait"], given["retry_wait_max"]),
        output=output,
        recording=dict(given["recording"] or {}),
        instrument=bool(given["instrument"]),
        engine=given["engine"],
        timeout=options.seconds(given["timeout"], "timeout"),
        groups_by_name=given["name"] is not None,
        artifacts=str(places.beside(output, "artifacts").absolute()),
        logs=_logs(logs, output),
    )
    _check_recording(work)
    tasks = load_tasks(given["tasks"], limit=given["limit"], task_ids=given["task_ids"])
    config = _config(given, work)
    return Session(
        work=work,
        tasks=tasks,
        samples=options.whole(given["samples"], "samples", least=1),
        seed=None if given["seed"] is None else options.whole(given["seed"], "seed", least=0),
        concurrency=concurrency,
        most_failures=options.most_failures(given["max_consecutive_failures"], concurrency),
        resume=bool(given["resume"]),
        retry_failed=bool(given["retry_failed"]),
        progress=given["progress"],
        executor=_executor(given["executor"]),
        hashes=hashes_of(agent, tasks, config),
        config=config,
    )


def _output(given: Any) -> str:
    if not isinstance(given, (str, os.PathLike)):
        raise TypeError(f"output is {brief(given)}; give a file (runs/x.jsonl), a folder (runs/), or an address.")
    # Now: an agent may change the folder of the process. `absolute` drops the slash that makes it a folder.
    text = absolute(given)
    return text if is_address(text) or not is_folder_target(given) else os.path.join(text, "")


def _check_recording(work: Work) -> None:
    """Raises where ``rt.recording`` or ``rt.instrument`` would refuse an argument, here and not in some worker."""
    recording(work.output, **work.recording)
    if work.instrument:
        from rollout_trace.process.options import Options

        Options(work.engine)


def _logs(given: Any, output: str) -> str | None:
    if given is False or given is None:
        return None
    return str((places.beside(output, "logs") if given is True else Path(given)).absolute())


def _executor(given: Any) -> Any:
    if given is None or given in ("local", "process", "ray") or isinstance(given, Executor):
        return given
    raise TypeError(
        f'executor is {brief(given)}; give "local", "process", "ray", or an object with the methods run(job) and '
        "close()."
    )


_SETTINGS = ("engine", "instrument", "recording", "reward", "reward_timeout", "seed", "timeout")


def _config(given: Mapping[str, Any], work: Work) -> dict[str, Any]:
    """The settings that make rollouts what they are, as JSON. Equal in every run that is given the same."""
    return {"name": work.name, **{name: _named(given[name]) for name in _SETTINGS}}


def _named(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(name): _named(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_named(one) for one in value]
    if isinstance(value, (re.Pattern, os.PathLike)):
        return str(getattr(value, "pattern", value))
    # An object's own text often has its address in memory, which is another one in every run.
    function = value if hasattr(value, "__qualname__") else type(value)
    return f"{function.__module__}:{function.__qualname__}"
