"""A trajectory as it is shown: nothing is left out, and what is shown is what was recorded."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

import rollout_trace as rt
from rollout_trace.data.extras import TopTokens
from rollout_trace.view.difference import difference
from rollout_trace.view.model import Alternative, Message, Part, RowPart
from rollout_trace.view.tokens import entropy_of, tokens_of
from rollout_trace.view.trajectory_view import TrajectoryView
from rollout_trace.view.values import encode
from tests.strategies import trajectories

from .build import HOSTILE, conversation, hostile, says, step, user, with_tokens

FILES = Path(__file__).parents[1] / "file" / "data"


class Letters:
    """A tokenizer of which each id is a letter."""

    def texts(self, ids: Sequence[int], /) -> list[str]:
        return [chr(96 + one) for one in ids]


def test_the_mean_of_logprobs_whose_sum_is_no_float32() -> None:
    ids, logprobs = np.array([1, 2, 3], np.int32), np.array([0.0, -3e38, -3e38], np.float32)
    one = rt.Step(id="s", call_id="c", status="ok", completion_token_ids=ids, logprobs=logprobs)
    (line,) = TrajectoryView(rt.Trajectory(steps=[one])).outline.steps
    assert line.mean_logprob == pytest.approx(-2e38)


def test_steps_show_what_is_new_and_what_ran() -> None:
    first, second = TrajectoryView(conversation(), decode=Letters()).steps()
    assert [message.role for message in first.new] == ["system", "user"]
    assert [(run.name, run.arguments, run.result) for run in first.tool_runs] == [
        ("calculator", '{"expression":"2 + 2"}', "4")
    ]
    assert second.new == [Message(role="tool", parts=[Part(kind="text", text="4")], tool_call_id="call-calculator")]
    assert second.answer == Message(role="assistant", parts=[Part(kind="text", text="It is 4.")])
    assert second.tokens is not None
    assert (second.tokens.texts, second.tokens.logprobs) == (["g", "h", "i"], [-2.5] * 3)
    assert (second.line.row, second.line.begin, second.line.mean_logprob) == (0, 6, -2.5)


def test_the_outline_has_the_rows_that_training_gets() -> None:
    outline = TrajectoryView(conversation()).outline
    assert [row.parts for row in outline.rows] == [
        [RowPart(3, 0, None), RowPart(2, 1, 0), RowPart(1, 0, None), RowPart(3, 1, 1)]
    ]
    assert (outline.rows[0].length, outline.rows[0].trained, outline.rows[0].reward) == (9, 5, 1.0)
    assert outline.token_texts is None
    assert outline.steps[0].tools == ["calculator"]


def test_steps_that_no_row_has_say_why() -> None:
    trajectory = conversation()
    trajectory.steps[1].trainable = False
    line = TrajectoryView(trajectory).outline.steps[1]
    assert (line.row, line.left_out) == (None, "not_trainable")


def test_drift_is_shown_with_both_sides() -> None:
    asked = [user("hi")]
    back = [*asked, {"role": "assistant", "content": "ab"}, user("more")]
    steps = [
        step(0, asked, says("ab"), **with_tokens([1], [2, 3])),
        step(1, back, says("c"), **with_tokens([1, 4, 5], [6])),
    ]
    view = TrajectoryView(rt.Trajectory(steps=steps), decode=Letters())
    (drift,) = view.outline.drift
    assert (drift.step, drift.previous, drift.position) == (1, 0, 1)
    assert (drift.expected_text, drift.found_text) == ("bc", "de")
    assert drift.meaning
    assert view.steps()[1].drift == drift
    assert view.outline.steps[1].drift == drift.kind


def test_parts_without_a_form_are_shown_as_json() -> None:
    messages = [
        {
            "role": "user",
            "content": [{"type": "odd", "x": 1}, {"type": "image_url", "image_url": {"url": "http://x/y.png"}}],
        },
        "no object",
        {"role": "assistant", "content": None, "tool_calls": ["odd"], "audio": {"id": "a"}},
    ]
    (shown,) = TrajectoryView(rt.Trajectory(steps=[step(0, messages, None)])).steps()
    kinds = [(part.kind, part.text) for message in shown.new for part in message.parts]
    assert kinds[:2] == [("json", '{"type":"odd","x":1}'), ("image", "http://x/y.png")]
    assert ("json", '"no object"') in kinds
    assert kinds[-2:] == [("tool_call", '"odd"'), ("json", '{"audio":{"id":"a"}}')]


@pytest.mark.parametrize(
    ("protocol", "message", "expected"),
    [
        (
            "anthropic.messages",
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "4"}]},
            "4",
        ),
        ("anthropic.messages", {"role": "user", "content": [{"type": "server_thing", "v": "kept"}]}, "kept"),
        ("google.generate_content", {"role": "user", "parts": [{"text": "hi"}]}, "hi"),
        ("google.generate_content", {"role": "user", "parts": [{"videoMetadata": {"x": "kept"}}]}, "kept"),
        ("openai.responses", {"type": "function_call_output", "call_id": "c", "output": "4"}, "4"),
        ("openai.responses", {"type": "web_thing", "v": "kept"}, "kept"),
        ("ollama.chat", {"role": "user", "content": "hi"}, "hi"),
        ("openai.completions", "once", "once"),
        ("some.protocol", {"role": "user", "content": "hi"}, "hi"),
    ],
)
def test_messages_of_every_protocol_are_shown(protocol: str, message: Any, expected: str) -> None:
    (shown,) = TrajectoryView(rt.Trajectory(steps=[step(0, [message], None, protocol=protocol)])).steps()
    assert expected in "".join(part.text for one in shown.new for part in one.parts)


def test_alternatives_have_ids_and_texts_where_both_are_known() -> None:
    top = TopTokens(ids=np.array([[4, 9], [5, -1]]), logprobs=np.array([[-0.25, -2.0], [-0.1, np.nan]], np.float32))
    texts = [[{"token": "a", "logprob": -0.25}, {"token": "b", "logprob": -2.0}], [{"token": "c", "logprob": -0.1}]]
    fields = with_tokens([1], [4, 5])
    tokens = tokens_of(step(0, [user("x")], says("ac"), top_tokens=top, top_logprobs=texts, **fields))
    assert tokens is not None
    assert tokens.alternatives == [
        [Alternative("a", 4, -0.25), Alternative("b", 9, -2.0)],
        [Alternative("c", 5, -0.1)],
    ]
    by_id = tokens_of(step(0, [user("x")], says("ac"), top_tokens=top, **fields), Letters())
    assert by_id is not None
    assert by_id.alternatives == [[Alternative("d", 4, -0.25), Alternative("i", 9, -2.0)], [Alternative("e", 5, -0.1)]]


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({"token": "token_id:4", "logprob": -0.25}, Alternative("d", 4, -0.25)),
        ({"token": "token_id:4", "bytes": [120], "logprob": -0.25}, Alternative("x", 4, -0.25)),
        ({"token": "\ufffd", "bytes": [0xF0, 0x9F], "logprob": -0.25}, Alternative("\ufffd", 4, -0.25)),
        ({"token": "a", "bytes": [700], "logprob": -0.25}, Alternative("a", 4, -0.25)),
    ],
)
def test_an_id_is_no_text_of_an_alternative(item: dict[str, Any], expected: Alternative) -> None:
    top = TopTokens(ids=np.array([[4]]), logprobs=np.array([[-0.25]], np.float32))
    one = step(0, [user("x")], says("d"), top_tokens=top, top_logprobs=[[item]], **with_tokens([1], [4]))
    tokens = tokens_of(one, Letters())
    assert tokens is not None
    assert tokens.alternatives == [[expected]]


@pytest.mark.parametrize("logprob", [10**400, 1e9, float("inf"), True, "x", None])
def test_logprobs_of_alternatives_that_are_none_can_be_shown(logprob: Any) -> None:
    tops = [[{"token": "a", "logprob": logprob}]]
    tokens = tokens_of(step(0, [user("x")], says("d"), top_logprobs=tops, **with_tokens([1], [4])))
    assert tokens is not None
    assert tokens.entropy in ([None], [0.0])


def test_a_kind_of_part_that_is_no_text_is_shown_as_json() -> None:
    for kind in ([1], {"a": 1}):
        sent = {"role": "user", "content": [{"type": kind, "text": "hi"}]}
        (shown,) = TrajectoryView(rt.Trajectory(steps=[step(0, [sent], says("a"))])).steps()
        assert [part.kind for part in shown.new[0].parts] == ["json"]


def test_a_logprob_that_one_of_two_lacks_is_a_difference() -> None:
    def with_logprobs(*values: float) -> rt.Trajectory:
        fields = {**with_tokens([1], [4, 5]), "logprobs": np.array(values, np.float32)}
        return rt.Trajectory(steps=[step(0, [user("x")], says("ac"), **fields)])

    nan = float("nan")
    for a, b, is_equal in (((nan, -1.0), (-0.5, -1.0), False), ((nan, -1.0), (nan, -1.0), True)):
        assert difference(with_logprobs(*a), with_logprobs(*b)).equal == is_equal


def test_entropy_counts_what_the_alternatives_leave_as_one_more() -> None:
    assert entropy_of([]) is None
    assert entropy_of([Alternative("a", None, None)]) is None
    assert entropy_of([Alternative("a", None, 0.0)]) == 0.0
    half = [Alternative("a", None, math.log(0.5))]
    assert entropy_of(half) == pytest.approx(math.log(2), abs=1e-6)
    uniform = [Alternative(str(at), at, math.log(0.25)) for at in range(4)]
    assert entropy_of(uniform) == pytest.approx(math.log(4), abs=1e-6)


def test_missing_logprobs_are_none_and_no_zero() -> None:
    fields = {**with_tokens([1], [4, 5]), "logprobs": np.array([np.nan, -1.5], np.float32)}
    tokens = tokens_of(step(0, [user("x")], says("ac"), **fields))
    assert tokens is not None
    assert tokens.logprobs == [None, -1.5]
    assert tokens_of(step(0, [user("x")], says("ac"))) is None


def texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from texts_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts_in(item)


def test_hostile_texts_arrive_as_they_are() -> None:
    view = TrajectoryView(hostile())
    found = list(texts_in(json.loads(encode([view.outline, view.steps()]))))
    assert sum("\n".join(HOSTILE) in one for one in found) > 10


@given(trajectories())
def test_whatever_was_recorded_can_be_shown(trajectory: rt.Trajectory) -> None:
    view = TrajectoryView(trajectory)
    outline, steps = json.loads(encode(view.outline)), json.loads(encode(view.steps()))
    assert len(outline["steps"]) == len(steps) == len(trajectory.steps)
    rows = trajectory_rows(trajectory)
    if rows is not None:
        assert [(row.length, row.trained) for row in view.outline.rows] == rows


def trajectory_rows(trajectory: rt.Trajectory) -> list[tuple[int, int]] | None:
    try:
        return [(len(row.token_ids), int(row.loss_mask.sum())) for row in trajectory.sequences()]
    except ValueError:
        # An advantage that does not fit: the view leaves the step out.
        return None


@pytest.mark.parametrize("name", sorted(path.name for path in FILES.glob("*.jsonl") if "note" not in path.name))
def test_files_of_every_version_can_be_shown(name: str) -> None:
    for trajectory in rt.read(FILES / name, on_error="skip"):
        view = TrajectoryView(trajectory)
        assert len(view.steps()) == len(view.outline.steps) == len(trajectory.steps)


def test_the_step_whose_ids_were_sent_has_its_number() -> None:
    (trajectory,) = rt.read(FILES / "rollout-trace-1-exact-turns.jsonl")
    assert [step.exact_turn for step in TrajectoryView(trajectory).steps()] == [
        None,
        "71 ids were sent, which begin with those of step 0.",
        "sent as text (history_changed): message 2 is not as it was recorded.",
        "71 ids were sent, which begin with those of step 1 (not_served): 71 ids were sent, 73 served.",
    ]
