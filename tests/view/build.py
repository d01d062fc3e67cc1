"""Trajectories made by hand, as agents make them: a conversation that grows, step by step."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import numpy as np

import rollout_trace as rt
from rollout_trace.data.model import Completion, Step, ToolCall

START = datetime(2026, 11, 23, 8, tzinfo=timezone.utc)


def says(text: str | None, *calls: tuple[str, str]) -> Completion:
    """An answer, with calls of tools: name and arguments."""
    return Completion(
        content=text, tool_calls=tuple(ToolCall(id=f"call-{name}", name=name, arguments=given) for name, given in calls)
    )


def sent_back(answer: Completion) -> dict[str, Any]:
    """An answer as an agent sends it with its next request."""
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in answer.tool_calls
    ]
    return {"role": "assistant", "content": answer.content, **({"tool_calls": calls} if calls else {})}


def step(at: int, messages: list[Any] | None, answer: Completion | None, **fields: Any) -> Step:
    """The step of index ``at``."""
    began = START + timedelta(seconds=at)
    given = {"protocol": "openai.chat", "call_id": f"call-{at}", "started_at": began, "latency": 0.5, **fields}
    return Step(id=f"step-{at}", index=at, messages=messages, completion=answer, **given)


def with_tokens(prompt: list[int], completion: list[int], logprob: float = -0.25) -> dict[str, Any]:
    """Fields of a step whose engine sent ids and logprobs."""
    return {
        "prompt_token_ids": np.array(prompt, np.int32),
        "completion_token_ids": np.array(completion, np.int32),
        "logprobs": np.full(len(completion), logprob, np.float32),
        "token_source": "engine",
        "finish_reason": "stop",
    }


def user(text: str) -> dict[str, Any]:
    """A message of a user."""
    return {"role": "user", "content": text}


def conversation() -> rt.Trajectory:
    """Two steps with a tool between them, in one row."""
    asked = [{"role": "system", "content": "Be brief."}, user("What is 2 + 2?")]
    first = says(None, ("calculator", '{"expression": "2 + 2"}'))
    result = {"role": "tool", "tool_call_id": "call-calculator", "content": "4"}
    steps = [
        step(0, asked, first, **with_tokens([1, 2, 3], [4, 5])),
        step(
            1, [*asked, sent_back(first), result], says("It is 4."), **with_tokens([1, 2, 3, 4, 5, 6], [7, 8, 9], -2.5)
        ),
    ]
    run = rt.ToolRun(
        tool_call_id="call-calculator",
        name="calculator",
        arguments={"expression": "2 + 2"},
        result="4",
        step_id="step-0",
        started_at=START + timedelta(seconds=0.6),
        duration=0.001,
    )
    return rt.Trajectory(
        id="t", name="solver", task=rt.Task(id="sum/1"), group_id="sum", reward=1.0, steps=steps, tool_runs=[run],
        started_at=START, ended_at=START + timedelta(seconds=2),
    )  # fmt: skip


HOSTILE = (
    "<script>alert(1)</script></script><img src=x onerror=alert(2)>",
    "\x1b[31mred\x1b]0;title\x07\x00\x08",
    "\u202eabc\u202c\u200b\ufeff\u2066x\u2069",
    "\ud83d half a pair \udc00",
    "]]> --> <!-- ' \" ` &amp; ${x}",
    "e\u0301 \U0001f468\u200d\U0001f469\u200d\U0001f467 \u4f60\u597d\tx\r\ny",
)
"""Texts that a terminal, a page or a parser must not take for its own."""


def hostile() -> rt.Trajectory:
    """A trajectory with hostile texts in every field that takes one."""
    text = "\n".join(HOSTILE)
    answer = says(text, (text, text))
    one = step(0, [user(text), {"role": text, "content": [{"type": text, "x": text}]}], answer, model=text, agent=text,
               error=rt.ErrorInfo(type=text, message=text), metadata={text: text}, sampling={text: text})  # fmt: skip
    run = rt.ToolRun(tool_call_id=text, name=text, arguments=text, result=text, step_id="step-0")
    return rt.Trajectory(
        id="hostile", name=text, task=rt.Task(id=text, data={text: text}), group_id=text, status=text, steps=[one],
        tool_runs=[run], metadata={"note": text}, error=rt.ErrorInfo(type=text, message=text), rewards={text: 1.0},
    )  # fmt: skip
