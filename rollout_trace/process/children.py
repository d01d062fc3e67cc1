"""Child processes record too, as children of the trajectory that starts them.

By environment variables, which ``subprocess`` and ``multiprocessing`` of an instrumented process hand on by themselves.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial, wraps
from types import ModuleType
from typing import TYPE_CHECKING, Any

from rollout_trace import credentials, guard
from rollout_trace.data.episodes import episode_of
from rollout_trace.file.addresses import absolute, is_folder_target
from rollout_trace.file.writer import check_path
from rollout_trace.guard import hidden_frame
from rollout_trace.process import options
from rollout_trace.process.child_tasks import BOOT, Forking, Inherited, Task, python_path
from rollout_trace.process.patches import Patches, wrapping
from rollout_trace.process.threads import POOL_METHODS, carried_callback, with_callables, with_nothing_current
from rollout_trace.record import ancestry, scope
from rollout_trace.record.ancestry import ENGINE, NAME, OUTPUT, PARENT, RUN, TASK, Ancestor
from rollout_trace.record.recording import current_recording, open_recordings
from rollout_trace.record.state import log_of, state_of

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.record.recording import recording

for_children: dict[str, str] = {}
"""Variables that every process started from here is given, a clean environment too: a test's, whose model servers are
stood in for. What the variables point to is of this process, and so are they."""
for_programs: dict[str, tuple[str, str | None]] = {}
"""Variables that lead programs which record nothing themselves to the loopback server that started this process, with
what each is here; None: it is not there."""
_run = os.urandom(16).hex()
"""The run's id, where the environment has none."""


def child_environment(
    *, output: str | os.PathLike[str] | None = None, boot: str | os.PathLike[str] | None = None
) -> dict[str, str]:
    """Returns environment variables for a child process whose calls belong to this episode.

        subprocess.run(command, env={**os.environ, **rt.child_environment()})

    A Python process with these variables, and with rollout_trace installed, records its model calls as ``rollout-trace
    run`` does, and appends its trajectories to the file of the open recording. They are children of the current
    trajectory and its latest step. Other programs are not affected. In an instrumented process (``rt.instrument()``,
    ``rollout-trace run``), ``subprocess`` and ``multiprocessing`` pass the variables on automatically.

    If nothing is being recorded and no ``output`` is given, the result is empty: the child runs without recording.

    Args:
        output: path of the file or folder as the child sees it, for example in a container that mounts it elsewhere; or
            an address.
        boot: the folder ``rollout_trace/process/boot`` of the child's own installation, if its location differs. The
            child's ``PYTHONPATH`` begins with it, and this process's ``PYTHONPATH`` is then left out.

    Raises:
        RuntimeError: the recording cannot be passed on: its target is not a file, or it has ``redact=``, whose rules
            the child would not apply. Pass another file as ``output``.
        TypeError: ``output`` or ``boot`` is not a path.
        ValueError: trajectories cannot be written to a file with the name ``output``, or ``boot`` is empty.
    """
    if output is not None and not (isinstance(output, (str, os.PathLike)) and is_folder_target(output)):
        check_path(output)
    if boot is not None and not (isinstance(boot, (str, os.PathLike)) and os.fspath(boot)):
        kind = ValueError if boot == "" else TypeError
        raise kind(f"boot={boot!r:.80}: expected the path of the folder rollout_trace/process/boot.")
    own = None if output is not None else _recording()
    file = os.environ.get(OUTPUT) if own is None else own.path
    if own is not None and (problem := _problem(own, file)) is not None:
        raise RuntimeError(
            f"rt.child_environment(): {problem}. Give the child a file of its own: "
            'rt.child_environment(output="child.jsonl").'
        )
    found = _variables(file if output is None else absolute(output))
    if found:
        _expect_calls()
        path = os.environ.get("PYTHONPATH") if boot is None else None
        found["PYTHONPATH"] = python_path(path, BOOT if boot is None else os.fspath(boot))
    return found


def _problem(own: recording, file: str | None) -> str | None:
    if file is None:
        return f"the recording to {own.name} does not write to a file"
    return f"the recording to {own.name} has redact=, which another process would lack" if own.is_redacted else None


def _recording() -> recording | None:
    """The recording that a trajectory opened here would go to; None without one."""
    state = None if (here := scope.here()) is None else state_of(here)
    for own in (None if state is None else state.recording, current_recording()):
        if own is not None and own.is_open:
            return own
    others = open_recordings()
    return others[0] if len(others) == 1 else None


