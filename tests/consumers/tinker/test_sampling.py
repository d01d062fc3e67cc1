"""``rt.wrap_tinker`` with Tinker's own clients, over a loopback service whose log is the oracle."""

from __future__ import annotations

import asyncio
import copy
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tinker
from page_blocks import run_blocks
from tinker.lib.public_interfaces.api_future import APIFuture

import rollout_trace as rt
from rollout_trace.wire import decode
from tests.consumers.tinker.service import Sample, Script, Service, serving

PARAMS = tinker.SamplingParams(max_tokens=4, temperature=0.7)


def prompt(*ids: int) -> Any:
    return tinker.ModelInput.from_ints(list(ids))


def counting(body: dict[str, Any]) -> Sample:
    """Continues the last id of a prompt; each sequence begins at another number."""
    last = body["prompt"]["chunks"][-1]["tokens"][-1]
    sequences = [([last + 1 + at, last + 2 + at], [-0.5, -0.25 - at], "stop") for at in range(body["num_samples"])]
    return {"sequences": sequences, "cached": 1}


@contextmanager
def client(script: Script = counting) -> Iterator[tuple[Any, Service]]:
    """A wrapped ``SamplingClient``, and the service."""
    with serving(script) as service, tinker.ServiceClient(base_url=service.url, api_key="tml-0") as sdk:
        made = sdk.create_sampling_client(base_model="tiny")
        yield rt.wrap_tinker(made.result(), policy_version="tinker://run/sampler_weights/7"), service


def ids(step: rt.Step) -> tuple[list[int], list[int]]:
    assert step.prompt_token_ids is not None
    assert step.completion_token_ids is not None
    return step.prompt_token_ids.tolist(), step.completion_token_ids.tolist()


def check(steps: list[rt.Step], asked: dict[str, Any], response: Any) -> None:
    """Each sequence of a response is a step."""
    assert len(steps) == len(response.sequences) == asked["num_samples"]
    assert len({step.call_id for step in steps}) == 1
    for at, (step, sequence) in enumerate(zip(steps, response.sequences, strict=True)):
        sent = [token for chunk in asked["prompt"]["chunks"] for token in chunk["tokens"]]
        assert ids(step) == (sent, list(sequence.tokens))
        assert step.logprobs is not None
        assert step.logprobs.tolist() == pytest.approx(sequence.logprobs)
        assert (step.protocol, step.engine, step.model) == ("tinker.sample", "tinker", "tiny")
        assert (step.choice, step.status, step.token_issue) == (at, "ok", None)
        assert (step.finish_reason, step.logprobs_mode) == (sequence.stop_reason, "raw")
        assert step.extra == {"sequence_id": sequence.sequence_id}
        assert step.policy_version == "tinker://run/sampler_weights/7"


def test_a_sample(tmp_path: Path) -> None:
    with client() as (sampler, service):
        with rt.recording(tmp_path / "runs.jsonl"), rt.trajectory() as run:
            future = sampler.sample(prompt(5, 6), 2, PARAMS)
            assert isinstance(future, Future)
            assert isinstance(future, APIFuture)
            response = future.result()
            # The step is there as soon as the result is.
            check(run.steps, service.asked[0], response)
        step = run.steps[0]
        assert step.usage == rt.Usage(input=2, output=4, cache_read=1)
        assert step.sampling is not None
        assert (step.sampling["temperature"], step.sampling["max_tokens"], step.sampling["num_samples"]) == (0.7, 4, 2)
        assert step.sampling["sampling_session_id"] == "sampling-1"
    assert list(rt.read(tmp_path / "runs.jsonl")) == [run]
    assert len(run.sequences()) == 2
    assert "logprobs_not_sampled" in {finding.code for finding in run.check()}


