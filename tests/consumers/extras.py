"""Trajectories whose steps have extras made up here: every value names its position, so that a shift shows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from rollout_trace import Step, Trajectory
from rollout_trace.data.extras import PolicySpan, SamplingMask, TopTokens
from tests.consumers.traces import trajectory_of

LAYERS, K = 3, 2
TRACE = [([1, 2], [3, 4], [-0.5, -0.25]), ([1, 2, 3, 4, 5], [6, 7], [-1.0, -2.0])]
"""Two turns, one row of seven tokens: 1 2 [3 4] 5 [6 7]."""
LENGTH = 7


def experts(first: int, end: int, dtype: Any = np.uint8) -> Any:
    """[end - first, LAYERS, K]: at position p the numbers from 10 p on."""
    numbers = np.arange(LAYERS * K).reshape(LAYERS, K)
    return np.stack([10 * position + numbers for position in range(first, end)]).astype(dtype)


def kept(token: int) -> list[int]:
    """The ids that could be sampled where ``token`` was: one to three, the token among them."""
    return [token + 10 * other for other in range(1 + token % 3)]


def mask(tokens: list[int]) -> SamplingMask:
    rows = [kept(token) for token in tokens]
    return SamplingMask(np.concatenate(rows).astype(np.int32), np.array([len(row) for row in rows], np.int32))


def top(tokens: list[int | None]) -> TopTokens:
    """The token itself and the next one; nothing for None."""
    ids = [[-1, -1] if token is None else [token, token + 1] for token in tokens]
    scores = [[np.nan, np.nan] if token is None else [-0.5, -1.5] for token in tokens]
    return TopTokens(np.array(ids, np.int32), np.array(scores, np.float32))


def step_with(step: Step, *, starts: int = 0, dtype: Any = np.uint8, versions: tuple[Any, ...] = (7,)) -> Step:
    """The step with every extra: experts from ``starts`` on; each version sampled one token, the last one the rest."""
    prompt, completion = step.prompt_token_ids, step.completion_token_ids
    assert prompt is not None
    assert completion is not None
    edges = [*range(len(versions)), len(completion)]
    spans = [PolicySpan(begin, end, version) for begin, end, version in zip(edges, edges[1:], versions, strict=False)]
    return replace(
        step,
        routed_experts=experts(starts, len(prompt) + len(completion) - 1, dtype),
        sampling_mask=mask(completion.tolist()),
        top_tokens=top(completion.tolist()),
        prompt_logprobs=np.array([np.nan, *[-float(at) for at in range(1, len(prompt))]], np.float32),
        prompt_top_tokens=top([None, *prompt[1:].tolist()]),
        policy_spans=tuple(spans),
        policy_version=versions[0] if len(versions) == 1 else ",".join(map(str, versions)),
    )


def run(**changes: Any) -> Trajectory:
    """A run of ``TRACE`` whose steps have every extra; experts of the second turn alone, from where the first ends."""
    made = trajectory_of(TRACE)
    first, second = made.steps
    made.steps = [step_with(first, **changes), step_with(second, **{"starts": 3, **changes})]
    return made


def gap() -> Trajectory:
    """``run`` whose second answer has experts of its completion alone: positions 3 and 4 have none."""
    made = run()
    made.steps = [made.steps[0], step_with(made.steps[1], starts=5)]
    return made
