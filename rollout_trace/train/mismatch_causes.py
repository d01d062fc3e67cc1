"""Names what makes a trainer's logprobs differ from the engine's.

Each test looks for the trace that one cause leaves. A shifted mask gives each token the number of its neighbour.
Another temperature stretches the logprobs. A truncation (top-p) on one side moves all tokens in one direction, by no
more than the part that it cuts off. Another prompt shows most at the first sampled token, also beside later tokens that
the engine was as unsure of. What touches some tokens (one row, those behind a drift, those under a grammar, those of
older weights) leaves the others as they are. A difference without a pattern is another precision where it is small, and
other weights where it is large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from rollout_trace._field_docs import document_fields
from rollout_trace.train.shaping import constrained, temperature

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from rollout_trace.data.model import Step
    from rollout_trace.data.tokens import FloatArray

    Numbers: TypeAlias = npt.NDArray[np.float64]

CauseCode: TypeAlias = Literal[
    "shifted", "one_row", "behind_drift", "constrained", "stale", "truncated", "temperature", "prompt", "precision",
    "other_weights",
]  # fmt: skip

_SAME = 1e-3
"""Nats: mean difference up to which two float32 passes agree."""
_CLEARLY = 5.0
"""How many times the difference of some tokens must be that of the others for these to be what is wrong."""
_FINE, _FINE_GREATEST = 0.03, 0.5
"""Nats: mean and greatest difference of a pass in bfloat16."""
_LEAST_KEPT = 0.5
"""The least part of a distribution that a truncation is taken to keep, where the request does not say it."""
_GREATEST_RATIO = 5.0
"""Of two temperatures."""
_LEAST = 8
"""Tokens or completions below which no pattern is told from chance."""
_FAIR_SHARE = 0.1
"""Of all tokens, for those that differ to be called a pattern of all."""
_LIKE = 1.25
"""Greatest ratio of two logprobs of the engine for their tokens to be compared."""


@document_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A cause of a mismatch."""

    code: CauseCode
    """A stable code; docs/mismatch.md lists all of them."""
    message: str
    """What was found, with figures, and what to look at."""
    tokens: int
    """Number of tokens that the cause explains."""


class Compared:
    """The tokens of a step that have logprobs of both sides."""

    def __init__(
        self, step: Step, turn: int, row: str, behind_drift: bool, engine: FloatArray, trainer: FloatArray
    ) -> None:
        import numpy as np

        self.step, self.turn, self.row, self.behind_drift = step, turn, row, behind_drift
        known = np.isfinite(engine) & np.isfinite(trainer)
        self.places = np.flatnonzero(known)
        """Their positions in the completion."""
        self.engine: Numbers = engine[known].astype(np.float64)
        self.trainer: Numbers = trainer[known].astype(np.float64)
        self.difference: Numbers = self.trainer - self.engine


class _Tokens(NamedTuple):
    """All tokens of some steps."""

    steps: list[Compared]
    engine: Numbers
    difference: Numbers

    @classmethod
    def of(cls, steps: list[Compared]) -> _Tokens:
        import numpy as np

        joined = (np.concatenate([getattr(one, name) for one in steps]) for name in ("engine", "difference"))
        return cls(steps, *joined)

    @property
    def mean(self) -> float:
        return float(abs(self.difference).mean()) if len(self.difference) else 0.0


def causes_of(steps: list[Compared], trainer_version: int | None) -> Iterator[Cause]:
    """The causes, each with the tokens that it explains; none where both sides agree."""
    shifted = _shifted_steps(steps)
    if shifted:
        yield _shifted(shifted)
    told = frozenset(shifted)
    rest = [one for one in steps if one not in told]
    if not rest or _Tokens.of(rest).mean < _SAME:
        return
    some = next(filter(None, (find(rest) for find in _some(trainer_version))), None)
    if some is None:
        yield _even(_Tokens.of(rest), trainer_version)
        return
    cause, those = some
    yield cause
    if cause.code in ("one_row", "behind_drift") and (found := _pattern(_Tokens.of(those))) is not None:
        yield found


