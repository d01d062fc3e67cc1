"""ATIF documents: what stands where. That they are valid is tested with Harbor's own validator, in tests/consumers."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rollout_trace as rt
from rollout_trace.data import episodes as data_episodes
from rollout_trace.data.model import Completion, Cost, Step, ToolCall, ToolRun, Usage
from rollout_trace.export import atif, write_atif
from rollout_trace.export._rows import episodes
from rollout_trace.report import ExportReport
from tests.consumers import recorded
from tests.unchecked import unchecked


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def step(at: int, messages: list[Any] | None, text: str | None = None, **fields: Any) -> Step:
    facts = {"id": f"s{at}", "call_id": f"c{at}", "protocol": "openai.chat", "messages": messages}
    completion = None if text is None else Completion(content=text)
    return Step(**{**facts, "completion": completion, **fields})


def outline(document: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Of each step who speaks, what is said, and the step it follows where that is not the one before."""
    return [(one["source"], one["message"], one.get("extra", {}).get("follows")) for one in document["steps"]]


def test_a_tool_agent_is_read_from_top_to_bottom() -> None:
    """Each message once; a tool's result stands at the call, with what is known of its run."""
    (document,) = atif(recorded.tool_agent()[0])
    assert [one["source"] for one in document["steps"]] == ["system", "user", "agent", "agent", "agent"]
    assert "notes" not in document
    first = document["steps"][2]
    (called,), (result,) = first["tool_calls"], first["observation"]["results"]
    assert called["arguments"] == {"a": 1, "b": 2}
    assert (result["source_call_id"], result["content"]) == (called["tool_call_id"], "3")
    assert result["extra"]["tool"] == "add"
    assert document["steps"][3]["observation"]["results"][0]["content"] == "6"
    assert len(document["agent"]["tool_definitions"]) == 1
    assert document["extra"]["group_id"] == "add/1"


def test_forks_say_what_they_follow() -> None:
    (document,) = atif(recorded.forked())
    assert [(source, follows) for source, _, follows in outline(document)] == [
        ("system", None),
        ("user", None),
        ("agent", None),
        ("user", None),
        ("agent", None),
        ("user", 3),
        ("agent", None),
        ("user", 1),
        ("agent", None),
    ]
    assert "extra.follows" in document["notes"]


def test_choices_stand_beside_each_other() -> None:
    """Both follow the question; the counts of the call are on the first alone."""
    (document,) = atif(recorded.several_choices())
    assert outline(document) == [
        ("user", "Which way?", None),
        ("agent", "way 0", None),
        ("agent", "way 1", 1),
        ("user", "Go.", None),
        ("agent", "done", None),
    ]
    assert ["prompt_tokens" in one["metrics"] for one in document["steps"] if "metrics" in one] == [True, False, True]
    assert document["steps"][2]["extra"]["choice"] == 1


def test_answers_that_no_call_gave_are_marked_as_copied() -> None:
    """Examples in the prompt and a rewritten history: what consumers must not train on."""
    steps = [
        step(0, [user("a"), said("example"), user("b")], "first"),
        step(1, [user("a"), said("example"), user("b"), said("rewritten"), user("c")], "second"),
    ]
    (document,) = atif(rt.Trajectory(steps=steps))
    assert outline(document) == [
        ("user", "a", None),
        ("agent", "example", None),
        ("user", "b", None),
        ("agent", "first", None),
        ("agent", "rewritten", 3),
        ("user", "c", None),
        ("agent", "second", None),
    ]
    copied = [one["message"] for one in document["steps"] if one.get("is_copied_context")]
    assert copied == ["example", "rewritten"]


