"""Run by Python itself at the start of every process of ``rollout-trace run``, whose ``PYTHONPATH`` begins with here.

It waits for the first import of something that calls a model, and only then imports ``rollout_trace`` and starts it:
most processes of a program (git hooks, package managers, resource trackers) never make a call. Any Python may run it,
also an old one, and one without ``rollout_trace``: standard library only, syntax of Python 3.6, no output, no thread.
"""

# ruff: noqa: UP031, UP036

import os
import sys

# Not from `typing`, whose import takes longer than everything here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any  # noqa: F401

OUTPUT = "ROLLOUT_TRACE_OUTPUT"
RUN = "ROLLOUT_TRACE_RUN"
FIRST = "ROLLOUT_TRACE_FIRST"
"""``LAUNCHER::OUTPUT`` at first, then ``LAUNCHER:PROGRAM:OUTPUT``: the process of the command, the first Python process
of it, and the output of the run, where a child may have another."""
QUIET = "ROLLOUT_TRACE_QUIET"

WATCHED = frozenset(
    ["aiohttp", "anthropic", "dspy", "google.genai", "httpx", "httpx2", "lm15", "openai", "requests", "rollout_trace"]
)
"""Modules whose import starts the recorder."""
UNSEEN = "no call of a model was seen"
NOTHING = (
    "rollout-trace: nothing was recorded: " + UNSEEN + ". In Python,\n"
    "  these are recorded: the SDKs openai, anthropic and google-genai, and calls of\n"
    "  models through httpx, httpx2, aiohttp and requests."
)

ends_process = False
"""Whether what is registered here ends the recorder with the process."""
problems = []  # type: list[str]
"""Why the recorder could not be started in this process."""


class Waiter:
    """A finder on ``sys.meta_path`` that starts the recorder at the first watched import."""

    def find_spec(self, name, path=None, target=None):  # type: (str, Any, Any) -> Any
        """Called at every import of a module that is not imported yet."""
        if name not in WATCHED or self not in sys.meta_path:
            return None
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = None if find is None else find(name, path, target)
            if spec is not None:
                self._wait_for(spec.loader)
                return spec
        return None

    def _wait_for(self, loader):  # type: (Any) -> None
        """Starts the recorder when the module is executed.

        Not now: Python holds a lock of all imports while it looks for a module, and another thread, which waits for
        it, may be in the middle of a module that the recorder imports.
        """
        if "exec_module" in getattr(loader, "__dict__", ()) or not hasattr(loader, "exec_module"):
            return
        execute = loader.exec_module

        def exec_module(module):  # type: (Any) -> None
            # The loader may be that of further modules, of an archive.
            vars(loader).pop("exec_module", None)
            is_first = module.__name__ in WATCHED and self in sys.meta_path
            if is_first:
                sys.meta_path.remove(self)
            if is_first and module.__name__ != "rollout_trace":
                start()
            execute(module)
            if is_first and module.__name__ == "rollout_trace":
                # Before that, it cannot be imported from.
                start()

        try:
            loader.exec_module = exec_module
        except AttributeError as error:
            problems.append("%s: %s" % (type(error).__name__, error))


def start():  # type: () -> None
    """Starts the recorder; what hinders it must not hinder the program."""
    if sys.version_info < (3, 10):
        problems.append("this is Python %d.%d, and rollout_trace needs 3.10" % sys.version_info[:2])
        return
    try:
        _launched().start(ends_process)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        problems.append("%s: %s" % (type(error).__name__, error))


def _launched():  # type: () -> Any
    # By its name alone: it imports this module, in processes that did not begin with it.
    return __import__("rollout_trace.process.launched", fromlist=["launched"])


def wait(ignored=frozenset()):  # type: (frozenset[str]) -> None
    """Starts the recorder at the first import that needs it, or now where that has been imported. Once a process.

    ``ignored``: modules that the caller has imported, not the program.
    """
    if any(type(one).__name__ == "Waiter" and type(one).__module__ == __name__ for one in sys.meta_path):
        return
    if (WATCHED - ignored).isdisjoint(sys.modules):
        sys.meta_path.insert(0, Waiter())
    else:
        start()


def _boot():  # type: () -> None
    # Python 2 asks finders for something else.
    if OUTPUT not in os.environ or sys.version_info < (3, 4):
        return
    import atexit

    global ends_process
    ends_process = True
    wait()
    launcher, first, output = (os.environ.get(FIRST, "").split(":", 2) + ["", ""])[:3]  # noqa: RUF005
    # A program that executes another one in its place (`os.execv`) keeps its id.
    is_first = bool(launcher) and first in ("", str(os.getpid()))
    if is_first:
        os.environ[FIRST] = "%s:%d:%s" % (launcher, os.getpid(), output)
    # The first function that is registered is the last one to run: after all that the program does at its end.
    atexit.register(_at_exit, os.getpid() if is_first else 0, launcher)


def _at_exit(first, launcher):  # type: (int, str) -> None
    try:
        launched = sys.modules.get("rollout_trace.process.launched")
        if getattr(launched, "is_started", False):
            launched.end()  # type: ignore[union-attr]
        if os.getpid() != first:
            return
        if getattr(launched, "is_started", False) or os.path.exists(left_by_children()):
            _launched().report()
        elif str(first) == launcher and os.environ.get(QUIET) is None and sys.stderr is not None:
            text = NOTHING
            if problems:
                text = "rollout-trace: nothing was recorded: %s (%s)." % (problems[0], sys.executable)
            sys.stderr.write(text + "\n")
    except Exception:
        # Such as a closed stream. There is nobody left to be told.
        pass


def left_by_children():  # type: () -> str
    """The file in which further processes of this run count what they have recorded, for the first one to print."""
    return "%s.%s.run" % (os.environ.get(FIRST, "").split(":", 2)[-1], os.environ.get(RUN, "")[:8])


def _leave_path():  # type: () -> None
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if entry != folder]
    sys.path_importer_cache.pop(folder, None)


if __name__ == "sitecustomize":
    try:
        _leave_path()
        _boot()
    except Exception:
        # Nothing is recorded then, and the program runs.
        pass
    # The one that would have been run without this one: it becomes `sys.modules["sitecustomize"]`, and its errors are
    # printed by `site` as they would be. Without one, the ImportError says to `site` that there is none.
    del sys.modules["sitecustomize"]
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
