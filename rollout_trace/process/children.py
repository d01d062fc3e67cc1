"""Child processes of an instrumented process record too, as children of the trajectory that started them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from functools import partial, wraps
from types import ModuleType
from typing import Any

from rollout_trace import guard
from rollout_trace.guard import hidden_frame
from rollout_trace.process.child_tasks import Forking, Inherited, Task
from rollout_trace.process.environment import environment_for, variables_for_python
from rollout_trace.process.patches import Patches, wrapping
from rollout_trace.process.threads import POOL_METHODS, carried_callback, with_callables, with_nothing_current
from rollout_trace.record import ancestry
from rollout_trace.record.ancestry import OUTPUT, PARENT

_ENV = 11
"""Position of ``env`` among the arguments of ``Popen``, after the object itself."""


def _popen(original: Callable[..., None], /, *args: Any, **kwargs: Any) -> None:
    if len(args) <= _ENV:
        kwargs = _with_named_environment(kwargs)
    else:
        args = (*args[:_ENV], _with_named_environment({"env": args[_ENV]})["env"], *args[_ENV + 1 :])
    with hidden_frame:
        return original(*args, **kwargs)


def _patch_asyncio(module: ModuleType, patches: Patches) -> None:
    # The loops of asyncio itself use `Popen`; uvloop does not.
    for owner in (module, module.subprocess):
        for name in ("create_subprocess_exec", "create_subprocess_shell"):
            patches.replace(owner, name, partial(_create_subprocess, patches))


def _create_subprocess(patches: Patches, original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    async def create_subprocess(*args: Any, **kwargs: Any) -> Any:
        if patches.is_active:
            kwargs = _with_named_environment(kwargs)
        with hidden_frame:
            return await original(*args, **kwargs)

    return create_subprocess


def _with_named_environment(kwargs: dict[str, Any]) -> dict[str, Any]:
    try:
        environment = environment_for(kwargs.get("env"))
    except Exception as error:
        guard.failed("child process", None, error)
        return kwargs
    return kwargs if environment is None else {**kwargs, "env": environment}


def _process_start(original: Callable[..., None], process: Any) -> None:
    variables = variables_for_python()
    with hidden_frame:
        if not variables:
            return original(process)
        setattr(process, ancestry.ATTRIBUTE, variables.get(PARENT))
        if os.environ.get(OUTPUT) != variables[OUTPUT] and _is_own_interpreter():
            # Unpickled by the child, if it is spawned.
            process._rollout_trace = Inherited(variables)
        with Forking(variables):
            return original(process)


def _is_own_interpreter() -> bool:
    """Whether ``multiprocessing`` starts processes with this interpreter: another may not have this package."""
    spawn = sys.modules.get("multiprocessing.spawn")
    executable = None if spawn is None else spawn.get_executable()
    return executable is None or os.fsdecode(executable) == sys.executable


def _variables_for_task() -> dict[str, str]:
    return variables_for_python() if _is_own_interpreter() else {}


def _submit(original: Callable[..., Any], pool: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    variables = _variables_for_task()
    with hidden_frame:
        if not variables:
            return original(pool, fn, *args, **kwargs)
        # The processes that it starts outlive the trajectory, and run the tasks of others.
        return with_nothing_current(original, pool, Task(fn, variables), *args, **kwargs)


def _map(original: Callable[..., Any], pool: Any, fn: Callable[..., Any], *iterables: Any, **kwargs: Any) -> Any:
    # It submits chunks; each call of the function is a task of its own.
    variables = _variables_for_task()
    with hidden_frame:
        return original(pool, Task(fn, variables) if variables else fn, *iterables, **kwargs)


def _is_of_threads(pool: Any) -> bool:
    return isinstance(pool, sys.modules["multiprocessing.pool"].ThreadPool)


def _pool_init(original: Callable[..., Any], pool: Any, /, *args: Any, **kwargs: Any) -> Any:
    with hidden_frame:
        if _is_of_threads(pool):
            return original(pool, *args, **kwargs)
        return with_nothing_current(original, pool, *args, **kwargs)


def _pool_method(
    callbacks: tuple[int, ...], original: Callable[..., Any], pool: Any, /, *args: Any, **kwargs: Any
) -> Any:
    variables = {} if _is_of_threads(pool) else _variables_for_task()
    if variables:

        def task(function: Callable[..., Any]) -> Task:
            return Task(function, variables)

        args, kwargs = with_callables(args, kwargs, callbacks, task, carried_callback)
    with hidden_frame:
        return original(pool, *args, **kwargs)


_EXECUTOR = wrapping(("ProcessPoolExecutor", "submit", _submit), ("ProcessPoolExecutor", "map", _map))
MODULES: Mapping[str, Callable[[ModuleType, Patches], None]] = {
    "subprocess": wrapping(("Popen", "__init__", _popen)),
    "asyncio": _patch_asyncio,
    "multiprocessing.process": wrapping(("BaseProcess", "start", _process_start)),
    "multiprocessing.pool": wrapping(
        ("Pool", "__init__", _pool_init),
        *(("Pool", name, partial(_pool_method, callbacks)) for name, callbacks in POOL_METHODS.items()),
    ),
    "concurrent.futures.process": _EXECUTOR,
    "loky.process_executor": _EXECUTOR,
    "joblib.externals.loky.process_executor": _EXECUTOR,
}
"""The modules to wait for, and what replaces their methods."""