def _variables(output: str | None) -> dict[str, str]:
    """The variables but for ``PYTHONPATH``; none without a file."""
    if not output:
        return {}
    parent = _parent()
    values = {
        OUTPUT: output,
        RUN: os.environ.get(RUN) or _run,
        ENGINE: options.engine_in_force() or os.environ.get(ENGINE),
        NAME: os.environ.get(NAME),
        TASK: os.environ.get(TASK),
        PARENT: None if parent is None else parent.text,
        credentials.SECRET_HEADERS: credentials.secret_headers(),
    }
    return {name: value for name, value in values.items() if value}


def variables_here() -> dict[str, str]:
    """The variables for a process that is started here; none where nothing is recorded, or it cannot be handed on."""
    own = _recording()
    file = os.environ.get(OUTPUT) if own is None else own.path
    return {} if own is not None and _problem(own, file) is not None else _variables(file)


def variables_for_python() -> dict[str, str]:
    """``variables_here`` for a Python function in another process, which may make the calls of this trajectory.

    Never raises, save under pytest.
    """
    try:
        found = variables_here()
        if found:
            _expect_calls()
        return found
    except Exception as error:
        guard.failed("child process", None, error)
        return {}


def _expect_calls() -> None:
    """Counts a child of the current trajectory: where it has no call of its own, that is no reason to warn."""
    state = None if (here := scope.here()) is None else state_of(here)
    if state is not None:
        state.children_opened += 1


def _parent() -> Ancestor | None:
    """The parent of trajectories of a process that is started here; that of this process's own where none is open."""
    here: Trajectory | None = scope.here()
    if (here is None or not here.is_open) and ancestry.program is not None:
        here = ancestry.program() or here
    # Open in the process that this one was forked from, too.
    log = log_of(here)
    if here is None or log is None:
        return ancestry.ancestor()
    episode, state = episode_of(here), state_of(here)
    if state is not None and state.recording is not None:
        state.recording.others.started.add(episode)
    return Ancestor(episode, here.id, log.last_step_id())


def mark_environment(patches: Patches) -> None:
    """Sets the run's id in this process's environment: one that a program makes has it if it was made from that.

    Such a one is given the other variables when a process is started with it; a clean one stays clean.
    """
    if RUN not in os.environ:
        os.environ[RUN] = _run
        patches.on_undo(lambda: os.environ.pop(RUN) if os.environ.get(RUN) == _run else None)


def environment_for(given: Any) -> dict[Any, Any] | None:
    """The environment of a new process whose starter gave ``given``, None for this process's own.

    Returns:
        A copy with the variables; None where it stays as it is: nothing is recorded, or it is no copy of this
        process's own, and there is nothing for all children.
    """
    # How the names of a copy of this process's environment are written: as text, or as bytes. None if it is none.
    encode: Callable[[str], Any] | None = str if given is None else None
    for one in (str, os.fsencode) if given is not None else ():
        # `os.environ` takes no bytes.
        with suppress(TypeError):
            if one(RUN) in given or one(OUTPUT) in given:
                encode = one
                break
    ours = {} if encode is None else variables_here()
    if not (ours or for_children):
        return None
    given = os.environ if given is None else given
    if encode is None:
        encode = os.fsencode if any(isinstance(name, bytes) for name in given) else str
    if ours:
        path = given.get(encode("PYTHONPATH"))
        ours["PYTHONPATH"] = python_path(None if path is None else os.fsdecode(path))
        # Not where this program has chosen another address for its child.
        unchanged = {name: led for name, (led, here) in for_programs.items() if _text(given.get(encode(name))) == here}
        ours |= unchanged
    ours |= for_children
    if all(given.get(encode(name)) == encode(value) for name, value in ours.items()):
        return None
    return {**given, **{encode(name): encode(value) for name, value in ours.items()}}


def _text(value: Any) -> str | None:
    return None if value is None else os.fsdecode(value)


# What hands them on

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
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        async def create_subprocess(*args: Any, **kwargs: Any) -> Any:
            if patches.is_active:
                kwargs = _with_named_environment(kwargs)
            with hidden_frame:
                return await original(*args, **kwargs)

        return create_subprocess

    # The loops of asyncio itself use `Popen`; uvloop does not.
    for owner in (module, module.subprocess):
        for name in ("create_subprocess_exec", "create_subprocess_shell"):
            patches.replace(owner, name, make)


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
