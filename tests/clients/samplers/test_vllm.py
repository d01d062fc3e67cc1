"""`rt.wrap_vllm` with stand-ins that return what a real engine returned. With vLLM: tests/live_engines/test_llm.py."""

from __future__ import annotations

import asyncio
import copy
import functools
import gc
import pickle
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rollout_trace as rt
from rollout_trace.wire import decode
from tests.clients.samplers.standin import LLM, AsyncLLM, LoRARequest, SamplingParams, completion, output, outputs


def check(steps: list[rt.Step], given: list[Any], mode: str = "raw") -> None:
    """Each completion of the outputs is a step with its ids, logprobs, text and reasons."""
    completions = [(answer, one) for answer in given for one in answer.outputs]
    assert len(steps) == len(completions)
    for step, (answer, one) in zip(steps, completions, strict=True):
        assert (step.protocol, step.engine, step.model) == ("vllm.llm", "vllm", "tiny")
        assert (step.status, step.token_issue, step.extra_issues) == ("ok", None, ())
        assert step.prompt_token_ids is not None
        assert step.completion_token_ids is not None
        assert step.completion is not None
        assert step.prompt_token_ids.tolist() == answer.prompt_token_ids
        assert step.completion_token_ids.tolist() == one.token_ids
        assert step.completion.content == one.text
        assert (step.choice, step.finish_reason, step.response_id) == (one.index, one.finish_reason, answer.request_id)
        assert (step.logprobs is None) == (one.logprobs is None)
        if step.logprobs is not None:
            own = [row[token] for row, token in zip(one.logprobs, one.token_ids, strict=True)]
            assert step.logprobs.tolist() == np.array([item.logprob for item in own], np.float32).tolist()
            assert step.token_texts is not None
            assert list(step.token_texts) == [item.decoded_token for item in own]
            assert step.logprobs_mode == mode


def wrapped(name: str, **options: Any) -> tuple[LLM, list[Any]]:
    given = outputs(name)
    return rt.wrap_vllm(LLM(given), **options), given


def test_generate(tmp_path: Path) -> None:
    llm, given = wrapped("generate")
    params = SamplingParams(n=2, max_tokens=6, logprobs=2, prompt_logprobs=1, seed=7)
    with rt.recording(tmp_path / "runs.jsonl"), rt.trajectory() as run:
        assert llm.generate(["hello", {"prompt_token_ids": [5, 6, 7]}], params) is given
    check(run.steps, given)
    assert len({step.call_id for step in run.steps}) == 2
    assert [step.messages for step in run.steps] == [["hello"], ["hello"], None, None]
    first = run.steps[0]
    asked = {"n": 2, "temperature": 1.0, "max_tokens": 6, "seed": 7, "logprobs": 2, "prompt_logprobs": 1}
    assert first.sampling == asked
    assert first.usage == rt.Usage(input=3, output=12, cache_read=0)
    assert first.top_tokens is not None
    assert first.top_tokens.ids[0].tolist() == list(given[0].outputs[0].logprobs[0])
    assert first.prompt_logprobs is not None
    assert np.isnan(first.prompt_logprobs[0])
    assert first.prompt_logprobs[1:].tolist() == pytest.approx(
        [row[token].logprob for row, token in zip(given[0].prompt_logprobs[1:], [75, 332], strict=True)]
    )
    assert first.prompt_top_tokens is not None
    assert first.policy_version == "default"
    assert list(rt.read(tmp_path / "runs.jsonl")) == [run]
    assert len(run.sequences()) == 4


def test_chat() -> None:
    llm, given = wrapped("chat")
    messages, tools = [{"role": "user", "content": "hi"}], [{"type": "function", "function": {"name": "f"}}]
    with rt.trajectory() as run:
        assert llm.chat(messages, SamplingParams(temperature=0.0), tools=tools, continue_final_message=True) is given
    check(run.steps, given)
    (step,) = run.steps
    messages[0]["content"] = "changed"
    assert step.messages is not None
    assert step.tools is not None
    assert list(step.messages) == [{"role": "user", "content": "hi"}]
    assert list(step.tools) == tools
    assert step.sampling == {"n": 1, "temperature": 0.0, "max_tokens": 16, "continue_final_message": True}


