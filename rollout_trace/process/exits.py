"""The end of a process of a run: closes the program's trajectory with its outcome and reward, and tells of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from rollout_trace import guard
from rollout_trace.process import rewards, summary
from rollout_trace.process.patches import Patches
from rollout_trace.record import process_end, program, tally

_patches: Patches | None = None
_reported_in: int | None = None
"""The process that has told what it recorded."""


def watch() -> None:
    """Has the end of this process, and of those forked from it, close the program's trajectory first."""
    global _patches
    if _patches is not None:
        return
    process_end.add_closer(_end_program, first=True)
    process_end.add_closer(report)
    _patches = Patches()
    # It runs no function of `atexit`, and ends every process that `multiprocessing` has forked.
    _patches.replace(os, "_exit", _closing_before)


def _closing_before(exit_now: Callable[[int], Any]) -> Callable[[int], Any]:
    def _exit(status: int) -> Any:
        try:
            process_end.close_all()
        except Exception:
            # The program ends, whatever happens here.
            pass
        return exit_now(status)

    return _exit


def _end_program() -> None:
    """Closes the program's trajectory. Runs before what closes the others, as aborted."""
    if _is_first():
        guard.run_all("reward", rewards.give_to_open)
    if process_end.is_signalled():
        program.close(status="aborted")
    else:
        program.close(error=process_end.uncaught())


def report() -> None:
    """Prints the summary in the first process of the run; leaves the counts for it in the others. Once a process."""
    global _reported_in
    if _reported_in == os.getpid():
        return
    _reported_in = os.getpid()
    own = tally.own()
    if not _is_first():
        if _is_first_alive():
            summary.leave(own)
        return
    total = summary.gathered(own)
    guard.run_all("reward", lambda: rewards.give_to_written(total))
    if "ROLLOUT_TRACE_QUIET" not in os.environ and sys.stderr is not None:
        summary.show(total, sys.stderr)
    process_end.keep_interrupt()


def _is_first() -> bool:
    """Whether this is the process whose end is the end of the run: the first Python process of the command."""
    return _first_id() == str(os.getpid())


def _is_first_alive() -> bool:
    """Whether the first process still runs, so that what is left for it will be read."""
    first = _first_id()
    if not first.isdigit() or sys.platform == "win32":
        return False
    try:
        os.kill(int(first), 0)
    except OSError:
        return False
    return True


def _first_id() -> str:
    """Its process id; empty where there is none."""
    return os.environ.get("ROLLOUT_TRACE_FIRST", "").partition(":")[2].partition(":")[0]
