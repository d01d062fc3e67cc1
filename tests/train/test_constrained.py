"""Steps that a grammar restricted: left out on request, counted otherwise, and what a trainer can do about them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rollout_trace as rt
from rollout_trace import export
from rollout_trace.data.extras import ExtraIssue, SamplingMask
from rollout_trace.data.model import Step

GRAMMAR: dict[str, Any] = {"sampling": {"structured_outputs": {"regex": "a|b"}}, "engine": "vllm"}


def step(number: int, prompt: list[int], completion: list[int], **facts: Any) -> Step:
    return Step(
        **{
            "id": f"s{number}", "call_id": f"s{number}", "index": number, "prompt_token_ids": prompt,
            "completion_token_ids": completion, "logprobs": [-1.0] * len(completion), "finish_reason": "stop", **facts,
        }
    )  # fmt: skip


def run(*steps: Step) -> rt.Trajectory:
    return rt.Trajectory(steps=list(steps), reward=1.0)


TURNS = [step(0, [1], [2, 3]), step(1, [1, 2, 3, 4], [5, 6, 7], **GRAMMAR), step(2, [1, 2, 3, 4, 5, 6, 7, 8], [9])]


def test_they_are_kept_and_counted_unless_they_are_dropped() -> None:
    rows = run(*TURNS).sequences()
    assert rows.report.constrained == {"structured_outputs": ("s1",)}
    assert (rows.report.constrained_tokens, rows.report.left_out) == (3, {})
    assert run(*TURNS).sequences(constrained="keep").report == rows.report
    dropped = run(*TURNS).sequences(constrained="drop")
    assert dropped.report.left_out == {"constrained_sampling": ("s1",)}
    assert (dropped.report.constrained, dropped.report.constrained_tokens) == ({}, 0)
    (row,) = dropped
    # The later turn read its tokens: they are in the row, and not trained on.
    assert row.token_ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert row.loss_mask.tolist() == [0, 1, 1, 0, 0, 0, 0, 0, 1]
    codes = [(one.code, one.step_id) for one in run(*TURNS).check()]
    assert ("constrained_sampling", "s1") in codes


def test_a_cut_inside_such_a_step_counts_what_is_left() -> None:
    assert run(*TURNS).sequences(max_length=5).report.constrained_tokens == 1


def test_the_reason_can_be_allowed() -> None:
    rows = run(*TURNS).sequences(constrained="drop", allow={"constrained_sampling"})
    assert rows.report.left_out == {}
    with pytest.raises(ValueError, match="constrained='no': expected 'keep', 'drop'"):
        run().sequences(constrained="no")  # type: ignore[arg-type]


def test_logprobs_of_a_grammar_that_the_request_does_not_name() -> None:
    """A server's own default, or an engine whose fields are not known."""
    one = step(0, [1], [2], logprobs_mode="constrained")
    report = run(one).sequences().report
    assert report.constrained == {"not named in the request": ("s0",)}
    assert run(one).sequences(constrained="drop").report.left_out == {"constrained_sampling": ("s0",)}
    (row,) = run(one).sequences()
    assert row.logprobs_mode == "constrained"
    mixed = step(1, [1, 2, 3], [4], logprobs_mode="raw")
    (row,) = run(one, mixed).sequences()
    assert row.logprobs_mode is None
    assert "logprobs_modes_differ" not in [finding.code for finding in run(one, mixed).check()]


def test_exports_count_their_tokens() -> None:
    report = export.ExportReport()
    export.trl(run(*TURNS), report=report)
    assert report.noted == {"tokens sampled under a grammar (structured_outputs), whose ratios are not 1": 3}
    report = export.ExportReport()
    export.trl(run(*TURNS), report=report, constrained="drop")
    assert (report.noted, report.dropped) == ({}, {"steps left out: constrained_sampling": 1})


