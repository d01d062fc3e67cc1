"""What ``rollout-trace run`` leaves as it is: exit code, output and errors of a program equal those without it."""

from __future__ import annotations

import os
import re
import stat
import sys
from pathlib import Path

import pytest

from tests.amount import some

from .running import LIBRARY, Done, execute, python, run

LIBRARIES = {"nothing": "", "an HTTP library": "import httpx\n"}
"""Without one, the recorder is not started."""
PROGRAMS = {
    "what a script sees": """
import os, sys
print(__name__, __file__, sys.argv, sys.path, sorted(globals()), __builtins__, sys.flags, os.getcwd())
print(sys.excepthook is sys.__excepthook__, "sitecustomize" in sys.modules, sys.gettrace())
""",
    "what it is given": "import sys; print(sys.stdin.read(), sys.argv[1:])",
    "an uncaught exception": "def inner():\n    raise ValueError('mine')\ninner()",
    "an exception with a cause": "try:\n    1 / 0\nexcept Exception as error:\n    raise KeyError('x') from error",
    "KeyboardInterrupt": "import os, signal\nos.kill(os.getpid(), signal.SIGINT)",
    "a raised KeyboardInterrupt": "raise KeyboardInterrupt",
    "sys.exit(3)": "import sys; sys.exit(3)",
    "sys.exit of a text": "import sys; sys.exit('a text')",
    "os._exit(4)": "import os; print('x', flush=True); os._exit(4)",
    "SIGTERM": "import os, signal, time\nos.kill(os.getpid(), signal.SIGTERM); time.sleep(60)",
    "a SIGTERM that it handles": """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(7))
os.kill(os.getpid(), signal.SIGTERM)
""",
    "an error of its syntax": "a = = 1",
    "functions for its end": "import atexit; atexit.register(print, 'one'); atexit.register(print, 'two')",
    "a thread that raises": """
import threading
def work(): raise ValueError("mine")
thread = threading.Thread(target=work, name="worker"); thread.start(); thread.join()
""",
    "a function for uncaught exceptions": """
import sys
sys.excepthook = lambda kind, error, traceback: print("mine", kind, error)
1 / 0
""",
    "SIGPIPE of what it starts": """
import subprocess, sys
print(subprocess.run(["sh", "-c", "trap"], capture_output=True, restore_signals=False).stdout)
""",
    "a child of multiprocessing": """
import multiprocessing, sys
def work(queue): queue.put((sys.argv, __name__))
if __name__ == "__main__":
    for method in ("spawn", "fork", "forkserver"):
        context = multiprocessing.get_context(method)
        queue = context.SimpleQueue()
        process = context.Process(target=work, args=(queue,))
        process.start()
        print(method, queue.get())
        process.join()
        print(process.exitcode)
""",
    "a child that fails": """
import multiprocessing, sys
def work(): raise ValueError("mine")
if __name__ == "__main__":
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start(); process.join(); sys.exit(process.exitcode + 5)
""",
}


