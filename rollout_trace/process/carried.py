"""Functions that run with what was current elsewhere: where a thread was started, or a task submitted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from rollout_trace.guard import hide_frame
from rollout_trace.record import context
from rollout_trace.record.context import Carried


class Task:
    """Runs a function with what was current where it was made. Many threads may call it at once, any number of times.

    Arguments, result and exception are the function's own.
    """

    __slots__ = ("context", "function")

    def __init__(self, function: Callable[..., Any], context: Carried) -> None:
        self.function = function
        self.context = context

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        before = context.switch(self.context)
        try:
            return self.function(*args, **kwargs)
        except BaseException as error:
            hide_frame(error)
            raise
        finally:
            # A pool's thread waits for its next task then: it must not hold the trajectory of this one.
            context.switch(before)

    def __repr__(self) -> str:
        return repr(self.function)


class Run:
    """What a thread runs in the place of its ``run``, once: removes itself, and runs that.

    ``run`` is found by the thread as an attribute of itself, so a subclass's own ``run`` is carried too.
    """

    __slots__ = ("context", "run", "thread")

    def __init__(self, thread: threading.Thread, context: Carried) -> None:
        self.thread = thread
        self.context = context
        self.run = thread.run

    def __call__(self) -> None:
        # First of all: the thread holds this object, which holds the thread.
        self.remove()
        run = self.run
        del self.run
        before = context.present()
        # The new context of free-threaded Python 3.14, or one given to the thread, has them already.
        if context.worth_carrying() is None:
            context.switch(self.context)
        del self.context
        try:
            run()
        except BaseException as error:
            hide_frame(error)
            raise
        finally:
            # The context may be one that was given to the thread, and go on to exist.
            context.switch(before)

    def remove(self) -> None:
        """Gives the thread back the ``run`` that it had."""
        thread = self.thread
        if thread.__dict__.get("run") is not self:
            return
        own = getattr(self.run, "__self__", None) is thread and getattr(self.run, "__func__", None) is getattr(
            type(thread), "run", None
        )
        if own:
            del thread.__dict__["run"]
        else:
            thread.__dict__["run"] = self.run


def with_nothing_current(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Calls what starts the threads of a pool: they outlive the trajectory, and run the tasks of others."""
    before = context.switch(context.NOTHING)
    try:
        return function(*args, **kwargs)
    except BaseException as error:
        hide_frame(error)
        raise
    finally:
        context.switch(before)
