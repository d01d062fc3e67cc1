"""What runs in child processes of ``multiprocessing``: found there by its import path.

Imports no room before it must: a child may never make a model call.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from rollout_trace.guard import hidden_frame
from rollout_trace.process.boot import sitecustomize
from rollout_trace.record import ancestry

BOOT = os.path.dirname(os.path.abspath(sitecustomize.__file__))
"""The folder whose ``sitecustomize`` starts the recorder in a process that calls a model."""


def python_path(path: str | None, boot: str = BOOT) -> str:
    """A value of ``PYTHONPATH`` that begins with the folder that starts the recorder, or has it already."""
    entries = path.split(os.pathsep) if path else []
    return path if path and boot in entries else os.pathsep.join([boot, *entries])


class Inherited:
    """Variables for a child process: put into its environment where it is unpickled, by the child's start."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = dict(variables)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _unpickled, (self._variables,)


def _unpickled(variables: dict[str, str]) -> Inherited:
    inherit(variables)
    return Inherited(variables)


class Task:
    """A function of a pool's task, with the variables of where it was submitted. Pickled with the task.

    The process runs tasks of many trajectories, and may have been started in another one.
    """

    def __init__(self, function: Callable[..., Any], variables: dict[str, str]) -> None:
        self.function = function
        self.variables = variables

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        inherit(self.variables)
        # Looked up, not imported. A process that was forked has the trajectory of its original as the current one.
        context = sys.modules.get("rollout_trace.record.context")
        before = None if context is None else context.switch(context.NOTHING)
        begun = ancestry.begin_task(ancestry.parse(self.variables.get(ancestry.PARENT)))
        ended_by: BaseException | None = None
        try:
            with hidden_frame:
                return self.function(*args, **kwargs)
        except BaseException as error:
            ended_by = error
            raise
        finally:
            ancestry.end_task(begun, ended_by)
            ended_by = None
            if context is not None:
                context.switch(before)

    def __repr__(self) -> str:
        return repr(self.function)


def inherit(variables: Mapping[str, str]) -> None:
    """Puts the variables into this process's environment, and has it record to their file. Never raises."""
    try:
        # For the processes that this one starts, before its recorder is, or past it. The path of this one is left as it
        # is: it has begun.
        for name, value in {**variables, "PYTHONPATH": python_path(os.environ.get("PYTHONPATH"))}.items():
            if os.environ.get(name) != value:
                os.environ[name] = value
        # The package was imported for this module's sake, and not by the program, which may never call a model.
        sitecustomize.wait(frozenset(["rollout_trace"]))
        # What is recorded from now on goes to their file, where the recorder was started with another one. Looked up,
        # not imported: a process that calls no model has it not.
        lifecycle, output = sys.modules.get("rollout_trace.record.lifecycle"), variables.get(ancestry.OUTPUT)
        if lifecycle is not None and output is not None and lifecycle.fallback_path() not in (None, output):
            lifecycle.use_fallback(output)
    except Exception as error:
        from rollout_trace import guard

        guard.failed("child process", None, error)


_local = threading.local()


class Forking:
    """Around the start of a process: if it is forked, it inherits the variables before it runs anything."""

    def __init__(self, variables: dict[str, str]) -> None:
        self._variables = variables

    def __enter__(self) -> None:
        from multiprocessing import util

        _local.forking = self
        # Not `os.register_at_fork`: its functions run in the order of imports, and starting the recorder takes locks
        # that may not have been renewed by then. It is registered for as long as this object lives.
        util.register_after_fork(self, Forking._forked)

    def __exit__(self, *_: object) -> None:
        _local.forking = None

    def _forked(self) -> None:
        # Another thread may start another process meanwhile.
        if getattr(_local, "forking", None) is self:
            _local.forking = None
            inherit(self._variables)