def test_turns_that_extend_each_other_are_one_row() -> None:
    with client() as (sampler, _):
        with rt.trajectory() as run:
            tokens = [5, 6]
            for _ in range(3):
                (sequence,) = sampler.sample(prompt(*tokens), 1, PARAMS).result().sequences
                tokens = [*tokens, *sequence.tokens, 9]
    (row,) = run.sequences()
    assert row.token_ids.tolist() == tokens[:-1]


def test_awaited_and_the_deprecated_method() -> None:
    with client() as (sampler, service):

        async def agent() -> None:
            with rt.trajectory() as run:
                first = await sampler.sample(prompt(5), 1, PARAMS)
                check(run.steps, service.asked[0], first)
                with pytest.warns(FutureWarning, match="sample_async"):
                    second = await sampler.sample_async(prompt(5, 7), 1, PARAMS)
                check(run.steps[1:], service.asked[1], second)

        asyncio.run(agent())


def test_logprobs_of_a_prompt_are_no_sample() -> None:
    def script(body: dict[str, Any]) -> Sample:
        return {**counting(body), "prompt_logprobs": [float("nan"), -1.5]}

    with client(script) as (sampler, service):

        async def deprecated() -> Any:
            with pytest.warns(FutureWarning, match="compute_logprobs_async"):
                return await sampler.compute_logprobs_async(prompt(5, 6))

        with rt.trajectory() as run:
            assert sampler.compute_logprobs(prompt(5, 6)).result() == [None, -1.5]
            assert asyncio.run(deprecated()) == [None, -1.5]
        assert len(service.asked) == 2
    assert run.steps == []


def test_extras() -> None:
    def script(body: dict[str, Any]) -> Sample:
        return {
            "sequences": [([7, 8], [-0.5, -0.25], "length")],
            "topk": [[(7, -0.5)], [(3, -0.1), (8, -0.25)]],
            "prompt_logprobs": [float("nan"), -1.5],
            "topk_prompt": [[], [(6, -1.5), (2, -2.0)]],
        }

    with client(script) as (sampler, _):
        with rt.trajectory() as run:
            options = {"include_prompt_logprobs": True, "topk_prompt_logprobs": 2, "topk_sample_logprobs": 2}
            sampler.sample(prompt(5, 6), 1, PARAMS, **options).result()
    (step,) = run.steps
    assert step.extra_issues == ()
    assert step.top_tokens is not None
    assert step.top_tokens.ids.tolist() == [[7, -1], [3, 8]]
    assert step.prompt_logprobs is not None
    assert step.prompt_logprobs.tolist()[1:] == [-1.5]
    assert step.prompt_top_tokens is not None
    assert step.prompt_top_tokens.ids.tolist() == [[-1, -1], [6, 2]]
    assert step.finish_reason == "length"


def test_errors_are_the_callers_and_the_steps() -> None:
    with client(lambda body: {"error": "no such weights"}) as (sampler, _):
        with rt.trajectory() as run:
            future = sampler.sample(prompt(5), 1, PARAMS)
            with pytest.raises(tinker.RequestFailedError, match="no such weights"):
                future.result()
            (step,) = run.steps
            assert step.status == "error"
            assert step.error is not None
            assert step.error.type == "RequestFailedError"
            with pytest.raises(ValueError, match="prompt_logprobs_last_n"):
                sampler.sample(prompt(5), 1, PARAMS, prompt_logprobs_last_n=0)
            with pytest.raises(TypeError):
                sampler.sample(prompt(5))
    assert [step.status for step in run.steps] == ["error", "error"]


def test_a_sample_that_is_cancelled() -> None:
    with client(lambda body: {"wait": True}) as (sampler, service):
        with rt.trajectory() as run:
            future = sampler.sample(prompt(5), 1, PARAMS)
            assert service.fetched.wait(30)
            assert [step.status for step in run.steps] == ["running"]
            assert future.future().cancel()
        assert [step.status for step in run.steps] == ["cancelled"]


