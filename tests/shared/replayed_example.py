"""An example's agent, tested as its users would: recorded once by the pytest plugin, then replayed without a network.

For the tests of the core and for those of the integrations, each in an environment of its own.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edited import edit
from no_network import GUARD

import rollout_trace as rt
from rollout_trace.testing import ScriptedServer

# In the agent's own process: the guard, and the pieces in which answers reach its client, as it reads them.
CONFTEST = (
    GUARD
    + """
import importlib, itertools, json

numbers = itertools.count()

def watch(response):
    sync, parts = response.iter_raw, response.aiter_raw

    def log(number, answer, piece):
        line = [number, answer.request.content.decode(), "transfer-encoding" in answer.headers, len(piece)]
        with open(os.environ["PIECES"], "a") as file:
            file.write(json.dumps(line) + "\\n")

    def iter_raw(self, *arguments, **named):
        number = next(numbers)
        for piece in sync(self, *arguments, **named):
            log(number, self, piece)
            yield piece

    async def aiter_raw(self, *arguments, **named):
        number = next(numbers)
        async for piece in parts(self, *arguments, **named):
            log(number, self, piece)
            yield piece

    response.iter_raw, response.aiter_raw = iter_raw, aiter_raw

for name in ("httpx", "httpx2"):
    try:
        watch(importlib.import_module(name).Response)
    except ImportError:
        pass
"""
)
# Of a copy of the test in a folder of its own, in the same process.
CHANGED = "with_a_change"  # Tests are collected by their names, and these after test_agent.py.
CHANGED_CONFTEST = """
import os, sys

import pytest

del sys.modules["agent"]
sys.path.insert(0, os.path.dirname(__file__))

@pytest.fixture(autouse=True)
def files_of_its_own(monkeypatch):
    for name in ("OUT", "PIECES"):
        monkeypatch.setenv(name, os.path.join(os.path.dirname(__file__), name.lower() + ".jsonl"))
"""
KEY = "sk-proj-0123456789abcdefghijklmnop"
_USUAL = ("-p", "no:cacheprovider", "-p", "no:asyncio", "--import-mode=importlib")
_OF_ONE_RUN = {
    "ended_at",
    "duration",
    "environment",
    "exchanges",
    "latency",
    "started_at",
    "time_to_first_token",
}
"""Fields that no two runs have in common: times, and what is known of the process."""
_NEW_ID = re.compile(
    r'"(?:lc_run--)?(?:[0-9a-f]{24}(?:\.\d+)?|[0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"'
)
"""Ids that a run makes. Those of answers and tool calls are the server's, and longer."""


@dataclass(frozen=True)
class Change:
    """What a part of the example becomes, and patterns for lines of the failure that comes of it, in their order."""

    old: str
    new: str
    named: Sequence[str]


@dataclass(frozen=True)
class Run:
    """What one run of pytest left behind."""

    result: pytest.RunResult
    trajectories: list[rt.Trajectory]
    """Those that the plugin kept."""
    written: list[rt.Trajectory]
    """Those that the program wrote to its own file."""
    pieces: list[tuple[str, tuple[int, ...]]]
    """The body of each request, and the sizes of the pieces of its answer that the client read."""
    refused: list[str]
    """What asked for the network."""


