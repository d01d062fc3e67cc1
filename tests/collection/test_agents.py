"""Agents: what may be given, how it is called, and what is refused before any rollout."""

from __future__ import annotations

import asyncio
import functools
import os
import pickle
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from rollout_trace.collection.agents import Agent, agent_of
from rollout_trace.collection.objects import absolute_spec, load_object

ROLLOUT: Any = object()


def plain(task: Any) -> Any:
    return task


def with_rollout(task: Any, rollout: Any) -> Any:
    return task, rollout


def second_is_needed(task: Any, run: Any) -> Any:
    return task, run


def second_has_a_default(task: Any, model: str = "small") -> Any:
    return task, model


def named_with_a_default(task: Any, model: str = "small", rollout: Any = None) -> Any:
    return task, model, rollout


def by_keyword(task: Any, *, rollout: Any, model: str = "small") -> Any:
    return task, rollout


async def asynchronous(task: Any, rollout: Any) -> Any:
    return task, rollout


class Solver:
    made = 0

    def __init__(self, model: str = "small") -> None:
        type(self).made += 1
        self.model = model

    async def rollout(self, task: Any) -> Any:
        return task, self.model

    def other(self, task: Any, rollout: Any) -> Any:
        return task, rollout


class Called:
    async def __call__(self, task: Any, *, rollout: Any) -> Any:
        return task, rollout


class Static:
    @staticmethod
    def rollout(task: Any, rollout: Any) -> Any:
        return task, rollout


class OfClass:
    @classmethod
    def rollout(cls, task: Any) -> Any:
        return task, cls


class NeedsModel:
    def __init__(self, model: str, *, size: int) -> None:
        self.model = model

    def rollout(self, task: Any) -> Any:
        return task, self.model


class WithoutMethod:
    pass


class Abstract(ABC):
    @abstractmethod
    def rollout(self, task: Any) -> Any: ...


def generator(task: Any) -> Iterator[Any]:
    yield task


async def async_generator(task: Any) -> AsyncIterator[Any]:
    yield task


def adds_a_client(function: Callable[..., Any]) -> Callable[[Any], Any]:
    @functools.wraps(function)
    def wrapper(task: Any) -> Any:
        return function("client", task)

    return wrapper