# Some steps alone


def _some(trainer_version: int | None) -> list[Callable[[list[Compared]], tuple[Cause, list[Compared]] | None]]:
    return [_constrained, _behind_drift, lambda steps: _stale(steps, trainer_version), _one_row]


def _apart(
    steps: list[Compared], is_in: Callable[[Compared], bool], clearly: float = _CLEARLY
) -> tuple[list[Compared], _Tokens, _Tokens] | None:
    """The steps for which a fact holds, where they alone differ: with their tokens, and those of the others."""
    those, others = [one for one in steps if is_in(one)], [one for one in steps if not is_in(one)]
    if not those or not others:
        return None
    inside, outside = _Tokens.of(those), _Tokens.of(others)
    if inside.mean < _SAME or inside.mean < clearly * outside.mean:
        return None
    return those, inside, outside


def _constrained(steps: list[Compared]) -> tuple[Cause, list[Compared]] | None:
    found = _apart(steps, lambda one: constrained(one.step) is not None)
    if found is None:
        return None
    those, inside, outside = found
    message = (
        f"only tokens that a grammar constrained differ, by {inside.mean:.3g} nats on average (others "
        f"{outside.mean:.2g}): the engine's logprobs are of the allowed tokens, the trainer's of all. Leave them out "
        'with sequences(constrained="drop"), or renormalise over Sequence.sampling_mask.'
    )
    return Cause(code="constrained", message=message, tokens=len(inside.difference)), those


def _behind_drift(steps: list[Compared]) -> tuple[Cause, list[Compared]] | None:
    found = _apart(steps, lambda one: one.behind_drift)
    if found is None:
        return None
    those, inside, outside = found
    message = (
        f"only steps after a drift differ, by {inside.mean:.3g} nats on average (others {outside.mean:.2g}): the "
        "engine read other ids of the earlier turns than the trainer. Build rows with sequences(), which splits there, "
        "and see rt.drift()."
    )
    return Cause(code="behind_drift", message=message, tokens=len(inside.difference)), those


def _stale(steps: list[Compared], trainer_version: int | None) -> tuple[Cause, list[Compared]] | None:
    lags = _lags(steps, trainer_version)
    # Less than elsewhere: the older of two versions is the one to expect, and one update changes little.
    found = _apart(steps, lambda one: (lags.get(one.step.policy_version) or 0) > 0, 2.0)
    return None if found is None else (_stale_cause(found[1], lags, found[2].mean), found[0])


def _stale_cause(tokens: _Tokens, lags: dict[Any, int], others: float | None) -> Cause:
    far = sorted({lags[one.step.policy_version] for one in tokens.steps if one.step.policy_version in lags})
    by_lag = {
        lag: _Tokens.of([one for one in tokens.steps if lags.get(one.step.policy_version) == lag]).mean for lag in far
    }
    listed = ", ".join(f"{lag} old {mean:.3g}" for lag, mean in by_lag.items())
    beside = "" if others is None else f" Tokens of the trainer's own version differ by {others:.2g}."
    message = (
        f"tokens of older weights differ, by how many versions they are old, in nats on average: {listed}.{beside} "
        "Sample with newer weights, bound the lag (max_lag), or correct with the importance ratio."
    )
    return Cause(code="stale", message=message, tokens=len(tokens.difference))


def _lags(steps: list[Compared], trainer_version: int | None) -> dict[Any, int]:
    """Returns how many versions each numeric ``policy_version`` is behind the trainer's."""
    versions = {one.step.policy_version for one in steps}
    numbers = {one: int(one) for one in versions if one is not None and str(one).removeprefix("-").isdecimal()}
    if not numbers:
        return {}
    newest = max(numbers.values()) if trainer_version is None else trainer_version
    return {version: newest - number for version, number in numbers.items()}


