"""The history beside an output: what a run leaves there, and what the next one is told."""

from __future__ import annotations

import importlib
import json
import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

import rollout_trace as rt
from rollout_trace import guard
from rollout_trace.collection import history as hashing
from rollout_trace.collection import history as history_module
from rollout_trace.collection.agents import agent_of
from rollout_trace.collection.facts import CallTotals
from rollout_trace.collection.history import Hashes, History, hashes_of, sentences
from rollout_trace.collection.items import TaskItem
from rollout_trace.collection.tally import Tally
from rollout_trace.file.addresses import is_history_file
from rollout_trace.testing import Reply, ScriptedServer

TASKS = [TaskItem(id=str(at), value=at, digest=f"{at:012x}") for at in range(3)]


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    """The file of an agent."""
    path = tmp_path / "agents.py"
    path.write_text("def solve(task):\n    return 1\n\n\ndef other(task):\n    return 1\n")
    return path


def hashes(agent: Path, tasks: Sequence[TaskItem] = TASKS, name: str = "solve", **settings: Any) -> Hashes:
    importlib.invalidate_caches()
    return hashes_of(agent_of(f"{agent}:{name}"), list(tasks), {"samples": 4, "timeout": None, **settings})


def summary(run_id: str = "5f0c", calls: int = 1) -> rt.CollectSummary:
    tally = Tally(1)
    tally.usage.add(CallTotals(calls=calls))
    return tally.summary(run_id=run_id, output="x.jsonl", seconds=1.0)


def changes(place: Path, own: Hashes) -> list[str]:
    """Sentences about what differs from the last run at a place. Writes nothing."""
    return sentences(history_module._last(str(place)), own)


def lines(place: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in place.read_text().splitlines()]


def test_a_header_when_something_changes_and_a_line_a_run(tmp_path: Path, agent: Path) -> None:
    place = tmp_path / "runs" / "x.history.jsonl"
    for run_id in ("a", "b"):
        history = History(place)
        assert history.begin(hashes(agent)) == []
        history.end(summary(run_id))
    history = History(place)
    assert len(history.begin(hashes(agent, samples=8))) == 1
    history.end(summary("c"))
    found = lines(place)
    assert [one["kind"] for one in found] == ["header", "run", "run", "header", "run"]
    assert {one["schema"] for one in found} == {"rollout-trace-history/1"}
    run = found[1]
    assert run["run_id"] == "a"
    assert run["config"] == {"samples": 4, "timeout": None}
    assert run["hashes"] == hashes(agent).short() == {k: found[0]["hashes"][k] for k in ("agent", "tasks", "settings")}
    assert run["totals"] == json.loads(json.dumps(summary("a").as_json()))
    assert run["started_at"] <= run["ended_at"]
    assert run["environment"]["rollout_trace"] == rt.__version__
    assert {"host", "python", "packages"} <= run["environment"].keys()
    assert found[4]["config"]["samples"] == 8
    assert changes(place, hashes(agent, samples=8)) == []


def test_a_run_that_called_no_model_leaves_no_line(tmp_path: Path, agent: Path) -> None:
    place = tmp_path / "x.history.jsonl"
    history = History(place)
    history.begin(hashes(agent))
    history.end(summary(calls=0))
    assert [one["kind"] for one in lines(place)] == ["header"]


def test_what_has_changed_is_told(tmp_path: Path, agent: Path) -> None:
    place = tmp_path / "x.history.jsonl"
    assert changes(place, hashes(agent)) == []
    History(place).begin(hashes(agent))
    (header,) = lines(place)
    day = header["at"].replace("T", " ").replace("Z", " UTC")
    assert changes(place, hashes(agent, samples=8, timeout=2.5)) == [
        f"samples is 8; in the run of {day} it was 4",
        f"timeout is 2.5; in the run of {day} it was None",
    ]
    History(place).end(summary())
    last = f"run 5f0c of {lines(place)[1]['started_at'].replace('T', ' ').replace('Z', ' UTC')}"
    assert changes(place, hashes(agent, engine="vllm")) == [f"engine is 'vllm'; in {last} it was not set"]
    tasks = [TASKS[0], TaskItem(id="1", value=0, digest="other"), TaskItem(id="new", value=0, digest="0")]
    assert changes(place, hashes(agent, tasks)) == [f"the tasks are not those of {last}: 1 added, 1 removed, 1 changed"]
    assert changes(place, hashes(agent, TASKS[::-1])) == []
    # A name of the module that depends on its file: the same module, another function.
    (told,) = changes(place, hashes(agent, name="other"))
    assert told.endswith(f":other; in {last} it was {header['hashes']['agent_name']}")
    agent.write_text(agent.read_text() + "# Anything.\n")
    assert changes(place, hashes(agent)) == [
        f"the source of the agent {header['hashes']['agent_name']} differs from that of {last}"
    ]


