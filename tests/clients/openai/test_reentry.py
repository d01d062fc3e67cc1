"""What happens in the middle of something else: collections of garbage, forks, exceptions that cannot be told."""

from __future__ import annotations

import contextvars
import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

import rollout_trace as rt
from rollout_trace.record import decoder as call_module
from rollout_trace.testing import ScriptedServer

MESSAGES: list[Any] = [{"role": "user", "content": "hi"}]


def ask(client: Any, **more: Any) -> Any:
    return client.chat.completions.create(model="m", messages=MESSAGES, **more)


@pytest.fixture
def client() -> Iterator[OpenAI]:
    with ScriptedServer("hello there") as server, OpenAI(base_url=server.base_url, api_key="x") as plain:
        yield rt.wrap_openai(plain, engine="vllm")


class _Collecting(dict[Any, Any]):
    """Collects garbage while the queue of pending calls is looked through, under its lock."""

    def __iter__(self) -> Any:
        gc.collect()
        return super().__iter__()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_stream_that_the_collector_ends_takes_no_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dropped stream in a cycle is ended wherever the collector happens to run."""
    monkeypatch.setattr(call_module, "PENDING_LIMIT", 100)
    with ScriptedServer("hello there") as server, OpenAI(base_url=server.base_url, api_key="x") as client:
        rt.wrap_openai(client, engine="vllm")
        monkeypatch.setattr(call_module.pending, "_sizes", _Collecting())
        gc.disable()
        try:
            with rt.trajectory() as trajectory:
                stream = ask(client, stream=True)
                next(stream)
                stream.me = stream
                del stream
                worker = threading.Thread(target=rt.propagate(ask), args=(client,), daemon=True)
                worker.start()
                worker.join(30)
                assert not worker.is_alive()
        finally:
            gc.enable()
    assert sorted(step.status for step in trajectory.steps) == ["abandoned", "ok"]


class _CollectingList(list[Any]):
    """Collects garbage while the trajectories of a family are looked through, under a lock."""

    def __iter__(self) -> Any:
        gc.collect()
        return super().__iter__()


@pytest.mark.parametrize("place", ["pending", "family"])
def test_a_trajectory_that_the_collector_closes_waits_for_no_lock(
    place: str, client: OpenAI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that is a generator, and was dropped in a cycle, is closed wherever the collector happens to run."""

    def agent() -> Iterator[None]:
        with rt.trajectory("dropped"):
            ask(client)
            yield

    def work() -> None:
        dropped: list[Any] = [agent()]
        contextvars.copy_context().run(next, dropped[0])
        dropped.append(dropped)
        del dropped
        with rt.trajectory("other") as other:
            if place == "family":
                other._children = _CollectingList()
            ask(client)

    monkeypatch.setattr(call_module, "PENDING_LIMIT", 0 if place == "pending" else call_module.PENDING_LIMIT)
    if place == "pending":
        monkeypatch.setattr(call_module.pending, "_sizes", _Collecting())
    gc.disable()
    try:
        with rt.recording(tmp_path / "runs.jsonl"):
            worker = threading.Thread(target=work, daemon=True)
            worker.start()
            worker.join(30)
            assert not worker.is_alive()
    finally:
        gc.enable()
    assert {t.name: len(t.steps) for t in rt.read(tmp_path / "runs.jsonl")} == {"dropped": 1, "other": 1}