def _one_row(steps: list[Compared]) -> tuple[Cause, list[Compared]] | None:
    rows = {one.row for one in steps}
    if len(rows) < 3:
        return None
    worst = max(rows, key=lambda row: float(sum(abs(one.difference).sum() for one in steps if one.row == row)))
    found = _apart(steps, lambda one: one.row == worst)
    # Of many short rows, one is far from the others by chance.
    if found is None or len(found[1].difference) < _LEAST:
        return None
    those, inside, outside = found
    message = (
        f"one row of {len(rows)} differs: {worst}, by {inside.mean:.3g} nats on average (others {outside.mean:.2g}). "
        "Compare the ids that the trainer read for it with Sequence.token_ids: a row swapped or cut gives this."
    )
    return Cause(code="one_row", message=message, tokens=len(inside.difference)), those


# A shift by one


def _shifted_steps(steps: list[Compared]) -> list[Compared]:
    """The steps that are shifted; none where few short ones could fit their neighbours by chance."""
    found = [one for one in steps if _shift(one)]
    counts = [len(one.places) for one in found]
    if sum(counts) < _LEAST or (max(counts) < _LEAST and len(found) * 2 < len(steps)):
        return []
    return found


def _shift(one: Compared) -> int:
    """1 where the trainer's numbers are those of the token before, -1 of the token behind; 0 where they are neither."""
    engine, trainer = one.engine, one.trainer
    if _fits_neighbour(trainer[1:], engine[:-1], engine[1:]):
        return 1
    return -1 if _fits_neighbour(trainer[:-1], engine[1:], engine[:-1]) else 0


def _fits_neighbour(trainer: Numbers, neighbour: Numbers, own: Numbers) -> bool:
    """True where the trainer's numbers are the engine's of the neighbours, and clearly not those of the same tokens.

    Both are taken over the same tokens: one that differs at an end, or an engine that is sure of all, is no shift.
    """
    if len(trainer) < 2:
        return False
    as_is, shifted = abs(trainer - own), abs(trainer - neighbour)
    moved = as_is > _SAME
    if float(as_is.mean()) < _SAME or float(shifted.mean()) > float(as_is.mean()) / _CLEARLY:
        return False
    # Of two tokens whose likelihoods are swapped by chance, in a step that is otherwise right, most would not fit.
    return bool(moved.sum() >= 2 and (shifted < as_is)[moved].mean() > 0.5)


def _shifted(steps: list[Compared]) -> Cause:
    tokens = _Tokens.of(steps)
    late = sum(_shift(one) > 0 for one in steps)
    where = "before" if late * 2 >= len(steps) else "behind"
    message = (
        f"in {len(steps)} steps the trainer's logprobs are shifted by one: each token has that of the token {where} "
        "it. The logits at a position are of the next token: move the mask, or the logprobs, by one."
    )
    return Cause(code="shifted", message=message, tokens=len(tokens.difference))


# All tokens alike


def _pattern(tokens: _Tokens) -> Cause | None:
    """A cause that has a trace of its own, whichever tokens it touches."""
    return _truncated(tokens) or _temperature(tokens) or _prompt(tokens)


def _even(tokens: _Tokens, trainer_version: int | None) -> Cause:
    found = _pattern(tokens)
    if found is not None:
        return found
    lags = _lags(tokens.steps, trainer_version)
    if lags and min(lags.values()) > 0:
        return _stale_cause(tokens, lags, None)
    count, mean, greatest = len(tokens.difference), tokens.mean, float(abs(tokens.difference).max())
    if mean <= _FINE and greatest <= _FINE_GREATEST:
        message = (
            f"all tokens differ a little, evenly: {mean:.3g} nats on average, at most {greatest:.3g}. That is another "
            "precision (bfloat16 beside float32) or another kernel; compare both sides in float32."
        )
        return Cause(code="precision", message=message, tokens=count)
    message = (
        f"all tokens differ evenly, {mean:.3g} nats on average, at most {greatest:.3g}, with no pattern of position or "
        "size: the trainer's weights are not those that sampled. Compare policy_version with the trainer's version."
    )
    return Cause(code="other_weights", message=message, tokens=count)


