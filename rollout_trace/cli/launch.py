"""``rollout-trace run``: checks what it was given, then executes the program, unchanged, in its own place.

It costs one more start of Python, so it imports nothing but ``os`` and ``sys`` on its way.
"""

from __future__ import annotations

import os
import stat
import sys

from rollout_trace.cli.waiting import run_and_report, why_unseen

TYPE_CHECKING = False  # Not from `typing`: importing that takes longer than all of this.
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

FAILED = 2
DEFAULT_OUTPUT = "rollouts.jsonl"
OPTIONS = {
    "-o": "output",
    "--output": "output",
    "--engine": "engine",
    "--name": "name",
    "--task": "task",
    "--reward-from": "reward_from",
    "--cli": "cli",
}
FLAGS = {"-q": "quiet", "--quiet": "quiet", "--exact-turns": "exact_turns"}

_PASSED_ON = ("OUTPUT", "ENGINE", "RUN", "PARENT", "NAME", "TASK", "FIRST", "QUIET", "REWARD_FROM", "REWARD_BEFORE",
              "FORK")  # fmt: skip
"""Variables of a run, without their prefix. Those of an outer run are not those of this one."""


class Refusal(ValueError):
    """A mistake in the command line: one sentence."""


class Given:
    """The command line, taken apart."""

    def __init__(self) -> None:
        self.output = DEFAULT_OUTPUT
        self.engine: str | None = None
        self.name: str | None = None
        self.task: str | None = None
        self.reward_from: str | None = None
        self.cli: str | None = None
        self.quiet = False
        self.exact_turns = False
        self.fork: str | None = None
        """What ``rollout-trace fork`` tells the program."""
        self.program: list[str] = []


def launch(args: Sequence[str]) -> int:
    """Runs a program with the arguments of ``rollout-trace run``. Returns, with 2, only for a mistake in them.

    A program that is not Python is waited for, and recorded here. On Windows all are, and none but Python is recorded.
    """
    try:
        return start(parse(args))
    except Refusal as refusal:
        sys.stderr.write(f"Error: {refusal}\n")
        return FAILED


def start(given: Given) -> NoReturn:
    """Runs the program, as ``launch`` does. Raises Refusal for a mistake in what was given."""
    executable, command = find_program(given.program)
    try:
        output = _checked(given)
    except (ValueError, ImportError) as error:
        raise Refusal(str(error)) from None
    why = None if os.name == "nt" else why_unseen(executable, command)
    if why is not None and given.fork is not None:
        raise Refusal(f"{why}: only the calls of Python programs can be answered from a recording.")
    _execute(executable, command, _environment(given, output, is_waited=why is not None), why, given.cli)


def _checked(given: Given) -> str:
    """Checks options; returns the absolute path of the output. Raises ValueError or ImportError for a mistake."""
    output = check_output(given.output)
    if given.exact_turns and given.engine is None:
        raise Refusal("--exact-turns needs the engine that takes the ids: --engine vllm")
    if given.engine is not None:
        _check_engine(given.engine, exact_turns=given.exact_turns)
    if given.cli is not None:
        from rollout_trace.clients.loopback.programs import program_of

        program_of((), given.cli)
    return output


def parse(args: Sequence[str]) -> Given:
    """The command line, taken apart. Options end at the program, ``-m``, ``-c`` or ``--``."""
    given = Given()
    rest = list(args)
    while rest:
        argument = rest.pop(0)
        if argument == "--" or argument in ("-m", "-c") or not argument.startswith("-") or argument == "-":
            given.program = rest if argument == "--" else [argument, *rest]
            break
        name, equals, value = argument.partition("=")
        if argument in FLAGS:
            setattr(given, FLAGS[argument], True)
            continue
        if name not in OPTIONS or (equals and not name.startswith("--")):
            # `-oFILE`
            name, equals, value = argument[:2], "=", argument[2:]
        if name not in OPTIONS:
            raise Refusal(f"there is no option {argument}; options of the program come after the program.")
        if not equals:
            if not rest:
                raise Refusal(f"{argument} needs a value.")
            value = rest.pop(0)
        setattr(given, OPTIONS[name], value)
    if not given.program:
        raise Refusal("name the program to run. For example: rollout-trace run -o rollouts.jsonl agent.py")
    return given


