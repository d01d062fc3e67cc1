"""Files of other tools: ATIF, verifiers, inspect, ART, Agent-lightning, spans; what each has arrives, and no more."""

from __future__ import annotations

import copy
import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace import importing
from rollout_trace.wire.chat_messages import to_chat

from .files import DATA, as_eval, by_id, ids, load


def issue(step: rt.Step) -> str | None:
    return None if step.token_issue is None else step.token_issue.code


def tokens(step: rt.Step) -> tuple[Any, Any, Any]:
    return ids(step.prompt_token_ids), ids(step.completion_token_ids), ids(step.logprobs)


# ATIF


def test_atif_of_another_tool() -> None:
    found = load("atif")
    main, sub = found
    first, odd, several = main.steps
    assert tokens(first) == ([1, 2, 3, 4], [5, 6, 7], [-0.5, -0.25, -1.5])
    assert first.token_source == "engine"
    assert (first.cost, first.usage) == (
        rt.Cost(amount=0.001, source="unknown"),
        rt.Usage(input=4, output=3, cache_read=0),
    )
    # Two ids and three logprobs: ATIF's own reader takes them.
    assert (odd.completion_token_ids, odd.logprobs, issue(odd)) == (None, None, "lengths_differ")
    assert (several.trainable, issue(several)) == (False, "several_completions")
    assert [message["role"] for message in to_chat(odd)] == ["system", "user", "assistant", "tool", "assistant"]
    assert (main.reward, sub.reward) == (0.5, None)
    assert (sub.parent_id, sub.parent_step_id, sub.episode_id) == (main.id, first.id, main.episode_id)
    (run,) = main.tool_runs
    assert (run.tool_call_id, run.name, run.result, run.step_id) == ("c1", "bash", "a.py", first.id)
    assert found.report.missing == {"token ids": 3, "logprobs": 3, "rewards": 1}


def test_atif_copied_context_is_no_step() -> None:
    found = load("atif")
    assert [len(one.steps) for one in found] == [3, 1]
    assert found.report.noted == {"answers of copied context, kept as messages alone": 1}


@pytest.mark.parametrize(
    ("logprobs", "code"),
    [
        ([-0.5, float("nan"), -1.0], "logprobs_not_finite"),
        ([-0.5, float("-inf"), -1.0], "logprobs_not_finite"),
        ([-0.5, 0.25, -1.0], "logprobs_positive"),
        ([-0.5, None, -1.0], "logprobs_incomplete"),
        ([-0.5, -(10**400), -1.0], "logprobs_not_finite"),
    ],
)
def test_logprobs_that_cannot_be_are_withheld(logprobs: list[Any], code: str, tmp_path: Path) -> None:
    document = json.loads((DATA / "atif" / "run.json").read_text())
    document["steps"][2]["metrics"]["logprobs"] = logprobs
    path = tmp_path / "run.json"
    path.write_text(json.dumps(document))
    step = next(importing.atif(path)).steps[0]
    assert (step.logprobs, issue(step)) == (None, code)
    assert ids(step.completion_token_ids) == [5, 6, 7]


def test_ids_that_usage_does_not_count_are_withheld(tmp_path: Path) -> None:
    document = json.loads((DATA / "atif" / "run.json").read_text())
    document["steps"][2]["metrics"]["completion_tokens"] = 4
    path = tmp_path / "run.json"
    path.write_text(json.dumps(document))
    step = next(importing.atif(path)).steps[0]
    assert (step.completion_token_ids, step.logprobs, issue(step)) == (None, None, "usage_differs")


# verifiers


def test_verifiers_of_its_own() -> None:
    found = load("verifiers")
    (trace,) = found
    first, second, torn, short, failed = trace.steps
    assert tokens(first)[:2] == ([1, 2, 3, 4], [5, 6])
    assert ids(first.logprobs) == pytest.approx([-0.1235, -0.5])
    assert tokens(second) == ([1, 2, 3, 4, 5, 6, 7, 8], [9], [-0.25])
    assert (torn.completion_token_ids, issue(torn)) == (None, "several_completions")
    # verifiers fills the tail with zeros where logprobs are too few.
    assert (short.completion_token_ids, issue(short)) == (None, "lengths_differ")
    assert (failed.status, failed.error) == ("error", rt.ErrorInfo(type="RateLimit", message="slow down", status=429))
    assert (first.usage, first.latency) == (rt.Usage(input=4, output=2, cache_read=1, reasoning=0), 1.5)
    # The prompt of the tool's turn is the graph's path; the reward is the weighted sum.
    assert len(trace.sequences()) == 1
    assert (trace.reward, trace.rewards) == (1.25, {"correct": 1.0, "short": 0.5})
    assert (trace.metrics, trace.group_id, trace.task) == (
        {"turns": 2.0},
        "g1",
        rt.Task(id="7", data={"question": "1+1?"}),
    )
    assert [(run.name, run.result, run.step_id) for run in trace.tool_runs] == [("add", "2", first.id)]
    assert any("at most 4 decimals" in what for what in found.report.noted)


