"""Where prompts leave what was said before: recorded conversations, and each kind made by a real agent and server."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

import rollout_trace as rt
from rollout_trace.data import conversations
from rollout_trace.data.model import CUT_OFF, Completion, Step
from rollout_trace.data.tokens import as_int32
from rollout_trace.testing import ByteTokenizer, Reply, ScriptedServer, load_exchanges
from rollout_trace.testing.recordings import load_reports
from rollout_trace.testing.tokenizer import Part
from rollout_trace.wire import decode

RECORDED = Path(__file__).parents[1] / "data" / "wire_vllm.jsonl.xz"
REPORTS = {name: report for name, report in load_reports(RECORDED).items() if name.startswith("multiturn_")}


def recorded(name: str) -> rt.Trajectory:
    """A conversation of three turns, as vLLM answered it."""
    turns = {exchange.name: exchange for exchange in load_exchanges(RECORDED) if exchange.name.startswith(f"{name}_")}
    steps = []
    for at in range(3):
        turn = turns[f"{name}_{at + 1}"]
        (step,) = decode("openai.chat", turn.request, turn.response, content_type=turn.content_type)
        steps.append(replace(step, id=f"turn{at + 1}", call_id=f"turn{at + 1}", index=at))
    return rt.Trajectory(steps=steps)


@pytest.mark.parametrize("name", sorted(REPORTS))
def test_recorded_conversations_break_where_their_report_says(name: str) -> None:
    """The reports were made from the raw ids, when the conversations were recorded."""
    trajectory = recorded(name)
    rows = trajectory.sequences()
    broken = [turn for turn in REPORTS[name] if not turn["prefix_holds"]]
    assert len(rows) == 1 + len(broken)
    found = {drift.step_id: drift for drift in rows.report.drift}
    assert list(found) == [f"turn{turn['turn']}" for turn in broken]
    for turn in broken:
        drift = found[f"turn{turn['turn']}"]
        assert drift.previous_step_id == f"turn{turn['turn'] - 1}"
        assert (drift.position, drift.kind) == (turn["common_prefix"], "retokenized")
        assert list(drift.expected)[:6] == turn["prev_tail"]
        assert list(drift.found)[:6] == turn["prompt_at"]
    assert rt.drift(trajectory) == list(rows.report.drift)
    assert (rows.report.roots, rows.report.forks) == (1, 0)


def test_there_are_recordings_of_both_outcomes() -> None:
    holds = {name: all(turn["prefix_holds"] for turn in report) for name, report in REPORTS.items()}
    assert len(holds) == 6
    assert [name for name, whole in holds.items() if whole] == ["multiturn_canonical", "multiturn_canonical_length"]


CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a":1,"b":2}'}}
LONG = '{"text":"' + "x" * 200 + '"}'
LONG_CALL = {**CALL, "function": {"name": "add", "arguments": LONG}}
SAID = {"role": "assistant", "content": "Hello world."}
ASKED = [{"role": "user", "content": "Greet."}]


class Forgetful(ByteTokenizer):
    """A template that drops the reasoning of history, as Qwen3's does after a new user message."""

    def _render_message(self, message: Mapping[str, Any]) -> list[int]:
        kept = {name: value for name, value in message.items() if not name.startswith("reasoning")}
        return super()._render_message(kept)


class Neat(ByteTokenizer):
    """A template that writes the arguments of tool calls anew, as `tojson` does."""

    def _render_message(self, message: Mapping[str, Any]) -> list[int]:
        calls = [
            {
                **call,
                "function": {**call["function"], "arguments": json.dumps(json.loads(call["function"]["arguments"]))},
            }
            for call in message.get("tool_calls") or ()
        ]
        return super()._render_message({**message, "tool_calls": calls})


class Tagging(ByteTokenizer):
    """A template that names the last user message otherwise than those before."""

    def apply_chat_template(self, messages: Any, *others: Any, **more: Any) -> Any:
        last = {**messages[-1], "content": f"{messages[-1]['content']} (now)"}
        return super().apply_chat_template([*messages[:-1], last], *others, **more)


class Sampling(ByteTokenizer):
    """Samples the markers of tool calls, the first, the last or both, in pieces, as a grammar may force them; prompts
    have them as one id."""

    def __init__(self, *pieces: str, words: Sequence[str] = ()) -> None:
        super().__init__(words)
        self.pieces = {self.special_ids[piece]: list(piece.encode()) for piece in pieces}

    def _call_parts(self, index: int, function: Mapping[str, Any]) -> list[Part]:
        return [
            part._replace(ids=[one for token in part.ids for one in self.pieces.get(token, [token])])
            for part in super()._call_parts(index, function)
        ]

    def _render_message(self, message: Mapping[str, Any]) -> list[int]:
        return BYTES._render_message(message)