def find_program(program: Sequence[str]) -> tuple[str, list[str]]:
    """The file to execute for a program, and the arguments to give it, the first of which is its name."""
    first = program[0]
    if first in ("-m", "-c"):
        if len(program) < 2:
            raise Refusal(f"{first} needs a {'module' if first == '-m' else 'program text'}.")
        if first == "-m":
            _check_module(program[1])
        return sys.executable, [sys.executable, *program]
    if first == "-" or _is_for_python(first):
        if first != "-" and not os.access(first, os.R_OK):
            raise Refusal(f"{first} cannot be read: no permission.")
        return sys.executable, [sys.executable, *program]
    if os.sep not in first:
        return _on_path(first), list(program)
    _check_executable(first)
    return first, list(program)


def _is_for_python(path: str) -> bool:
    """Whether Python runs it: a script, an archive or a folder with a ``__main__.py``."""
    if path.endswith((".py", ".pyw", ".pyz")):
        return os.path.isfile(path)
    return os.path.isfile(os.path.join(path, "__main__.py"))


def _check_executable(path: str) -> None:
    if not os.path.exists(path):
        raise Refusal(f"there is no program {path}.")
    if os.path.isdir(path):
        raise Refusal(f"{path} is not a program: a folder needs a __main__.py.")
    if not os.access(path, os.X_OK):
        raise Refusal(f"{path} is not executable; if it is a Python script, run: python {path}")


def _on_path(name: str) -> str:
    """The file of a command: on ``PATH``, else beside this Python, whose environment may not be active."""
    folders = [*os.get_exec_path(), os.path.dirname(sys.executable)]
    endings = os.environ.get("PATHEXT", ".EXE").split(os.pathsep) if os.name == "nt" else []
    for folder in folders:
        for ending in ("", *endings):
            path = os.path.join(folder, name + ending)
            if os.path.isfile(path) and os.access(path, os.X_OK):
                return path
    if os.path.isfile(name):
        raise Refusal(f"there is no program {name} on PATH; the file of this name here is ./{name}")
    where = "" if name.endswith((".py", ".pyw", ".pyz")) else " on PATH"
    raise Refusal(f"there is no program {name}{where}.")


def _check_module(name: str) -> None:
    """Refuses what ``python -m`` would not find, or not run."""
    # As `python -m` has it. This process has the folder of the command there, or the folder it was started in.
    here = [] if getattr(sys.flags, "safe_path", False) else [os.getcwd()]
    before = sys.path
    sys.path = [*here, *sys.path[1:]]
    try:
        found = _is_module(name)
    finally:
        sys.path = before
    if not found:
        raise Refusal(f"this Python ({sys.executable}) has no module {name} that can be run with -m.")


def _is_module(name: str) -> bool:
    """Whether there is such a module, or package with a ``__main__``."""
    spec, path = None, None
    # Without `importlib.util`, whose import takes as long as all the rest, and without importing packages.
    for part in [*_prefixes(name), f"{name}.__main__"]:
        spec = next(filter(None, (finder.find_spec(part, path) for finder in sys.meta_path)), None)
        if spec is None:
            # Packages may change where their modules are.
            return path is not None and _is_found_by_importing(name)
        path = spec.submodule_search_locations
        if path is None:
            return part in (name, f"{name}.__main__")
    return True


