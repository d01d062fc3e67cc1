"""Traces of an agent for hypothesis: prompts, completions and logprobs, and the trajectory that has them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from hypothesis import strategies as st

from rollout_trace import Step, Trajectory

Turn: TypeAlias = tuple[list[int], list[int], list[float]]
"""Ids of the prompt and of the completion, and the logprobs of the completion."""
Trace: TypeAlias = list[Turn]

_IDS = st.lists(st.integers(0, 3), max_size=4)
_LOGPROBS = st.floats(-8, 0, width=32)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Prompts that go on, repeat an earlier one, branch off, drift by one id or begin anew; no completion is empty."""
    made: Trace = []
    for _ in range(draw(st.integers(0, 8))):
        prompt = draw(_IDS.filter(bool))
        if made and draw(st.integers(0, 4)) > 0:
            latest = draw(st.integers(0, 3)) > 0
            earlier, answer, _ = made[-1] if latest else draw(st.sampled_from(made))
            kind = draw(st.sampled_from(["on", "on", "on", "repeat", "branch", "drift"]))
            base = earlier if kind == "repeat" else [*earlier, *answer]
            if kind == "branch":
                base = base[: draw(st.integers(0, len(base)))]
            elif kind == "drift":
                at = draw(st.integers(0, len(base) - 1))
                base = [*base[:at], base[at] ^ 1, *base[at + 1 :]]
            prompt = base if kind == "repeat" else [*base, *(prompt if draw(st.booleans()) or not base else [])]
        completion = draw(_IDS.filter(bool))
        made.append((prompt, completion, [draw(_LOGPROBS) for _ in completion]))
    return made


def trajectory_of(trace: Trace, reward: float | None = 1.0) -> Trajectory:
    """A trajectory with a step for each turn."""
    steps = [
        Step(
            id=f"step{at}",
            call_id=f"call{at}",
            index=at,
            prompt_token_ids=np.array(prompt, np.int32),
            completion_token_ids=np.array(completion, np.int32),
            logprobs=np.array(logprobs, np.float32),
            token_source="engine",
            finish_reason="stop",
        )
        for at, (prompt, completion, logprobs) in enumerate(trace)
    ]
    return Trajectory(id="trace", group_id="task", rollout_index=0, steps=steps, reward=reward)


def conversation_of(trace: Trace) -> Trajectory:
    """The same, with the messages of one conversation: a prompt that the turn before does not begin has drifted."""
    run, said = trajectory_of(trace), list[Any]()
    for at, step in enumerate(run.steps):
        said = [*said, {"role": "user", "content": "?"}]
        run.steps[at] = replace(step, messages=said)
        said = [*said, {"role": "assistant", "content": "!"}]
    return run