@dataclass
class Example:
    """A folder with an example in it, as `agent.py`, and its tests.

    Args:
        pytester: of the test.
        source: the example's file.
        test: the text of its tests. They find the address of the model server in MODEL_URL, and in OUT the name of the
            file that the program may write.
        tests: how many tests that makes.
        warnings: filters for what the framework itself warns of.
        url: the address of the model server that was recorded.
    """

    pytester: pytest.Pytester
    source: Path
    test: str
    tests: int
    warnings: Sequence[str] = ()
    url: str = ""

    def __post_init__(self) -> None:
        filters = "".join(f"\n    {one}" for one in ("error", *self.warnings))
        self.pytester.makeini(f"[pytest]\npythonpath = .\nfilterwarnings ={filters}\n")
        self.pytester.makeconftest(CONFTEST)
        shutil.copyfile(self.source, self.pytester.path / "agent.py")
        self.pytester.makepyfile(test_agent=self.test)

    def add_changed(self, change: Change) -> None:
        """Adds a copy of the test and its cassettes, with a changed agent."""
        folder = self.pytester.mkdir(CHANGED)
        for name in ("agent.py", "test_agent.py"):
            shutil.copyfile(self.pytester.path / name, folder / name)
        shutil.copytree(self.pytester.path / "cassettes", folder / "cassettes")
        edit(folder / "agent.py", change.old, change.new)
        (folder / "conftest.py").write_text(CHANGED_CONFTEST, encoding="utf-8")

    def run(self, name: str, *options: str) -> Run:
        """Runs the test in a process of its own, whose files are kept under a name.

        Args:
            name: of the run.
            options: of pytest.
        """
        folder = self.pytester.mkdir(name)
        out, pieces, refused = folder / "out.jsonl", folder / "pieces", folder / "refused"
        with pytest.MonkeyPatch.context() as patch:
            for variable in ("CI", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
                patch.delenv(variable, raising=False)
            for variable, value in {"MODEL_URL": self.url, "OUT": out, "PIECES": pieces, "REFUSED": refused}.items():
                patch.setenv(variable, str(value))
            kept = (f"--rollout-dir={folder / 'kept'}", "--rollout-keep=all")
            result = self.pytester.runpytest_subprocess(*_USUAL, *kept, *options)
        return Run(
            result,
            list(rt.read(sorted((folder / "kept").glob("test_agent*")))),
            list(rt.read(out)) if out.exists() else [],
            _answers(pieces),
            _lines(refused),
        )

    def cassettes(self) -> list[rt.Trajectory]:
        """What was recorded."""
        return [one for path in sorted((self.pytester.path / "cassettes").rglob("*.jsonl")) for one in rt.read(path)]


def load(source: Path) -> Any:
    """An example as a module."""
    spec = spec_from_file_location(f"example_{source.parent.name.replace('-', '_')}", source)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def assert_replays(
    example: Example, script: Callable[..., Any], change: Change | None = None, *, left_out: Collection[str] = ()
) -> None:
    """Records the example from a scripted server, and replays it once that is closed: everything is the same.

    Args:
        example: what is run.
        script: of the server.
        change: of the agent: replayed with it its tests fail, whatever the framework makes of the error.
        left_out: names of fields with ids that the framework makes in each run.
    """
    recorded = _record(example, script)
    if change is not None:
        example.add_changed(change)
    # Both in one process: importing its framework is most of what a run takes.
    replayed = example.run("replayed")
    replayed.result.assert_outcomes(passed=example.tests, failed=example.tests if change else 0)
    if change is not None:
        replayed.result.stdout.fnmatch_lines(change.named)
    assert (recorded.refused, replayed.refused) == ([], [])
    assert told(replayed.trajectories, left_out) == told(recorded.trajectories, left_out)
    assert told(replayed.written, left_out) == told(recorded.written, left_out)
    exchanges = [one for trajectory in example.cassettes() for one in trajectory.exchanges]
    in_cassette = [_pieces(one.request.decode(), one.chunked, one.chunk_sizes) for one in exchanges]
    assert any(one.chunked and len(one.chunk_sizes) > 3 for one in exchanges)
    assert sorted(recorded.pieces) == sorted(replayed.pieces)
    for (body, read), (request, sent) in zip(sorted(recorded.pieces), sorted(in_cassette), strict=True):
        assert body == request
        # Without those that came only because of what was asked of the engine.
        assert 0 < sum(read) <= sum(sent)


def _record(example: Example, script: Callable[..., Any]) -> Run:
    """Records from a server, which is closed then."""
    with ScriptedServer(script, chunk_tokens=3) as server:
        example.url = server.base_url
        recorded = example.run("recorded", "--replay=record")
        recorded.result.assert_outcomes(passed=example.tests)
        server.wait_idle()
        answers = [one.response_body for one in server.requests]
    steps = [step for trajectory in recorded.trajectories for step in trajectory.steps]
    assert len(steps) == len(answers) > 1
    assert {(step.status, step.token_source) for step in steps} == {("ok", "engine")}
    assert sorted(_list(step.completion_token_ids) for step in steps) == sorted(map(_ids_in, answers))
    assert all(len(_list(step.logprobs)) == len(_list(step.completion_token_ids)) > 0 for step in steps)
    for path in (example.pytester.path / "cassettes").rglob("*.jsonl"):
        text = path.read_text(encoding="utf-8")
        assert not any(secret in text for secret in (KEY, "127.0.0.1", str(example.pytester.path)))
    return recorded


def told(trajectories: Iterable[rt.Trajectory], left_out: Collection[str] = ()) -> list[Any]:
    """All that trajectories say, without times; the ids that a run makes are numbered.

    They are in the order of what was asked: those of threads end in any.
    """
    skipped = {*_OF_ONE_RUN, *left_out}
    found = sorted(json.dumps([one.name, _plain(one, skipped)], default=str) for one in trajectories)
    ordered = sorted(found, key=lambda text: _NEW_ID.sub("", text))
    numbers: dict[str, str] = {}
    text = _NEW_ID.sub(
        lambda id: numbers.setdefault(id[0], f'"id {len(numbers)}"'), json.dumps([json.loads(one) for one in ordered])
    )
    return list(json.loads(text))


def _plain(value: Any, skipped: Collection[str]) -> Any:
    """A value as JSON's, without the fields that are skipped."""
    if dataclasses.is_dataclass(value):
        fields = (one.name for one in dataclasses.fields(value))
        return {
            name: _plain(getattr(value, name), skipped) for name in fields if name[0] != "_" and name not in skipped
        }
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(name): _plain(one, skipped) for name, one in value.items() if name not in skipped}
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        return [_plain(one, skipped) for one in value]
    return value


def _answers(path: Path) -> list[tuple[str, tuple[int, ...]]]:
    """Each answer that a client read, from the log of its pieces."""
    lines = [json.loads(line) for line in _lines(path)]
    answers = {number: (body, chunked) for number, body, chunked, _ in lines}
    return [_pieces(*answers[one], [size for number, _, _, size in lines if number == one]) for one in answers]


def _pieces(body: str, chunked: bool, sizes: Sequence[int]) -> tuple[str, tuple[int, ...]]:
    """A request, and the pieces of its answer. Without chunks they are what there is when one looks: chance."""
    return body, tuple(sizes) if chunked else (sum(sizes),)


def _ids_in(body: bytes) -> list[int]:
    """The ids in an answer's bytes, read without the recorder's code."""
    text = body.decode()
    parts = [line[6:] for line in text.splitlines() if line.startswith("data: {")] or [text]
    choices = [choice for part in parts for choice in json.loads(part)["choices"]]
    return [token for choice in choices for token in choice.get("token_ids") or ()]


def _list(array: Any) -> list[Any]:
    return [] if array is None else list(array.tolist())


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []
