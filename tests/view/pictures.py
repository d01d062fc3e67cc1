"""The pictures of the terminal, and a way to draw them anew: ``python -m tests.view.pictures``, then look at them."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import rollout_trace as rt
from rollout_trace.data.model import Attempt, Completion, ErrorInfo, ToolCall, Usage
from rollout_trace.view.difference import difference
from rollout_trace.view.styles import ShowOptions, console
from rollout_trace.view.terminal import Printer, child_of
from rollout_trace.view.terminal_difference import show_difference

from .build import START, hostile, says, sent_back, step, user

FOLDER = Path(__file__).parent / "snapshots"
SYSTEM = {"role": "system", "content": "You repair programs. Run the tests before you answer."}
CODE = "def mean(values):\n\treturn sum(values) / len(values)   # 空のリスト 👍 e\u0301\n"


def _tokens(prompt: int, texts: list[str], logprobs: list[float], start: int = 1000) -> dict[str, Any]:
    ids = np.arange(start, start + len(texts), dtype=np.int32)
    top = [
        [{"token": text, "logprob": value}, {"token": f"{text}'", "logprob": min(-0.5, value - 1)}]
        for text, value in zip(texts, logprobs, strict=True)
    ]
    return {
        "prompt_token_ids": np.arange(prompt, dtype=np.int32),
        "completion_token_ids": ids,
        "logprobs": np.array(logprobs, np.float32),
        "token_texts": texts,
        "top_logprobs": top,
        "token_source": "engine",
        "logprobs_mode": "raw",
        "finish_reason": "stop",
        "model": "tiny-1",
        "engine": "vllm",
        "usage": Usage(input=prompt, output=len(texts)),
    }


def family() -> list[rt.Trajectory]:
    """A trajectory with everything that is drawn in a way of its own, and the sub-agent that it opened."""
    call = ToolCall(id="call-run", name="run_tests", arguments='{"path": "tests/", "verbose": true}')
    look = ToolCall(id="call-look", name="read_file", arguments='{"path": "mean.py"}')
    first = Completion(content="I run the tests.", reasoning="The mean of nothing fails.\nFirst, see it fail.",
                       tool_calls=(call, look))  # fmt: skip
    asked = [SYSTEM, user("Repair mean.py: the mean of an empty list fails.")]
    results = [
        {"role": "tool", "tool_call_id": "call-run", "content": "1 failed: ZeroDivisionError"},
        {"role": "tool", "tool_call_id": "call-look", "content": CODE},
    ]
    last = says("Mean of an empty list is now None.")
    after = [*asked, sent_back(first), *results]
    steps = [
        step(0, asked, first, time_to_first_token=0.1,
             attempts=(Attempt(started_at=START, duration=0.2, status=503,
                               error=ErrorInfo(type="InternalServerError", message="overloaded", status=503)),
                       Attempt(started_at=START + timedelta(seconds=0.3), duration=0.2, status=200)),
             **_tokens(40, ["I", " run", " the", " tests", ".", "\n", "<call>"],
                       [-0.01, -0.2, -0.5, -1.5, -3.0, -6.0, -0.001])),
        step(1, after, last, **{**_tokens(47, ["Mean", " of", " an", " empty", " list", " is", " now", " None", "."],
                                          [-0.4, -0.02, -0.3, -2.5, -0.01, -0.01, -0.9, -5.1, -0.05], 2000),
                                "prompt_token_ids": np.r_[np.arange(40), np.arange(1000, 1007)].astype(np.int32)}),
        step(2, [SYSTEM, user("Write a title for this change.")], says("mean: None for an empty list"), agent="titles",
             **{**_tokens(12, ["mean", ":", " None"], [-0.3, -0.1, -4.0], 3000), "finish_reason": "length"}),
        step(3, after, None, status="error",
             error=ErrorInfo(type="APITimeoutError", message="Request timed out.")),
    ]  # fmt: skip
    runs = [
        rt.ToolRun(tool_call_id="call-run", name="run_tests", arguments=call.arguments, step_id="step-0",
                   error=ErrorInfo(type="CalledProcessError", message="exit code 1"), duration=1.234),
        rt.ToolRun(tool_call_id="call-look", name="read_file", arguments=look.arguments, result=CODE, duration=0.0004,
                   step_id="step-0"),
        rt.ToolRun(name="cleanup", duration=0.5),
    ]  # fmt: skip
    parent = rt.Trajectory(
        id="0f3c", name="repair", task=rt.Task(id="repair/7"), group_id="repair/7", rollout_index=2, reward=0.5,
        rewards={"tests": 1.0, "style": 0.0}, steps=steps, tool_runs=runs, started_at=START,
        ended_at=START + timedelta(seconds=75), metadata={"note": "look at step 3", "split": "train"}, status="failed",
        error=ErrorInfo(type="APITimeoutError", message="Request timed out."),
    )  # fmt: skip
    inner = replace(step(0, [user("Is None a good mean of nothing?")], says("Yes."),
                         **_tokens(9, ["Yes", "."], [-0.7, -0.02])), id="inner-0")  # fmt: skip
    child = rt.Trajectory(
        id="77a1", name="reviewer", episode_id="0f3c", parent_id="0f3c", parent_step_id="step-1", steps=[inner],
        started_at=START + timedelta(seconds=1.5), ended_at=START + timedelta(seconds=2), reward=1.0,
    )  # fmt: skip
    return [parent, child]


def draw(*, width: int, step: int | None = None, theme: Any = None, color: bool = False, **options: Any) -> str:
    """The family, as it is shown."""
    parent, child = family()
    file = io.StringIO()
    printer = Printer(console(file=file, width=width, theme=theme, color=color), ShowOptions(**options))
    if step is None:
        printer.show(parent, lambda: [child_of(child)])
    else:
        printer.show_step(parent, step)
    return file.getvalue()


def draw_hostile(*, width: int) -> str:
    """A trajectory with hostile texts in every field."""
    file = io.StringIO()
    printer = Printer(console(file=file, width=width, color=False), ShowOptions(tokens=True))
    printer.show(hostile())
    printer.show_step(hostile(), 0)
    return file.getvalue()


def changed() -> rt.Trajectory:
    """The trajectory of ``family``, run anew with another temperature and another end."""
    parent = family()[0]
    other = dict(
        _tokens(47, ["Mean", " of", " an", " empty", " one", "."], [-0.4, -0.02, -0.3, -2.5, -3.0, -0.1], 2000)
    )
    other["completion_token_ids"] = np.array([2000, 2001, 2002, 2003, 9, 2008], np.int32)
    other["prompt_token_ids"] = parent.steps[1].prompt_token_ids
    steps = [
        replace(parent.steps[0], sampling={"temperature": 0.7}),
        replace(parent.steps[1], completion=says("Mean of an empty one."), **other),
    ]
    return rt.Trajectory(
        id="9d2e", name="repair", task=rt.Task(id="repair/7"), group_id="repair/7", rollout_index=2, reward=1.0,
        steps=steps, started_at=START,
    )  # fmt: skip


def draw_difference(*, width: int) -> str:
    """The family's first trajectory beside another run of it."""
    file = io.StringIO()
    found = difference(family()[0], changed())
    show_difference(console(file=file, width=width, color=False), found, ("repair 0f3c (a)", "repair 9d2e (b)"))
    return file.getvalue()


PICTURES: dict[str, Callable[[], str]] = {
    "plain-80": partial(draw, width=80),
    "plain-200": partial(draw, width=200),
    "narrow-30": partial(draw, width=30),
    "tokens-80": partial(draw, width=80, tokens=True),
    "tokens-dark-80": partial(draw, width=80, tokens=True, theme="dark", color=True),
    "tokens-light-80": partial(draw, width=80, tokens=True, theme="light", color=True),
    "entropy-dark-200": partial(draw, width=200, tokens=True, color_by="entropy", theme="dark", color=True),
    "mask-80": partial(draw, width=80, tokens=True, color_by="mask"),
    "step-100": partial(draw, width=100, step=0),
    "hostile-80": partial(draw_hostile, width=80),
    "difference-80": partial(draw_difference, width=80),
}
"""The name of each file, and what draws it."""


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, drawn in PICTURES.items():
        (FOLDER / f"{name}.txt").write_text(drawn(), encoding="utf-8")
