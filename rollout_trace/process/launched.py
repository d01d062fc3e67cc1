"""A process of ``rollout-trace run``: its recorder is started, and at its end says what it has recorded.

Imports no room before ``start``: ``start_when_needed`` is called in processes that may never make a call.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # Not from `typing`, which takes long to import.
if TYPE_CHECKING:
    from typing import Any

is_started = False
"""Whether ``start`` has run in this process, or in the one that it was forked from."""


def start_when_needed() -> None:
    """Starts the recorder at the first import of an SDK or HTTP library, or now where one is imported. Never raises.

    The variables of the run must be set. A second call does nothing.
    """
    if not is_started:
        from rollout_trace.process.boot import sitecustomize

        try:
            sitecustomize.wait()
        except Exception:
            # As in the boot file: the program goes on, unrecorded.
            pass


def start(ends_process: bool = False) -> None:
    """Starts the recorder with what the variables of the run give. A second call does nothing.

    Args:
        ends_process: the caller calls ``end`` at the end of the process. It has been registered before all that the
            program registers with ``atexit``, which may make further calls.
    """
    global is_started
    output = os.environ.get("ROLLOUT_TRACE_OUTPUT")
    if is_started or not output:
        return
    is_started = True
    from rollout_trace.process import exits
    from rollout_trace.process.instrument import instrument
    from rollout_trace.record import lifecycle, process_end, program, tally

    if ends_process:
        process_end.leave_atexit()
    lifecycle.warns_of_missing_ids = "ROLLOUT_TRACE_FIRST" not in os.environ
    lifecycle.use_fallback(output)
    tally.start()
    program.start()
    exits.watch()
    # In the children of a process that has called `rt.instrument()`, nobody has asked for hooks.
    instrument(engine=_engine(), threads=True, http=True, hooks="ROLLOUT_TRACE_FIRST" in os.environ)


def end() -> None:
    """Closes and writes what is open: the process ends."""
    from rollout_trace.record import process_end

    process_end.close_all()


def _engine() -> Any:
    """The engine that the clients ask. Of what is no engine, a warning: a child may have another version."""
    from rollout_trace import guard
    from rollout_trace.wire.engine import engine_of_text, resolve

    try:
        engine = engine_of_text(os.environ.get("ROLLOUT_TRACE_ENGINE"))
        resolve(engine)
    except (TypeError, ValueError) as error:
        guard.warn(f"ROLLOUT_TRACE_ENGINE: {error}")
        return None
    return engine


def report() -> None:
    """Prints the summary of the run: at the end of its first process. A second call does nothing."""
    from rollout_trace.process.exits import report as print_summary

    print_summary()