def test_verifiers_parents_lead_back(tmp_path: Path) -> None:
    """A node whose parent comes later would make a circle."""
    episode = json.loads((DATA / "verifiers" / "traces.jsonl").read_text())
    episode["traces"][0]["nodes"][1]["parent"] = 4
    path = tmp_path / "traces.jsonl"
    path.write_text(json.dumps(episode) + "\n")
    with pytest.raises(rt.FormatError, match=r"line 1, \$\.traces\[0\]\.nodes\[1\]\.parent: expected the index of an"):
        list(importing.verifiers(path))
    (trace,) = importing.verifiers(path, on_error="skip")
    # What stood before it is not known: no prompt ids are made up.
    assert all(step.prompt_token_ids is None for step in trace.steps)


# inspect


def log() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DATA / "inspect" / "log.json").read_text())
    return found


def test_inspect_samples() -> None:
    found = load("inspect", score="includes")
    main, helper, plain = found
    assert (main.reward, main.rewards) == (1.0, {"includes": 1.0, "quality/style": 0.5, "quality/ok": 1.0})
    assert (main.group_id, main.rollout_index, main.id) == ("ls/s1", 1, "smp1")
    called, answered, failed, graded = main.steps
    assert (ids(called.completion_token_ids), ids(called.logprobs)) == ([7, 8], [-0.5, -0.25])
    assert called.token_source == "logprobs"
    assert to_chat(called)[0]["content"] == "List the files, please; this text is long."
    assert called.completion is not None
    assert (called.completion.reasoning, called.completion.content) == ("hm", "I run it.")
    assert called.usage == rt.Usage(input=12, output=2, cache_read=2)
    assert (called.sampling or {})["temperature"] == 0.5
    assert [message["role"] for message in to_chat(answered)] == ["user", "assistant", "tool"]
    assert (failed.status, graded.trainable, (graded.metadata or {})["role"]) == ("error", False, "grader")
    assert (helper.parent_id, helper.parent_step_id) == (main.id, called.id)
    # Texts of tokens are no ids; their logprobs stay.
    assert (helper.steps[0].completion_token_ids, ids(helper.steps[0].logprobs)) == (None, [-0.5, -0.25])
    assert [(run.name, run.duration, run.step_id) for run in main.tool_runs] == [("bash", 1.0, called.id)]
    assert (plain.status, plain.error and plain.error.message, len(plain.steps)) == ("failed", "boom", 2)
    assert [len(step.messages or ()) for step in plain.steps] == [1, 3]


def test_inspect_agents_inside_agents(tmp_path: Path) -> None:
    """Each has the agent around it as its parent; one without calls of its own is none."""
    answered = {"model": "m", "choices": [{"message": {"role": "assistant", "content": "x"}, "stop_reason": "stop"}]}
    events: list[dict[str, Any]] = []
    for at, (own, above) in enumerate([("a", None), ("b", "a"), ("quiet", "b"), ("c", "quiet")]):
        events.append({"event": "span_begin", "id": own, "parent_id": above, "type": "agent", "name": own})
        time = {"timestamp": f"2026-10-01T00:00:0{at}Z", "completed": f"2026-10-01T00:00:0{at}Z"}
        if own != "quiet":
            events.append({"event": "model", "span_id": own, **time, "model": "m", "input": [], "output": answered})
    sample = {"id": "s", "epoch": 1, "uuid": "u", "input": "x", "target": "y", "messages": [], "events": events}
    path = tmp_path / "log.json"
    path.write_text(json.dumps({"status": "success", "eval": {"task": "t"}, "samples": [sample]}))
    first, second, third = importing.inspect(path)
    assert (second.parent_id, second.parent_step_id) == (first.id, first.steps[0].id)
    assert (third.parent_id, third.parent_step_id) == (second.id, second.steps[0].id)


