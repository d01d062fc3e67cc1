"""The end of the process: runs what closes open trajectories and recordings, while there is still time."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

from rollout_trace import guard

_closers: list[Callable[[], object]] = []
_watched_pid: int | None = None
"""The process that is watched: a fork takes over the handlers, and not what `multiprocessing` runs at its end."""
_is_for_good = False
"""Whether the handler of SIGTERM stays where no recording is open."""
_is_left_to_caller = False
"""Whether another function of ``atexit`` runs the closers."""
_running_in: int | None = None
"""The process whose closers run, or have run."""


def add_closer(closer: Callable[[], object], *, first: bool = False) -> None:
    """Adds a function to run at the end of a process that is watched: after the others, or before them."""
    _closers.insert(0 if first else len(_closers), closer)


def watch(*, for_good: bool = False) -> None:
    """Runs the closers when this process ends: normally, by an exception, or by SIGTERM.

    With ``for_good``, ``unwatch`` does nothing any more.

    SIGTERM ends a Python process at once unless the program handles it. Where it does not, a handler is set (from the
    main thread, which alone can) that runs the closers and then ends the process by the same signal.
    """
    global _watched_pid, _is_for_good
    _is_for_good = _is_for_good or for_good
    if _watched_pid != os.getpid():
        _watched_pid = os.getpid()
        atexit.unregister(close_all)
        if not _is_left_to_caller:
            atexit.register(close_all)
        # Child processes of `multiprocessing` end without running what atexit has.
        util, process = sys.modules.get("multiprocessing.util"), sys.modules.get("multiprocessing.process")
        if util is not None and process is not None and process.parent_process() is not None:
            # Below 0: after the user's finalizers, which may close what would be aborted here.
            util.Finalize(None, close_all, exitpriority=-1)
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _on_sigterm)


def watch_forked() -> None:
    """Does what ``watch`` does again in a forked process: those of ``multiprocessing`` need it."""
    if _watched_pid != os.getpid():
        watch()


def unwatch() -> None:
    """Takes the handler of SIGTERM off again, unless the program has set one of its own since."""
    if _is_for_good:
        return
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is _on_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def close_all() -> None:
    """Runs the closers now; to be called by what ends the process in a way that runs nothing, such as ``os._exit``."""
    global _running_in
    _running_in = os.getpid()
    guard.run_all("exit", *_closers)
    keep_interrupt()


def uncaught() -> BaseException | None:
    """The exception that ends the program, where Python has just printed its traceback; None where there is none."""
    error: BaseException | None = getattr(sys, "last_value", None)
    traceback = None if error is None else error.__traceback__
    if traceback is None:
        return None
    # Others set it too: interactive consoles, and pytest, of a test that fails. Theirs begins where it was caught.
    frame = traceback.tb_frame
    is_of_main = frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__"
    return error if is_of_main or frame.f_code.co_name == "_run_module_as_main" else None


def keep_interrupt() -> None:
    """Lets Python still end by the signal if a KeyboardInterrupt ends the program.

    Python notes that, and forgets it at the next text that is executed: making a dataclass executes one, as importing
    does. It is noted again by a text that raises it.
    """
    if type(uncaught()) is KeyboardInterrupt:
        try:
            exec("raise KeyboardInterrupt")
        except KeyboardInterrupt:
            pass


def leave_atexit() -> None:
    """Stops ``atexit`` from running the closers: the caller calls ``close_all`` at the end of the process."""
    global _is_left_to_caller
    _is_left_to_caller = True
    atexit.unregister(close_all)


def is_signalled() -> bool:
    """Whether SIGTERM ends this process, which does not handle it itself."""
    return _closing is not None


def is_running() -> bool:
    """True from when the closers of this process run."""
    return _running_in == os.getpid()


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    global _closing

    def close_and_signal() -> None:
        close_all()
        os.kill(os.getpid(), signal.SIGTERM)

    if _closing is None:
        # On a thread: the main thread may have been interrupted while it held a lock that closing needs.
        _closing = threading.Thread(target=close_and_signal, name="rollout_trace SIGTERM", daemon=True)
        _closing.start()
    _closing.join(GRACE)
    if _closing.is_alive():
        # Perhaps for such a lock: the main thread goes on, and the signal comes again when all is closed.
        return
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


_closing: threading.Thread | None = None
"""Closes what is open, since SIGTERM came."""
GRACE = 2.0
"""Seconds that SIGTERM stops the main thread while all is closed and written."""
CLOSE_TIMEOUT = 60.0
"""Most seconds that the end of a process is held up by writing; the journal has what was not written."""
