"""Answers that were aborted or cut off, and continued: one row, each token trained once, its version kept."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openai import OpenAI

import rollout_trace as rt
from rollout_trace.data.exchange import Exchange
from rollout_trace.data.extras import PolicySpan
from rollout_trace.data.model import Completion, Step
from rollout_trace.testing import Fault, ScriptedServer
from rollout_trace.testing.recordings import load_exchanges
from rollout_trace.wire import decode

DATA = Path(__file__).parents[1] / "data" / "wire_vllm_extras.jsonl.xz"
PROTOCOLS = {
    "/v1/chat/completions": "openai.chat",
    "/v1/completions": "openai.completions",
    "/inference/v1/generate": "vllm.generate",
}


@cache
def exchanges() -> dict[str, Exchange]:
    return {one.name: one for one in load_exchanges(DATA)}


def recorded(*names: str) -> list[Step]:
    """The steps of recordings, with their names as ids."""
    steps: list[Step] = []
    for name in names:
        one = exchanges()[name]
        (step,) = decode(
            PROTOCOLS[one.path], one.request, one.response, content_type=one.content_type, status=one.status or 0
        )
        steps.append(replace(step, id=name, index=len(steps)))
    return steps


def codes(*steps: Step) -> list[str]:
    return [one.code for one in rt.Trajectory(steps=list(steps), reward=1.0).check()]


def ids_of(step: Step) -> list[int]:
    assert step.prompt_token_ids is not None
    assert step.completion_token_ids is not None
    return [*step.prompt_token_ids.tolist(), *step.completion_token_ids.tolist()]


CONTINUED = [
    ("dense_resume_1_chat", "dense_resume_2_comp_ids"),
    ("dense_resume_1_chat", "dense_resume_2_comp_ids_stream"),
    ("dense_resume_1_chat", "dense_resume_2_gen"),
    ("dense_resume_1_chat", "dense_resume_2_gen_text_stream"),
    ("dense_resume_1_chat", "dense_resume_2_chat_continue"),
    ("dense_resume_1_chat", "dense_resume_2_chat_continue_stream"),
]


@pytest.mark.parametrize(("first", "second"), CONTINUED)
def test_an_answer_that_is_continued_is_one_row(first: str, second: str) -> None:
    """By its ids as a prompt, in completions or `generate`, or as chat's last message: vLLM 0.32, recorded."""
    steps = recorded(first, second)
    (row,) = rt.Trajectory(steps=steps).sequences()
    assert row.token_ids.tolist() == ids_of(steps[1])
    assert row.loss_mask.tolist() == [0] * 35 + [1] * 11
    assert row.spans == ((35, 40), (40, 46))
    assert row.logprobs is not None
    assert steps[0].logprobs is not None
    assert steps[1].logprobs is not None
    assert np.array_equal(row.logprobs[35:], np.concatenate([steps[0].logprobs, steps[1].logprobs]))


KINDS = ("chat_pause", "chat_pause_stream", "comp_all", "gen_prefixed", "gen_prefixed_stream")
ABORTED = [f"{model}_abort_{kind}" for model in ("dense", "moe") for kind in KINDS]


@pytest.mark.parametrize("name", ABORTED)
def test_an_aborted_answer_is_trained_on_and_found_where_nothing_continues_it(name: str) -> None:
    (step,) = recorded(name)
    assert (step.status, step.finish_reason, step.token_issue) == ("ok", "abort", None)
    assert step.completion_token_ids is not None
    count = len(step.completion_token_ids)
    (row,) = rt.Trajectory(steps=[step]).sequences()
    assert row.loss_mask.sum() == count
    (finding,) = [one for one in rt.Trajectory(steps=[step], reward=1.0).check() if one.code == "aborted"]
    assert (finding.grade, finding.step_id) == ("warning", name)
    assert f"after {count} ids" in finding.message
    whole = ids_of(step)
    onward = Step(
        id="on", call_id="on", index=1, prompt_token_ids=whole, completion_token_ids=[5, 6],  # type: ignore[arg-type]
        logprobs=[-1.0, -1.0], finish_reason="stop", policy_version="next",  # type: ignore[arg-type]
    )  # fmt: skip
    assert "aborted" not in codes(step, onward)
    (row,) = rt.Trajectory(steps=[step, onward]).sequences()
    assert row.loss_mask.sum() == count + 2
    assert row.policy_spans is not None
    assert row.policy_spans[-1] == PolicySpan(len(whole), len(whole) + 2, "next")
    if step.routed_experts is not None:
        # The aborted answer's last token, and the continuation's own, were read by no forward pass that was recorded.
        assert row.routed_experts_mask is not None
        assert np.flatnonzero(row.routed_experts_mask == 0).tolist() == [len(whole) - 1, len(whole), len(whole) + 1]


@pytest.mark.parametrize(
    ("name", "border"),
    [("dense_wv_mid", 377), ("dense_wv_mid_stream", None), ("moe_wv_mid", None), ("moe_wv_mid_stream", 4)],
)
def test_weights_that_changed_within_an_answer_keep_their_versions(name: str, border: int | None) -> None:
    (step,) = recorded(name)
    (row,) = rt.Trajectory(steps=[step]).sequences()
    assert step.policy_spans is not None
    at = step.policy_spans[0].end
    assert border in (None, at)
    assert row.versions == ("step-7", "step-8")
    assert row.token_versions is not None
    assert row.token_versions.tolist() == [-1] * 5 + [0] * at + [1] * (600 - at)