@pytest.mark.parametrize(
    ("prompts", "count", "messages"),
    [
        ("text", 1, ["text"]),
        ([5, 6, 7], 1, None),
        ({"prompt": "text", "multi_modal_data": {"image": [object(), object()]}}, 1, ["text"]),
        ([{"prompt_token_ids": [5, 6, 7], "prompt": "text"}], 1, None),
        ([[5, 6, 7], "text"], 2, None),
        (["a", "b"], 2, ["a"]),
    ],
)
def test_forms_of_prompts(prompts: Any, count: int, messages: Any) -> None:
    llm, given = wrapped("generate")
    del given[count:]
    with rt.trajectory() as run:
        llm.generate(prompts)
    check(run.steps, given)
    assert run.steps[0].messages == messages
    # The parameters of the model's own configuration are what was sampled with.
    assert run.steps[0].sampling is not None
    assert run.steps[0].sampling["temperature"] == 0.6
    if isinstance(prompts, dict):
        assert run.steps[0].sampling["multi_modal_data"] == {"image": 2}


def test_logprobs_are_asked_for_on_a_copy() -> None:
    llm, _ = wrapped("chat", logprobs=True)
    mine, theirs = SamplingParams(), SamplingParams(logprobs=3)
    alone = SamplingParams(logprob_token_ids=[1])
    for params in (mine, None, theirs, [mine], alone):
        llm.generate("a", params)
    one, default, three, several, ids = llm.asked
    assert (mine.logprobs, one.logprobs, default.logprobs, default.temperature) == (None, 0, 0, 0.6)
    assert three is theirs
    assert [item.logprobs for item in several] == [0]
    assert ids is alone
    rt.wrap_vllm(llm)
    llm.generate("a", mine)
    llm.generate("a")
    assert llm.asked[5] is mine
    assert llm.asked[6] is None


@pytest.mark.parametrize(
    ("version", "lora", "engine", "expected", "spans"),
    [
        (None, None, "default", "default", 1),
        (None, None, None, None, None),
        ("step-3", None, "default", "step-3", None),
        ("step-3", None, "7", "7", 1),
        (lambda: 4, LoRARequest("mine"), None, 4, None),
        (None, LoRARequest("mine"), None, "mine", None),
    ],
    ids=["vllm", "none", "given", "both", "function", "lora"],
)
def test_versions_of_the_weights(version: Any, lora: Any, engine: str | None, expected: Any, spans: int | None) -> None:
    llm, given = wrapped("chat", policy_version=version)
    one = given[0].outputs[0]
    if engine is None:
        one.weight_versions = None
    else:
        one.weight_versions[0].version = engine
    with rt.trajectory() as run:
        llm.generate("a", lora_request=lora)
    (step,) = run.steps
    assert step.policy_version == expected
    assert (step.policy_spans and len(step.policy_spans)) == spans
    assert step.sampling is not None
    named = {"lora_name": "mine", "lora_int_id": 1, "lora_path": "/lora"}
    assert step.sampling.get("lora_request") == (None if lora is None else named)


def test_experts_and_masks() -> None:
    llm, given = wrapped("chat")
    one, size = given[0].outputs[0], len(given[0].prompt_token_ids)
    one.routed_experts = np.arange((size + 5) * 2, dtype=np.uint8).reshape(-1, 1, 2)
    one.sampling_mask = SimpleNamespace(token_ids=[[token, 9] for token in one.token_ids])
    with rt.trajectory() as run:
        llm.generate("a")
    (step,) = run.steps
    assert step.extra_issues == ()
    assert step.routed_experts is not None
    assert step.routed_experts.tolist() == one.routed_experts.tolist()
    assert step.sampling_mask is not None
    assert step.sampling_mask.counts.tolist() == [2] * 6