def conversation(reply: Reply, second: list[Any], tokenizer: ByteTokenizer) -> rt.Trajectory:
    """Two calls: the first is answered with `reply`, the second sends `second`."""
    with ScriptedServer([reply, Reply("Fine.")], tokenizer=tokenizer) as server:
        client = rt.wrap_openai(OpenAI(base_url=server.base_url, api_key="none"), engine="vllm")
        with rt.trajectory() as trajectory:
            client.chat.completions.create(model="m", messages=ASKED)  # type: ignore[arg-type]
            client.chat.completions.create(model="m", messages=second)
        client.close()
    return trajectory


BYTES = ByteTokenizer()
END = BYTES.eos_token_id
WORDS = ByteTokenizer(words=["Hello", " world"])
MARKS = ("<tool_call>", "</tool_call>")
THOUGHT = Reply("Hello world.", reasoning="They want a greeting.")
THINKS = {**SAID, "reasoning": "They want a greeting."}
WRITTEN = Reply("Hello world.", token_ids=[*b"Hello world.", END])
OTHER_STOP = Reply("Hello world.", token_ids=[*b"Hello world.", END + 5])
ADDS = Reply(None, [("add", '{"a":1,"b":2}')])
ADDS_OTHERWISE = Reply(None, [("add", '{"a":1, "b":2}')])
ADDS_LONG = Reply(None, [("add", LONG)])
ADDS_MORE = Reply(None, [("add", '{"a":1,"b":3}')])
SPEAKS_AND_ADDS = Reply("I add.", [("add", '{"a":1,"b":2}')])
AGAIN = [*ASKED, SAID, *ASKED]
THOUGHT_AGAIN = [*ASKED, THINKS, *ASKED]
CALLED = [*ASKED, {"role": "assistant", "tool_calls": [CALL]}]
LONG_CALLED = [*ASKED, {"role": "assistant", "tool_calls": [LONG_CALL]}]
SPOKE_AND_CALLED = [*ASKED, {"role": "assistant", "content": "I add.", "tool_calls": [CALL]}]
CASES: dict[str, tuple[Reply, list[Any], ByteTokenizer, str | None]] = {
    "same": (Reply("Hello world."), AGAIN, BYTES, None),
    "same-call": (ADDS, CALLED, BYTES, None),
    "thinking-kept": (THOUGHT, THOUGHT_AGAIN, BYTES, None),
    "other-ids": (WRITTEN, AGAIN, WORDS, "retokenized"),
    "other-stop-token": (OTHER_STOP, [*ASKED, SAID], BYTES, "template"),
    "other-header": (Reply("Hello world."), AGAIN, Tagging(), "template"),
    "thinking-dropped-by-template": (THOUGHT, THOUGHT_AGAIN, Forgetful(), "thinking_removed"),
    "thinking-dropped-by-agent": (THOUGHT, AGAIN, BYTES, "thinking_removed"),
    "arguments-by-template": (ADDS, CALLED, Neat(), "tool_arguments"),
    "arguments-after-text": (SPEAKS_AND_ADDS, SPOKE_AND_CALLED, Neat(), "tool_arguments"),
    "arguments-by-agent": (ADDS_OTHERWISE, CALLED, BYTES, "tool_arguments"),
    "marker-in-pieces": (ADDS, CALLED, Sampling(*MARKS), "retokenized"),
    "marker-of-a-long-call": (ADDS_LONG, LONG_CALLED, Sampling(*MARKS), "retokenized"),
    "marker-after-text": (SPEAKS_AND_ADDS, SPOKE_AND_CALLED, Sampling(*MARKS), "retokenized"),
    "name-in-other-ids": (ADDS, CALLED, Sampling(words=["add"]), "retokenized"),
    "other-text": (Reply("Hello world. "), AGAIN, BYTES, "rewritten"),
    "other-arguments": (ADDS_MORE, CALLED, BYTES, "rewritten"),
}