def test_experts_of_turns_that_were_asked_for_in_parts_join_without_a_gap() -> None:
    """`routed_experts_prompt_start` at the last position of the turn before: recorded."""
    steps = recorded("moe_genturns_1", "moe_genturns_2", "moe_genturns_3")
    (row,) = rt.Trajectory(steps=steps).sequences()
    assert row.routed_experts is not None
    assert row.routed_experts_mask is not None
    assert row.routed_experts_mask.tolist() == [1] * 32 + [0]
    pieces = [step.routed_experts for step in steps if step.routed_experts is not None]
    assert np.array_equal(row.routed_experts[:-1], np.concatenate(pieces))


def test_experts_do_not_cross_a_drift() -> None:
    """Chat's third turn was tokenised anew: what the engine left out of its answer belongs to other ids."""
    steps = recorded("moe_turns_1", "moe_turns_2", "moe_turns_3")
    first, second = rt.Trajectory(steps=steps).sequences()
    assert first.step_ids == ("moe_turns_1", "moe_turns_2")
    assert first.routed_experts_mask is not None
    assert second.routed_experts_mask is not None
    assert first.routed_experts_mask.tolist() == [1] * 69 + [0]
    assert second.routed_experts_mask.tolist() == [0] * 69 + [1] * 29 + [0]


MESSAGES: list[Any] = [{"role": "user", "content": "Count."}]


def turn(number: int, prompt: list[int], completion: list[int], said: str, *before: str, **facts: Any) -> Step:
    """A request that continues what was said before, in one message, where anything was."""
    messages = [*MESSAGES, {"role": "assistant", "content": "".join(before)}] if before else MESSAGES
    return Step(
        **{
            "id": f"s{number}", "call_id": f"s{number}", "index": number, "messages": messages,
            "prompt_token_ids": prompt, "completion_token_ids": completion, "logprobs": [-1.0] * len(completion),
            "completion": Completion(content=said), "finish_reason": "abort",
            "sampling": {"continue_final_message": True, "add_generation_prompt": False} if before else {}, **facts,
        }
    )  # fmt: skip


def test_a_continuation_that_was_tokenised_anew_is_a_drift() -> None:
    """Of the text that the parts before gave: not a rewritten one, nor a fork; and the answer was continued."""
    steps = [
        turn(0, [1], [2, 3, 4], "one tw"),
        turn(1, [1, 2, 9], [5], "o th", "one tw"),
        turn(2, [1, 2, 9, 8], [6], "ree", "one tw", "o th", finish_reason="stop"),
    ]
    trajectory = rt.Trajectory(steps=steps, reward=1.0)
    rows = trajectory.sequences()
    assert [row.step_ids for row in rows] == [("s0",), ("s1",), ("s2",)]
    first, second = rows.report.drift
    assert (first.step_id, first.previous_step_id, first.position, first.kind) == ("s1", "s0", 2, "retokenized")
    assert (second.step_id, second.previous_step_id, second.position, second.kind) == ("s2", "s1", 3, "retokenized")
    assert rows.report.forks == 0
    assert "aborted" not in [one.code for one in trajectory.check()]


def test_a_drift_in_the_first_part_of_a_continued_answer_is_no_rewriting() -> None:
    """The message has the text of both parts, and that of the first alone is what its ids became."""
    steps = [
        turn(0, [1], [2, 3, 4], "one tw"),
        turn(1, [1, 2, 3, 4], [5], "o th", "one tw"),
        turn(2, [1, 2, 9, 8], [6], "ree", "one tw", "o th", finish_reason="stop"),
    ]
    rows = rt.Trajectory(steps=steps).sequences()
    assert [row.step_ids for row in rows] == [("s0", "s1"), ("s2",)]
    (drift,) = rows.report.drift
    assert (drift.previous_step_id, drift.position, drift.kind) == ("s1", 2, "retokenized")


def test_a_turn_after_a_continued_answer_goes_on_from_its_last_part() -> None:
    told = {"role": "assistant", "content": "one two th"}
    last = turn(2, [1, 2, 3, 7, 8], [6], "ok", finish_reason="stop")
    last = replace(last, messages=[*MESSAGES, told, {"role": "user", "content": "On."}], sampling={})
    steps = [turn(0, [1], [2, 3], "one tw"), turn(1, [1, 2, 3], [5], "o th", "one tw"), last]
    rows = rt.Trajectory(steps=steps).sequences()
    (drift,) = rows.report.drift
    # It repeats the answer of both parts, in other ids than the second part was sampled in.
    assert (drift.step_id, drift.previous_step_id, drift.position, drift.kind) == ("s2", "s1", 3, "retokenized")


def test_an_abandoned_stream_that_is_continued_is_one_row_if_it_is_allowed() -> None:
    """A client that stops reading, and sends what it has as a prompt: each token is in the row once."""
    with ScriptedServer([Fault("one two three four five six", hold_after=4), "seven"]) as server:
        client = rt.wrap_openai(OpenAI(base_url=server.base_url, api_key="k", max_retries=0), engine="vllm")
        with client, rt.trajectory() as trajectory:
            stream = client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
            for number, _ in enumerate(stream):
                if number == 3:
                    break
            stream.close()
            server.release()
            (first,) = trajectory.steps
            client.completions.create(model="m", prompt=ids_of(first))
    first, second = trajectory.steps
    assert (first.status, second.status) == ("abandoned", "ok")
    assert first.completion_token_ids is not None
    count = len(first.completion_token_ids)
    assert count >= 2
    (row,) = trajectory.sequences()
    assert row.step_ids == (second.id,)
    (row,) = trajectory.sequences(allow={"abandoned"})
    assert row.step_ids == (first.id, second.id)
    assert row.token_ids.tolist() == ids_of(second)
    assert row.spans[0][1] == row.spans[1][0]
    assert row.loss_mask.sum() == len(row.token_ids) - row.prompt_length
