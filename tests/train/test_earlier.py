"""Finding the step that a conversation goes on from, as comparing it with each would, but in linear time."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rollout_trace as rt
from rollout_trace.data.conversations import is_from_assistant, n_asked
from rollout_trace.data.lists import ListStore
from rollout_trace.data.model import Completion, Step, new_step
from rollout_trace.data.tokens import Span, TokenStore, as_int32
from rollout_trace.file.decode import decode
from rollout_trace.file.encode import encode
from rollout_trace.train.checks import check
from rollout_trace.train.drift import Earlier, Placed
from rollout_trace.train.sequences import Row
from tests.amount import some
from tests.strategies import PROFILE, trajectories


def continues(step: Step, previous: Step) -> bool:
    """The rule for one pair: the messages of the previous one, then an assistant message; or its text and answer."""
    now, before = step.messages, (previous.messages or ())[: n_asked(previous)]
    if not now or not before:
        return False
    if isinstance(now[0], str) and isinstance(before[0], str):
        reply = None if previous.completion is None else previous.completion.content
        return isinstance(reply, str) and bool(reply) and now[0].startswith(before[0] + reply)
    return len(now) > len(before) and is_from_assistant(now[len(before)]) and now[: len(before)] == before


def first_of(step: Step) -> list[Any]:
    """The first message that is no system prompt, as a list; empty where there is none."""
    own = [one for one in step.messages or () if not (isinstance(one, dict) and one.get("role") == "system")]
    return own[:1]


def plain_before(step: Step, placed: list[Placed]) -> Placed | None:
    """The rule itself: of all that the step goes on from, the one with the most messages; of equals the latest."""
    fitting = [(len(one[0].messages or ()), at) for at, one in enumerate(placed) if continues(step, one[0])]
    return placed[max(fitting)[1]] if fitting else None


def plain_alike(step: Step, prompt: Span, placed: list[Placed]) -> bool:
    return any(
        bool(first_of(step)) and first_of(step) == first_of(other)
        if step.messages is not None and other.messages is not None
        else bool((Span(completion.segment, 0, 1).get() == Span(prompt.segment, 0, 1).get()).all())
        for other, completion, _ in placed
    )


nested: Any = 1
for _ in range(40):
    nested = [nested]
MESSAGES: list[Any] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Go."},
    {"role": "user", "content": [{"type": "text", "text": "Go."}]},
    {"role": "user", "content": 1},
    {"role": "user", "content": 1.0},
    {"role": "user", "content": True},
    {"content": "Go.", "role": "user"},
    {"role": "assistant", "content": "Yes."},
    {"role": "assistant", "content": "Yes.", "reasoning": None},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "a", "arguments": "{}"}}]},
    {"type": "function_call", "name": "a", "arguments": "{}"},
    {"type": "reasoning", "summary": []},
    {"role": "user", "content": nested},
    {"role": "user", "content": [nested]},
    {"role": "user", "content": {1, 2}},
    None,
    "Go.",
]
# Few pieces, some longer than what is hashed at a time, so that texts often begin with each other.
texts = st.lists(st.sampled_from(["a", "b", "ab", "x" * 63, "y" * 64, "z" * 130]), max_size=5).map("".join)
chats = st.lists(st.sampled_from(range(len(MESSAGES))), max_size=4).map(
    lambda places: [MESSAGES[place] if place % 2 else copy.deepcopy(MESSAGES[place]) for place in places]
)


@st.composite
def conversations(draw: st.DrawFn) -> list[Placed]:
    """Steps whose messages go on from each other, share their start, or neither; and text prompts."""
    tokens, lists = TokenStore(), ListStore()
    placed: list[Placed] = []
    said: list[tuple[list[Any], str]] = [([], "")]
    for at in range(draw(st.integers(1, 8))):
        kind = draw(st.sampled_from(["chat", "on", "on", "shared", "shared", "text", "text-on", "text-on", "none"]))
        before, answered = draw(st.sampled_from(said))
        sent: Any = None
        if kind == "chat":
            sent = draw(chats)
        elif kind in ("on", "shared"):
            sent = [*before, *draw(st.sampled_from([[], [MESSAGES[7]], [MESSAGES[10]]])), *draw(chats)]
        elif kind != "none":
            begun = before[0] + answered if before and isinstance(before[0], str) and kind == "text-on" else ""
            sent = [begun + draw(texts), *draw(st.sampled_from([[], [], ["more"]]))]
        text = draw(texts)
        said += [(sent, text)] if sent else []
        answer = draw(st.sampled_from([Completion(content=text), Completion(content=text), Completion(), None]))
        prompt, completion = tokens.add(as_int32(draw(st.sampled_from([[1], [2], [1, 2]]))), as_int32([3]))
        assert prompt is not None
        assert completion is not None
        held = lists.add_items(list(sent)) if sent and kind == "shared" else sent
        facts = {"id": str(at), "call_id": str(at), "messages": held, "completion": answer}
        facts |= {"prompt_token_ids": prompt, "completion_token_ids": completion}
        placed.append((new_step(facts), completion, Row(is_retokenized=False)))
    return placed


@PROFILE
@given(conversations())
def test_it_finds_what_comparing_with_each_would(placed: list[Placed]) -> None:
    earlier = Earlier(placed)
    for count, (step, completion, _) in enumerate(placed):
        assert next(earlier.predecessors(count), None) is plain_before(step, placed[:count])
        assert earlier.shares_start(count, completion) == plain_alike(step, completion, placed[:count])


@PROFILE
@given(trajectories(), st.booleans())
def test_reports_are_those_of_the_plain_rule(trajectory: rt.Trajectory, linear: bool) -> None:
    report = trajectory.sequences(linear=linear, include=lambda step: step.advantage is None).report
    for one in report.breaks:
        placed = one._earlier.placed[: one._at]
        before = plain_before(one.step, placed)
        drift = one.explain(Numbers())
        assert (None if drift is None else drift.previous_step_id) in (None, None if before is None else before[0].id)
        assert one.is_fork == (one.drift is None and plain_alike(one.step, one._prompt, placed))
        assert one.is_root == (one.drift is None and not one.is_fork)


# What it costs


def operations(function: Callable[[], object]) -> int:
    """How many functions are called, in Python and in C."""
    called = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal called
        called += event in ("call", "c_call")

    function()  # what is imported and kept at the first use
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(before)
    return called


def window(turns: int, *, text: bool = False, agents: int = 1, keep: int = 6, alone: bool = False) -> rt.Trajectory:
    """An agent that keeps its system message and the last few others: every prompt shares its start with all before it,
    and goes on from none. `agents` of them take turns. `alone`: what is said is a system message as well."""
    steps = []
    begun: Any = {"role": "system", "content": "Be brief, and say so. " * 10}
    said: list[list[Any]] = [[{"role": "user", "content": f"agent {one}"}] for one in range(agents)]
    for at in range(turns):
        mine = said[at % agents]
        messages = [begun, *mine[-keep:]]
        ids = [1, *(crc32(one["content"].encode()) % 1000 for one in messages[1:])]
        sent: Any = ["".join(one["content"] for one in messages)] if text else messages
        sent = [{**one, "role": "system"} for one in messages] if alone else sent
        steps.append(
            Step(
                id=str(at), call_id=str(at), index=at, messages=sent, completion=Completion(content=f"answer {at}"),
                prompt_token_ids=as_int32(ids), completion_token_ids=as_int32([2000 + at]), finish_reason="length",
            )
        )  # fmt: skip
        mine += [{"role": "assistant", "content": f"answer {at}"}, {"role": "user", "content": f"question {at}"}]
    return rt.Trajectory(steps=steps, reward=1.0)


class Numbers:
    """Any id has a text."""

    def decode(self, token_ids: list[int]) -> str:
        return repr(token_ids)


USES: dict[str, Callable[[rt.Trajectory], object]] = {
    "check": check,
    "forks": lambda trajectory: trajectory.sequences().report.forks,
    "drift": rt.drift,
    "drift-with-texts": lambda trajectory: rt.drift(trajectory, Numbers()),
    "linear": lambda trajectory: rt.drift(trajectory, linear=True),
}


WINDOWS: dict[str, dict[str, Any]] = {
    "chat": {},
    "text": {"text": True},
    "short": {"text": True, "keep": 1},
    "agents": {"agents": 3},
    "system": {"alone": True},
}


@pytest.mark.parametrize("use", some(USES, "drift-with-texts"))
@pytest.mark.parametrize("kind", some(WINDOWS, "text", "agents"))
def test_a_sliding_window_costs_what_it_is_long(use: str, kind: str) -> None:
    """Twice the turns are twice the work, not four times."""
    short, long = (operations(lambda turns=turns: USES[use](window(turns, **WINDOWS[kind]))) for turns in (150, 300))  # type: ignore[misc]
    made = [operations(lambda turns=turns: window(turns, **WINDOWS[kind])) for turns in (150, 300)]  # type: ignore[misc]
    assert long - made[1] < 2.2 * (short - made[0])


def growing(turns: int) -> rt.Trajectory:
    """One conversation whose second prompt drifts, as a file gives it."""
    messages, prompt, steps = ListStore(), [1], []
    said: list[Any] = [{"role": "user", "content": "go"}]
    for at in range(turns):
        facts: Any = {"messages": messages.add_items(list(said)), "completion": Completion(content=f"answer {at}")}
        steps.append(step_of(str(at), prompt, **facts))
        said += [{"role": "assistant", "content": f"answer {at}"}, {"role": "user", "content": f"question {at}"}]
        prompt = [*prompt, 9 if at == 0 else 5, 6]
    return decode(encode(rt.Trajectory(steps=steps, reward=1.0)))


@pytest.mark.parametrize("use", USES)
def test_a_growing_conversation_that_was_read_costs_what_it_is_long(use: str) -> None:
    short, long = growing(150), growing(300)
    assert len(long.sequences().report.drift) == 1
    assert operations(lambda: USES[use](long)) < 2.2 * operations(lambda: USES[use](short))


IN_ANOTHER_PROCESS = """
import pickle, sys
breaks = pickle.load(sys.stdin.buffer).report.breaks
sys.stdout.buffer.write(pickle.dumps([(one.is_fork, one.is_root, one.drift) for one in breaks]))
"""


def test_a_report_finds_in_another_process_what_it_found_here() -> None:
    """Hashes of text, and the ids of objects, are others there."""
    rows = window(20, agents=2).sequences()
    assert rows.report.breaks[0].is_root  # The first question: now all earlier steps are hashed.
    ended = subprocess.run(
        [sys.executable, "-c", IN_ANOTHER_PROCESS],
        input=pickle.dumps(rows),
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    found = pickle.loads(ended.stdout)
    assert found == [(one.is_fork, one.is_root, one.drift) for one in rows.report.breaks]
    assert any(drift is not None for _, _, drift in found)


@pytest.mark.parametrize("options", [{}, {"on_drift": "mask", "within": 1}], ids=["split", "mask"])
def test_a_report_is_freed_without_the_garbage_collector(options: Any) -> None:
    """Trainers switch it off: a cycle would keep every trajectory whose prompts break."""
    gc.disable()
    try:
        rows = window(20, agents=2).sequences(**options)
        assert any(one.is_fork or one.is_root or one.drift for one in rows.report.breaks)
        earlier = weakref.ref(rows.report.breaks[0]._earlier)
        del rows
        assert earlier() is None
    finally:
        gc.enable()


def test_drift_in_the_middle_of_a_long_row_is_of_the_step_that_wrote_there() -> None:
    turns = 20
    messages: list[Any] = [{"role": "user", "content": "go"}]
    steps: list[Step] = []
    prompt = [1]
    for at in range(turns):
        facts: Any = {
            "messages": list(messages),
            "completion": Completion(content="yes", reasoning="hm" if at else None),
        }
        steps.append(step_of(f"a{at}", prompt, **facts))
        messages += [{"role": "assistant", "content": "yes", "reasoning": "hm"}, {"role": "user", "content": "more"}]
        prompt = [*prompt, 5, 6]
    for at in range(turns):
        steps.append(step_of(f"b{at}", [*prompt[: 1 + 2 * at], 9, *prompt[2 + 2 * at :]], messages=messages))
    found = rt.drift(rt.Trajectory(steps=steps))
    assert [(one.step_id, one.previous_step_id, one.position) for one in found] == [
        (f"b{at}", f"a{turns - 1}", 1 + 2 * at) for at in range(turns)
    ]
    # The first answer alone had no reasoning that could be gone.
    assert [one.kind for one in found] == ["retokenized", *["thinking_removed"] * (turns - 1)]


def step_of(name: str, prompt: list[int], **facts: Any) -> Step:
    return Step(
        id=name, call_id=name, prompt_token_ids=as_int32(prompt), completion_token_ids=as_int32([5]),
        finish_reason="length", **facts,
    )  # fmt: skip