def test_a_response_that_goes_on_from_another() -> None:
    """With ``previous_response_id`` only what is new is sent: it follows the answer that it names."""
    first = step(0, [user("a")], "one", protocol="openai.responses", response_id="r0")
    second = step(1, [user("b")], "two", protocol="openai.responses", sampling={"previous_response_id": "r0"})
    unknown = step(2, [user("c")], "three", protocol="openai.responses", sampling={"previous_response_id": "r9"})
    report = ExportReport()
    (document,) = atif(rt.Trajectory(steps=[first, second, unknown]), report=report)
    assert outline(document)[2:] == [
        ("user", "b", None),
        ("agent", "two", None),
        ("user", "c", 0),
        ("agent", "three", None),
    ]
    assert report.dropped == {"requests whose first messages the server holds": 1}


def test_failures_are_kept() -> None:
    """A call without an answer is in ``failed_calls``; answers that broke off, or are not to be trained on, say so."""
    (document,) = atif(recorded.failed_steps())
    (failed,) = document["extra"]["failed_calls"]
    assert (failed["after"], failed["status"], failed["error"]["status"]) == (1, "error", 500)
    facts = [one["extra"] for one in document["steps"] if one["source"] == "agent"]
    assert [one.get("status") for one in facts] == [None, "abandoned", None, None, "superseded", "cached", None]
    assert [one.get("trainable") for one in facts].count(False) == 1
    assert document["extra"]["error"]["message"] == "the agent gave up"
    assert document["final_metrics"]["extra"] == {"reward": 0.0}


def test_sub_agents_are_inside_and_referenced() -> None:
    documents = atif(recorded.two_agents())
    assert [document["agent"]["name"] for document in documents] == ["coordinator"] * 2
    for document in documents:
        references = [
            reference["trajectory_id"]
            for one in document["steps"]
            for result in one.get("observation", {}).get("results", ())
            for reference in result.get("subagent_trajectory_ref", ())
        ]
        assert references == [inner["trajectory_id"] for inner in document["subagent_trajectories"]]
        assert len(references) == 2


def test_a_run_that_only_begins_others() -> None:
    """A coordinator without calls of its own: a step without a model call holds the references."""
    parent = rt.Trajectory(id="p", name="coordinator", reward=1.0)
    child = rt.Trajectory(id="k", episode_id="p", parent_id="p", steps=[step(0, [user("a")], "b")])
    grandchild = rt.Trajectory(id="g", episode_id="p", parent_id="k", parent_step_id="s0", steps=[step(1, [user("c")])])
    (document,) = atif([grandchild, child, parent])
    (one,) = document["steps"]
    assert (one["source"], one["llm_call_count"]) == ("agent", 0)
    assert one["observation"]["results"][0]["subagent_trajectory_ref"][0]["trajectory_id"] == "k"
    (inner,) = document["subagent_trajectories"]
    assert inner["steps"][1]["observation"]["results"][0]["subagent_trajectory_ref"][0]["trajectory_id"] == "g"
    assert inner["subagent_trajectories"][0]["extra"]["failed_calls"][0]["step_id"] == "s1"


def test_a_sub_agent_whose_parent_is_not_there() -> None:
    """It is a document of its own, and says so."""
    (document,) = atif(rt.Trajectory(id="k", episode_id="p", parent_id="p", steps=[step(0, [user("a")], "b")]))
    assert "not here" in document["notes"]
    assert document["extra"]["parent_id"] == "p"


def test_costs_count_sub_agents() -> None:
    """As ATIF defines it; another currency than dollars is in ``extra``."""
    parent = rt.Trajectory(id="p", steps=[step(0, [user("a")], "b", cost=Cost(amount=1.0))])
    child = rt.Trajectory(id="k", episode_id="p", parent_id="p", parent_step_id="s0")
    child.steps = [step(1, [user("a")], "b", cost=Cost(amount=0.5))]
    (document,) = atif([parent, child])
    assert document["final_metrics"]["total_cost_usd"] == 1.5
    child.steps[0].cost = Cost(amount=0.5, currency="EUR")
    (document,) = atif([parent, child])
    assert "total_cost_usd" not in document["final_metrics"]
    (inner,) = document["subagent_trajectories"]
    assert inner["steps"][1]["metrics"]["extra"]["cost"] == {"amount": 0.5, "currency": "EUR"}