def _prefixes(name: str) -> list[str]:
    """Of ``a.b.c``: ``a``, ``a.b`` and ``a.b.c``."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def _is_found_by_importing(name: str) -> bool:
    from importlib.util import find_spec

    try:
        spec = find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = find_spec(f"{name}.__main__")
    except ImportError:
        return False
    except Exception:
        # The package fails when it is imported: Python prints that better.
        return True
    return spec is not None


def check_output(path: str) -> str:
    """The absolute path of the output, refused where it could not be written. Creates nothing."""
    if not path:
        raise Refusal("the output needs the path of a file, such as -o rollouts.jsonl")
    output = os.path.abspath(path)
    if not path.endswith(".jsonl"):
        from rollout_trace.file.compression import compressor
        from rollout_trace.file.writer import check_path

        compressor(check_path(path))
    if os.path.isdir(output) or path.endswith(os.sep):
        raise Refusal(f"the output {path} is a folder; give the path of a file in it.")
    folder = os.path.dirname(output)
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    try:
        if os.path.exists(output):
            _try_to_append(output, path)
        else:
            _try_to_create(folder)
    except OSError as error:
        raise Refusal(f"the output {path} cannot be written: {error.strerror}.") from None
    return output


def _try_to_append(path: str, name: str) -> None:
    if stat.S_ISFIFO(os.stat(path).st_mode) or stat.S_ISSOCK(os.stat(path).st_mode):
        raise Refusal(f"the output {name} is a pipe; give the path of a file.")
    os.close(os.open(path, os.O_WRONLY | os.O_APPEND))


def _try_to_create(folder: str) -> None:
    """Creates a file and deletes it: permissions alone do not show that a file system is read-only."""
    path = os.path.join(folder, f".rollout-trace-{os.getpid()}")
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    os.unlink(path)


def _check_engine(engine: str, *, exact_turns: bool) -> None:
    from rollout_trace.wire.profiles import EngineName

    names = EngineName.__args__  # type: ignore[attr-defined]
    if engine not in names:
        raise Refusal(f"there is no engine {engine!r}; there are {', '.join(names)}.")
    if exact_turns:
        from rollout_trace.wire.engine import Engine

        Engine(engine, exact_turns=True)  # type: ignore[arg-type]


def _environment(given: Given, output: str, *, is_waited: bool) -> dict[str, str]:
    """The variables of the program. The first process of a run is the one that sums it up."""
    environment = {name: value for name, value in os.environ.items() if name not in _names(_PASSED_ON)}
    boot = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "process", "boot")
    own = {
        "OUTPUT": output,
        "RUN": os.urandom(16).hex(),
        "ENGINE": f'{{"name": "{given.engine}", "exact_turns": true}}' if given.exact_turns else given.engine,
        "NAME": given.name,
        "TASK": given.task,
        "FIRST": f"{os.getpid()}:{os.getpid() if is_waited else ''}:{output}",
        "QUIET": "1" if given.quiet else None,
        "FORK": given.fork,
    }
    if given.reward_from is not None:
        own["REWARD_FROM"], own["REWARD_BEFORE"] = _check_reward(given.reward_from)
    environment.update({f"ROLLOUT_TRACE_{name}": value for name, value in own.items() if value is not None})
    before = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = f"{boot}{os.pathsep}{before}" if before else boot
    return environment


def _names(names: Sequence[str]) -> frozenset[str]:
    return frozenset(f"ROLLOUT_TRACE_{name}" for name in names)


def _check_reward(path: str) -> tuple[str, str]:
    """The absolute path of the reward's file, and what marks it as it is now: one of an earlier run is not read."""
    absolute = os.path.abspath(path)
    if not path or os.path.isdir(absolute):
        raise Refusal(f"--reward-from needs the path of a file that the program writes, not {path!r}.")
    try:
        return absolute, str(os.stat(absolute).st_mtime_ns)
    except FileNotFoundError:
        return absolute, ""
    except OSError as error:
        raise Refusal(f"--reward-from {path}: {error.strerror}.") from None


def _execute(
    executable: str, command: Sequence[str], environment: dict[str, str], why: str | None, cli: str | None
) -> NoReturn:
    if os.name == "nt":
        import subprocess

        sys.exit(subprocess.call(list(command), executable=executable, env=environment))
    # `signal` would be a slow import. Python ignores these two, and what is ignored stays so in what is executed.
    import _signal  # type: ignore[import-not-found]

    for number in (_signal.SIGPIPE, _signal.SIGXFSZ):
        _signal.signal(number, _signal.SIG_DFL)
    try:
        if why is not None:
            run_and_report(executable, command, environment, why, cli)
        os.execve(executable, list(command), environment)
    except OSError as error:
        raise Refusal(f"{command[0]} cannot be executed: {error.strerror}.") from None
