"""Jobs for tests of executors: what they do in a worker is a function of this module."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import threading
from pathlib import Path
from typing import Any

from rollout_trace.collection.items import RetryPolicy, TaskItem
from rollout_trace.collection.job import Job, Outcome, Work


class DoneBy(Job):
    """A job whose task names a function of this module and its arguments."""

    async def arun(self) -> Outcome:
        name, *arguments = self.task.value
        found = globals()[name](*arguments)
        said = await found if asyncio.iscoroutine(found) else found
        return outcome(self, str(said))


def outcome(job: Job, said: str, *, is_left_behind: bool = False) -> Outcome:
    """A completed one with a text as its trajectory's id."""
    return Outcome(
        key=job.key, attempt=job.attempt, trajectory_id=said, status="completed", is_left_behind=is_left_behind
    )


def work(**options: Any) -> Work:
    """What the jobs share; nothing of it is used here."""
    given: dict[str, Any] = {"run_id": "r", "name": "agent", "agent": None, "rewards": None, "output": "none.jsonl"}
    return Work(retries=RetryPolicy(), **{**given, **options})


def job(shared: Work, index: int, *task: Any) -> DoneBy:
    """The job that calls a function of this module."""
    return DoneBy(work=shared, task=TaskItem("t", task, "0"), index=index)


# What jobs do.


def process() -> int:
    """The process that makes the rollout."""
    return os.getpid()


def die(how: int) -> None:
    """Ends the process by a signal, or by a crash in C."""
    if how == signal.SIGSEGV:
        ctypes.string_at(0)
    os.kill(os.getpid(), how)


def leave(code: int) -> None:
    """Ends the process past everything."""
    os._exit(code)


def die_once(marker: str) -> int:
    """Kills the process, the first time."""
    if not os.path.exists(marker):
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


def block_loop(ready: str) -> None:
    """Never returns, and nothing else runs in the event loop."""
    Path(ready).touch()
    signal.pause()


def hold_everything(ready: str) -> None:
    """Never returns, and holds Python's lock: no thread of the process runs."""
    Path(ready).touch()
    # A call through `PyDLL` does not release the lock.
    ctypes.PyDLL(None).pause()


async def meet(folder: str, count: int) -> int:
    """Returns when so many rollouts run at the same time, in whichever processes."""
    Path(folder, f"{os.getpid()}-{id(asyncio.current_task())}").touch()
    while len(os.listdir(folder)) < count:
        await asyncio.sleep(0.005)
    return os.getpid()


async def for_ever(begun: str, ended: str) -> None:
    """Runs until it is cancelled, and says when it was."""
    Path(begun).write_text(str(os.getpid()))
    try:
        await asyncio.Event().wait()
    finally:
        Path(ended).touch()


def fail(kind: str) -> None:
    """Raises what can, or cannot, be pickled."""
    if kind == "value":
        raise ValueError("no such thing")

    class Own(Exception):
        pass

    raise Own("of a function")


async def be_there(folder: str) -> None:
    """Says which process it runs in, and runs for ever."""
    Path(folder, str(os.getpid())).touch()
    await asyncio.Event().wait()


def ask_signals() -> str:
    """How this process takes Ctrl-C, and how one that it starts does."""
    import subprocess
    import sys

    os.kill(os.getpid(), signal.SIGINT)
    child = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    return subprocess.run([sys.executable, "-c", child], capture_output=True, text=True).stdout.strip()


def ask_environment() -> str:
    """What a recorder would take from the environment of this process."""
    from rollout_trace.process.child_tasks import BOOT
    from rollout_trace.process.children import child_environment
    from rollout_trace.record import ancestry

    names = sorted(name for name in os.environ if name.startswith("ROLLOUT_TRACE_"))
    return f"{names} {ancestry.ancestor()} {child_environment()} {BOOT in os.environ.get('PYTHONPATH', '')}"


def threads() -> int:
    """Threads of the process."""
    return threading.active_count()


def ends_its_process(task: object) -> None:
    """An agent that ends the process it runs in."""
    with open(os.environ["TEST_MARKER"], "a") as file:
        file.write("x")
    os._exit(3)
