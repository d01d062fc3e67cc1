"""A process of ``rollout-trace run``: its recorder is started, and at its end says what it has recorded.

Imports no room before ``start``: it is imported in processes that may never make a call.
"""

from __future__ import annotations

import os

is_started = False
"""Whether ``start`` has run in this process, or in the one that it was forked from."""


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
    from importlib import import_module

    from rollout_trace import guard
    from rollout_trace.clients.loopback.addresses import LOOPBACK, lead_back
    from rollout_trace.process import children, exits, options
    from rollout_trace.process.instrument import instrument
    from rollout_trace.record import lifecycle, process_end, program
    from rollout_trace.wire.engine import engine_of_text, resolve

    if ends_process:
        process_end.leave_atexit()
    lifecycle.warns_of_missing_ids = "ROLLOUT_TRACE_FIRST" not in os.environ
    lifecycle.use_fallback(output)
    # This process records itself: its clients, which are yet to be made, get their real addresses.
    options.loopback = os.environ.get(LOOPBACK)
    guard.run_all("loopback", lambda: children.for_programs.update(lead_back(os.environ)))
    program.start()
    exits.watch()
    try:
        engine = engine_of_text(os.environ.get("ROLLOUT_TRACE_ENGINE"))
        resolve(engine)
    except (TypeError, ValueError) as error:
        # A child may have another version, which knows other engines.
        guard.warn(f"ROLLOUT_TRACE_ENGINE: {error}")
        engine = None
    # In the children of a process that has called `rt.instrument()`, nobody has asked for hooks.
    instrument(engine=engine, threads=True, http=True, hooks="ROLLOUT_TRACE_FIRST" in os.environ)
    if "ROLLOUT_TRACE_FORK" in os.environ:
        # By its name: it is in a room above.
        import_module("rollout_trace.testing.fork_program").start(is_first=exits.is_first())


def end() -> None:
    """Closes and writes what is open: the process ends."""
    from rollout_trace.record import process_end

    process_end.close_all()


def report() -> None:
    """Prints the summary of the run: at the end of its first process. A second call does nothing."""
    from rollout_trace.process import exits

    exits.report()
