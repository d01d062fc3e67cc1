"""What a check finds: every code, its place, and that nothing a trajectory may hold makes it fail."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rollout_trace as rt
from rollout_trace.data.exact_turn import ExactTurn
from rollout_trace.data.exchange import Exchange
from rollout_trace.data.extras import ExtraIssue, PolicySpan
from rollout_trace.data.model import CUT_OFF, Completion, ErrorInfo, Step, TokenIssue, Usage, new_step
from rollout_trace.data.tokens import as_int32
from rollout_trace.testing.recordings import load_exchanges
from rollout_trace.train.check_codes import CODES, ISSUE_CODES
from rollout_trace.train.checks import DEGENERATE_LENGTH, Finding, check
from rollout_trace.train.selection import NEVER_ALLOWED, reason_left_out
from rollout_trace.wire import decode
from tests.strategies import PROFILE, trajectories
from tests.unchecked import unchecked

TESTS = Path(__file__).parents[1]
DOCS = TESTS.parent / "docs"


def step(number: int = 0, **facts: Any) -> Step:
    """Two prompt ids, three completion ids."""
    whole: dict[str, Any] = {
        "id": f"s{number}", "call_id": f"c{number}", "index": number, "token_source": "engine",
        "prompt_token_ids": [1, 2], "completion_token_ids": [3, 4, 5], "logprobs": [-1.0, -0.5, -0.25],
        "finish_reason": "stop",
    }  # fmt: skip
    return Step(**{**whole, **facts})


def of(*steps: Step, reward: Any = 1.0) -> rt.Trajectory:
    return unchecked(rt.Trajectory(steps=list(steps)), reward=reward)


def found(trajectory: rt.Trajectory, **options: Any) -> list[tuple[str, str | None, int | None]]:
    return [(one.code, one.step_id, one.position) for one in check(trajectory, **options)]


def raw_ids(*ids: int) -> Any:
    """Ids that Step would refuse, as a program could put them there that makes steps by itself."""
    array = np.array(ids, np.int32)
    array.flags.writeable = False
    return array


def conversation(*answers: tuple[list[int], list[int]], said: str = "yes") -> list[Step]:
    """Turns of one conversation, whose prompt and completion ids are given and whose messages repeat what was said."""
    turns: list[Step] = []
    messages: list[Any] = [{"role": "user", "content": "go"}]
    for number, (prompt, completion) in enumerate(answers):
        turns.append(
            step(
                number, prompt_token_ids=prompt, completion_token_ids=completion, logprobs=[-1.0] * len(completion),
                messages=list(messages), completion=rt.Completion(content=said),
            )
        )  # fmt: skip
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "more"}]
    return turns


WITHHELD = (DOCS / "steps.md").read_text(encoding="utf-8").partition("## Why ids or logprobs are missing")[2]
ISSUES = re.findall(r"`([a-z_]+)`", "".join(re.findall(r"^\| (`.*?`) \|", WITHHELD.partition("\n## ")[0], re.M)))
STATUSES = ("error", "cancelled", "abandoned", "running", "superseded", "cached")

Case = tuple[rt.Trajectory, "str | None", "int | None"]
BY_ISSUE: dict[str, Case] = {
    code: (of(step(token_issue=TokenIssue(code=code, message="Said so."))), "s0", None) for code in ISSUES
}
BY_STATUS: dict[str, Case] = {status: (of(step(status=status)), "s0", None) for status in STATUSES}
FIRST = [1, 2, 3, 4, 5]
CASES: dict[str, Case] = {
    **BY_STATUS,
    "ids_missing": (of(step(completion_token_ids=None, logprobs=None)), "s0", None),
    "prompt_ids_missing": (of(step(prompt_token_ids=None)), "s0", None),
    "empty_completion": (of(step(completion_token_ids=[], logprobs=[])), "s0", None),
    "logprobs_missing": (of(step(logprobs=None)), "s0", None),
    "lengths_differ": (of(step(logprobs=[-1.0, -1.0])), "s0", 2),
    "logprobs_not_finite": (of(step(logprobs=[-1.0, math.nan, -math.inf])), "s0", 1),
    "logprobs_positive": (of(step(logprobs=[-1.0, 0.0, 0.5])), "s0", 2),
    "ids_out_of_range": (
        of(new_step({"id": "s0", "call_id": "c", "completion_token_ids": raw_ids(7, -1, -2)})),
        "s0",
        1,
    ),
    "advantage_invalid": (of(step(advantage=[0.5, 1.0])), "s0", 2),
    "reward_not_finite": (of(unchecked(step(), reward=math.nan)), "s0", None),
    "not_trainable": (of(step(trainable=False)), "s0", None),
    "retokenized": (of(step(token_source="retokenized")), "s0", None),
    "truncated": (of(step(finish_reason="length")), "s0", None),
    "degenerate": (of(step(completion_token_ids=[*range(31), *[7] * 33], logprobs=[-1.0] * 64)), "s0", 31),
    "logprobs_all_zero": (of(step(logprobs=[0.0, -0.0, 0.0])), "s0", None),
    "logprobs_not_sampled": (of(step(logprobs_mode="raw", sampling={"temperature": 0.7})), "s0", None),
    "constrained_sampling": (of(step(sampling={"tool_choice": "required"})), "s0", None),
    "distribution_truncated": (of(step(sampling={"top_p": 0.9})), "s0", None),
    "distribution_biased": (of(step(sampling={"logit_bias": {"5": 1}})), "s0", None),
    "aborted": (of(step(finish_reason="abort")), "s0", None),
    "extra_withheld": (of(step(policy_spans=(PolicySpan(0, 2, "a"),))), None, None),
    "extra_not_sent": (
        of(step(extra_issues=(ExtraIssue(field="routed_experts", code="refused", message="No."),))),
        None,
        None,
    ),
    "usage_unread": (of(step(extra={"x_new": {"usage": {"output_tokens": 5}}})), None, None),
    "error_unread": (of(step(extra={"x_new": {"error": "overloaded"}})), None, None),
    "sent_as_text": (of(step(exact_turn=ExactTurn(reason="media", detail="new messages hold an image."))), "s0", None),
    "ids_not_served": (
        of(step(exact_turn=ExactTurn(n_ids=3, reason="not_served", detail="3 ids were sent, 4 served."))),
        "s0",
        None,
    ),
    "nothing_trainable": (of(), None, None),
    "drift": (of(*conversation((FIRST[:2], FIRST[2:]), ([1, 2, 3, 4, 9, 9], [7]))), "s1", 4),
    "several_roots": (of(step(0), step(1, prompt_token_ids=[8])), None, None),
    "forks": (of(step(0), step(1)), None, None),
    "logprobs_modes_differ": (
        of(step(0, logprobs_mode="raw"), step(1, prompt_token_ids=[*FIRST, 6], logprobs_mode="processed")),
        None,
        None,
    ),
    "reward_missing": (of(step(), reward=None), None, None),
}


def test_the_codes_of_issues_are_those_of_the_page() -> None:
    assert set(ISSUE_CODES) == set(ISSUES)


def test_a_sound_trajectory_has_no_findings() -> None:
    later = step(1, prompt_token_ids=[*FIRST, 6], reward=0.0, advantage=[0.5, -1, 2])
    assert check(of(step(advantage=-0.5, logprobs_mode="raw", sampling={"temperature": 1.0}), later)) == []
    assert check(of(step(), later, reward=None), vocab_size=7) == []


@pytest.mark.parametrize("cases", [CASES, BY_ISSUE], ids=["found", "issues"])
def test_every_code_is_found_where_it_is(cases: dict[str, Case]) -> None:
    for code, (trajectory, step_id, position) in cases.items():
        (one,) = (finding for finding in check(trajectory) if finding.code == code)
        assert (one.step_id, one.position) == (step_id, position), code
        assert one.grade == CODES[code][0], code
        assert one.message.rstrip(".?") != one.message, code


UNREAD: list[tuple[dict[str, Any], str | None]] = [
    ({"usage": Usage(input=1, output=3, extra={"kv_cache_hit_tokens": 5})}, "usage.extra.kv_cache_hit_tokens"),
    ({"usage": Usage(input=1, output=3, cache_read=0, extra={"prompt_cache_miss_tokens": 5})}, None),
    ({"usage": Usage(input=1, output=3, extra={"thinking_tokens": 5})}, "usage.extra.thinking_tokens"),
    ({"usage": Usage(input=1, output=3, reasoning=2, extra={"thinking_tokens": 5})}, None),
    ({"usage": Usage(input=1, output=3, extra={"audio_tokens": 5, "cached_tokens": 0})}, None),
    ({"usage": Usage(extra={"generated_tokens": 3})}, "usage.extra.generated_tokens"),
    ({"usage": Usage(input=1, output=3), "extra": {"x": {"usage": {"output_tokens": 3}}}}, None),
    ({"usage": Usage(input=1, output=3), "extra": {"pricing": {"total_cost": 0.5}}}, "extra.pricing.total_cost"),
    ({"usage": Usage(input=1, output=3, extra={"cost": 0.5})}, None),
    ({"usage": Usage(input=1, output=3, extra={"cost": 0.5, "is_byok": True})}, None),
    ({"extra": {"pricing": {"cost": 0.5}}, "cost": rt.Cost(amount=1.0, source="override")}, None),
    ({"completion": Completion(extra={"error_message": "overloaded"})}, "completion.extra.error_message"),
    ({"extra": {"error": None, "errors": [], "error_code": 0, "metadata": {"error": "the caller's"}}}, None),
    ({"extra": {"error": "seen"}, "status": "error", "error": ErrorInfo(type="E", message="m")}, None),
]


@pytest.mark.parametrize(("facts", "place"), UNREAD, ids=str)
def test_what_looks_like_a_usage_or_an_error_and_was_not_read(facts: dict[str, Any], place: str | None) -> None:
    """With the number of steps; what is known already is not found."""
    one = [each for each in check(of(step(**facts))) if each.code.endswith("_unread")]
    assert [each.message.partition(" ")[0] for each in one] == ([] if place is None else [f"`{place}`"])
    several = [each for each in check(of(step(**facts), step(1, **facts))) if each.code.endswith("_unread")]
    assert [each.message.partition("(")[2][:22] for each in several] == (
        [] if place is None else ["2 steps, the first s0)"]
    )


def test_the_table_holds_what_is_found_and_nothing_else() -> None:
    assert {*CASES, *BY_ISSUE} == set(CODES) - {"repeated_rollout"}  # Of several trajectories: tests/cli.
    assert len(ISSUES) >= 18


def test_the_page_has_the_same_table() -> None:
    rows = re.findall(r"^\| `([a-z_]+)` \| (\w+) \| (.*) \|$", (DOCS / "checks.md").read_text(encoding="utf-8"), re.M)
    assert {code: (grade, meaning) for code, grade, meaning in rows} == dict(CODES)
    assert len(rows) == len(CODES)


def test_reasons_to_leave_a_step_out_are_codes() -> None:
    assert set(NEVER_ALLOWED) <= set(CODES)


def test_a_finding_is_one_readable_line() -> None:
    (one,) = check(of(step(logprobs=[-1.0, math.nan, 0.0])))[:1]
    assert str(one) == "fatal: logprobs_not_finite (step s0, token 1): logprobs[1] is nan; 1 of 3 are not finite."
    broken = of(step(), replace(step(1), status="error", error=ErrorInfo(type="APIError", message="two\nlines")))
    (two,) = (one for one in check(broken) if one.code == "error")
    assert str(two) == (
        "warning: error (step s1): status is 'error' (APIError: two lines): it is left out of the sequences."
    )
    assert str(Finding(code="x", grade="info", message="Of the whole.")) == "info: x: Of the whole."


# Rules with a border


def test_ids_beyond_the_vocabulary() -> None:
    trajectory = of(step(0), step(1, prompt_token_ids=[*FIRST, 6]))
    assert found(trajectory, vocab_size=7) == []
    assert found(trajectory, vocab_size=6) == [("ids_out_of_range", "s1", 5)]
    assert "prompt_token_ids[5] is 6; 1 of 6 ids" in check(trajectory, vocab_size=6)[0].message
    assert [one.position for one in check(trajectory, vocab_size=4)] == [1, 3, 1]
    assert as_int32([2**31 - 1]).tolist() == [2**31 - 1]
    assert found(of(step(prompt_token_ids=[2**31 - 1]))) == []


@pytest.mark.parametrize(
    ("ids", "place"),
    [
        ([*range(32), *[7] * 32], None),  # half
        ([*range(31), *[7] * 33], 31),
        ([7] * (DEGENERATE_LENGTH - 1), None),  # short
        ([7] * DEGENERATE_LENGTH, 0),
        ([7, 8] * 64, None),  # not in a row
        ([1, *[7] * 100, *range(9), 7], 1),
    ],
)
def test_degenerate_is_one_id_in_a_row_over_more_than_half(ids: list[int], place: int | None) -> None:
    expected = [] if place is None else [("degenerate", "s0", place)]
    assert found(of(step(completion_token_ids=ids, logprobs=[-1.0] * len(ids)))) == expected


@pytest.mark.parametrize("reason", [*sorted(CUT_OFF), "stop", "tool_calls", "end_turn", None])
def test_truncated_are_the_finish_reasons_of_a_limit(reason: str | None) -> None:
    assert found(of(step(finish_reason=reason))) == ([("truncated", "s0", None)] if reason in CUT_OFF else [])


@pytest.mark.parametrize(
    ("mode", "sampling", "differs"),
    [
        ("raw", {"temperature": 0}, True),
        ("raw", {"temperature": 1}, False),
        ("raw", {"sampling_params": {"temperature": 0.5}}, True),
        ("raw", {"temperature": None, "sampling_params": {}}, False),
        ("raw", {"temperature": "hot"}, False),
        ("raw", None, False),
        ("processed", {"temperature": 0.5}, False),
        (None, {"temperature": 0.5}, False),
    ],
)
def test_raw_logprobs_are_of_temperature_one(mode: Any, sampling: Any, differs: bool) -> None:
    expected = [("logprobs_not_sampled", "s0", None)] if differs else []
    assert found(of(step(logprobs_mode=mode, sampling=sampling))) == expected


@pytest.mark.parametrize(
    ("advantage", "position"),
    [
        ([0.5, math.nan, 1.0], 1), ([0.5, 1e300, 1.0], 1), (math.inf, None), (-1e300, None), (10**400, None),
        ([], 0), ([1.0] * 5, 3), ([[1.0, 2.0, 3.0]], None), ([[1.0], 2.0, 3.0], None), ("1.5", None),
        (["1", "2", "3"], None), ({}, None),
    ],
)  # fmt: skip
def test_advantages_that_do_not_fit(advantage: Any, position: int | None) -> None:
    """Such a step cannot be trained on, and does not keep the rest of the trajectory from being checked."""
    trajectory = of(unchecked(step(), advantage=advantage))
    assert found(trajectory) == [("advantage_invalid", "s0", position), ("nothing_trainable", None, None)]
    assert found(of(unchecked(step(0), advantage=advantage), step(1), step(2))) == [
        ("advantage_invalid", "s0", position),
        ("forks", None, None),
    ]


@pytest.mark.parametrize("reward", [math.nan, math.inf, "much", 10**400])
def test_a_reward_that_is_no_finite_number(reward: Any) -> None:
    assert found(of(step(), reward=reward)) == [("reward_not_finite", None, None)]


# Which steps are looked at


@pytest.mark.parametrize("aside", [{"trainable": False}, {"status": "cached"}, {"status": "superseded"}])
def test_steps_that_nobody_trains_on_are_not_blamed(aside: dict[str, Any]) -> None:
    """A judge of a hosted API has no ids; that is no fault of the trajectory."""
    issue = TokenIssue(code="ids_missing", message="None came.")
    judge = step(9, **aside, token_issue=issue, prompt_token_ids=None, completion_token_ids=None, logprobs=None)
    findings = check(of(step(), judge))
    assert [(one.step_id, one.grade) for one in findings] == [("s9", "info")]


def test_what_an_issue_explains_is_not_said_again() -> None:
    """The rest of such a step is checked all the same."""
    issue = TokenIssue(code="usage_differs", message="3 tokens arrived, usage says 4.")
    withheld = step(1, token_issue=issue, completion_token_ids=None, logprobs=None, prompt_token_ids=None)
    assert found(of(step(), replace(withheld, finish_reason="length"))) == [
        ("usage_differs", "s1", None),
        ("truncated", "s1", None),
    ]
    assert check(of(step(), withheld))[0].message == "3 tokens arrived, usage says 4."


def test_a_failed_call_lacks_nothing_but_its_status() -> None:
    failed = step(1, status="error", prompt_token_ids=None, completion_token_ids=None, logprobs=None)
    assert found(of(step(), failed)) == [("error", "s1", None)]


def test_a_stream_that_broke_off_is_checked_as_far_as_it_came() -> None:
    cut = step(1, status="abandoned", logprobs=[-1.0, math.nan, 1.0])
    assert found(of(step(), cut)) == [
        ("abandoned", "s1", None),
        ("logprobs_not_finite", "s1", 1),
        ("logprobs_positive", "s1", 2),
    ]


def test_codes_of_newer_versions_are_passed_on() -> None:
    issue = TokenIssue(code="of_tomorrow", message="Who knows.")
    assert [(one.code, one.grade) for one in check(of(step(), step(1, token_issue=issue)))] == [
        ("of_tomorrow", "fatal")
    ]
    status: Any = "paused"
    assert [(one.code, one.grade) for one in check(of(step(), step(1, status=status)))] == [("paused", "warning")]


def test_modes_of_steps_that_are_left_out_do_not_matter() -> None:
    assert found(of(step(0, logprobs_mode="raw"), step(1, logprobs_mode="processed", trainable=False))) == [
        ("not_trainable", "s1", None)
    ]


# Whole trajectories


def test_each_drift_is_a_finding() -> None:
    """Three turns, each of which sees the one before in other ids."""
    turns = conversation(([1], [2, 3]), ([1, 2, 9], [4]), ([1, 2, 9, 8, 8], [5]))
    findings = [one for one in check(of(*turns)) if one.code == "drift"]
    drifted = rt.drift(of(*turns))
    assert [(one.step_id, one.position) for one in findings] == [("s1", 2), ("s2", 3)]
    assert [one.message for one in findings] == [str(event) for event in drifted]
    assert all("its prompt leaves step" in one.message for one in findings)


@PROFILE
@given(trajectories(), st.none() | st.sampled_from([1, 3, 2**31]))
def test_check_finds_why_steps_are_left_out_and_never_fails(trajectory: rt.Trajectory, vocab_size: int | None) -> None:
    """And with a fatal finding of its own, no step is trained on."""
    findings = check(trajectory, vocab_size=vocab_size)
    said = {(one.step_id, one.code) for one in findings}
    reasons = [(one.id, reason_left_out(one)) for one in trajectory.steps]
    assert {(step_id, reason) for step_id, reason in reasons if reason is not None} <= said
    for one in findings:
        assert "\n" not in str(one)
    if vocab_size is None and not any(one.code in ("advantage_invalid", "reward_not_finite") for one in findings):
        fatal = {one.step_id for one in findings if one.grade == "fatal"}
        used = {step_id for step_id, reason in reasons if reason is None}
        # Two halves of a drawn trajectory may give their steps the same ids.
        left = {step_id for step_id, reason in reasons if reason is not None}
        assert not (fatal & used) - left
        assert (None in fatal) == (not used)


@PROFILE
@given(trajectories(live=True), st.data())
def test_broken_arrays_are_findings(trajectory: rt.Trajectory, data: st.DataObject) -> None:
    """Copies with arrays of any length and any float32."""
    numbers = st.lists(st.floats(width=32) | st.none().map(lambda _: math.nan), max_size=5)
    broken: Any = [(data.draw(numbers), data.draw(st.none() | numbers)) for _ in trajectory.steps]
    trajectory.steps = [
        unchecked(replace(one, logprobs=logprobs), advantage=advantage)
        for one, (logprobs, advantage) in zip(trajectory.steps, broken, strict=True)
    ]
    findings = check(trajectory)
    for one in trajectory.steps:
        logprobs = one.logprobs
        assert logprobs is not None
        sound = one.completion_token_ids is None or len(logprobs) == len(one.completion_token_ids)
        sound = sound and all(math.isfinite(value) and value <= 0 for value in logprobs.tolist())
        looked_at = one.trainable and one.status not in ("cached", "superseded")
        if not sound and looked_at:
            assert any(item.step_id == one.id and item.grade == "fatal" for item in findings)


def test_an_open_trajectory_can_be_checked() -> None:
    with rt.trajectory() as trajectory:
        assert found(trajectory) == [("reward_missing", None, None), ("nothing_trainable", None, None)]


def test_a_check_changes_nothing() -> None:
    trajectory, twin = of(step(), step(1, advantage=[1.0])), of(step(), step(1, advantage=[1.0]))
    twin.id, twin.episode_id = trajectory.id, trajectory.episode_id
    check(trajectory, vocab_size=3)
    assert trajectory == twin


# Recordings of real engines


PROTOCOLS = {
    "/v1/chat/completions": "openai.chat",
    "/v1/completions": "openai.completions",
    "/v1/responses": "openai.responses",
    "/v1/messages": "anthropic.messages",
    "/inference/v1/generate": "sglang.generate",
}


def exchanges() -> Iterator[tuple[str, Exchange]]:
    for file in sorted((TESTS / "data").glob("wire_*.jsonl.xz")):
        for exchange in load_exchanges(file):
            if exchange.path in PROTOCOLS:
                yield PROTOCOLS[exchange.path], exchange


@cache
def recorded() -> list[list[Step]]:
    """The steps of every recorded exchange."""
    return [
        decode(protocol, one.request, one.response, content_type=one.content_type, status=one.status or 0)
        for protocol, one in exchanges()
    ]


def test_recordings_without_an_issue_have_no_fatal_finding() -> None:
    """And those with one have it, under its own code; but of messages nothing was lost: they never have ids."""
    sound = 0
    for steps in recorded():
        findings = check(rt.Trajectory(steps=steps, reward=1.0), vocab_size=2048)
        fatal = {(one.step_id, one.code) for one in findings if one.grade == "fatal" and one.step_id is not None}
        issues = {(one.id, one.token_issue.code) for one in steps if one.token_issue is not None}
        messages = {(one.id, "ids_missing") for one in steps if one.protocol == "anthropic.messages"}
        assert {(one.step_id, one.code) for one in findings if one.grade == "info"} >= issues & messages
        expected = issues - messages
        expected |= {(one.id, "prompt_ids_missing") for one in steps if reason_left_out(one) == "prompt_ids_missing"}
        assert fatal == expected
        sound += not any(one.grade == "fatal" for one in findings)
    assert sound > 80


def test_recordings_make_one_trajectory_without_a_fatal_finding() -> None:
    """All sound steps together: unrelated prompts, siblings and conversations are no reason not to train."""
    steps = [one for steps in recorded() for one in steps if reason_left_out(one) is None]
    findings = check(of(*steps), vocab_size=2048)
    assert len(steps) > 80
    assert [one for one in findings if one.grade == "fatal"] == []
    assert {"several_roots", "forks", "drift", "truncated"} <= {one.code for one in findings}


def test_recordings_that_hit_their_limit_are_truncated() -> None:
    cut = [one for steps in recorded() for one in steps if one.finish_reason in CUT_OFF]
    assert {one.finish_reason for one in cut} == {"length", "max_tokens", "max_output_tokens"}
    for one in cut:
        assert ("truncated", one.id, None) in found(of(one))
