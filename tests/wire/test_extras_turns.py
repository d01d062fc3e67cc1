"""Conversations of several turns with extras: rows that turns share are stored once, partial rollouts are one row."""

from __future__ import annotations

import json

import numpy as np
import pytest

import rollout_trace as rt
from rollout_trace.data.model import Step
from rollout_trace.wire.steps import Stores, exchange_of
from tests.wire.recorded import numbers
from tests.wire.test_extras_recorded import PROTOCOLS, choices_of, exchanges, steps_of


def turns(*names: str) -> tuple[list[Step], Stores]:
    """The steps of these recordings, in one trajectory's storage."""
    stores = Stores()
    steps = []
    for number, name in enumerate(names):
        one = exchanges()[name]
        steps += exchange_of(
            f"call{number}",
            PROTOCOLS[one.path],
            one.request,
            one.response,
            content_type=one.content_type,
            status=one.status or 0,
            stores=stores,
        )[0]
    return steps, stores


def stored(stores: Stores) -> int:
    """Rows in the storage."""
    return sum(block.length for block in stores.rows.blocks)


def test_turns_that_ask_for_new_rows_alone_join_without_a_gap() -> None:
    """`routed_experts_prompt_start` where the turn before ended: all rows together are those of the conversation."""
    steps, _ = turns("moe_genturns_1", "moe_genturns_2", "moe_genturns_3")
    whole = [step.routed_experts for step in steps]
    last = steps[-1]
    assert last.prompt_token_ids is not None
    assert last.completion_token_ids is not None
    expected = len(last.prompt_token_ids) + len(last.completion_token_ids) - 1
    assert sum(len(rows) for rows in whole if rows is not None) == expected
    for name, rows in zip(("moe_genturns_1", "moe_genturns_2", "moe_genturns_3"), whole, strict=True):
        start = json.loads(exchanges()[name].request)["sampling_params"].get("routed_experts_prompt_start", 0)
        assert rows is not None
        assert np.array_equal(rows, choices_of(name)[0].experts)
        ids = choices_of(name)[0]
        assert ids.prompt is not None
        assert ids.ids is not None
        assert len(rows) == len(ids.prompt) + len(ids.ids) - 1 - start


@pytest.mark.parametrize("letter", ["", "_b"])
def test_turns_of_a_chat(letter: str) -> None:
    """The rows are of the tokens behind the start that each request names."""
    steps, _ = turns(*(f"moe_turns_{number}{letter}" for number in (1, 2, 3)))
    for number, step in enumerate(steps, 1):
        assert step.routed_experts is not None
        assert np.array_equal(step.routed_experts, choices_of(f"moe_turns_{number}{letter}")[0].experts)
        assert step.extra_issues == ()


def test_equal_rows_are_stored_once() -> None:
    """One prompt twice, of which vLLM had cached a part: the rows of the second are those of the first."""
    first, stores = turns("moe_comp_cached_1")
    once = stored(stores)
    both, stores = turns("moe_comp_cached_1", "moe_comp_cached_2")
    assert stored(stores) == once == len(first[0].routed_experts)  # type: ignore[arg-type]
    for step, name in zip(both, ("moe_comp_cached_1", "moe_comp_cached_2"), strict=True):
        assert np.array_equal(step.routed_experts, choices_of(name)[0].experts)  # type: ignore[arg-type]


RESUMED = [name for name in exchanges() if name.startswith("dense_resume_2_") and not name.endswith("_b")]


def test_every_way_to_go_on_was_recorded() -> None:
    """`continue_final_message` of a chat, and ids as the prompt of completions and generate, streamed and not."""
    assert len(RESUMED) == 6


@pytest.mark.parametrize("name", RESUMED)
def test_a_partial_rollout_that_goes_on_is_one_row(name: str) -> None:
    """Each token is trained once: the prompt of the second answer is prompt and completion of the first."""
    (first,), (second,) = steps_of("dense_resume_1_chat"), steps_of(name)
    prompt, begun = numbers(first.prompt_token_ids), numbers(first.completion_token_ids)
    assert prompt is not None
    assert begun is not None
    assert numbers(second.prompt_token_ids) == prompt + begun
    ended = numbers(second.completion_token_ids)
    assert ended is not None
    (row,) = rt.Trajectory(steps=[first, second], reward=1.0).sequences()
    assert row.token_ids.tolist() == [*prompt, *begun, *ended]
    assert row.loss_mask.tolist() == [0] * len(prompt) + [1] * (len(begun) + len(ended))


@pytest.mark.parametrize(
    "name", [name for name in exchanges() if "abort" in name and exchanges()[name].path in PROTOCOLS]
)
def test_an_aborted_answer_is_whole(name: str) -> None:
    """What was sampled before the abort, with its experts and versions; the step can be trained on."""
    (step,) = steps_of(name)
    (choice,) = choices_of(name).values()
    assert (step.status, step.token_issue, step.extra_issues) == ("ok", None, ())
    assert step.finish_reason in ("abort", "length")
    assert numbers(step.completion_token_ids) == choice.ids
    (row,) = rt.Trajectory(steps=[step], reward=1.0).sequences()
    assert int(row.loss_mask.sum()) == len(choice.ids or ())


@pytest.mark.parametrize("name", [name for name in exchanges() if "_wv_mid" in name])
def test_weights_that_change_within_an_answer(name: str) -> None:
    """Spans from 0 to the end of the completion, and their versions in order."""
    (step,) = steps_of(name)
    assert step.policy_spans is not None
    assert step.completion_token_ids is not None
    assert [span.version for span in step.policy_spans] == str(step.policy_version).split(",")
    # One call to change them came too late.
    assert len(step.policy_spans) == (1 if name == "dense_wv_mid_stream_b" else 2)
    assert step.policy_spans[-1].end == len(step.completion_token_ids)


def test_a_row_of_three_turns_has_the_experts_that_were_sent() -> None:
    """For all tokens but the last, which was not run through the model."""
    names = ("moe_genturns_1", "moe_genturns_2", "moe_genturns_3")
    steps, _ = turns(*names)
    (row,) = rt.Trajectory(steps=steps, reward=1.0).sequences()
    sent = np.concatenate([choices_of(name)[0].experts for name in names])
    assert row.routed_experts is not None
    assert row.routed_experts_mask is not None
    assert np.array_equal(row.routed_experts[:-1], sent)
    assert row.routed_experts_mask.tolist() == [1] * len(sent) + [0]
    assert len(sent) == len(row.token_ids) - 1


def test_masks_and_versions_of_a_row_are_at_the_sampled_tokens() -> None:
    """Nothing on the prompt; from there the rows and the spans of the answer."""
    for name in ("mask_gen_topk5_topp9", "dense_wv_mid"):
        choice = choices_of(name)[0]
        (row,) = rt.Trajectory(steps=steps_of(name), reward=1.0).sequences()
        assert choice.prompt is not None
        first = len(choice.prompt)
        spans = tuple((first + begin, first + end, version) for begin, end, version in choice.versions or ())
        assert row.policy_spans == spans
        rows = None if row.sampling_mask is None else [one.tolist() for one in row.sampling_mask]
        assert rows == (None if choice.mask is None else [[]] * first + choice.mask)
