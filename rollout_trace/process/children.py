"""Child processes of an instrumented process record too, as children of the trajectory that started them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from functools import partial, wraps
from types import ModuleType
from typing import Any

from rollout_trace import guard
from rollout_trace.guard import hide_frame
from rollout_trace.process.carried import with_nothing_current
from rollout_trace.process.child_tasks import Forking, Inherited, Task
from rollout_trace.process.environment import environment_for, variables_for_python
from rollout_trace.process.patches import Patches
from rollout_trace.process.threads import POOL_METHODS, carried_callback, with_callables
from rollout_trace.record import ancestry
from rollout_trace.record.ancestry import OUTPUT, PARENT


def _patch_subprocess(module: ModuleType, patches: Patches) -> None:
    patches.replace(module.Popen, "__init__", partial(_popen, patches))


_ENV = 10
"""Position of ``env`` among the arguments of ``Popen``."""


def _popen(patches: Patches, original: Callable[..., None]) -> Callable[..., Any]:
    @wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> Any:
        if patches.is_active:
            args, kwargs = _with_environment(args, kwargs)
        try:
            return original(self, *args, **kwargs)
        except BaseException as error:
            hide_frame(error)
            raise

    return __init__


def _with_environment(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of ``Popen`` with the variables added to a copy of ``env``."""
    if len(args) <= _ENV:
        return args, _with_named_environment(kwargs)
    return (*args[:_ENV], _with_named_environment({"env": args[_ENV]})["env"], *args[_ENV + 1 :]), kwargs


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
        try:
            return await original(*args, **kwargs)
        except BaseException as error:
            hide_frame(error)
            raise

    return create_subprocess


def _with_named_environment(kwargs: dict[str, Any]) -> dict[str, Any]:
    try:
        environment = environment_for(kwargs.get("env"))
    except Exception as error:
        guard.failed("child process", None, error)
        return kwargs
    return kwargs if environment is None else {**kwargs, "env": environment}


def _patch_process(module: ModuleType, patches: Patches) -> None:
    patches.replace(module.BaseProcess, "start", partial(_process_start, patches))


def _process_start(patches: Patches, original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def start(self: Any) -> None:
        variables = variables_for_python() if patches.is_active else {}
        try:
            if not variables:
                return original(self)
            setattr(self, ancestry.ATTRIBUTE, variables.get(PARENT))
            if os.environ.get(OUTPUT) != variables[OUTPUT] and _is_own_interpreter():
                # Unpickled by the child, if it is spawned.
                self._rollout_trace = Inherited(variables)
            with Forking(variables):
                return original(self)
        except BaseException as error:
            hide_frame(error)
            raise

    return start


def _is_own_interpreter() -> bool:
    """Whether ``multiprocessing`` starts processes with this interpreter: another may not have this package."""
    spawn = sys.modules.get("multiprocessing.spawn")
    executable = None if spawn is None else spawn.get_executable()
    return executable is None or os.fsdecode(executable) == sys.executable


def _patch_executor(module: ModuleType, patches: Patches) -> None:
    patches.replace(module.ProcessPoolExecutor, "submit", partial(_submit, patches))
    patches.replace(module.ProcessPoolExecutor, "map", partial(_map, patches))


def _submit(patches: Patches, original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def submit(self: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        variables = variables_for_python() if patches.is_active and _is_own_interpreter() else {}
        if not variables:
            return original(self, fn, *args, **kwargs)
        try:
            # The processes that it starts outlive the trajectory, and run the tasks of others.
            return with_nothing_current(original, self, Task(fn, variables), *args, **kwargs)
        except BaseException as error:
            hide_frame(error)
            raise

    return submit


def _map(patches: Patches, original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def map(self: Any, fn: Callable[..., Any], *iterables: Any, **kwargs: Any) -> Any:
        # It submits chunks; each call of the function is a task of its own.
        variables = variables_for_python() if patches.is_active and _is_own_interpreter() else {}
        try:
            return original(self, Task(fn, variables) if variables else fn, *iterables, **kwargs)
        except BaseException as error:
            hide_frame(error)
            raise

    return map


def _patch_pools(module: ModuleType, patches: Patches) -> None:
    patches.replace(module.Pool, "__init__", partial(_pool_init, patches, module.ThreadPool))
    for name, callbacks in POOL_METHODS.items():
        patches.replace(module.Pool, name, partial(_pool_method, patches, module.ThreadPool, callbacks))


def _pool_init(patches: Patches, thread_pool: type, original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            if not patches.is_active or isinstance(self, thread_pool):
                return original(self, *args, **kwargs)
            return with_nothing_current(original, self, *args, **kwargs)
        except BaseException as error:
            hide_frame(error)
            raise

    return __init__


def _pool_method(
    patches: Patches, thread_pool: type, callbacks: tuple[int, ...], original: Callable[..., Any]
) -> Callable[..., Any]:
    @wraps(original)
    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        is_ours = patches.is_active and not isinstance(self, thread_pool) and _is_own_interpreter()
        variables = variables_for_python() if is_ours else {}
        if variables:
            make = partial(_task, variables)
            args, kwargs = with_callables(args, kwargs, callbacks, make, carried_callback)
        try:
            return original(self, *args, **kwargs)
        except BaseException as error:
            hide_frame(error)
            raise

    return method


def _task(variables: dict[str, str], function: Callable[..., Any]) -> Task:
    return Task(function, variables)


MODULES: Mapping[str, Callable[[ModuleType, Patches], None]] = {
    "subprocess": _patch_subprocess,
    "asyncio": _patch_asyncio,
    "multiprocessing.process": _patch_process,
    "multiprocessing.pool": _patch_pools,
    "concurrent.futures.process": _patch_executor,
    "loky.process_executor": _patch_executor,
    "joblib.externals.loky.process_executor": _patch_executor,
}
"""The modules to wait for, and what replaces their methods."""