def test_inspect_asks_which_score_is_the_reward() -> None:
    found = load("inspect")
    assert next(found).reward is None
    list(found)
    assert any("several scores" in what for what in found.report.missing)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_inspect_zip_is_the_same(method: int, tmp_path: Path) -> None:
    path = as_eval(tmp_path / "log.eval", log(), method)
    assert importing.detect(path) == "inspect"
    for one, other in zip(load("inspect"), importing.inspect(path), strict=True):
        assert (one.steps, one.tool_runs, one.task) == (other.steps, other.tool_runs, other.task)


def test_inspect_zip_with_zstd(tmp_path: Path) -> None:
    """Python opens such members from 3.14 on."""
    zstandard = pytest.importorskip("zstandard")
    names = {"header.json": {name: log()[name] for name in ("version", "status", "eval")}}
    names |= {f"samples/{one['id']}_epoch_{one['epoch']}.json": one for one in log()["samples"]}
    path, entries, body = tmp_path / "log.eval", b"", b""
    for name, value in names.items():
        plain = json.dumps(value).encode()
        packed = zstandard.ZstdCompressor().compress(plain)
        fields = (20, 0, 93, 0, 0, zipfile.crc32(plain), len(packed), len(plain), len(name), 0)  # type: ignore[attr-defined]
        entries += struct.pack("<IHHHHHHIIIHHHHHII", 0x02014B50, 20, *fields, 0, 0, 0, 0, len(body)) + name.encode()
        body += struct.pack("<IHHHHHIIIHH", 0x04034B50, *fields) + name.encode() + packed
    end = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, len(names), len(names), len(entries), len(body), 0)
    path.write_bytes(body + entries + end)
    assert [one.steps for one in importing.inspect(path)] == [one.steps for one in load("inspect")]


def test_inspect_damaged_members(tmp_path: Path) -> None:
    path = as_eval(tmp_path / "log.eval", log(), zipfile.ZIP_STORED)
    data = bytearray(path.read_bytes())
    at = data.index(b'"id": "s2"')
    data[at : at + 4] = b"\x00\x00\x00\x00"
    path.write_bytes(bytes(data))
    found = importing.inspect(path, on_error="skip")
    assert len(list(found)) == 2
    assert "log.eval, samples/s2_epoch_1.json" in str(found.skipped[0])
    path.write_bytes(bytes(data[:200]))
    with pytest.raises(rt.FormatError, match=r"this \.eval file \(a zip\) is damaged"):
        list(importing.inspect(path))


def test_inspect_run_that_did_not_end(tmp_path: Path) -> None:
    whole = log()
    path = tmp_path / "log.eval"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("_journal/start.json", json.dumps({"version": 2, "eval": whole["eval"]}))
        archive.writestr("samples/s1_epoch_2.json", json.dumps(whole["samples"][0]))
    found = importing.inspect(path)
    assert next(found).group_id == "ls/s1"
    list(found)
    assert found.report.noted["logs of runs that did not end, without their header"] == 1


# ART


def test_art_exchanges() -> None:
    found = load("art", DATA / "art" / "compact.json")
    one, unscored = found
    first, second, third = one.steps
    # By their times, whatever list they stand in.
    assert tokens(first) == ([1, 2, 3], [4, 5], [-0.5, -0.25])
    assert tokens(second) == ([1, 2, 3, 4, 5, 6], [7], [-0.125])
    assert (third.protocol, issue(third)) == ("anthropic.messages", "ids_missing")
    assert to_chat(first) == [{"role": "user", "content": "What is one and one?"}]
    assert second.completion is not None
    assert second.completion.content == "It is two."
    assert (first.sampling or {})["temperature"] == 0.7
    assert (first.latency, first.policy_version) == (1.5, 3)
    assert len(one.sequences()) == 1
    assert (one.reward, one.metrics, (one.metadata or {})["split"]) == (0.75, {"ok": 1.0, "n": 2.0}, "x")
    assert (one.group_id, one.rollout_index, unscored.rollout_index) == (unscored.group_id, 0, 1)
    assert unscored.reward == 0.0
    assert found.report.noted["rewards of 0.0, which ART also gives what was not scored"] == 1
    assert [(run.name, run.result) for run in one.tool_runs] == [("add", "2")]