@pytest.mark.parametrize("case", CASES)
def test_each_kind_of_drift(case: str) -> None:
    reply, second, tokenizer, kind = CASES[case]
    trajectory = conversation(reply, second, tokenizer)
    rows = trajectory.sequences()
    if kind is None:
        assert (len(rows), rows.report.drift) == (1, ())
        return
    (found,), (unread,) = rt.drift(trajectory, tokenizer), rt.drift(trajectory)
    assert (len(rows), found.kind, unread.kind) == (2, kind, kind)
    first, later = trajectory.steps
    assert (found.previous_step_id, found.step_id) == (first.id, later.id)
    assert first.prompt_token_ids is not None
    assert first.completion_token_ids is not None
    assert later.prompt_token_ids is not None
    before = [*first.prompt_token_ids.tolist(), *first.completion_token_ids.tolist()]
    now = later.prompt_token_ids.tolist()
    at = found.position
    assert (before[:at], before[at : at + 8]) == (now[:at], list(found.expected))
    assert before[at] != now[at]
    assert found.expected_text == tokenizer.decode(before[at : at + 8])
    assert found.found_text == tokenizer.decode(now[at : at + 8])
    assert f"at token {at} ({kind}:" in str(found)
    # Both sequences are kept, dropped, or refused, as asked.
    assert [row.step_ids for row in trajectory.sequences(on_drift="drop")] == [(first.id,)]
    dropped = trajectory.sequences(on_drift="drop").report
    assert dropped.left_out == {"drift": (later.id,)}
    # Its sequence is gone; that it drifted is not.
    assert [(one.step_id, one.kind) for one in dropped.drift] == [(later.id, kind)]
    assert (dropped.roots, dropped.forks) == (1, 0)
    with pytest.raises(rt.DriftError, match=f"{later.id}: its prompt leaves step {first.id} at token {at}"):
        trajectory.sequences(on_drift="raise")


@pytest.mark.parametrize("tokenizer", [Sampling(words=["xxxx"]), Sampling(MARKS[1])], ids=["inside", "closing-marker"])
def test_arguments_in_other_ids_are_told_by_their_text(tokenizer: ByteTokenizer) -> None:
    """Positions alone say that it is about the arguments; a tokenizer says that nobody wrote them otherwise."""
    arguments = LONG if len(tokenizer.encode("xxxx")) == 1 else '{"a":1,"b":2}'
    sent = LONG_CALLED if arguments is LONG else CALLED
    trajectory = conversation(Reply(None, [("add", arguments)]), sent, tokenizer)
    assert [one.kind for one in rt.drift(trajectory)] == ["tool_arguments"]
    assert [one.kind for one in rt.drift(trajectory, tokenizer)] == ["retokenized"]


def test_arguments_in_other_ids_are_the_same_before_another_stop_token() -> None:
    """The prompt has the template's end of turn in the place of the one that was sampled, which is no text."""
    tokenizer = Sampling(words=["xxxx"])
    first, later = conversation(Reply(None, [("add", LONG)]), LONG_CALLED, tokenizer).steps
    assert first.completion_token_ids is not None
    sampled = [*first.completion_token_ids.tolist()[:-1], END + 5]
    trajectory = rt.Trajectory(steps=[replace(first, completion_token_ids=as_int32(sampled)), later])
    assert [one.kind for one in rt.drift(trajectory, tokenizer)] == ["retokenized"]
    # By positions alone it would be about the arguments.
    assert [one.kind for one in rt.drift(trajectory)] == ["tool_arguments"]


@pytest.mark.parametrize("name", ["tools_required", "tools_auto_hermes", "tools_two_required"])
def test_a_marker_that_a_grammar_forced_into_pieces(name: str) -> None:
    """As vLLM sampled it: a template has one id for the marker, 2042."""
    turn = next(one for one in load_exchanges(RECORDED) if one.name == name)
    (first,) = decode("openai.chat", turn.request, turn.response, content_type=turn.content_type)
    assert first.completion is not None
    assert first.prompt_token_ids is not None
    assert first.messages is not None
    answer = {"role": "assistant", "tool_calls": [{"function": {"name": call.name, "arguments": call.arguments}}
                                                  for call in first.completion.tool_calls]}  # fmt: skip
    again = Step(
        id="again", call_id="again", messages=[*first.messages, answer, {"role": "tool", "content": "fine"}],
        prompt_token_ids=as_int32([*first.prompt_token_ids.tolist(), 2042, 198]),
        completion_token_ids=as_int32([5]),
    )  # fmt: skip
    (found,) = rt.drift(rt.Trajectory(steps=[replace(first, status="ok"), again]))
    assert (found.kind, found.position) == ("retokenized", len(first.prompt_token_ids))


NO_DRIFT: dict[str, tuple[list[Any], int, int]] = {
    "retry": (ASKED, 1, 1),
    "branch": ([*ASKED, {"role": "user", "content": "Please."}], 1, 1),
    "another-conversation": ([{"role": "user", "content": "Add."}], 2, 0),
}


@pytest.mark.parametrize("case", NO_DRIFT)
def test_what_begins_anew_is_no_drift(case: str) -> None:
    second, roots, forks = NO_DRIFT[case]
    report = conversation(Reply("Hello world."), second, BYTES).sequences(on_drift="raise").report
    assert (report.roots, report.forks, report.drift) == (roots, forks, ())