def passes_on(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


@adds_a_client
def with_client(client: str, task: Any) -> Any:
    return client, task


@passes_on
def wrapped(task: Any, rollout: Any) -> Any:
    return task, rollout


def result(agent: Any) -> Any:
    found = agent_of(agent).call("task", ROLLOUT)
    return asyncio.run(found) if asyncio.iscoroutine(found) else found


@pytest.mark.parametrize(
    ("agent", "name", "is_async", "takes_rollout"),
    [
        (plain, "plain", False, False),
        (with_rollout, "with_rollout", False, True),
        (second_is_needed, "second_is_needed", False, True),
        (second_has_a_default, "second_has_a_default", False, False),
        (named_with_a_default, "named_with_a_default", False, True),
        (by_keyword, "by_keyword", False, True),
        (asynchronous, "asynchronous", True, True),
        (lambda task: task, "agent", False, False),
        (functools.partial(second_has_a_default, model="large"), "second_has_a_default", False, False),
        (functools.partial(by_keyword, model="large"), "by_keyword", False, True),
        (functools.partial(functools.partial(asynchronous)), "asynchronous", True, True),
        (Solver, "Solver", True, False),
        (Solver("large"), "Solver", True, False),
        (Solver().rollout, "Solver", True, False),
        (Solver().other, "other", False, True),
        (Called(), "Called", True, True),
        (Static, "Static", False, True),
        (OfClass, "OfClass", False, False),
        (NeedsModel("large", size=1), "NeedsModel", False, False),
        (with_client, "with_client", False, False),
        (wrapped, "wrapped", False, True),
        (str.upper, "upper", False, False),
        (print, "print", False, False),
        ("json:dumps", "dumps", False, False),
        ("asyncio.base_events:BaseEventLoop.get_debug", "get_debug", False, False),
    ],
)
def test_agents_of_every_kind(agent: Any, name: str, is_async: bool, takes_rollout: bool) -> None:
    found = agent_of(agent)
    assert (found.name, found.is_async, found.takes_rollout) == (name, is_async, takes_rollout)
    assert agent_of(found) is found


@pytest.mark.parametrize(
    ("agent", "expected"),
    [
        (plain, "task"),
        (with_rollout, ("task", ROLLOUT)),
        (second_is_needed, ("task", ROLLOUT)),
        (second_has_a_default, ("task", "small")),
        (named_with_a_default, ("task", "small", ROLLOUT)),
        (functools.partial(named_with_a_default, rollout=1), ("task", "small", 1)),
        (functools.partial(named_with_a_default, model="large"), ("task", "large", ROLLOUT)),
        (by_keyword, ("task", ROLLOUT)),
        (asynchronous, ("task", ROLLOUT)),
        (Solver, ("task", "small")),
        (Solver("large"), ("task", "large")),
        (Called(), ("task", ROLLOUT)),
        (Static, ("task", ROLLOUT)),
        (OfClass, ("task", OfClass)),
        (with_client, ("client", "task")),
        (wrapped, ("task", ROLLOUT)),
        (lambda *args: args, ("task",)),
        (lambda task, **named: (task, named), ("task", {})),
        (Mock(return_value=3), 3),
    ],
)
def test_what_agents_are_called_with(agent: Any, expected: Any) -> None:
    assert result(agent) == expected


@pytest.mark.parametrize(
    ("agent", "kind", "message"),
    [
        (lambda: None, TypeError, "takes no positional argument. It is called with a task"),
        (lambda *, task: None, TypeError, "takes no positional argument"),
        (lambda task, rollout, model: None, TypeError, "needs model besides its task and a rollout"),
        (lambda task, one, rollout: None, TypeError, "needs rollout besides"),
        (lambda task, *, key: None, TypeError, "needs key besides .*functools.partial"),
        (generator, TypeError, "the agent generator is a generator function"),
        (async_generator, TypeError, "the agent async_generator is a generator function"),
        (functools.partial(generator), TypeError, "is a generator function"),
        (5, TypeError, r"the agent is 5 \(int\), which cannot be called"),
        (None, TypeError, r"the agent is None \(NoneType\)"),
        (os, TypeError, r"the agent is <module 'os'"),
        (WithoutMethod, TypeError, "the class WithoutMethod, which has no method 'rollout'"),
        (WithoutMethod(), TypeError, "which cannot be called"),
        (NeedsModel, TypeError, "the class NeedsModel, whose constructor needs model, size. Give an instance"),
        (Abstract, TypeError, "the abstract class Abstract"),
        ("agent", ValueError, "'agent' does not name an object"),
        ("agent:", ValueError, "does not name an object"),
        ("my agent:solve", ValueError, "'my agent' in 'my agent:solve' is neither a module"),
        ("agent.txt/x:solve", ValueError, "neither a module"),
        ("jsn:dumps", ImportError, "there is no module 'jsn'. Install it, set PYTHONPATH, or give its file"),
        ("json.dcoder:x", ImportError, "there is no module 'json.dcoder': the package 'json' has no such module"),
        ("json:dump5", ImportError, "json has no 'dump5'. Did you mean dump.*"),
        (
            "json.decoder:JSONDecoder.decod",
            ImportError,
            r"json.decoder.JSONDecoder has no 'decod'. Did you mean decode",
        ),
        ("json:decoder", TypeError, "<module 'json.decoder'.*cannot be called"),
    ],
)
def test_what_is_refused(agent: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        agent_of(agent)


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.fixture(autouse=True)
def _imports_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helper = "def help(task): return 'helped ' + task\n"
    agent = "import helper_of_agent\ndef solve(task): return helper_of_agent.help(task)\n"
    write(tmp_path, {"agents/helper_of_agent.py": helper, "agents/my-agent.py": agent, "agents/json.py": agent})
    monkeypatch.chdir(tmp_path)
    assert result("agents/my-agent.py:solve") == "helped task"
    # The name of a module of Python's: that one stays what it is.
    assert result(f"{tmp_path}/agents/json.py:solve") == "helped task"
    assert sys.modules["json"].__name__ == "json"
    assert load_object("agents/my-agent.py:solve") is load_object(f"{tmp_path}/agents/../agents/my-agent.py:solve")
    assert absolute_spec("agents/my-agent.py:solve") == f"{tmp_path}/agents/my-agent.py:solve"


def test_two_files_of_one_name(tmp_path: Path) -> None:
    write(tmp_path, {f"{name}/agent_twice.py": f"def solve(task): return '{name}'\n" for name in ("one", "two")})
    assert result(f"{tmp_path}/one/agent_twice.py:solve") == "one"
    assert result(f"{tmp_path}/two/agent_twice.py:solve") == "two"


def test_a_file_in_a_package(tmp_path: Path) -> None:
    files = {"a_package/__init__.py": "", "a_package/part.py": "value = 1\n"}
    agent = "from .part import value\nclass Solver:\n    def rollout(self, task): return value\n"
    write(tmp_path, {**files, "a_package/deep/__init__.py": "", "a_package/deep/part.py": "value = 2\n",
                     "a_package/deep/agent.py": agent})  # fmt: skip
    agent_found = agent_of(f"{tmp_path}/a_package/deep/agent.py:Solver")
    assert agent_found.call("task", ROLLOUT) == 2
    assert agent_found.module == "a_package.deep.agent"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import no_such_module\n", r"\(bad_agent.py, line 1\): ModuleNotFoundError: No module named 'no_such_module'"),
        ("x = 1\n\nx / 0\n", r"\(bad_agent.py, line 3\): ZeroDivisionError: division by zero"),
        ("import sys\nsys.exit('usage: ...')\n", r"\(bad_agent.py, line 2\): SystemExit: usage"),
        ("def solve(task:\n", r"SyntaxError: .*bad_agent.py, line 1"),
        ("def solv(task): ...\n", "bad_agent.py has no 'solve'. Did you mean solv"),
    ],
)
def test_modules_that_cannot_be_imported(tmp_path: Path, text: str, message: str) -> None:
    write(tmp_path, {"bad_agent.py": text})
    with pytest.raises(ImportError, match=message):
        agent_of(f"{tmp_path}/bad_agent.py:solve")
    sys.path.insert(0, str(tmp_path))
    with pytest.raises(ImportError, match=message.replace("bad_agent.py has", "bad_agent has")):
        agent_of("bad_agent:solve")


