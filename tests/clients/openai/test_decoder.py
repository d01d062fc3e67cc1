"""Where calls are decoded: small ones by the caller of a later one, large ones by a thread of their own."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

import rollout_trace as rt
from rollout_trace.record import decoder as call_module
from rollout_trace.record.call import Call
from rollout_trace.record.decoder import Decoder, decoder
from rollout_trace.record.settings import Settings
from rollout_trace.record.state import log_of
from rollout_trace.testing import Reply, ScriptedServer

MESSAGES: list[Any] = [{"role": "user", "content": "hi"}]
LARGE = "x" * (call_module.LARGE + 1)


def ask(client: Any, **more: Any) -> Any:
    return client.chat.completions.create(model="m", messages=MESSAGES, **more)


def answer(request: Any) -> Reply:
    return Reply("fine", extra={"padding": LARGE} if request.get("seed") else {})


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAI]:
    monkeypatch.setattr(call_module, "PENDING_LIMIT", 0)
    with ScriptedServer(answer) as server, OpenAI(base_url=server.base_url, api_key="x") as plain:
        yield rt.wrap_openai(plain, engine="vllm")


def test_no_call_waits_while_another_of_its_trajectory_is_decoded(client: OpenAI) -> None:
    """Calls begin and end in a trajectory whose log is busy decoding."""

    def work() -> None:
        for _ in range(3):
            ask(client)

    with rt.trajectory() as trajectory:
        log: Any = log_of(trajectory)
        with log.completing:
            worker = threading.Thread(target=rt.propagate(work), daemon=True)
            worker.start()
            worker.join(30)
            assert not worker.is_alive()
            assert decoder.backlog > 0
        assert [step.status for step in trajectory.steps] == ["ok"] * 3


def test_a_large_call_is_decoded_by_the_thread(client: OpenAI) -> None:
    """The caller goes on before it is decoded; whoever reads the steps waits for it."""
    with rt.trajectory() as trajectory:
        log: Any = log_of(trajectory)
        with log.completing:
            ask(client, seed=1)
            assert decoder.backlog > call_module.LARGE
            ask(client)
        assert [step.completion and step.completion.content for step in trajectory.steps] == ["fine"] * 2


def test_past_its_backlog_callers_decode_large_calls_too(client: OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes that wait for the thread are bounded."""
    monkeypatch.setattr(call_module, "BACKLOG_LIMIT", call_module.LARGE)
    with rt.trajectory() as trajectory:
        ask(client, seed=1)
        assert [call.steps is not None for call in log_of(trajectory)._calls] == [True]  # type: ignore[union-attr]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_has_a_thread_of_its_own(client: OpenAI) -> None:
    """The thread of the process that was forked does not exist in the child."""
    with rt.trajectory():
        ask(client, seed=1)
    child = os.fork()
    if child == 0:
        done = threading.Event()
        started = decoder.submit(Call(Settings(lambda *_: None), "x"), 1, done.set)
        os._exit(0 if started and done.wait(30) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_at_the_end_of_the_interpreter_the_thread_ends() -> None:
    """What is being decoded is finished, what waits is left to its readers, and nothing more is taken."""
    one, began, go_on, ran = Decoder(), threading.Event(), threading.Event(), []
    call: Any = None

    def first() -> None:
        began.set()
        go_on.wait(30)
        ran.append("first")

    one.submit(call, 1, first)
    one.submit(call, 1, lambda: ran.append("second"))
    began.wait(30)
    stopping = threading.Thread(target=one._stop)
    stopping.start()
    while not one._stopped:
        pass
    go_on.set()
    stopping.join(30)
    assert (ran, one.submit(call, 1, lambda: None)) == (["first"], False)


def test_a_failure_of_one_task_is_not_the_end_of_the_thread() -> None:
    """Later tasks run all the same."""
    one, done = Decoder(), threading.Event()
    call: Any = None

    def fails() -> None:
        raise ValueError("bad")

    one.submit(call, 1, fails)
    one.submit(call, 1, done.set)
    assert done.wait(30)
    one._stop()
    assert one.backlog == 0
