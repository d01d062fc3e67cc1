"""Checks the arguments of ``rt.collect``, before anything runs."""

from __future__ import annotations

import dataclasses
import functools
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
from rollout_trace.data.model import new_id
from rollout_trace.data.user_values import brief
from rollout_trace.file.addresses import absolute, file_system, is_address, is_folder_target
from rollout_trace.file.compression import compressor
from rollout_trace.file.writer import check_path


def prepare(given: Mapping[str, Any]) -> Session:
    """Checks the arguments of ``rt.collect``. Makes nothing, and writes nothing.

    Raises:
        TypeError, ValueError, ImportError, OSError: as ``rt.collect``.
    """
    leave_if_preparing()
    agent: Agent = agent_of(given["agent"])
    name = agent.name if given["name"] is None else options.agent_name(given["name"])
    output = _output(given["output"], given["tasks"])
    concurrency = options.whole(given["concurrency"], "concurrency", least=1)
    rewards = rewards_of(given["reward"], options.limit(given["reward_timeout"], "reward_timeout"))
    if rewards is not None:
        rewards.check()
    options.check_engine(given["engine"])
    work = Work(
        run_id=new_id(),
        name=name,
        agent=agent,
        rewards=rewards,
        retries=options.retry_policy(given["retries"], given["retry_on"], given["retry_wait"], given["retry_wait_max"]),
        output=output,
        recording=options.recording_options(given["recording"], output),
        instrument=options.flag(given["instrument"], "instrument"),
        engine=given["engine"],
        timeout=options.limit(given["timeout"], "timeout"),
        groups_by_name=given["name"] is not None,
        artifacts=str(places.beside(output, "artifacts").absolute()),
        logs=_logs(options.folder_of_logs(given["logs"]), output),
    )
    tasks = load_tasks(given["tasks"], limit=given["limit"], task_ids=given["task_ids"])
    config = _config(given, work)
    return Session(
        work=work,
        tasks=tasks,
        samples=options.whole(given["samples"], "samples", least=1),
        seed=None if given["seed"] is None else options.whole(given["seed"], "seed", least=0),
        concurrency=concurrency,
        most_failures=options.most_failures(given["max_consecutive_failures"], concurrency),
        resume=options.flag(given["resume"], "resume"),
        retry_failed=options.flag(given["retry_failed"], "retry_failed"),
        progress=given["progress"],
        executor=_executor(given["executor"], concurrency),
        hashes=hashes_of(agent, tasks, config),
        config=config,
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
    elif _is_file(tasks, text):
        raise ValueError(f"output is {text}, the file of the tasks; give another one.")
    else:
        compressor(check_path(text))
    return text


def _is_file(given: Any, path: str) -> bool:
    return isinstance(given, (str, os.PathLike)) and os.path.realpath(os.path.expanduser(given)) == os.path.realpath(
        path
    )


def _logs(given: bool | str, output: str) -> str | None:
    if given is False:
        return None
    return str((places.beside(output, "logs") if given is True else Path(given)).absolute())


def _executor(given: Any, concurrency: int) -> Executor | None:
    """The executor; None for this process."""
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
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: _named(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"type": type(value).__qualname__, **fields}
    if isinstance(value, functools.partial):
        return [_named(value.func), _named(value.args), _named(value.keywords)]
    # An object's own text often has its address in memory, which is another one in every run.
    function = value if hasattr(value, "__qualname__") else type(value)
    return f"{function.__module__}:{function.__qualname__}"