def _truncated(tokens: _Tokens) -> Cause | None:
    import numpy as np

    difference = tokens.difference[abs(tokens.difference) > _SAME]
    if len(difference) < max(_LEAST, _FAIR_SHARE * len(tokens.difference)):
        return None
    kept = min((float(top_p) for one in tokens.steps if (top_p := _top_p(one.step)) is not None), default=_LEAST_KEPT)
    bound = -float(np.log(kept)) * 1.05 + _SAME
    for sign, side, other in ((-1, "engine", "trainer"), (1, "trainer", "engine")):
        moved = sign * difference
        if float(np.mean((moved > 0) & (moved <= bound))) >= 0.99:
            message = (
                f"the {side}'s logprobs are higher at every token that differs ({len(moved)} of "
                f"{len(tokens.difference)}), by {float(moved.mean()):.3g} nats on average and at most "
                f"{float(moved.max()):.3g}: the {side} renormalised over the tokens that top-p, top-k or min-p kept, "
                f"the {other} did not. Compare both without truncation, or renormalise over Sequence.sampling_mask."
            )
            return Cause(code="truncated", message=message, tokens=len(moved))
    return None


def _top_p(step: Step) -> Any:
    value = (step.sampling or {}).get("top_p")
    return value if isinstance(value, (int, float)) and 0 < value < 1 else None


def _temperature(tokens: _Tokens) -> Cause | None:
    import numpy as np

    engine, difference = tokens.engine, tokens.difference
    if len(engine) < _LEAST or float(engine.std()) < _SAME:
        return None
    # log p at temperature T is log p / T and what normalises it, which changes little from token to token.
    slope, offset = np.polyfit(engine, difference, 1)
    left = float((difference - (slope * engine + offset)).var())
    # Of the trainer's logprobs too: those of another model have nothing to do with the engine's.
    explained = 1 - left / max(float(difference.var()), 1e-12)
    if abs(slope) < 0.05 or min(explained, 1 - left / max(float((engine + difference).var()), 1e-12)) < 0.5:
        return None
    ratio = 1 / (1 + slope)
    if not 1 / _GREATEST_RATIO <= ratio <= _GREATEST_RATIO:
        return None
    asked = {float(value) for one in tokens.steps if (value := temperature(one.step)) is not None}
    requests = f" The requests say temperature {', '.join(f'{one:g}' for one in sorted(asked))}." if asked else ""
    message = (
        f"the trainer's logprobs are the engine's at another temperature: about {ratio:.2g} times the engine's "
        f"(explains {explained:.0%} of the difference).{requests} Divide the logits of both sides by the same one, and "
        "see Step.logprobs_mode."
    )
    return Cause(code="temperature", message=message, tokens=len(difference))


def _prompt(tokens: _Tokens) -> Cause | None:
    """Another prompt shows most in the first token behind it.

    The engine is often less sure of the first token, and where it is less sure most causes show more. So each first
    token is compared with later ones of about the same logprob.
    """
    import numpy as np

    having = [one for one in tokens.steps if len(one.places) > 1 and one.places[0] == 0]
    if len(having) < _LEAST:
        return None
    unsure = -np.concatenate([one.engine[1:] for one in having])
    order = np.argsort(unsure)
    sums = np.concatenate([[0.0], abs(np.concatenate([one.difference[1:] for one in having]))[order].cumsum()])
    at = np.array([-one.engine[0] for one in having])
    begin, end = np.searchsorted(unsure[order], [at / _LIKE, at * _LIKE])
    known = end - begin >= _LEAST
    if known.sum() < _LEAST:
        return None
    later = ((sums[end] - sums[begin]) / np.maximum(end - begin, 1))[known]
    first = np.array([abs(one.difference[0]) for one in having])[known]
    # In the middle too: one completion that differs greatly is not another prompt of all.
    if first.mean() < 2 * later.mean() or np.median(first) < 1.5 * np.median(later):
        return None
    message = (
        f"the first token of a completion differs most, {first.mean():.3g} nats on average, and {later.mean():.3g} of "
        "later tokens that are about as likely: the trainer's prompt is not the one that the engine read. A chat "
        "template that renders anew can add a newline: train on Sequence.token_ids as they are."
    )
    return Cause(code="prompt", message=message, tokens=len(tokens.difference))