@pytest.mark.parametrize("mode", ["raw_logits", "processed_logits"])
def test_logits_are_no_logprobs(mode: str) -> None:
    llm, _ = wrapped("chat")
    llm.model_config.logprobs_mode = mode
    with rt.trajectory() as run:
        llm.generate("a")
    (step,) = run.steps
    assert (step.logprobs, step.top_tokens, step.logprobs_mode) == (None, None, None)
    assert step.completion_token_ids is not None
    assert step.extra is not None
    assert len(step.extra["logits"]) == 6


def test_a_grammar_is_in_the_logprobs() -> None:
    llm, _ = wrapped("chat")
    params = SamplingParams(structured_outputs=SimpleNamespace(json={"type": "object"}, regex=None, _backend="x"))
    with rt.trajectory() as run:
        llm.generate("a", params)
    (step,) = run.steps
    assert step.logprobs_mode == "constrained"
    assert step.sampling is not None
    assert step.sampling["structured_outputs"] == {"json": {"type": "object"}}


def test_lengths_that_differ_are_withheld() -> None:
    llm, given = wrapped("chat")
    del given[0].outputs[0].logprobs[3:]
    with rt.trajectory() as run:
        llm.generate("a")
    (step,) = run.steps
    assert step.token_issue is not None
    assert step.token_issue.code == "lengths_differ"
    assert (step.completion_token_ids, step.logprobs) == (None, None)


@pytest.mark.parametrize(
    ("error", "status"),
    [(ValueError("too long"), "error"), (KeyboardInterrupt(), "cancelled")],
    ids=["error", "ctrl-c"],
)
def test_errors(error: BaseException, status: str) -> None:
    llm = rt.wrap_vllm(LLM(error=error))
    with rt.trajectory() as run:
        with pytest.raises(type(error)) as caught:
            llm.generate(["a", "b"])
    assert caught.value is error
    assert [step.status for step in run.steps] == [status] * 2
    assert [step.messages for step in run.steps] == [["a"], ["b"]]
    assert all(step.error is not None and step.error.type == type(error).__name__ for step in run.steps)


def test_a_request_that_the_engine_gave_up() -> None:
    llm, given = wrapped("chat")
    one = given[0].outputs[0]
    one.finish_reason, one.token_ids, one.logprobs, one.weight_versions = "abort", [], [], None
    failed = output(copy.deepcopy(vars(given[0])) | {"outputs": [], "prompt_logprobs": None})
    failed.outputs = [completion({**vars(one), "logprobs": None, "finish_reason": "error"})]
    llm.answers = [given[0], failed]
    with rt.trajectory() as run:
        llm.generate(["a", "b"])
    assert [step.status for step in run.steps] == ["abandoned", "error"]


def test_enqueued_requests() -> None:
    llm, given = wrapped("generate")
    with rt.trajectory("first") as first:
        llm.enqueue(["hello", [5, 6, 7]])
        assert [step.status for step in first.steps] == ["running"] * 2
    with rt.trajectory("second") as second:
        assert llm.wait_for_completion() is given
    check(first.steps, given)
    assert second.steps == []
    # Those of this call come last, where some were enqueued before it.
    with rt.trajectory() as run:
        llm.answers = given[:1]
        llm.enqueue(["hello"])
        llm.answers = given
        llm.generate([5, 6, 7])
    check(run.steps, given)
    llm.enqueue(["hello", [5, 6, 7]])
    llm.error = RuntimeError("dead")
    with pytest.raises(RuntimeError):
        llm.wait_for_completion()
    assert [step.status for step in rt.orphans()[-2:]] == ["error"] * 2


def test_the_object_stays_the_users_own() -> None:
    llm, given = wrapped("chat")
    assert rt.wrap_vllm(llm, keep_bytes=True) is llm
    assert type(llm) is not LLM
    assert isinstance(llm, LLM)
    assert (type(llm).__name__, type(llm).__module__, type(llm).__doc__) == ("LLM", LLM.__module__, LLM.__doc__)
    assert set(vars(llm)) == set(vars(LLM()))
    assert type(copy.copy(llm)) is LLM
    with rt.trajectory() as run:
        llm.generate("a")
    (step,) = run.steps
    assert step.response_bytes is not None
    (again,) = decode("vllm.llm", step.request_bytes, step.response_bytes)
    assert again.completion_token_ids is not None
    assert again.completion_token_ids.tolist() == given[0].outputs[0].token_ids
    assert rt.unwrap(llm) is llm
    assert type(llm) is LLM
    with rt.trajectory() as run:
        assert llm.generate("a") is given
    assert run.steps == []