KEPT = SamplingMask(np.array([2, 5], np.int32), np.array([2], np.int32))
RENORMALISE = "the ids that could be sampled are in sampling_mask, and a trainer can renormalise over"
REMEDIES: list[tuple[dict[str, Any], str, str]] = [
    (GRAMMAR, "constrained_sampling", 'leave them out with sequences(constrained="drop"), or record the sampling mask'),
    ({**GRAMMAR, "sampling_mask": KEPT}, "constrained_sampling", RENORMALISE),
    (
        {"sampling": {"top_p": 0.9}},
        "distribution_truncated",
        "set top_p=1, top_k=-1 and min_p=0 in requests, or record",
    ),
    ({"sampling": {"top_k": 5}, "sampling_mask": KEPT}, "distribution_truncated", RENORMALISE),
    ({"sampling": {"min_p": 0.1}}, "distribution_truncated", "min_p=0"),
    ({"sampling": {"min_tokens": 3}}, "distribution_truncated", "set the trainer's logits of the stop tokens to"),
    ({"sampling": {"allowed_token_ids": [1]}}, "distribution_truncated", "logits of all other ids to minus infinity"),
    ({"sampling": {"bad_words": ["x"]}}, "distribution_truncated", "logits of the banned ids to minus infinity"),
    ({"sampling": {"logit_bias": {"5": 1}}}, "distribution_biased", "add the same bias to the trainer's logits"),
    # A mask has the tokens, and not how likely a bias or a penalty made them.
    ({"sampling": {"logit_bias": {"5": 1}}, "sampling_mask": KEPT}, "distribution_biased", "add the same bias to the"),
    (
        {"sampling": {"presence_penalty": 0.5}},
        "distribution_biased",
        "apply the same penalties to the trainer's logits",
    ),
    (
        {"sampling": {"use_beam_search": True}},
        "distribution_biased",
        "leave these steps out: the answer was not sampled",
    ),
]


@pytest.mark.parametrize(("facts", "code", "help_"), REMEDIES)
def test_a_finding_has_what_a_trainer_can_do(facts: dict[str, Any], code: str, help_: str) -> None:
    (finding,) = [one for one in run(step(0, [1], [2], **facts)).check() if one.code == code]
    assert help_ in finding.message.partition("What helps: ")[2]


def test_two_settings_have_the_help_of_both() -> None:
    one = step(0, [1], [2], sampling={"top_p": 0.9, "top_k": 3, "bad_words": ["x"]})
    (finding,) = [one for one in run(one).check() if one.code == "distribution_truncated"]
    helps = finding.message.partition("What helps: ")[2]
    assert helps.count("top_p=1") == 1
    assert helps.count("banned ids") == 1


def issue(field: str, code: str, message: str = "So it was.") -> ExtraIssue:
    return ExtraIssue(field=field, code=code, message=message)


def test_extras_that_are_missing_are_found_once_for_each_reason() -> None:
    withheld = issue("routed_experts", "malformed")
    steps = [step(at, [at], [1], extra_issues=(withheld,)) for at in range(3)]
    steps.append(step(3, [3], [1], extra_issues=(issue("sampling_mask", "refused"), withheld)))
    steps.append(step(4, [4], [1], extra_issues=(issue("sampling_mask", "not_in_this_form"),), status="error"))
    found = [(one.code, one.grade, one.step_id, one.message) for one in run(*steps).check() if "extra_" in one.code]
    assert found == [
        ("extra_withheld", "warning", None, "routed_experts, malformed (4 steps, the first s0): So it was."),
        ("extra_not_sent", "warning", None, "sampling_mask, refused (step s3): So it was."),
        ("extra_not_sent", "warning", None, "sampling_mask, not_in_this_form (step s4): So it was."),
    ]
    assert len(run(*steps).sequences()) == 4


def test_extras_without_ids_are_found() -> None:
    one = step(0, [1], [2], sampling_mask=KEPT, completion_token_ids=None, logprobs=None)
    (finding,) = [each for each in run(one).check() if each.code == "extra_withheld"]
    assert finding.message == "sampling_mask, ids_missing (step s0): without token ids its positions are not known."