def test_missing_files(tmp_path: Path) -> None:
    write(tmp_path, {"agent.py": ""})
    with pytest.raises(FileNotFoundError, match=r"there is no file .*agnt.py. Did you mean agent.py"):
        agent_of(f"{tmp_path}/agnt.py:solve")
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere"):
        agent_of(f"{tmp_path}/nowhere/agent.py:solve")


def test_a_module_beside_the_program_that_is_not_importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"agent_here.py": "def solve(task): ...\n"})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    with pytest.raises(ImportError, match=r"'agent_here'. It is in the folder .*, which is not on sys.path"):
        agent_of("agent_here:solve")


def test_what_the_history_needs() -> None:
    agent = agent_of(Solver("large"))
    assert agent.describe() == {
        "module": __name__,
        "qualified_name": "Solver",
        "source_file": __file__,
        "arguments_digest": None,
    }
    assert (agent_of(print).source_file, agent_of(print).qualified_name) == (None, "print")
    assert agent_of(wrapped).qualified_name == "wrapped"
    models: list[Any] = ["small", "small", "large", object(), object()]
    digests = {agent_of(functools.partial(second_has_a_default, model=model)).arguments_digest for model in models}
    assert len(digests) == 3
    assert None not in digests


def test_a_class_is_instantiated_once_a_process() -> None:
    class Counted(Solver):
        made = 0

    agents = [agent_of(Counted), agent_of(Counted)]
    assert Counted.made == 0
    results = [asyncio.run(agent.call("task", ROLLOUT)) for agent in agents * 2]
    assert results == [("task", "small")] * 4
    assert Counted.made == 1


IN_A_PROCESS = f"""
import asyncio, pickle, sys
from {__name__} import Solver
data = sys.stdin.buffer.read()
results, Solver.made = [], 0
for _ in range(3):
    found = pickle.loads(data).call("task", None)
    results.append(asyncio.run(found) if asyncio.iscoroutine(found) else found)
print([results, Solver.made])
"""


@pytest.mark.parametrize(
    ("agent", "expected"),
    [
        (plain, "task"),
        (functools.partial(second_has_a_default, model="large"), ("task", "large")),
        (Solver, ("task", "small")),
        (NeedsModel("large", size=1), ("task", "large")),
        (Static, ("task", None)),
    ],
)
def test_agents_go_to_other_processes(agent: Any, expected: Any) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IN_A_PROCESS],
        input=pickle.dumps(agent_of(agent)),
        capture_output=True,
        cwd=Path(__file__).parents[__name__.count(".")],  # Where the module has this name.
        timeout=60,
    )
    assert done.stderr == b""
    assert done.stdout.decode().strip() == repr([[expected] * 3, int(agent is Solver)])


def test_an_instance_is_copied_to_a_process_once() -> None:
    agent = agent_of(NeedsModel("large", size=1))
    pickled = pickle.dumps(agent)
    one, two = pickle.loads(pickled), pickle.loads(pickled)
    assert one is two
    assert isinstance(one, Agent)
    assert pickle.loads(pickle.dumps(one)) is one


def test_a_named_agent_is_found_where_nothing_is_on_the_path(tmp_path: Path) -> None:
    write(tmp_path, {"code/agent_by_name.py": "def solve(task): return 'solved ' + task\n"})
    sys.path.insert(0, str(tmp_path / "code"))
    agents = [agent_of("agent_by_name:solve"), agent_of(f"{tmp_path}/code/agent_by_name.py:solve")]
    program = (
        "import pickle, sys\nfor agent in pickle.load(sys.stdin.buffer): print(agent.call('task', None), agent.name)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=pickle.dumps(agents),
        capture_output=True,
        cwd=tmp_path,
        check=True,
        timeout=60,
    )
    assert done.stdout.decode().splitlines() == ["solved task solve"] * 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_has_an_instance_of_its_own() -> None:
    program = (
        "import os\n"
        "from rollout_trace.collection.agents import agent_of\n"
        "class Agent:\n"
        "    def __init__(self): self.process = os.getpid()\n"
        "    def rollout(self, task): return self.process == os.getpid()\n"
        "agent = agent_of(Agent)\n"
        "print(agent.call(1, None), flush=True)\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    print(agent.call(1, None), flush=True)\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["True", "True"]