def test_it_belongs_where_it_was_begun() -> None:
    gate = threading.Event()

    def script(body: dict[str, Any]) -> Sample:
        assert gate.wait(30)
        return counting(body)

    with client(script) as (sampler, service):
        with rt.trajectory("first") as first:
            future = sampler.sample(prompt(5), 1, PARAMS)
        with rt.trajectory("second") as second:
            gate.set()
            response = future.result()
        check(first.steps, service.asked[0], response)
        assert second.steps == []


def test_many_at_once() -> None:
    with client() as (sampler, service):

        async def one(number: int) -> rt.Trajectory:
            with rt.trajectory(str(number)) as run:
                await asyncio.gather(
                    *(sampler.sample(prompt(number * 10 + turn), 1, PARAMS).coroutine() for turn in range(3))
                )
            return run

        async def all_of_them() -> list[rt.Trajectory]:
            return await asyncio.gather(*map(one, range(12)))

        runs = asyncio.run(all_of_them())
        assert len(service.asked) == sum(len(run.steps) for run in runs) == 36
    for number, run in enumerate(runs):
        assert [ids(step)[0] for step in run.steps] == [[number * 10 + turn] for turn in range(3)]
        assert all(ids(step)[1][0] == ids(step)[0][0] + 1 for step in run.steps)
    assert rt.orphans() == []


def test_the_client_stays_the_users_own() -> None:
    with client() as (sampler, _):
        rt.unwrap(sampler)
        kind, state = type(sampler), set(vars(sampler))
        assert rt.wrap_tinker(sampler) is sampler
        assert rt.wrap_tinker(sampler, keep_bytes=True) is sampler
        assert isinstance(sampler, tinker.SamplingClient)
        assert set(vars(sampler)) == state
        assert type(copy.copy(sampler)) is kind
        assert type(pickle.loads(pickle.dumps(sampler))) is kind
        with rt.trajectory() as run:
            sampler.sample(prompt(5), 1, PARAMS).result()
        (step,) = run.steps
        assert step.request_bytes is not None
        assert step.response_bytes is not None
        (again,) = decode("tinker.sample", step.request_bytes, step.response_bytes)
        assert ids(again) == ids(step)
        assert again.logprobs_mode == "raw"
        assert rt.unwrap(sampler) is sampler
        assert type(sampler) is kind
        with rt.trajectory() as run:
            sampler.sample(prompt(5), 1, PARAMS).result()
        assert run.steps == []


def test_a_future_of_a_client() -> None:
    """What ``create_sampling_client`` gives, which can be used as the client for now."""
    with serving(counting) as service, tinker.ServiceClient(base_url=service.url, api_key="tml-0") as sdk:
        pending = sdk.create_sampling_client(base_model="tiny")
        kind = type(pending)
        assert rt.wrap_tinker(pending) is pending
        assert type(pending) is kind
        with rt.trajectory() as run:
            with pytest.warns(FutureWarning, match="Using the future as the SamplingClient"):
                pending.sample(prompt(5), 1, PARAMS).result()
            pending.result().sample(prompt(6), 1, PARAMS).result()
        assert [ids(step)[0] for step in run.steps] == [[5], [6]]
        rt.unwrap(pending)
        with rt.trajectory() as run:
            pending.result().sample(prompt(6), 1, PARAMS).result()
        assert run.steps == []


def test_other_objects() -> None:
    for wrong in (object(), tinker.SamplingParams(), "client"):
        with pytest.raises(TypeError, match="wrap_tinker\\(\\) needs a SamplingClient"):
            rt.wrap_tinker(wrong)


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with serving(counting) as service:
        run_blocks("docs/engines.md", "Tinker", BASE_URL=service.url, API_KEY="tml-0")
    (run,) = rt.read(tmp_path / "rollouts.jsonl")
    assert [ids(step) for step in run.steps] == [([101, 7592, 102], [103, 104])]
    assert (run.steps[0].policy_version, run.reward) == ("tinker://run/sampler_weights/7", 1.0)