@pytest.mark.parametrize("library", some(LIBRARIES, next(iter(LIBRARIES))))
@pytest.mark.parametrize("name", some(PROGRAMS, *list(PROGRAMS)[::2]))
def test_a_script_runs_as_without_it(name: str, library: str, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(LIBRARIES[library] + PROGRAMS[name])
    args = ["agent.py", "-o", "x", "--", "-q", "--help"]
    plain, ours = (_comparable(one(tmp_path, *args, stdin="in")) for one in (python, _quietly))
    assert ours == plain
    assert os.listdir(tmp_path) == ["agent.py"] or sorted(os.listdir(tmp_path)) == ["__pycache__", "agent.py"]


def _quietly(folder: Path, *args: str, stdin: str = "") -> Done:
    return run(folder, "-q", *args, stdin=stdin)


def _comparable(done: Done) -> Done:
    return Done(done.code, *(re.sub(r"Process-\d+|0x[0-9a-f]+", "...", text) for text in done[1:]))


@pytest.mark.parametrize(
    "args",
    [
        ["-c", "import sys; print(sys.argv, sys.path[0], __name__)", "a", "-q"],
        ["-m", "module", "a", "-q"],
        ["-m", "package", "a", "-q"],
        ["-m", "package.inner", "a"],
        ["-m", "package.fails"],
        ["-m", "json.tool", "--sort-keys"],
        ["folder", "a"],
        ["-", "a"],
    ],
    ids=lambda args: " ".join(args[:2])[:20],
)
def test_other_ways_to_name_a_program(args: list[str], tmp_path: Path) -> None:
    shown = "import sys; print(sys.argv, sys.path[0], __name__, __spec__ and __spec__.name)"
    for name in ("module.py", "package/__main__.py", "package/inner.py", "folder/__main__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(shown)
    (tmp_path / "package/__init__.py").write_text("")
    (tmp_path / "package/fails.py").write_text("import no_such_module")
    stdin = '{"b": 1, "a": 2}'
    assert _quietly(tmp_path, *args, stdin=stdin) == python(tmp_path, *args, stdin=stdin)


def test_a_command_is_executed_by_its_own_interpreter(tmp_path: Path) -> None:
    for name, first in (("python-tool", f"#!{sys.executable} -I"), ("shell-tool", "#!/bin/sh")):
        body = "import sys; print(sys.argv, sys.flags.isolated)" if "python" in first else 'echo "$0" "$@"; exit 9'
        (tmp_path / name).write_text(f"{first}\n{body}\n")
        (tmp_path / name).chmod(stat.S_IRWXU)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    for tool in ("python-tool", "shell-tool", "./python-tool"):
        plain = execute(tmp_path, [tool, "a", "-q"], PATH=path) if "/" in tool else execute(
            tmp_path, ["sh", "-c", f'exec {tool} "$@"', "sh", "a", "-q"], PATH=path
        )  # fmt: skip
        assert run(tmp_path, "-q", tool, "a", "-q", PATH=path) == plain


def test_a_command_of_this_environment_is_found_where_that_is_not_active(tmp_path: Path) -> None:
    done = run(tmp_path, "-q", "pytest", "--version", PATH="/usr/bin:/bin")
    assert (done.code, done.out.partition(" ")[0]) == (0, "pytest")


def test_a_sitecustomize_that_is_there_runs_too(tmp_path: Path) -> None:
    path = _with_sitecustomize(tmp_path, "import sys; print('mine', __name__, __file__)")
    (tmp_path / "agent.py").write_text("import sys; print(sys.modules['sitecustomize'].__file__, sys.path)")
    plain, ours = python(tmp_path, "agent.py", PYTHONPATH=path), run(tmp_path, "-q", "agent.py", PYTHONPATH=path)
    # The command is run by a Python itself.
    first, _, rest = ours.out.partition("\n")
    assert (ours.code, rest, ours.err) == plain
    assert first == f"mine sitecustomize {tmp_path}/site/sitecustomize.py"


def _with_sitecustomize(folder: Path, body: str) -> str:
    """A ``PYTHONPATH`` with such a module."""
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(body)
    return f"{folder / 'site'}{os.pathsep}{LIBRARY}"


@pytest.mark.parametrize("body", ["1 / 0", "raise ImportError('mine')", "raise ImportError(name='sitecustomize')"])
def test_a_sitecustomize_that_fails_is_reported_by_python_as_ever(body: str, tmp_path: Path) -> None:
    path = _with_sitecustomize(tmp_path, body)
    (tmp_path / "agent.py").write_text("import sys; print('sitecustomize' in sys.modules)")
    plain, ours = python(tmp_path, "agent.py", PYTHONPATH=path), run(tmp_path, "-q", "agent.py", PYTHONPATH=path)
    # The command is run by a Python itself.
    assert ours == (plain.code, plain.out, 2 * plain.err)


def test_without_the_library_the_program_runs_unrecorded(tmp_path: Path) -> None:
    (tmp_path / "httpx.py").write_text("print('imported', flush=True)")
    (tmp_path / "agent.py").write_text("import sys; sys.modules['rollout_trace'] = None\nimport httpx\nprint('ran')")
    done = run(tmp_path, "agent.py")
    assert (done.code, done.out) == (0, "imported\nran\n")
    assert re.fullmatch(r"rollout-trace: nothing was recorded: ModuleNotFoundError: .*rollout_trace.*\n", done.err)