def test_what_is_pickled_records_nothing() -> None:
    made = rt.wrap_vllm(AsyncLLM([]))
    reduced: Any = made.__reduce_ex__(4)
    assert type(reduced[0](*reduced[1])) is AsyncLLM
    assert b"rollout_trace" not in pickle.dumps(reduced[0].func)


def test_mistakes_of_the_users() -> None:
    for wrong in (object(), "llm", SamplingParams):
        with pytest.raises(TypeError, match="wrap_vllm\\(\\) needs an LLM or AsyncLLM of vLLM"):
            rt.wrap_vllm(wrong)
    llm = LLM()
    with pytest.raises(TypeError, match="policy_version"):
        rt.wrap_vllm(llm, policy_version=True)
    with pytest.raises(ValueError, match="at least 1 byte"):
        rt.wrap_vllm(llm, max_call_bytes=0)
    assert type(llm) is LLM
    with rt.trajectory() as run:
        with pytest.raises(TypeError, match="unexpected keyword"):
            rt.wrap_vllm(llm).generate("a", speed=2)  # type: ignore[call-arg]
    assert run.steps == []


def test_outside_a_trajectory(caplog: pytest.LogCaptureFixture) -> None:
    llm, given = wrapped("chat")
    before = len(rt.orphans())
    llm.generate("a")
    check(rt.orphans()[before:], given)


def streamed(name: str, end: int | None = None, error: BaseException | None = None) -> tuple[AsyncLLM, Any]:
    kind = {"FINAL_ONLY": 2, "CUMULATIVE": 0, "DELTA": 1}[name]
    return rt.wrap_vllm(AsyncLLM(outputs(name)[:end], error)), SamplingParams(n=2, output_kind=kind)


@pytest.mark.parametrize("name", ["FINAL_ONLY", "CUMULATIVE", "DELTA"])
def test_a_stream_is_what_its_last_output_is(name: str, tmp_path: Path) -> None:
    llm, params = streamed(name)

    async def read() -> list[Any]:
        return [one async for one in llm.generate([5, 6, 7], params, "1")]

    with rt.recording(tmp_path / "runs.jsonl"), rt.trajectory() as run:
        given = asyncio.run(read())
    assert len(given) == len(llm.answers)
    assert all(one is two for one, two in zip(given, llm.answers, strict=True))
    final = outputs("FINAL_ONLY") if name != "CUMULATIVE" else [given[-1]]
    for one in final:
        one.request_id = given[0].request_id
    for step, one in zip(run.steps, final[0].outputs, strict=True):
        assert step.completion is not None
        assert step.completion_token_ids is not None
        assert (step.completion.content, step.completion_token_ids.tolist()) == (one.text, one.token_ids)
        assert (step.status, step.logprobs_mode, step.messages) == ("ok", "processed", None)
        assert step.top_tokens is not None
        assert step.prompt_logprobs is not None
        assert step.time_to_first_token is not None
        assert step.usage == rt.Usage(input=3, output=sum(len(two.token_ids) for two in final[0].outputs), cache_read=0)
    assert list(rt.read(tmp_path / "runs.jsonl")) == [run]


def test_a_stream_that_is_closed_keeps_what_came() -> None:
    llm, params = streamed("CUMULATIVE")

    async def read() -> Any:
        items = llm.generate([5, 6, 7], params, "1")
        found = [await anext(items), await anext(items)]
        await items.aclose()  # type: ignore[attr-defined]
        return found[-1]

    with rt.trajectory() as run:
        last = asyncio.run(read())
    assert llm.closed == 1
    assert [step.status for step in run.steps] == ["abandoned"] * len(last.outputs)
    for step, one in zip(run.steps, last.outputs, strict=True):
        assert step.completion_token_ids is not None
        assert step.completion_token_ids.tolist() == one.token_ids


