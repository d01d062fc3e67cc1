"""A conversation in Google's contents goes on as those of other protocols: its answers have the role `model`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rollout_trace.data.model import Completion, Step, ToolCall
from rollout_trace.view.threads import threads_of
from rollout_trace.wire.chat_answers import compare_answer, keeps_reasoning

CALL = {"functionCall": {"name": "weather", "args": {"city": "Paris"}}}
ASKED: Any = [{"role": "user", "parts": [{"text": "Is it warm?"}]}]
RESULT: Any = {"role": "user", "parts": [{"functionResponse": {"name": "weather", "response": {"result": "5"}}}]}
SAID = Completion(
    content="Let me look.",
    tool_calls=(ToolCall(name="weather", arguments='{"city":"Paris"}'),),
)


def steps(*parts: Any) -> tuple[Step, Step]:
    first = Step(id="a", call_id="a", protocol="google.generate_content", messages=ASKED, completion=SAID)
    sent = [*ASKED, {"role": "model", "parts": [{"text": "Let me look."}, *parts]}, RESULT]
    return first, replace(first, id="b", call_id="b", index=1, messages=sent, completion=Completion(content="No."))


def test_the_next_request_shows_the_result_alone() -> None:
    first, second = steps(CALL)
    assert [(link.continues, link.repeated) for link in threads_of([first, second])] == [(None, 0), (0, 2)]
    assert compare_answer(second, first) == "same"


def test_an_answer_that_was_changed_is_shown() -> None:
    first, second = steps()
    assert [(link.continues, link.repeated) for link in threads_of([first, second])] == [(None, 0), (0, 1)]
    assert compare_answer(second, first) == "changed"


def test_thoughts() -> None:
    first, second = steps({"text": "hm", "thought": True}, CALL)
    assert keeps_reasoning(second, first)
    assert not keeps_reasoning(steps(CALL)[1], first)
