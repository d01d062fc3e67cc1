"""Compares a trainer's logprobs with those the engine sampled by: ratio and divergence, where they differ, and why.

With ``d = trainer_logprobs - logprobs`` of a sampled token the importance ratio is ``exp(d)``. Tokens were sampled
from the engine's distribution, so ``k1 = mean(-d)`` and ``k3 = mean(exp(d) - 1 - d)`` estimate KL(engine || trainer),
k3 with less variance and never below 0 (http://joschu.net/blog/kl-approx.html).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from rollout_trace._field_docs import document_fields
from rollout_trace.data.model import CUT_OFF
from rollout_trace.data.trajectory import each_trajectory
from rollout_trace.train.mismatch_causes import Cause, Compared, causes_of
from rollout_trace.train.selection import n_sampled
from rollout_trace.train.shaping import constrained
from rollout_trace.wire.chat_messages import joined_texts

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from rollout_trace.data.model import Completion, Step
    from rollout_trace.data.trajectory import Trajectory

    Numbers: TypeAlias = npt.NDArray[np.float64]

_POSITIONS = (1, 4, 16, 64, 256, 1024, 4096)
"""Ends of the ranges of positions in a completion; the last is open."""


@document_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class MismatchPart:
    """Mismatch figures for a subset of the tokens."""

    value: str
    """Value that the tokens share: ``4-15`` for ``position``, ``tool call`` for ``role``, ..."""
    tokens: int
    """Number of tokens."""
    ratio: float
    """Mean of the trainer's probability divided by the engine's; 1.0 if they agree, inf if it exceeds a float."""
    k1: float
    """Estimate of KL(engine || trainer), nats: mean of ``-d``, d being the trainer's logprob - the engine's."""
    k3: float
    """Estimate of KL(engine || trainer), nats: mean of ``exp(d) - 1 - d``; inf if it exceeds a float."""
    mean_difference: float
    """Mean of ``|d|``, nats."""
    greatest_difference: float
    """Greatest ``|d|``, nats."""


@document_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """The result of ``rt.mismatch()``."""

    steps: int
    """Number of steps with logprobs from both engine and trainer."""
    steps_left_out: int
    """Number of sampled steps that lack the engine's logprobs or the trainer's."""
    whole: MismatchPart | None
    """Figures for all tokens; None if no step has logprobs from both sides."""
    parts: dict[str, tuple[MismatchPart, ...]]
    """Figures by ``position`` in the completion, ``turn`` (the step's place in its trajectory), ``role``,
    ``policy_version``, ``engine`` and ``constrained`` (which grammar)."""
    causes: tuple[Cause, ...]
    """Causes of the difference, the most certain first; empty if there is no difference to explain."""


def mismatch(trajectories: Trajectory | Iterable[Trajectory], *, trainer_version: int | None = None) -> Mismatch:
    """Compares the trainer's logprobs (``Step.trainer_logprobs``) with the engine's (``Step.logprobs``).

    Args:
        trajectories: their steps must have both; ``rt.annotate`` and ``rt.trainer_report`` note a trainer's logprobs.
        trainer_version: version number of the weights that the trainer used; None: the newest ``policy_version``.

    Raises:
        TypeError: an item is not a trajectory.
    """
    import numpy as np

    found: list[Compared] = []
    left_out = 0
    for trajectory in each_trajectory(trajectories):
        compared = list(_compared(trajectory))
        found += compared
        sampled = [step for step in trajectory.steps if step.status == "ok" and n_sampled(step)]
        left_out += sum(not _has_both(step) for step in sampled)
    if not found:
        return Mismatch(steps=0, steps_left_out=left_out, whole=None, parts={}, causes=())
    difference = np.concatenate([one.difference for one in found])
    return Mismatch(
        steps=len(found),
        steps_left_out=left_out,
        whole=_part("all", difference),
        parts={name: tuple(_parts(keys, difference)) for name, keys in _keys(found).items()},
        causes=tuple(causes_of(found, trainer_version)),
    )


def _compared(trajectory: Trajectory) -> Iterator[Compared]:
    """The steps of a trajectory with logprobs of both sides."""
    having = [(turn, step) for turn, step in enumerate(trajectory.steps) if _has_both(step)]
    row_of, drifted = _rows(trajectory) if having else ({}, frozenset())
    for turn, step in having:
        assert step.logprobs is not None
        assert step.trainer_logprobs is not None
        row = row_of.get(step.id, f"trajectory {trajectory.id}")
        yield Compared(step, turn, row, step.id in drifted, step.logprobs, step.trainer_logprobs)


def _has_both(step: Step) -> bool:
    """True where some token has logprobs of both sides: of a row that was cut before the completion, none has."""
    import numpy as np

    if step.trainer is None or step.trainer_logprobs is None or step.logprobs is None:
        return False
    return bool((np.isfinite(step.logprobs) & np.isfinite(step.trainer_logprobs)).any())


def _rows(trajectory: Trajectory) -> tuple[dict[str, str], frozenset[str]]:
    """The name of each step's training row, and the steps in rows that begin with a drift."""
    rows = trajectory.sequences()
    begin = {one.step_id for one in rows.report.drift}
    names = {step: f"row {at} of trajectory {trajectory.id}" for at, row in enumerate(rows) for step in row.step_ids}
    return names, frozenset(step for row in rows if row.step_ids[0] in begin for step in row.step_ids)


def _keys(found: list[Compared]) -> dict[str, list[str]]:
    """For each token, the part that it belongs to."""
    keys: dict[str, list[str]] = {name: [] for name in _PARTS}
    for one in found:
        places = one.places.tolist()
        roles = token_roles(one.step)
        keys["position"] += map(_range, places)
        keys["role"] += [roles[place] for place in places]
        same = {
            "turn": str(one.turn),
            "policy_version": "unknown" if one.step.policy_version is None else str(one.step.policy_version),
            "engine": one.step.engine or "unknown",
            "constrained": constrained(one.step) or "no",
        }
        for name, value in same.items():
            keys[name] += [value] * len(places)
    return keys


_PARTS = ("position", "turn", "role", "policy_version", "engine", "constrained")


def _range(place: int) -> str:
    begin = 0
    for end in _POSITIONS:
        if place < end:
            return str(begin) if end - begin == 1 else f"{begin}-{end - 1}"
        begin = end
    return f"{begin}-"


def _parts(keys: list[str], difference: Numbers) -> Iterator[MismatchPart]:
    """The parts, in the order of numbers where their values are numbers."""
    import numpy as np

    labels = np.asarray(keys, object)
    for value in sorted(set(keys), key=_order):
        yield _part(value, difference[labels == value])


def _order(value: str) -> tuple[bool, int, str]:
    first = value.partition("-")[0]
    return (False, int(first), "") if first.isdecimal() else (True, 0, value)


def _part(value: str, difference: Numbers) -> MismatchPart:
    import numpy as np

    with np.errstate(over="ignore"):
        ratios = np.exp(difference)
    return MismatchPart(
        value=value,
        tokens=len(difference),
        ratio=float(ratios.mean()),
        k1=float(-difference.mean()),
        k3=float((ratios - 1 - difference).mean()),
        mean_difference=float(np.abs(difference).mean()),
        greatest_difference=float(np.abs(difference).max()),
    )


# What each token of a completion is

TEXT, THINKING, TOOL_CALL, END = "text", "thinking", "tool call", "end token"


def token_roles(step: Step) -> list[str]:
    """The role of each completion token of a step: ``text``, ``thinking``, ``tool call`` or ``end token``.

    Which is which is told by the texts of the tokens (``Step.token_texts``): the answer's text and its reasoning are
    looked for in them, and what is around the reasoning belongs to it. Without texts, all tokens of an answer that is
    nothing but a tool call, or nothing but text, are that; of others they are ``text``.
    """
    ids = step.completion_token_ids
    count = 0 if ids is None else len(ids)
    texts = step.token_texts
    roles = [_only_role(step.completion)] * count
    if texts is not None and len(texts) == count and step.completion is not None:
        roles = _by_text(list(texts), step.completion)
    ended = step.finish_reason is not None and step.finish_reason not in CUT_OFF
    if ended and count and (texts is None or not _is_in(texts[-1], step.completion)):
        roles[-1] = END
    return roles


def _is_in(text: str, completion: Completion | None) -> bool:
    """True where the last token's text is that of the answer: the engine did not return the end token."""
    content = None if completion is None else joined_texts(completion.content)
    return bool(text) and content is not None and content.endswith(text)


def _only_role(completion: Completion | None) -> str:
    is_call = completion is not None and completion.tool_calls and not completion.content
    return TOOL_CALL if is_call else TEXT


def _by_text(texts: list[str], completion: Completion) -> list[str]:
    whole = "".join(texts)
    content, reasoning = joined_texts(completion.content), completion.reasoning
    thought_end = _end_of(whole, reasoning, 0)
    # Of an answer that is found twice, once in the reasoning, the later one.
    begin = -1 if not content else whole.find(content.strip(), thought_end)
    end = -1 if begin < 0 or content is None else begin + len(content.strip())
    other = TOOL_CALL if completion.tool_calls else TEXT
    roles, place = [], 0
    for text in texts:
        middle = place + len(text) / 2
        place += len(text)
        if thought_end and (middle < thought_end or (begin >= 0 and middle < begin)):
            roles.append(THINKING)
        else:
            roles.append(TEXT if begin <= middle < end else other)
    return roles


def _end_of(whole: str, part: str | None, start: int) -> int:
    """Where a part ends, with the mark behind it (``</think>``); 0 where it is not there."""
    found = -1 if not part or not part.strip() else whole.find(part.strip(), start)
    if found < 0 or part is None:
        return 0
    end = found + len(part.strip())
    rest = whole[end:].lstrip()
    return len(whole) - len(rest) + rest.find(">") + 1 if rest.startswith("</") and ">" in rest else end