def test_art_messages_and_choices() -> None:
    (one,) = load("art", DATA / "art" / "legacy.jsonl")
    first, second = one.steps
    assert tokens(first) == (None, [42, 7], [-0.5, -1.0])
    assert first.token_source == "logprobs"
    assert (second.completion_token_ids, issue(second)) == (None, "ids_missing")
    assert [message["content"] for message in to_chat(second)] == ["Hi", "Ho", "More"]


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"version": 2}, "$.version"),
        ({"kind": "tokenized_trajectory"}, "$.kind"),
        ({"strings": {"$0": 3}}, "$.strings"),
        ({"strings": {"x": "y"}}, "$.strings"),
        ({"data": [3]}, "$.data[0]"),
        ({"data": {"$0": 1, "It is two.": 2}}, "$.data"),
    ],
)
def test_art_compact_form_is_checked(changes: dict[str, Any], path: str, tmp_path: Path) -> None:
    value = {**json.loads((DATA / "art" / "compact.json").read_text()), **changes}
    file = tmp_path / "a.json"
    file.write_text(json.dumps(value))
    with pytest.raises(rt.FormatError) as caught:
        list(importing.art(file))
    assert f", {path}: expected " in str(caught.value)


# Agent-lightning


def test_agent_lightning_events() -> None:
    found = load("agent_lightning", DATA / "agent_lightning" / "events.jsonl")
    (run,) = found
    first, streamed, failed = run.steps
    assert tokens(first) == ([1, 2, 3], [4, 5], [-0.5, -0.25])
    assert tokens(streamed) == ([1, 2], [8, 9], [-0.5, -0.75])
    assert (first.policy_version, first.latency) == (7, 1.5)
    assert (failed.status, failed.error and failed.error.message) == ("error", "too long")
    # The last attempt, and the last reward that was given: a fallback is none.
    assert (run.id, run.reward) == ("ro-1", 0.25)
    assert found.report.dropped == {
        "earlier attempts of rollouts": 1,
        "events of the kind note": 1,
        "rewards that Agent-lightning filled in (source: fallback)": 1,
    }


def request_event(**data: Any) -> dict[str, Any]:
    head = {"event_type": "model_request", "rollout_id": "r", "attempt_id": "1", "timestamp": 1790000000.0}
    return {**head, "data": {"request": {"model": "m", "messages": []}, **data}}


def test_agent_lightning_calls_that_failed(tmp_path: Path) -> None:
    """They have no answer, or a part of one, whatever the status of HTTP was."""
    answer = {"object": "chat.completion", "choices": [{"index": 0, "message": {"role": "assistant", "content": "a"}}]}
    path = tmp_path / "events.jsonl"
    events = [request_event(response=None, status="error"), request_event(response=answer, status="error")]
    events.append(request_event(response=None, status="error", http_status=503))
    path.write_text("".join(json.dumps(one) + "\n" for one in events))
    (run,) = importing.agent_lightning(path)
    assert [step.status for step in run.steps] == ["error"] * 3
    assert [step.error and (step.error.status, step.error.message) for step in run.steps] == [
        (None, ""),
        None,
        (503, ""),
    ]
    assert [[attempt.status for attempt in step.attempts] for step in run.steps] == [[None], [None], [503]]
    assert run.steps[1].completion is not None


def test_agent_lightning_rewards_of_turns_are_not_added_up(tmp_path: Path) -> None:
    """Rows repeat the reward of the run, or that of the next turn that has one; the last triplet has the run's."""
    path = tmp_path / "turns.jsonl"
    row = {"instance_id": "i", "prompt_ids": [1], "gold_completion_ids": [2]}
    rows = [{**row, "turn": turn, "reward": reward} for turn, reward in enumerate([0.5, 0.5, 1.0, 1.0])]
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    (run,) = importing.agent_lightning(path)
    assert (run.reward, [step.reward for step in run.steps]) == (1.0, [None, 0.5, None, None])
    triplet = {"rollout_id": "r", "prompt": {"token_ids": [1]}, "response": {"token_ids": [2]}}
    path.write_text("".join(json.dumps({**triplet, "reward": one}) + "\n" for one in (0.5, 0.5)))
    (run,) = importing.agent_lightning(path)
    assert (run.reward, [step.reward for step in run.steps]) == (0.5, [0.5, None])


def test_agent_lightning_runs_of_one_turn_are_runs_of_their_own(tmp_path: Path) -> None:
    """The number of the turn stays the same from one to the next."""
    path = tmp_path / "turns.jsonl"
    row = {"instance_id": "i", "prompt_ids": [1], "gold_completion_ids": [2], "turn": 0}
    path.write_text("".join(json.dumps({**row, "reward": reward}) + "\n" for reward in (0.0, 1.0)))
    assert [(run.reward, len(run.steps)) for run in importing.agent_lightning(path)] == [(0.0, 1), (1.0, 1)]


