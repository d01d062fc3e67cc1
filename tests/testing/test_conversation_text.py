"""The short conversation that a failed test shows: what is in it, how it is cut, that no text can steer a terminal."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

import rollout_trace as rt
from rollout_trace.data.model import Completion, ErrorInfo, ToolRun
from rollout_trace.guard import SPACES
from rollout_trace.testing.conversation_text import conversation_text
from tests.amount import amount
from tests.strategies import PROFILE, trajectories
from tests.testing import rollouts
from tests.view.build import HOSTILE, conversation, hostile, says, sent_back, step, user, with_tokens

OF_CHAT = """\
chat  2 steps, completed
    user      Is it warmer in Paris or in Rome?
  0 assistant Let me look.
    assistant calls weather {"city": "Paris"}
    assistant calls weather {"city": "Rome"}  [tool_calls]
    tool      weather → 5 degrees in Paris
    tool      weather → 4 degrees in Rome
  1 assistant In Rome.  [stop]"""


@pytest.mark.parametrize("protocol", rollouts.AGENTS)
def test_every_protocol_reads_alike(protocol: str) -> None:
    text = conversation_text(rollouts.run(protocol).trajectories)
    for own, usual in ((protocol, "chat"), ("tool_use", "tool_calls"), ("end_turn", "stop")):
        text = text.replace(own, usual)
    text = text.replace("STOP", "tool_calls", 1).replace("STOP", "stop").replace('":"', '": "')
    assert text == OF_CHAT


def eventful() -> rt.Trajectory:
    """A failed call, a drift, a tool that failed, a result that no request has, a limit, a new conversation."""
    whole = conversation()
    first, second = whole.steps
    asked = list(first.messages or ())
    failed = step(2, asked, None, status="error", error=ErrorInfo(type="APIError", message="down", status=500))
    answer = second.completion
    assert answer is not None
    thread = [*(second.messages or ()), sent_back(answer), user("And 3 + 3? " + "Take your time. " * 40)]
    drifted = step(
        3, thread, replace(says("Six, " * 90), reasoning="hm"), **with_tokens([1, 2, 3, 4, 5, 6, 7, 88], [9])
    )
    new = step(4, [user("Another.")], says(None, ("search", '{"query": "x"}'), ("fetch", "{}")))
    failure = ErrorInfo(type="OSError", message="x")
    runs = [
        *whole.tool_runs,
        ToolRun(tool_call_id="call-search", name="search", result="found", step_id="step-4"),
        ToolRun(tool_call_id="call-fetch", name="fetch", error=failure, step_id="step-4"),
    ]
    drifted = replace(drifted, finish_reason="length")
    return rt.Trajectory(
        name="solver", status="failed", steps=[first, second, failed, drifted, new], tool_runs=runs, reward=0.5,
        error=ErrorInfo(type="ValueError", message="gave up"),
    )  # fmt: skip


EVENTFUL = """\
solver  5 steps, failed, reward 0.5
    system    Be brief.
    user      What is 2 + 2?
  0 assistant calls calculator {"expression": "2 + 2"}  [stop]
    tool      calculator → 4
  1 assistant It is 4.  [stop]
  2           the same prompt as step 0
  2 assistant (no answer)  [error]
    error     APIError (HTTP 500): down
  3 !         drift (retokenized) at token 7 of the prompt, against step 1: its
              text became other ids than those it came from
    user      And 3 + 3? Take your time. Take your time. Take your time. Take
              your time. Take your time. Take your time. Take your time. Take
              your time. Take your time. Take your time. Tak... (477 more)
  3 assistant (thinks) hm
    assistant Six, Six, Six, Six, Six, Six, Six, Six, Six, Six, Six, Six, Six,
              Six, Six, Six, Six, Six, Six, Six, Six, Six, Six, Six, Six, Six,
              Six, Six, Six, Six, Six, Six, Six, Six, Six, Six, Six, Six, Six,
              Six, Six, Six, Six, Six, Six, Six, Six, Six, S... (209 more)
              [length]
  4           a new conversation
    user      Another.
  4 assistant calls search {"query": "x"}
    assistant calls fetch {}
    tool      search → found
    tool      fetch failed: OSError: x
    error     ValueError: gave up"""


def test_errors_drift_limits_and_other_events() -> None:
    assert conversation_text([eventful()], width=80) == EVENTFUL


def test_texts_are_cut_at_the_width() -> None:
    for width in (40, 60, 80, 120):
        text = conversation_text([eventful(), hostile()], width=width, most_lines=200)
        assert max(map(len, text.splitlines())) <= width


def test_the_middle_is_left_out_of_a_long_one() -> None:
    messages: list[Any] = [user("Count.")]
    steps = []
    for at in range(50):
        steps.append(step(at, list(messages), says(f"{at}"), finish_reason="stop"))
        messages += [sent_back(says(f"{at}")), user("Go on.")]
    lines = conversation_text([rt.Trajectory(steps=steps)], most_lines=20).splitlines()
    assert len(lines) == 20
    assert lines[:3] == ["agent  50 steps, completed", "    user      Count.", "  0 assistant 0  [stop]"]
    assert lines[6] == f"{'':14}... 82 more lines"
    assert lines[-1] == " 49 assistant 49  [stop]"
    # 1 title, 50 questions and 50 answers; what is shown and what is said to be left out is all of it.
    assert len(lines) - 1 + 82 == 101


def test_many_trajectories_share_the_lines() -> None:
    text = conversation_text([conversation()] * 30, most_lines=24)
    assert len(text.splitlines()) <= 25
    assert text.splitlines()[-1] == "... and 24 more trajectories"
    assert conversation_text([]) == ""


def test_colours_are_added_around_what_is_there() -> None:
    styles = set()

    def paint(text: str, style: str) -> str:
        styles.add(style)
        return f"<{style}>{text}</{style}>"

    painted = conversation_text([eventful()], paint=paint)
    assert styles <= {"bold", "dim", "red", "green", "yellow", "cyan"}
    for style in styles:
        painted = painted.replace(f"<{style}>", "").replace(f"</{style}>", "")
    assert [line.rstrip() for line in painted.splitlines()] == conversation_text([eventful()]).splitlines()


def test_no_text_can_steer_a_terminal() -> None:
    text = conversation_text([hostile()], most_lines=500)
    assert all(one.isprintable() or one in f"\n{SPACES}" for one in text)
    assert r"\x1b[31mred" in text
    assert HOSTILE[0].split()[0] in text


def test_a_text_of_megabytes() -> None:
    long = rt.Trajectory(steps=[step(0, [user("a" * 3_000_000)], Completion(content="b c " * 1_000_000))])
    text = conversation_text([long])
    assert len(text) < 2000
    assert "... (2,999," in text


@settings(PROFILE, max_examples=amount(5, 12, 300))
@given(trajectories())
def test_any_trajectory_can_be_shown(trajectory: rt.Trajectory) -> None:
    text = conversation_text([trajectory], width=60)
    assert len(text.splitlines()) <= 40
    assert all(one.isprintable() or one in f"\n{SPACES}" for one in text)


def test_an_image_is_its_kind_and_size() -> None:
    data = b64encode(bytes(1500)).decode()
    parts = [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}},
        {"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}},
        {"type": "text", "text": "What is this?"},
    ]
    trajectory = rt.Trajectory(name="images")
    trajectory.steps.append(step(0, [{"role": "user", "content": parts}], says("A cat.")))
    text = conversation_text([trajectory])
    assert "AAAA" not in text
    assert "1.5 kB]" in text
    assert "https://example.com/cat.png" in text