def test_a_conversation_that_linear_does_not_follow_is_no_drift() -> None:
    """Two agents take turns: with `linear` every turn is a row, for no fault of the tokens."""
    other = [{"role": "user", "content": "Add."}]
    with ScriptedServer(lambda request: "Hello world.") as server:
        client = rt.wrap_openai(OpenAI(base_url=server.base_url, api_key="none"), engine="vllm")
        with rt.trajectory() as trajectory:
            for messages in (ASKED, other, [*ASKED, SAID, *ASKED], [*other, SAID, *other]):
                client.chat.completions.create(model="m", messages=messages)  # type: ignore[arg-type]
        client.close()
    assert len(trajectory.sequences()) == 2
    assert len(trajectory.sequences(linear=True, on_drift="raise")) == 4
    assert rt.drift(trajectory, linear=True) == []


def test_a_text_prompt_that_repeats_an_answer_in_other_ids() -> None:
    """Completions have no messages: their text is compared."""
    reply = Reply("Hello world.", token_ids=[*b"Hello world."], finish_reason="length")
    with ScriptedServer([reply, Reply("Fine.")], tokenizer=WORDS) as server:
        client = rt.wrap_openai(OpenAI(base_url=server.base_url, api_key="none"), engine="vllm")
        with rt.trajectory() as trajectory:
            client.completions.create(model="m", prompt="Greet: ")
            client.completions.create(model="m", prompt="Greet: Hello world. Again: ")
        client.close()
    (found,) = rt.drift(trajectory)
    assert (found.kind, found.position) == ("retokenized", len("Greet: "))


def test_looking_for_drift_grows_with_the_turns_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every turn drifts; each is compared with the turn that it goes on from, not with all before it."""
    asked = 0
    is_from_assistant = conversations.is_from_assistant

    def counted(message: Any) -> bool:
        nonlocal asked
        asked += 1
        return is_from_assistant(message)

    monkeypatch.setattr(conversations, "is_from_assistant", counted)
    turns, steps = 60, []
    messages: list[Any] = [*ASKED]
    prompt: Any = [1]
    for at in range(turns):
        steps.append(
            Step(
                id=str(at), call_id=str(at), index=at, messages=list(messages), completion=Completion(content="Hi."),
                prompt_token_ids=prompt, completion_token_ids=as_int32([10 + at], "ids"), finish_reason="length",
            )
        )  # fmt: skip
        messages += [{"role": "assistant", "content": "Hi."}, *ASKED]
        prompt = [*prompt, 1000 + at, 2]
    report = rt.Trajectory(steps=steps).sequences().report
    assert [one.previous_step_id for one in report.drift] == [str(at) for at in range(turns - 1)]
    assert asked == (len(ASKED) + 1) * (turns - 1)


@pytest.mark.parametrize("reason", sorted(CUT_OFF))
def test_an_answer_that_a_limit_cut_off_has_no_stop_token(reason: str) -> None:
    """Its last id is a sampled one like the others."""
    asked: Any = {"messages": ASKED, "prompt_token_ids": [1], "completion_token_ids": [5, 6]}
    first = Step(id="a", call_id="a", completion=Completion(content="Hi"), finish_reason=reason, **asked)
    again: Any = {"messages": [*ASKED, {"role": "assistant", "content": "Hi"}], "prompt_token_ids": [1, 5, 7, 2]}
    second = Step(id="b", call_id="b", completion_token_ids=as_int32([3], "ids"), **again)
    (found,) = rt.drift(rt.Trajectory(steps=[first, second]))
    assert found.kind == "retokenized"


NO_MESSAGES: list[Any] = [
    {"role": "assistant", "tool_calls": 3},
    {"role": "assistant", "tool_calls": "add"},
    {"role": "assistant", "tool_calls": [None, {"function": "add"}, {"custom": 3}]},
    {"type": ["message"]},
    {"role": "assistant", "content": [None, 3, {"type": {}}]},
    3,
    None,
]


@pytest.mark.parametrize("sent", NO_MESSAGES)
def test_messages_that_no_server_would_take_are_compared_all_the_same(sent: Any) -> None:
    steps = [
        Step(
            id=name, call_id=name, messages=messages, prompt_token_ids=as_int32([1, at, at], "ids"),
            completion_token_ids=as_int32([5], "ids"), completion=Completion(content="Hi"),
        )
        for at, (name, messages) in enumerate({"a": ASKED, "b": [*ASKED, sent], "c": [*ASKED, sent, *ASKED]}.items())
    ]  # fmt: skip
    report = rt.Trajectory(steps=steps).sequences().report
    assert len(report.breaks) == 2
    assert len(report.drift) + report.forks == 2
