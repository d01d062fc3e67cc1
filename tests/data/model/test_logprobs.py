"""Recorded logprobs are the model's: the recorded ids, fed to the same weights, give them again.

Both sides are what a user has: the ids and logprobs of a recorded step (not of the raw bytes), and the model that vLLM
served, in `tests/data/tiny-model`. Every chat exchange is taken that vLLM answered with prompt ids, completion ids and
logprobs. Its request tells which of two distributions they are of: the model's, or the model's under a grammar.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

from rollout_trace.data.exchange import Exchange
from rollout_trace.data.model import Step
from tests.amount import some
from tests.data.model.qwen2 import Qwen2
from tests.wire.raw import exchanges, steps_of

if TYPE_CHECKING:
    from tests.data.model.qwen2 import Array

FOLDER = Path(__file__).parents[2] / "data" / "tiny-model"
TOLERANCE = 1e-4  # the largest difference seen is 4e-6: the engine calculates in float32
MASKED = -9999.0  # vLLM's logprob of a token that the grammar does not allow


class Case(NamedTuple):
    """One recorded choice."""

    name: str
    grammar: bool
    step: Step


def has_grammar(request: dict[str, Any]) -> bool:
    """Whether a grammar chose among the tokens: for a forced tool, a JSON schema, a regular expression."""
    choice = request.get("tool_choice")
    return choice == "required" or isinstance(choice, dict) or "structured_outputs" in request or has_schema(request)


def has_schema(request: dict[str, Any]) -> bool:
    return bool(request.get("response_format", {}).get("type") == "json_schema")


def cases_of(exchange: Exchange) -> list[Case]:
    """The choices that came with both kinds of ids and with logprobs."""
    if exchange.status != 200:
        return []
    grammar = has_grammar(json.loads(exchange.request))
    return [Case(f"{exchange.name}-{step.choice}", grammar, step) for step in steps_of(exchange) if is_whole(step)]


def is_whole(step: Step) -> bool:
    return step.prompt_token_ids is not None and step.completion_token_ids is not None and step.logprobs is not None


CASES = [case for exchange in exchanges().values() for case in cases_of(exchange)]
PLAIN = {case.name: case for case in CASES if not case.grammar}
GRAMMAR = {case.name: case for case in CASES if case.grammar}


@cache
def model() -> Qwen2:
    return Qwen2(FOLDER)


@cache
def forward(ids: tuple[int, ...]) -> Array:
    # A stream and its unstreamed twin have the same ids.
    return model().logprobs(ids)


def calculated(prompt: list[int], completion: list[int]) -> Array:
    """The logprob of each completion id after all ids before it."""
    following = forward((*prompt, *completion))[len(prompt) - 1 : -1]
    chosen: Array = following[np.arange(len(completion)), completion]
    return chosen


def recorded(step: Step) -> tuple[list[int], list[int], Array]:
    """Prompt ids, completion ids and logprobs."""
    assert step.prompt_token_ids is not None
    assert step.completion_token_ids is not None
    assert step.logprobs is not None
    return step.prompt_token_ids.tolist(), step.completion_token_ids.tolist(), step.logprobs.astype(np.float64)


def test_how_many() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    assert len(PLAIN) >= 30
    assert len(GRAMMAR) >= 10
    assert sum(len(recorded(case.step)[1]) for case in PLAIN.values()) > 1000


@pytest.mark.parametrize("name", some(PLAIN, *list(PLAIN)[::3]))
def test_logprobs_are_those_of_a_forward_pass(name: str) -> None:
    """Raw: at temperature 1, whatever temperature, top-p, top-k, bias or allowed ids the request had."""
    case = PLAIN[name]
    prompt, completion, logprobs = recorded(case.step)
    np.testing.assert_allclose(logprobs, calculated(prompt, completion), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", some(GRAMMAR, *list(GRAMMAR)[::3]))
def test_under_a_grammar_logprobs_are_of_what_it_allows(name: str) -> None:
    """A token that was forced has 0.0, and all its alternatives are masked; none is as unlikely as to the model."""
    case = GRAMMAR[name]
    prompt, completion, logprobs = recorded(case.step)
    tops = case.step.top_logprobs
    assert tops is not None
    others = [{entry["logprob"] for entry in top} - {own} for top, own in zip(tops, logprobs, strict=True)]
    forced = np.array([values == {MASKED} for values in others])
    assert forced.any()
    np.testing.assert_array_equal(logprobs == 0.0, forced)
    assert (logprobs - calculated(prompt, completion) > 1).all()


def test_every_part_counts() -> None:
    """The comparison fails for ids that are one off, in the prompt or in the completion, and for a lost token."""
    prompt, completion, logprobs = recorded(PLAIN["chat_ids-0"].step)
    wrong_start = calculated([prompt[0] + 1, *prompt[1:]], completion)
    wrong_last = calculated(prompt, [*completion[:-1], completion[-1] + 1])
    assert np.abs(wrong_start - logprobs).max() > 100 * TOLERANCE
    assert np.abs(wrong_last - logprobs)[-1] > 100 * TOLERANCE
    assert np.abs(calculated(prompt[1:], completion) - logprobs).max() > 100 * TOLERANCE
    assert np.abs(calculated(prompt, completion[1:]) - logprobs[1:]).max() > 100 * TOLERANCE
