"""What an instrumented process warns of: with remedies that are none yet, not those of one that is not instrumented."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

import rollout_trace as rt
from rollout_trace.testing import ScriptedServer
from tests.process.running import CALL_BY_SDK, run


@pytest.fixture
def client() -> Iterator[OpenAI]:
    with ScriptedServer("fine") as server, OpenAI(base_url=server.base_url, api_key="x", max_retries=0) as client:
        yield client


def _ask(client: OpenAI) -> None:
    client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])


def _warnings(caplog: pytest.LogCaptureFixture, part: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if part in record.getMessage()]


def test_a_trajectory_without_calls(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with rt.instrument(), rt.recording(tmp_path / "out.jsonl"), rt.trajectory():
        pass
    with rt.recording(tmp_path / "out.jsonl"), rt.trajectory():
        pass
    instrumented, plain = _warnings(caplog, "no model call was recorded in it")
    assert "The process is instrumented" in instrumented
    assert "Call rt.instrument()" not in instrumented
    assert "wrap" not in instrumented
    assert "Call rt.instrument()" in plain


def test_a_call_after_its_trajectory(client: OpenAI, caplog: pytest.LogCaptureFixture) -> None:
    """The trajectory is named, once: to carry it into the thread is no remedy."""
    jobs: queue.SimpleQueue[None] = queue.SimpleQueue()

    def late() -> None:
        jobs.get()
        _ask(client)
        _ask(client)

    with rt.instrument():
        with rt.trajectory("solver"):
            thread = threading.Thread(target=late, name="late")
            thread.start()
        jobs.put(None)
        thread.join()
    (line,) = _warnings(caplog, "a model call was made")
    assert "in the trajectory 'solver', which had closed already, in the thread 'late'" in line
    assert "Join or await, inside its block," in line
    assert "rt.instrument" not in line


def test_a_call_in_a_thread_from_outside(client: OpenAI, caplog: pytest.LogCaptureFixture) -> None:
    """Threads are carried, so `rt.instrument(threads=True)` is no remedy."""
    with rt.instrument():
        thread = threading.Thread(target=_ask, args=(client,), name="outside")
        thread.start()
        thread.join()
    (line,) = _warnings(caplog, "a model call was made")
    assert "outside every open trajectory, in the thread 'outside'" in line
    assert "threads=True" not in line


@pytest.mark.more
def test_no_engine_is_advised_to_a_run_that_has_one(tmp_path: Path) -> None:
    """Google's answers have no ids, whatever the engine."""
    program = CALL_BY_SDK + (
        "import httpx, os\n"
        "body = {'contents': [{'role': 'user', 'parts': [{'text': 'hi'}]}]}\n"
        "address = os.environ['SERVER'].removesuffix('/v1') + '/v1beta/models/m:generateContent'\n"
        "httpx.post(address, json=body).raise_for_status()\n"
    )
    (tmp_path / "agent.py").write_text(program)
    with ScriptedServer("fine") as server:
        asked = run(tmp_path, "--engine", "vllm", "agent.py", SERVER=server.base_url)
        bare = run(tmp_path, "agent.py", SERVER=server.base_url)
    assert "no token ids in 1 of 1 step: " in " ".join(asked.err.split())
    assert "--engine" not in asked.err
    assert "--engine asks for them" in " ".join(bare.err.split())