def test_of_many_tasks_only_one_hash_is_kept(tmp_path: Path, agent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "MOST_TASKS", 2)
    place = tmp_path / "x.history.jsonl"
    History(place).begin(hashes(agent))
    assert lines(place)[0]["hashes"]["task_digests"] is None
    (told,) = changes(place, hashes(agent, TASKS[:2]))
    assert told.startswith("the tasks (2) differ from those of the run of ")
    assert told.endswith(" (3)")


def test_an_agent_without_a_file_cannot_be_compared(tmp_path: Path) -> None:
    space: dict[str, Any] = {"__name__": "notebook"}
    exec("def solve(task):\n    return 1\n", space)
    place = tmp_path / "x.history.jsonl"
    own = hashes_of(agent_of(space["solve"]), TASKS, {})
    assert own.agent is None
    History(place).begin(own)
    assert changes(place, own) == []
    record = lines(place)[0]
    record["hashes"]["agent"] = "0" * 16
    place.write_text(json.dumps(record) + "\n")
    (told,) = changes(place, own)
    assert told.endswith(": one of the two has no source file")


@pytest.mark.parametrize("junk", [b'{"schema": 3, "kind": "run"}\n', b'{"kind": "header"}\n', b"{\n[1]\nnull\n\xff\n"])
def test_a_damaged_history_stops_no_run(
    tmp_path: Path, agent: Path, junk: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told once, and what comes later is added behind it."""
    place = tmp_path / "x.history.jsonl"
    place.write_bytes(junk)
    with caplog.at_level(logging.WARNING, "rollout_trace"):
        for _ in range(2):
            history = History(place)
            assert history.begin(hashes(agent)) == []
            history.end(summary())
    assert len(caplog.messages) == 1
    assert "not lines of a history" in caplog.messages[0]
    assert place.read_bytes().startswith(junk)
    assert [one["kind"] for one in map(json.loads, place.read_bytes()[len(junk) :].splitlines())] == [
        "header", "run", "run",
    ]  # fmt: skip


@pytest.mark.parametrize("foreign", [b"\xff\x00", b"[1]\n3\nnull\n"])
def test_a_foreign_file_of_this_name_stays_as_it_is(
    tmp_path: Path, agent: Path, foreign: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "x.history.jsonl"
    place.write_bytes(foreign)
    with caplog.at_level(logging.WARNING, "rollout_trace"):
        for _ in range(2):
            history = History(place)
            assert history.begin(hashes(agent)) == []
            history.end(summary())
    assert place.read_bytes() == foreign
    assert len(caplog.messages) == 2
    assert caplog.messages[1].startswith(f"the history {place} could not be written: ValueError")


def test_a_history_that_cannot_be_written_stops_no_run(
    tmp_path: Path, agent: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "x.history.jsonl"
    place.mkdir()
    with caplog.at_level(logging.WARNING, "rollout_trace"):
        history = History(place)
        assert history.begin(hashes(agent)) == []
        history.end(summary())
    assert [message.partition(":")[0] for message in caplog.messages] == [
        f"the history {place} could not be read", f"the history {place} could not be written"
    ]  # fmt: skip


def test_a_cut_line_does_not_spoil_the_next(tmp_path: Path, agent: Path) -> None:
    place = tmp_path / "x.history.jsonl"
    History(place).begin(hashes(agent))
    with open(place, "ab") as file:
        file.write(b'{"schema":"rollout-trace-history/1","kind":"ru')
    History(place).end(summary())
    assert json.loads(place.read_bytes().split(b"\n")[2])["kind"] == "run"


def test_runs_at_the_same_time_leave_whole_lines(tmp_path: Path, agent: Path) -> None:
    place = tmp_path / "x.history.jsonl"
    own = hashes(agent)
    History(place).begin(own)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda at: History(place).end(summary(str(at))), range(40)))
    assert {one.get("run_id") for one in lines(place)} == {None, *map(str, range(40))}


def test_keys_of_clients_are_not_in_it(tmp_path: Path, agent: Path) -> None:
    place = tmp_path / "x.history.jsonl"
    key = "sk-" + os.urandom(16).hex()
    client = rt.wrap_openai(openai.OpenAI(api_key=key))
    history = History(place)
    history.begin(hashes(agent, engine=f"key {key}"))
    history.end(summary())
    client.close()
    assert key not in place.read_text()


def test_at_an_address_each_run_has_an_object(agent: Path) -> None:
    pytest.importorskip("fsspec")
    place = f"memory://history-{os.urandom(6).hex()}/runs"
    for run_id, samples in (("a1", 4), ("b2", 4), ("c3", 8)):
        history = History(place)
        told = history.begin(hashes(agent, samples=samples), run_id=run_id)
        assert [text.partition(";")[0] for text in told] == ([] if samples == 4 else ["samples is 8"])
        history.end(summary(run_id))
    from rollout_trace.file.addresses import file_system

    system, folder = file_system(place)
    names = sorted(path.rpartition("/")[2] for path in system.ls(folder, detail=False))
    assert names == ["history-a1.jsonl", "history-b2.jsonl", "history-c3.jsonl"]
    kinds = [[json.loads(line)["kind"] for line in system.cat_file(f"{folder}/{name}").splitlines()] for name in names]
    assert kinds == [["header", "run"], ["run"], ["header", "run"]]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("history.jsonl", True), ("x.history.jsonl", True), ("history-5f0c.jsonl", True),
        ("s3://b/history-5f.jsonl", True), ("x.jsonl", False), ("myhistory.jsonl", False),
        ("history.jsonl.gz", False), ("history-of-rome.jsonl", False),
    ],
)  # fmt: skip
def test_histories_are_recognised_by_their_names(name: str, expected: bool) -> None:
    assert is_history_file(name) is expected


def test_a_file_of_trajectories_with_such_a_name_is_none(tmp_path: Path, agent: Path) -> None:
    with rt.JSONLWriter(tmp_path / "old.history.jsonl") as writer:
        writer.write(rt.Trajectory())
    History(tmp_path / "new.history.jsonl").begin(hashes(agent))
    assert not is_history_file(tmp_path / "old.history.jsonl")
    assert is_history_file(tmp_path / "new.history.jsonl")


def test_a_real_run_leaves_its_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with ScriptedServer(lambda request: Reply("four")) as server:
        with openai.OpenAI(base_url=server.base_url, api_key="key", max_retries=0) as client:
            failures = guard.stats().recorder_errors

            def solve(task: Any) -> None:
                client.chat.completions.create(model="m", messages=[{"role": "user", "content": "2 + 2?"}])

            options: Any = {"output": tmp_path / "x.jsonl", "progress": False}
            first = rt.collect(solve, [{"id": "a"}], **options)
            rt.collect(solve, [{"id": "a"}], **options)
            second = rt.collect(solve, [{"id": "a"}, {"id": "b"}], **options)
    found = lines(tmp_path / "x.history.jsonl")
    # The second call had nothing to do.
    assert [one.get("run_id") for one in found if one["kind"] == "run"] == [first.run_id, second.run_id]
    assert found[-1]["totals"]["made"] == 1
    assert guard.stats().recorder_errors == failures


def test_a_password_in_an_address_is_shown_and_kept_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither on the terminal, nor in the files beside the output, nor in the history, nor in a refusal."""
    fsspec = pytest.importorskip("fsspec")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROLLOUT_TRACE_SPOOL", str(tmp_path / "spool"))
    address = "memory://user:secret@runs/history"
    with ScriptedServer(lambda request: Reply("4")) as server:
        with openai.OpenAI(base_url=server.base_url, api_key="key") as client:

            def solve(task: Any) -> None:
                client.chat.completions.create(model="m", messages=[{"role": "user", "content": "2 + 2?"}])

            for tasks in (["a"], ["a", "b"]):
                rt.collect(solve, tasks, output=address)
    with pytest.raises(FileExistsError) as raised:
        rt.collect(solve, ["a"], output=address, resume=False)
    system, folder = fsspec.core.url_to_fs(address)
    histories = [system.cat_file(name).decode() for name in system.glob(f"{folder}/history-*.jsonl")]
    beside = [path.read_text() for path in tmp_path.rglob("*.json")]
    assert histories
    assert beside
    for text in (*histories, *beside, str(raised.value), *capsys.readouterr()):
        assert "secret" not in text