@pytest.mark.parametrize(
    ("error", "status"), [(RuntimeError("dead"), "error"), (asyncio.CancelledError(), "cancelled")], ids=str
)
def test_a_stream_that_breaks_off(error: BaseException, status: str) -> None:
    llm, params = streamed("DELTA", 3, error)

    async def read() -> None:
        async for _ in llm.generate("a", params, "1"):
            pass

    with rt.trajectory() as run:
        with pytest.raises(type(error)):
            asyncio.run(read())
    assert {step.status for step in run.steps} == {status}
    assert all(step.completion_token_ids is not None and len(step.completion_token_ids) for step in run.steps)


def test_a_stream_belongs_where_it_was_begun() -> None:
    llm, params = streamed("FINAL_ONLY")

    async def read(items: Any) -> list[Any]:
        return [one async for one in items]

    with rt.trajectory() as run:
        items = llm.generate([5, 6, 7], params, "1")
        llm.generate([5, 6, 7], params, "2")
    with rt.trajectory() as other:
        asyncio.run(read(items))
    assert [step.status for step in run.steps] == ["ok", "ok", "abandoned"]
    assert other.steps == []


def test_what_a_reader_throws_in_closes_the_engines_stream() -> None:
    llm, params = streamed("CUMULATIVE")

    async def read() -> None:
        items: Any = llm.generate([5, 6, 7], params, "1")
        await anext(items)
        with pytest.raises(KeyError):
            await items.athrow(KeyError("thrown in"))
        # Now: not when the generator is collected.
        assert llm.closed == 1

    with rt.trajectory() as run:
        asyncio.run(read())
    assert {step.status for step in run.steps} == {"error"}


class PassesOn(LLM):
    """A user's own subclass, whose parameters have no names."""

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """As of the base class."""
        return super().generate(*args, **kwargs)


class AsyncPassesOn(AsyncLLM):
    """The same, of which ``generate`` is no generator function."""

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """As of the base class."""
        return super().generate(*args, **kwargs)


def test_subclasses_that_pass_arguments_on() -> None:
    given = outputs("generate")
    llm = rt.wrap_vllm(PassesOn(given), logprobs=True)
    with rt.trajectory() as run:
        assert llm.generate(["hello", [5, 6, 7]], SamplingParams()) is given
    check(run.steps, given)
    assert llm.asked[0].logprobs == 0
    streams = rt.wrap_vllm(AsyncPassesOn(outputs("FINAL_ONLY")))

    async def read() -> list[Any]:
        return [one async for one in streams.generate([5, 6, 7], SamplingParams(output_kind=2), "1")]

    with rt.trajectory() as run:
        given = asyncio.run(read())
    check(run.steps, given, "processed")


def steps_of(llm: LLM) -> int:
    """A version."""
    return len(llm.asked)


def test_a_function_of_the_version_that_holds_the_sampler_does_not_keep_it() -> None:
    llm = LLM()
    gc.collect()
    before = len(LLM.__subclasses__())
    rt.wrap_vllm(llm, policy_version=functools.partial(steps_of, llm))
    for step in range(3):
        rt.wrap_vllm(llm, policy_version=step)
    rt.wrap_vllm(llm, policy_version=functools.partial(steps_of, llm))
    gc.collect()
    # Nor do classes grow with the versions.
    assert len(LLM.__subclasses__()) == before + 1
    gone = weakref.ref(llm)
    del llm
    gc.collect()
    assert gone() is None


def test_a_stop_string_is_taken_out_of_the_text() -> None:
    given = outputs("CUMULATIVE")
    for one in given:
        del one.outputs[1:]
    given[-1].outputs[0].text = "cut"
    llm = rt.wrap_vllm(AsyncLLM(given))

    async def read() -> None:
        async for _ in llm.generate("a", SamplingParams(), "1"):
            pass

    with rt.trajectory() as run:
        asyncio.run(read())
    (step,) = run.steps
    assert step.completion is not None
    assert step.completion.content == "cut"