def test_agent_lightning_triplets_turns_and_spans() -> None:
    found = by_id(load("agent_lightning"))
    triplets, span = found["ro-2"], found["ro-3"]
    assert tokens(triplets.steps[0]) == ([1, 2], [3, 4], [-0.5, -0.25])
    assert tokens(triplets.steps[1]) == ([1, 2, 3, 4, 5], [6], None)
    assert (triplets.reward, triplets.steps[0].agent) == (1.0, "solver")
    assert tokens(span.steps[0]) == ([1, 2], [3, 4], [-0.5, -0.25])
    assert (span.reward, span.steps[0].finish_reason) == (0.5, "stop")
    # Rows of turns: where the number of the turn goes back, another run begins.
    assert [len(found[name].steps) for name in ("i1.0", "i1.1")] == [2, 1]
    assert [found[name].reward for name in ("i1.0", "i1.1")] == [0.5, 1.0]
    assert found["i1.0"].task == rt.Task(id="i1", data={"repo": "a/b"})
    assert len(found["i1.0"].sequences()) == 1


# Spans


def test_otel_agents_calls_and_tools() -> None:
    found = load("otel")
    planner, helper = found
    first, wet, failed = planner.steps
    assert (planner.name, helper.name, helper.parent_id) == ("planner", "helper", planner.id)
    assert helper.parent_step_id == first.id
    assert to_chat(first)[:2] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Weather?"}]
    assert first.completion is not None
    assert (first.completion.reasoning, first.completion.tool_calls[0].arguments) == ("ask", '{"city": "Ulm"}')
    assert first.usage == rt.Usage(input=12, output=4, cache_read=8)
    assert (first.model, first.response_model, first.finish_reason) == ("qwen", "qwen-8b", "tool_call")
    assert (first.tools or [None])[0]["function"]["name"] == "weather"
    # Indices are numbers: 10 is behind 2. Of two spans of one call the inner one counts.
    assert [message["content"] for message in to_chat(wet)] == ["zero", "two", "ten"]
    assert tokens(wet) == ([1, 2, 3], [4, 5, 6], [-0.5, -0.25, -0.125])
    assert found.report.noted["spans of calls around the client's own, left out"] == 1
    assert (failed.status, failed.error) == ("error", rt.ErrorInfo(type="RateLimitError", message="429"))
    assert to_chat(failed) == [{"role": "user", "content": "again?"}]
    assert [(run.name, run.tool_call_id, run.step_id) for run in planner.tool_runs] == [("weather", "k1", first.id)]


def test_otel_spans_that_are_above_themselves(tmp_path: Path) -> None:
    values = [json.loads(line) for line in (DATA / "otel" / "spans.jsonl").read_text().splitlines()]
    for span in values[0]["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        if span["spanId"].endswith("a1"):
            span["parentSpanId"] = "00000000000000a4"
    path = tmp_path / "spans.jsonl"
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    found = importing.otel(path)
    made = list(found)
    assert sum(len(one.steps) for one in made) == 4
    assert found.report.noted["spans that are above themselves, cut off"] > 0


def test_otel_spans_by_lines_of_the_sdk(tmp_path: Path) -> None:
    span: dict[str, Any] = {
        "name": "chat m",
        "context": {"trace_id": "0xaa", "span_id": "0xbb", "trace_state": "[]"},
        "parent_id": None,
        "start_time": "2026-10-01T00:00:00.000000Z",
        "end_time": "2026-10-01T00:00:01.500000Z",
        "status": {"status_code": "UNSET"},
        "attributes": {
            "gen_ai.operation.name": "chat",
            "gen_ai.output.messages": json.dumps([{"role": "assistant", "content": "Hi"}]),
        },
        "events": [],
    }
    path = tmp_path / "spans.json"
    path.write_text(json.dumps(span, indent=4))
    (one,) = importing.otel(path)
    assert (one.id, one.steps[0].latency) == ("aa", 1.5)
    assert one.steps[0].completion is not None
    assert one.steps[0].completion.content == "Hi"


def test_nothing_of_a_file_is_changed_by_what_a_user_changes() -> None:
    first = next(load("atif"))
    again = next(load("atif"))
    messages = copy.deepcopy(list(first.steps[0].messages or ()))
    first.metadata = {}
    assert again.metadata
    assert messages == list(again.steps[0].messages or ())