def test_tool_runs_whose_results_were_never_sent() -> None:
    """The last call's result stands at its call, too; a run that no answer asked for is counted."""
    calls = (ToolCall(id="t1", name="add", arguments="[1]"), ToolCall(name="add", arguments='{"a": 1}'))
    run = ToolRun(tool_call_id="t1", name="add", result={"sum": 3}, step_id="s0", duration=0.5)
    trajectory = rt.Trajectory(steps=[step(0, [user("a")], completion=Completion(tool_calls=calls))])
    trajectory.tool_runs = [run, ToolRun(name="lost")]
    report = ExportReport()
    (document,) = atif(trajectory, report=report)
    answered = document["steps"][1]
    assert answered["tool_calls"] == [
        {"tool_call_id": "t1", "function_name": "add", "arguments": {}, "extra": {"arguments": "[1]"}},
        {"tool_call_id": "call_1", "function_name": "add", "arguments": {"a": 1}},
    ]
    extra = {"tool": "add", "duration_seconds": 0.5}
    assert answered["observation"]["results"] == [{"source_call_id": "t1", "content": '{"sum": 3}', "extra": extra}]
    assert report.dropped == {"tool runs that no answer asked for": 1}
    with pytest.raises(rt.ExportError, match="tool runs that no answer asked for"):
        atif(trajectory, strict=True)


UNTRAINABLE: dict[str, dict[str, Any]] = {
    "retokenized": {"token_source": "retokenized"},
    "lengths_differ": {"logprobs": [-1.0]},
    "abandoned": {"status": "abandoned"},
    "not_trainable": {"trainable": False},
    "usage_differs": {"token_issue": rt.TokenIssue(code="usage_differs", message="…")},
}


def test_ids_that_cannot_be_trained_on_are_withheld() -> None:
    """Readers of ATIF train on every id there is."""
    ids = {"prompt_token_ids": np.array([1], np.int32), "completion_token_ids": np.array([2, 3], np.int32)}
    good = step(0, [user("a")], "b", logprobs=np.array([-1.0, -2.0], np.float32), token_source="engine", **ids)
    bad = [step(at, [user("a")], "b", **ids, **facts) for at, facts in enumerate(UNTRAINABLE.values(), 1)]
    trajectory = rt.Trajectory(steps=[good, *bad])
    report = ExportReport()
    (document,) = atif(trajectory, report=report)
    found = [one.get("metrics") for one in document["steps"] if one["source"] == "agent"]
    whole = {"prompt_token_ids": [1], "completion_token_ids": [2, 3]}
    assert found == [{**whole, "logprobs": [-1.0, -2.0]}, *[None] * 5]
    assert report.dropped == {f"token ids of steps left out: {reason}": 1 for reason in UNTRAINABLE}
    (document,) = atif(trajectory, allow={"retokenized", "abandoned", "usage_differs", "not_trainable"})
    found = [one.get("metrics") for one in document["steps"] if one["source"] == "agent"]
    assert found == [{**whole, "logprobs": [-1.0, -2.0]}, whole, None, whole, whole, whole]
    with pytest.raises(TypeError, match="allow='retokenized': expected a set of reasons"):
        atif(trajectory, allow="retokenized")


def test_logprobs_without_ids_are_told() -> None:
    """Nobody can train on them; those that are no logprobs are left out."""
    sound = step(0, [user("a")], "b", logprobs=np.array([-1.0], np.float32))
    broken = step(1, [user("a")], "c", logprobs=np.array([np.nan], np.float32))
    report = ExportReport()
    (document,) = atif(rt.Trajectory(steps=[sound, broken]), report=report)
    assert [one.get("metrics") for one in document["steps"] if one["source"] == "agent"] == [{"logprobs": [-1.0]}, None]
    assert report.dropped == {"logprobs that are not finite numbers up to 0": 1}


