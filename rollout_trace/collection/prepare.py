"""Checks the arguments of ``rt.collect``, before anything runs."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rollout_trace.collection import places
from rollout_trace.collection.agents import Agent, agent_of
from rollout_trace.collection.history import hashes_of
from rollout_trace.collection.items import RetryPolicy
from rollout_trace.collection.job import Executor, Work
from rollout_trace.collection.process_main import leave_if_preparing
from rollout_trace.collection.resume import Plan
from rollout_trace.collection.rewards import rewards_of
from rollout_trace.collection.session import Session
from rollout_trace.collection.settings import GROUPS, SETTINGS, executor_of, ungrouped
from rollout_trace.collection.stream import Order, Stream
from rollout_trace.collection.tasks import load_tasks, task_stream
from rollout_trace.collection.versions import Versions
from rollout_trace.collection.worker import NOWHERE
from rollout_trace.data.model import new_id
from rollout_trace.data.user_values import brief
from rollout_trace.file.addresses import absolute, file_system, is_address, is_folder_target
from rollout_trace.file.compression import compressor
from rollout_trace.file.writer import check_path
from rollout_trace.record.recording import recording

_FAILURES = 50
"""So many failed rollouts in a row end a run, or twice as many as are made at the same time, if that is more."""
_OF_ROLLOUTS = ("engine", "instrument", "recording", "reward", "reward_timeout", "seed", "timeout")
"""The settings that make rollouts what they are."""


class Streamed(NamedTuple):
    """What ``rt.rollouts`` takes beside the arguments of ``rt.collect``, checked."""

    order: Order
    versions: Versions
    log: Callable[[dict[str, float]], object] | None = None


def prepare(given: Mapping[str, Any], streamed: Streamed | None = None) -> Session:
    """Checks the arguments of ``rt.collect``, or with ``streamed`` of ``rt.rollouts``. Raises as they do."""
    leave_if_preparing()
    called = {GROUPS[group][key]: f"{key!r} of {group}" for group, value in given.items()
              if group in GROUPS and isinstance(value, Mapping) for key in value if key in GROUPS[group]}  # fmt: skip
    given = ungrouped(given, "collect" if streamed is None else "rollouts")
    if streamed is not None:
        called["concurrency"] = "in_flight"
    agent: Agent = agent_of(given["agent"])
    value = {
        name: one.check(given[name], called.get(name, name)) for name, one in SETTINGS.items() if one.check is not None
    }
    output = None if streamed is not None and given["output"] is None else _output(given["output"], given["tasks"])
    recording(NOWHERE if output is None else output, **value["recording"])  # Opens nothing.
    rewards = rewards_of(given["reward"], value["reward_timeout"])
    if rewards is not None:
        rewards.check()
    most_failures = value["max_consecutive_failures"]
    if most_failures is None:
        most_failures = max(_FAILURES, 2 * value["concurrency"])
    wanted = {"limit": value["limit"], "task_ids": given["task_ids"]}
    stream, tasks = None, []
    if streamed is None:
        tasks = load_tasks(given["tasks"], **wanted)
    else:
        coming, size = task_stream(given["tasks"], **wanted)
        stream = Stream(
            tasks=coming,
            size=size,
            in_flight=value["concurrency"],
            order=streamed.order,
            versions=streamed.versions,
        )
    name = agent.name if value["name"] is None else value["name"]
    work = Work(
        run_id=new_id(),
        name=name,
        agent=agent,
        rewards=rewards,
        retries=RetryPolicy(value["retries"], value["retry_on"], value["retry_wait"], value["retry_wait_max"]),
        output=output,
        recording=value["recording"],
        instrument=value["instrument"],
        engine=given["engine"],
        timeout=value["timeout"],
        groups_by_name=value["name"] is not None,
        artifacts=str(places.beside(output, "artifacts").absolute()),
        logs=_logs(value["logs"], output),
        hands_over=streamed is not None,
    )
    return Session(
        asked=Plan(
            work=work,
            tasks=tasks,
            samples=value["samples"],
            seed=value["seed"],
            retry_failed=value["retry_failed"],
        ),
        concurrency=value["concurrency"],
        most_failures=most_failures or math.inf,
        resume=value["resume"],
        progress=given["progress"],
        executor=_executor(given["executor"], value["concurrency"]),
        hashes=hashes_of(agent, tasks, {"name": name, **{one: _as_json(given[one]) for one in _OF_ROLLOUTS}}),
        stream=stream,
        log=None if streamed is None else streamed.log,
    )


def _output(given: Any, tasks: Any) -> str:
    if not isinstance(given, (str, os.PathLike)):
        raise TypeError(f"output is {brief(given)}; give a file (runs/x.jsonl), a folder (runs/), or an address.")
    if not os.fspath(given):
        raise ValueError("output is an empty text; give a file (runs/x.jsonl), a folder (runs/), or an address.")
    # Now: an agent may change the folder of the process. `absolute` drops the slash that makes it a folder.
    text = absolute(given)
    if is_address(text):
        file_system(text)
    elif is_folder_target(given):
        return os.path.join(text, "")
    elif isinstance(tasks, (str, os.PathLike)) and _is_same_file(os.path.expanduser(tasks), text):
        raise ValueError(f"output is {text}, the file of the tasks; give another one.")
    else:
        compressor(check_path(text))
    return text


def _is_same_file(one: str | os.PathLike[str], other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _logs(given: bool | str, output: str | None) -> str | None:
    if given is False:
        return None
    return str((places.beside(output, "logs") if given is True else Path(given)).absolute())


def _executor(given: Any, concurrency: int) -> Executor | None:
    """The executor; None for this process."""
    given = executor_of(given) or given if isinstance(given, Mapping) else given
    if given is None or given == "local":
        return None
    if given == "process":
        from rollout_trace.collection.processes import ProcessExecutor, cores

        return ProcessExecutor(min(concurrency, cores()))
    if given == "ray":
        from rollout_trace.collection.ray_executor import RayExecutor

        return RayExecutor()
    if isinstance(given, type) and isinstance(given, Executor):
        raise TypeError(f"executor is the class {given.__name__}; give an instance, {given.__name__}(...).")
    if isinstance(given, Executor):
        return given
    raise TypeError(
        f'executor is {brief(given)}; give "local", "process", "ray", a mapping with one of these as "kind", or an '
        "object with the methods run(job) and close()."
    )


def _as_json(value: Any) -> Any:
    """A setting as JSON, equal in every run that is given the same."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(name): _as_json(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_json(one) for one in value]
    if isinstance(value, (re.Pattern, os.PathLike)):
        return str(getattr(value, "pattern", value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: _as_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"type": type(value).__qualname__, **fields}
    if isinstance(value, functools.partial):
        return _as_json([value.func, value.args, value.keywords])
    # An object's own text often has its address in memory, which is another one in every run.
    function = value if hasattr(value, "__qualname__") else type(value)
    return f"{function.__module__}:{function.__qualname__}"