def test_propagate_carries_the_recording_too(tmp_path: Path) -> None:
    """Two recordings at once, each with threads of its own: neither has the other's trajectories."""
    meet = threading.Barrier(2, timeout=30)

    def run(name: str) -> None:
        def work() -> None:
            with rt.trajectory(name):
                pass

        with rt.recording(tmp_path / f"{name}.jsonl"):
            meet.wait()
            threads = [threading.Thread(target=rt.propagate(work)) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            meet.wait()

    runs = [threading.Thread(target=run, args=(name,)) for name in "ab"]
    for one in runs:
        one.start()
    for one in runs:
        one.join()
    for name in "ab":
        assert [t.name for t in rt.read(tmp_path / f"{name}.jsonl")] == [name] * 3


def test_where_two_recordings_could_be_meant_neither_is_guessed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each trajectory that no file has is named in the log; it is no failure of either recording."""

    def work() -> None:
        for _ in range(2):
            with rt.trajectory("lost") as trajectory:
                lost.append(trajectory)

    lost: list[rt.Trajectory] = []
    before = rt.stats().recorder_errors
    with rt.recording(tmp_path / "a.jsonl"), rt.recording(tmp_path / "b.jsonl"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert [list(rt.read(tmp_path / name)) for name in ("a.jsonl", "b.jsonl")] == [[], []]
    said = [record.getMessage() for record in caplog.records if "was not written to a file" in record.getMessage()]
    assert [one.id in text for one, text in zip(lost, said, strict=True)] == [True, True]
    assert all("several recordings are open" in text for text in said)
    assert rt.stats().recorder_errors == before + 2


class Speechless(Exception):
    def __str__(self) -> str:
        raise AttributeError("no words")


def test_an_exception_that_cannot_be_told_is_the_callers_all_the_same(tmp_path: Path) -> None:
    """Its trajectory is written, and it is the exception that leaves the blocks."""
    with rt.recording(tmp_path / "a.jsonl"):
        with pytest.raises(Speechless):
            with rt.trajectory(), rt.tool_run("x"):
                raise Speechless
    (trajectory,) = rt.read(tmp_path / "a.jsonl")
    assert trajectory.status == "failed"
    assert trajectory.error is not None
    assert trajectory.error.type == "Speechless"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_that_leaves_the_block_writes_nothing(tmp_path: Path) -> None:
    """The trajectory is its parent's; a trajectory of the child's own is written, also from another folder."""
    with rt.recording(tmp_path / "a.jsonl"), rt.trajectory("outer"):
        child = os.fork()
        if child == 0:
            try:
                os.chdir("/")
                with rt.trajectory("inner"):
                    pass
                raise SystemExit(0)
            except SystemExit:
                rt.current()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
    assert sorted(t.name for t in rt.read(tmp_path / "a.jsonl")) == ["inner", "outer"]


def test_a_bound_client_stays_bound_when_it_is_wrapped_again() -> None:
    """A framework that wraps what it is given does not move the calls elsewhere."""
    with ScriptedServer("hi") as server, OpenAI(base_url=server.base_url, api_key="x") as client:
        with rt.trajectory("mine") as mine:
            bound = rt.bind(client, mine)
            with rt.trajectory("other") as other:
                ask(rt.wrap_openai(bound, engine="vllm"))
                assert not other.steps
    assert [step.engine for step in mine.steps] == ["vllm"]


@pytest.mark.parametrize("way", ["with_options", "copy"])
def test_a_subclass_of_a_wrapped_class_can_be_bound(way: str) -> None:
    """Its bound copy, and copies of that, record into the trajectory they are bound to, once."""
    with ScriptedServer("hi") as server, OpenAI(base_url=server.base_url, api_key="x") as client:
        kind: Any = type("Mine", (type(rt.wrap_openai(client)),), {})
        with kind(base_url=server.base_url, api_key="x") as own, rt.trajectory("mine") as mine:
            bound = rt.bind(own, mine)
            with rt.trajectory("other") as other:
                ask(bound)
                ask(getattr(bound, way)(timeout=9))
                ask(own)
                ask(rt.unwrap(rt.bind(own, mine)))
    assert isinstance(bound, kind)
    assert ([step.agent for step in mine.steps], len(other.steps)) == (["mine"] * 2, 2)


def classes_from(kind: Any) -> int:
    """Classes that come from a class, at any depth."""
    return sum(1 + classes_from(one) for one in kind.__subclasses__())


def test_binding_leaves_no_class_behind() -> None:
    """Also where nothing collects cycles, as in many trainers: a class is one."""
    with OpenAI(base_url="http://127.0.0.1:9/v1", api_key="x") as client:
        kind: Any = type("Mine", (type(rt.wrap_openai(client)),), {})
        with kind(base_url="http://127.0.0.1:9/v1", api_key="x") as own, rt.trajectory() as trajectory:

            def bind_both() -> None:
                for one in (client, own):
                    rt.bind(one, trajectory)

            gc.collect()
            gc.disable()
            try:
                bind_both()
                once = classes_from(OpenAI)
                for _ in range(100):
                    bind_both()
                assert classes_from(OpenAI) == once
            finally:
                gc.enable()


def test_a_subclass_of_a_wrapped_class_records_once() -> None:
    """Its calls are recorded by the class it comes from."""
    with ScriptedServer("hi") as server, OpenAI(base_url=server.base_url, api_key="x") as client:
        kind: Any = type("Mine", (type(rt.wrap_openai(client)),), {})
        with kind(base_url=server.base_url, api_key="x") as own, rt.trajectory() as trajectory:
            ask(rt.wrap_openai(own))
    assert len(trajectory.steps) == 1


def test_a_client_with_auth_headers_of_its_own_is_left_alone() -> None:
    """An attribute in the place of the property stays what it is."""

    class Mine(OpenAI):
        auth_headers = {"Authorization": "Bearer z"}  # noqa: RUF012

    with ScriptedServer("hi") as server, Mine(base_url=server.base_url, api_key="x") as client, rt.trajectory() as own:
        ask(rt.wrap_openai(client))
    assert [step.status for step in own.steps] == ["ok"]
