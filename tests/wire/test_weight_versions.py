"""Versions of the weights in chat and completions of vLLM 0.33: recorded, and changed in the middle of an answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rollout_trace.data.extras import PolicySpan
from rollout_trace.data.model import Step
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.export import openenv, rllm, steps
from rollout_trace.testing.recordings import load_exchanges
from rollout_trace.wire import decode
from rollout_trace.wire.chat import usual_answer
from rollout_trace.wire.facts import RequestFacts
from tests.wire.raw import JSON, SSE, sse
from tests.wire.recorded import DATA, differing

RECORDED = {one.name: one for one in load_exchanges(DATA / "wire_vllm_033.jsonl.xz")}
CHANGED = [{"version": "7", "start": 0, "end": 1}, {"version": "8", "start": 1, "end": 2}]
HEAD = {"id": "x", "model": "m", "prompt_token_ids": [1, 2, 3]}


@pytest.mark.parametrize("name", ["exact_weight_versions", "exact_weight_versions_stream"])
def test_a_recorded_answer_says_which_weights_sampled_it(name: str) -> None:
    """vLLM calls them `default` until somebody names them; the answer is read in the short way."""
    one = RECORDED[name]
    (step,) = decode("openai.chat", one.request, one.response, content_type=one.content_type)
    assert step.policy_spans == (PolicySpan(0, 24, "default"),)
    assert (step.policy_version, step.token_issue, step.extra_issues) == ("default", None, ())
    facts = RequestFacts(sampling={"return_token_ids": True})
    assert usual_answer(one.response, streamed="stream" in one.content_type, request=facts) is not None


def both(protocol: str, versions: Any = CHANGED) -> list[Step]:
    """The steps of an answer of two tokens, unstreamed and as a stream."""
    pair: dict[str, list[Any]] = {"tokens": ["a", "b"], "token_logprobs": [-0.5, -1.0]}
    logprobs: list[Any] = [{name: values[at : at + 1] for name, values in pair.items()} for at in (0, 1)]
    said: list[Any] = [{"text": letter} for letter in "ab"]
    whole: Any = {"text": "ab", "logprobs": pair}
    if protocol == "openai.chat":
        entries = [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -1.0}]
        logprobs = [{"content": [entry]} for entry in entries]
        said = [{"delta": {"content": letter}} for letter in "ab"]
        whole = {"message": {"role": "assistant", "content": "ab"}, "logprobs": {"content": entries}}
    end = {"finish_reason": "stop", "weight_versions": versions}
    choice = {"index": 0, **whole, "token_ids": [5, 6], **end}
    parts = [
        {"index": 0, **one, "logprobs": values, "token_ids": [at], "finish_reason": None}
        for one, values, at in zip(said, logprobs, (5, 6), strict=True)
    ]
    parts[-1].update(end)
    chunks = [{**HEAD, "choices": [part]} for part in parts]
    found = decode(protocol, b"{}", json.dumps({**HEAD, "choices": [choice]}).encode(), content_type=JSON)
    return [*found, *decode(protocol, b"{}", sse(*chunks), content_type=SSE)]


@pytest.mark.parametrize("protocol", ["openai.chat", "openai.completions"])
def test_a_change_on_the_way_is_in_spans_and_version(protocol: str) -> None:
    """Streamed, they stand on the last chunk; a stream equals the whole answer."""
    whole, streamed = both(protocol)
    assert (whole.policy_version, whole.policy_spans) == ("7,8", (PolicySpan(0, 1, "7"), PolicySpan(1, 2, "8")))
    assert differing(whole, streamed) == set()
    assert whole.extra is None
    for step in both(protocol, [CHANGED[1]]):
        assert (step.policy_version, step.policy_spans) == ("8", None)
        assert [(one.field, one.code) for one in step.extra_issues] == [("policy_spans", "not_aligned")]
    assert [step.policy_version for step in [*both(protocol, []), *both(protocol, None)]] == [None] * 4


def test_exports_have_the_version() -> None:
    """Those that take one for each step."""
    (step, _) = both("openai.chat", [{"version": "7", "start": 0, "end": 2}])
    trajectory = Trajectory(steps=[step], reward=1.0, status="completed")
    assert [row["policy_version"] for row in steps([trajectory])] == ["7"]
    (row,) = rllm([trajectory])
    assert row["trajectories"][0]["steps"][0]["weight_version"] == 7
    assert "'policy_version': '7'" in str(list(openenv([trajectory])))
