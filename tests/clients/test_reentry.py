"""What happens in the middle of something else: collections of garbage, forks, exceptions that cannot be told."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

import rollout_trace as rt
from rollout_trace import call as call_module
from rollout_trace.testing import ScriptedServer

MESSAGES: list[Any] = [{"role": "user", "content": "hi"}]


def ask(client: Any, **more: Any) -> Any:
    return client.chat.completions.create(model="m", messages=MESSAGES, **more)


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


def test_where_two_recordings_could_be_meant_neither_is_guessed(tmp_path: Path) -> None:
    """The trajectory is named when the block ends, not put into somebody else's file."""

    def work() -> None:
        with rt.trajectory("lost"):
            pass

    def run() -> None:
        with rt.recording(tmp_path / "a.jsonl"), rt.recording(tmp_path / "b.jsonl"):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()

    with pytest.raises(rt.WriteError, match="1 trajectories could not be written"):
        run()
    assert [list(rt.read(tmp_path / name)) for name in ("a.jsonl", "b.jsonl")] == [[], []]


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
