"""What is recorded of samplers goes the way of every other call: journal, limits of bytes, secrets, faults."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace import credentials
from rollout_trace.clients import vllm_json
from rollout_trace.export import chat
from rollout_trace.wire import PROTOCOLS, decode
from tests.clients.samplers.standin import LLM, AsyncLLM, SamplingParams, outputs

ROOT = Path(__file__).parents[3]
PROGRAM = """
import asyncio, os, sys
import rollout_trace as rt
from tests.clients.samplers.standin import AsyncLLM, LLM, SamplingParams, outputs

rt.recording(sys.argv[1]).__enter__()
rt.trajectory("killed").__enter__()
rt.wrap_vllm(LLM(outputs("generate")), policy_version="v1").generate(["hello", [5, 6, 7]], SamplingParams(n=2))

async def read():
    items = rt.wrap_vllm(AsyncLLM(outputs("CUMULATIVE"))).generate([5, 6, 7], SamplingParams(n=2), "1")
    async for _ in items:
        pass

asyncio.run(read())
os._exit(1)
"""


def test_a_process_that_dies_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(path)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    (run,) = rt.recover(path)
    assert [step.status for step in run.steps] == ["ok"] * 6
    with rt.trajectory() as same:
        rt.wrap_vllm(LLM(outputs("generate")), policy_version="v1").generate(["hello", [5, 6, 7]], SamplingParams(n=2))
    for one, two in zip(run.steps, same.steps, strict=False):
        assert one.completion_token_ids is not None
        assert two.completion_token_ids is not None
        assert one.logprobs is not None
        assert two.logprobs is not None
        assert one.completion_token_ids.tolist() == two.completion_token_ids.tolist()
        assert one.logprobs.tolist() == two.logprobs.tolist()
        assert (one.engine, one.logprobs_mode, one.policy_version) == ("vllm", "raw", "v1")
        assert (one.sampling, one.usage, one.finish_reason) == (two.sampling, two.usage, two.finish_reason)
    assert run.steps[4].logprobs_mode == "processed"


def test_a_call_that_is_too_long_to_keep() -> None:
    llm = rt.wrap_vllm(LLM(outputs("chat")), max_call_bytes=100)
    with rt.trajectory() as run:
        llm.generate("a")
    (step,) = run.steps
    assert step.token_issue is not None
    assert step.token_issue.code == "bytes_left_out"
    assert step.completion_token_ids is None


def test_keys_and_redaction(tmp_path: Path) -> None:
    given = outputs("chat")
    given[0].outputs[0].text = "the key is sk-0123456789abcdef0123456789abcdef"
    credentials.remember("sk-0123456789abcdef0123456789abcdef")
    llm = rt.wrap_vllm(LLM(given))
    with rt.trajectory() as run:
        llm.generate("a")
    (step,) = run.steps
    assert step.completion is not None
    assert "0123456789abcdef" not in str(step.completion.content)
    assert (step.completion_token_ids, step.logprobs) == (None, None)
    llm = rt.wrap_vllm(LLM(outputs("chat")))
    with rt.recording(tmp_path / "runs.jsonl", redact="Ada"), rt.trajectory():
        llm.chat([{"role": "user", "content": "I am Ada"}])
    (read,) = rt.read(tmp_path / "runs.jsonl")
    assert read.steps[0].messages is not None
    assert list(read.steps[0].messages) == [{"role": "user", "content": "I am [redacted]"}]
    assert read.steps[0].token_issue is not None
    assert read.steps[0].token_issue.code == "redacted"


@pytest.mark.parametrize("where", ["begin", "answer", "receive"])
def test_a_fault_of_the_recorder_is_not_the_callers(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_CURRENT_TEST")

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("broken")

    if where == "begin":
        monkeypatch.setattr("rollout_trace.clients.vllm._Run", fail)
    else:
        monkeypatch.setattr(vllm_json, "head_of", fail)
    with rt.trajectory() as run:
        if where == "receive":

            async def read() -> int:
                llm = rt.wrap_vllm(AsyncLLM(outputs("CUMULATIVE")))
                return len([one async for one in llm.generate("a", SamplingParams(), "1")])

            assert asyncio.run(read()) == 8
        else:
            given = outputs("chat")
            assert rt.wrap_vllm(LLM(given)).generate("a") is given
    if where == "begin":
        assert run.steps == []
    else:
        assert run.steps[0].token_issue is not None
        assert run.steps[0].token_issue.code == "recorder_failed"
        assert run.steps[0].completion_token_ids is None


def test_a_version_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    given = outputs("chat")
    given[0].outputs[0].weight_versions = None
    llm = rt.wrap_vllm(LLM(given), policy_version=lambda: 1 // 0)
    with rt.trajectory() as run:
        assert llm.generate("a") is given
        rt.wrap_vllm(llm, policy_version=lambda: 1.5)  # type: ignore[arg-type,return-value]
        assert llm.generate("a") is given
    assert [(step.status, step.policy_version) for step in run.steps] == [("ok", None)] * 2


def test_what_json_cannot_hold() -> None:
    llm = rt.wrap_vllm(LLM(outputs("chat")))
    odd = SamplingParams(logit_bias={3: 1.0}, seed=2**70)
    content = [{"type": "image_pil", "image_pil": object()}, {"type": "text", "text": "half \ud800"}]
    with rt.trajectory() as run:
        llm.chat([{"role": "user", "content": content}], odd)
    (step,) = run.steps
    assert step.status == "ok"
    assert step.messages is not None
    assert step.messages[0]["content"][0]["image_pil"] == "<builtins.object>"
    assert step.sampling is not None
    assert step.sampling["logit_bias"] == {"3": 1.0}


def test_as_chat() -> None:
    llm = rt.wrap_vllm(LLM(outputs("chat")))
    with rt.trajectory() as run:
        llm.chat([{"role": "user", "content": "hi"}])
        llm.generate("a text")
        llm.generate([5, 6, 7])
    rows = chat([run])
    assert [row["messages"][0]["content"] for row in rows][:1] == ["hi"]
    assert [row["messages"][0]["content"] for row in rows][1:2] == ["a text"]


@pytest.mark.parametrize("protocol", ["vllm.llm", "tinker.sample", "transformers.generate"])
@pytest.mark.parametrize(
    "body", [b"", b"{", b"[1]", b'{"choices": 3}', b'{"choices": [{"token_ids": ["a"]}]}', b"\xff"]
)
def test_bytes_that_are_no_answer(protocol: str, body: bytes) -> None:
    assert protocol in PROTOCOLS
    for request in (b'{"prompt": [1, 2]}', b'{"prompt": "a", "stream": true}', None):
        steps = decode(protocol, request, body)
        assert len(steps) == 1
        assert steps[0].completion_token_ids is None