def test_half_characters_and_numbers_that_are_not_finite() -> None:
    """Harbor's reader refuses the first, JSON the second."""
    report = ExportReport()
    trajectory = rt.Trajectory(steps=[step(0, [user("cut \ud83d")], "b", usage=Usage(input=1))])
    unchecked(trajectory, reward=float("nan"))
    (document,) = atif(trajectory, report=report)
    assert document["steps"][0]["message"] == "cut \ufffd"
    assert document["final_metrics"]["extra"] == {"reward": None}
    assert sorted(report.dropped.values()) == [1, 1]


def test_what_is_repeated_in_each_request_counts_once() -> None:
    """ATIF has no type for a file, nor chat for a search result; both requests hold both."""
    sent = [{"role": "user", "content": [{"type": "search_result"}, {"type": "document", "source": {"type": "x"}}]}]
    pdf = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}
    sent.append({"role": "user", "content": [{"type": "document", "source": pdf}]})
    more = [*sent, said("one"), user("b")]
    steps = [step(0, sent, "one", protocol="anthropic.messages"), step(1, more, "two", protocol="anthropic.messages")]
    report = ExportReport()
    atif(rt.Trajectory(steps=steps), report=report)
    assert report.dropped == {
        "content parts without a place in a chat message: search_result": 1,
        "content parts without a place in a chat message: document": 1,
        "content parts that ATIF has no type for: file": 1,
    }


def test_files(tmp_path: Path) -> None:
    """Named by their ids; an image that is in a message is a file beside them."""
    (trajectory,) = recorded.images()
    trajectory.id = "viewers/1"
    assert write_atif(tmp_path / "new", [trajectory, trajectory]) == 2
    names = sorted(one.name for one in (tmp_path / "new").iterdir())
    assert names == ["media", "viewers%2F1-2.json", "viewers%2F1.json"]
    document = json.loads((tmp_path / "new" / names[2]).read_bytes())
    (text, image) = document["steps"][0]["message"]
    assert text == {"type": "text", "text": "What is it?"}
    path = tmp_path / "new" / image["source"]["path"]
    assert path.read_bytes() == base64.b64decode(recorded.IMAGE.split(",")[1])


def test_episodes_are_put_together_within_bounds() -> None:
    """Lines of other processes may stand between; what comes too late is a group of its own, and is counted."""
    runs = [rt.Trajectory(id=f"{episode}{at}", episode_id=episode) for episode in "abc" for at in range(2)]
    mixed = [runs[0], runs[2], runs[1], runs[3], runs[4], runs[5]]
    report = ExportReport()
    assert [[one.id for one in group] for group in episodes(mixed, report)] == [
        ["a0", "a1"],
        ["b0", "b1"],
        ["c0", "c1"],
    ]
    assert report.dropped == {}
    late = episodes([runs[0], runs[2], runs[4], runs[1]], report, max_waiting=2)
    assert [[one.id for one in group] for group in late] == [["a0"], ["a1"], ["b0"], ["c0"]]
    assert report.dropped == {"trajectories too far from the first of their episode": 1}


def test_only_the_latest_episodes_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a stream without end no list grows: a straggler of an episode long gone is an episode of its own."""
    monkeypatch.setattr(data_episodes, "REMEMBERED", 2)
    runs = [rt.Trajectory(id=name, episode_id=name[0]) for name in ("a0", "b0", "c0", "d0", "c1", "a1", "e0")]
    report = ExportReport()
    assert [[one.id for one in group] for group in episodes(runs, report, max_waiting=1)] == [
        ["a0"],
        ["b0"],
        ["c0"],
        ["c1"],
        ["d0"],
        ["a1"],
        ["e0"],
    ]
    assert report.dropped == {"trajectories too far from the first of their episode": 1}
