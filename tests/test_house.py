"""Imports lead one way through the house; the check that says so finds what does not; old paths still work."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import rollout_trace as rt

from . import house

PACKAGE = house.ROOT / house.PACKAGE


def planted(folder: Path, **files: str) -> dict[str, frozenset[str]]:
    """The graph of a package with these files; ``record__call`` is ``record/call.py``."""
    package = folder / house.PACKAGE
    for name, text in files.items():
        path = package / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return house.graph_of(package)


@functools.lru_cache
def own_graph() -> house.Graph:
    return house.graph_of(PACKAGE)


def test_no_import_leads_upward_or_around() -> None:
    graph = own_graph()
    assert house.upward(graph) == []
    assert house.circles(graph) == []


def test_every_folder_is_a_room_and_every_door_is_used() -> None:
    graph = own_graph()
    assert {house.room_of(module) for module in graph} == set(house.ROOMS)
    assert {door for door in house.DOORS if door[1] not in graph[door[0]]} == set()


def test_the_house_stays_within_its_budget() -> None:
    assert house.over_budget(PACKAGE) == []
    assert len(house.DOORS) <= 6
    assert len(rt.__all__) <= house.PUBLIC_NAMES


def test_a_room_that_outgrows_its_budget_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted(tmp_path, wire__chat="a\nb\n", wire__sse="c\n", record__call="d\n")
    monkeypatch.setattr(house, "BUDGET", {**dict.fromkeys(house.ROOMS, (1, 1)), "wire": (3, 1)})
    assert house.over_budget(tmp_path / house.PACKAGE) == ["wire: (3, 2), budget (3, 1)"]


def test_integrations_import_one_module_and_no_circle() -> None:
    sources = sorted(house.ROOT.glob("integrations/*/rollout_trace_*"))
    assert len(sources) >= 3
    assert [line for source in sources for line in house.foreign(source)] == []
    assert [line for source in sources for line in house.circles(house.graph_of(source))] == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from rollout_trace.clients.tee import tee", ["record.call -> clients.tee"]),
        ("from rollout_trace.clients import tee", ["record.call -> clients.tee"]),
        ("import rollout_trace.clients.tee", ["record.call -> clients.tee"]),
        ("def f():\n    from rollout_trace.clients.tee import tee", ["record.call -> clients.tee"]),
        ("if TYPE_CHECKING:\n    from rollout_trace.clients.tee import tee", ["record.call -> clients.tee"]),
        ("from rollout_trace.wire._own import x", ["record.call -> wire._own"]),
        ("from rollout_trace.frames import Frame", ["record.call -> frames"]),
        ("from ..clients.tee import tee", ["record.call -> clients.tee"]),
        ("from ..wire import _own", ["record.call -> wire._own"]),
        ("from rollout_trace.wire import chat\nimport rollout_trace_else, json", []),
        ("from rollout_trace import _lazy", []),
    ],
)
def test_an_import_that_leads_upward_is_found(tmp_path: Path, text: str, found: list[str]) -> None:
    graph = planted(
        tmp_path,
        record__call=text,
        clients__tee="",
        wire__chat="",
        wire___own="",
        frames="",
        _lazy="",
        wire____init__="",
    )
    assert house.upward(graph) == found
    assert house.circles(graph) == []


def test_a_circle_is_found(tmp_path: Path) -> None:
    graph = planted(
        tmp_path,
        record__call="from rollout_trace.record import log",
        record__log="if TYPE_CHECKING:\n    from rollout_trace.record.join import join_frames_with_calls",
        record__join="from rollout_trace.record.call import Call",
        record__other="from rollout_trace.record.call import Call",
    )
    assert house.circles(graph) == ["record.call <-> record.join <-> record.log"]
    assert house.upward(graph) == []


def test_what_an_integration_may_not_import_is_found(tmp_path: Path) -> None:
    source = tmp_path / "rollout_trace_mine"
    source.mkdir()
    (source / "hook.py").write_text(
        "import rollout_trace as rt\nfrom rollout_trace.integration import Frame\nfrom rollout_trace import guard\n"
        "from rollout_trace_mine import other\n"
    )
    assert house.foreign(source) == ["rollout_trace_mine -> rollout_trace", "rollout_trace_mine -> rollout_trace.guard"]


CONTRIBUTING = (house.ROOT / "CONTRIBUTING.md").read_text()


def test_the_picture_of_the_house_is_true() -> None:
    lines = re.search(r"```\n package .*?\n(.*?)```", CONTRIBUTING, re.S)
    assert lines is not None
    drawn = {line.split()[0]: line[48:].split() for line in lines[1].splitlines()}
    found = house.rooms_below(own_graph())
    assert list(drawn) == list(found)
    assert drawn == found


def test_the_files_that_it_names_exist() -> None:
    named = re.findall(r"`([\w./-]+/[\w./-]*|[\w-]+\.(?:py|md))`", CONTRIBUTING)
    real = [name for name in named if "NAME" not in name]
    assert len(real) > 40
    places = (house.ROOT, PACKAGE, house.ROOT / "integrations")
    assert [name for name in real if not any((place / name).exists() for place in places)] == []


@pytest.mark.parametrize("change", ["engine", "protocol", "client", "exporter", "framework", "field", "command"])
def test_there_is_a_recipe_for_each_kind_of_change(change: str) -> None:
    assert re.search(rf"^\*\*An? {change}\b", CONTRIBUTING, re.M)


@pytest.mark.parametrize("room", [room for room in house.ROOMS if room != "ground"])
def test_each_folder_says_what_of_it_is_public(room: str) -> None:
    text = import_module(f"rollout_trace.{room}").__doc__ or ""
    assert re.search(r"^(Internal|Public)[:,]", text, re.M), text


@pytest.mark.parametrize("room", [room for room in house.ROOMS if room != "ground"])
def test_each_room_has_a_readme_that_names_files_that_exist(room: str) -> None:
    text = (PACKAGE / room / "README.md").read_text()
    assert "**Promises**" in text
    assert "**Must not know**" in text
    named = re.findall(r"`([\w/*]+\.(?:py|md))`", text)
    assert [
        name
        for name in named
        if "NAME" not in name and not any([*(PACKAGE / room).glob(name), *PACKAGE.glob(name), *house.ROOT.glob(name)])
    ] == []


@pytest.mark.more
def test_the_check_is_a_command() -> None:
    done = subprocess.run([sys.executable, "-m", "tests.house"], cwd=house.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "imports upward: 0\nimports in a circle: 0\n" in done.stdout
    assert "data.trajectory -> train.sequences" in done.stdout


OLD_PATHS = {
    "rollout_trace.frames": ("AgentFrame", "Frame", "ModelFrame", "ToolFrame", "active", "current_scope", "enter",
                             "entered", "guarded", "here"),
    "rollout_trace.grouping": ("Group", "groups", "run_advantages"),
    "rollout_trace.installed": ("About", "Integration", "framework_missing", "integrations"),
    "rollout_trace.engines": ("EngineName",),
    "rollout_trace.export": ("ExportReport",),
    "rollout_trace.wire": ("PROTOCOLS", "decode"),
}  # fmt: skip
"""What the documentation has named before, and where."""


MOVED = {
    "clients": "ProbeReport",
    "collection": "CallTotals CollectSummary Executor Job Outcome PassRate Percentiles Progress",
    "data": "Attempt ErrorInfo ExactTurn ExtraIssue PolicySpan SamplingMask TokenIssue TopTokens",
    "file": "MergeReport ScoreReport",
    "integration": "Integration",
    "process": "Instrumentation",
    "record": "Recovered RecoveryReport Stats",
    "train": "Comparison Drift Finding Group Placeholder RetokenizeReport SequenceOptions SequenceReport Sequences",
}
"""Types that were in `rollout_trace.__all__`, by the room whose package has them."""


def test_what_the_tasks_run_is_there() -> None:
    named = set(re.findall(r"\"((?:tests|benchmarks|examples)/[\w./-]+)\"", (house.ROOT / "noxfile.py").read_text()))
    assert named
    assert [path for path in sorted(named) if not (house.ROOT / path).exists()] == []


@pytest.mark.parametrize("path", OLD_PATHS)
def test_documented_paths_still_work(path: str) -> None:
    module = import_module(path)
    for name in OLD_PATHS[path]:
        assert getattr(module, name) is not None, name


@pytest.mark.parametrize("room", MOVED)
def test_types_are_in_the_packages_of_their_rooms_and_where_they_were(room: str) -> None:
    package = import_module(f"rollout_trace.{room}")
    assert getattr(rt, room) is package
    assert set(MOVED[room].split()) <= set(package.__all__)
    for name in MOVED[room].split():
        assert name not in rt.__all__
        assert getattr(rt, name) is getattr(package, name)


def test_old_paths_give_the_same_objects() -> None:
    from rollout_trace import frames, grouping, installed, integration

    for name in ("AgentFrame", "Frame", "ModelFrame", "ToolFrame", "active", "current_scope", "enter", "guarded"):
        assert getattr(frames, name) is getattr(integration, name), name
    assert installed.About is integration.About
    assert grouping.groups is rt.groups
    assert grouping.run_advantages is rt.run_advantages
    assert rt.frames is frames
