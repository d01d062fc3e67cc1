"""The tokens of a completion, in columns."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from rollout_trace.data.model import Step
from rollout_trace.view.model import Alternative, RatioBin, Tokens
from rollout_trace.view.summary import finite


class TokenTexts(Protocol):
    """What gives token ids their texts."""

    def texts(self, ids: Sequence[int], /) -> list[str]:
        """One text for each id; joined they are the decoded text, special tokens included.

        A character that several tokens make is in the last of them, and the others are empty.
        """


def tokens_of(step: Step, texts: TokenTexts | None = None) -> Tokens | None:
    """The tokens of a step's completion; None where neither ids, logprobs nor texts are known.

    ``texts``: for steps without texts of their own, and for alternatives that are known by id alone.
    """
    ids = None if step.completion_token_ids is None else step.completion_token_ids.tolist()
    logprobs = None if step.logprobs is None else [_number(one) for one in step.logprobs.tolist()]
    own = step.token_texts
    n = next((len(one) for one in (ids, logprobs, own) if one is not None), None)
    if n is None:
        return None
    known = decode_texts(step, texts)
    alternatives = _alternatives(step, n, texts)
    return Tokens(
        n=n,
        ids=ids,
        texts=known if known is not None and len(known) == n else None,
        logprobs=logprobs,
        entropy=None if alternatives is None else [entropy_of(row) for row in alternatives],
        alternatives=alternatives,
        log_ratios=None if (ratios := log_ratios_of(step)) is None or len(ratios) != n else ratios,
    )


def log_ratios_of(step: Step) -> list[float | None] | None:
    """The trainer's logprobs minus the engine's, nats, for each token; None where one of the two is not known."""
    ours, theirs = step.logprobs, step.trainer_logprobs
    if ours is None or theirs is None or len(ours) != len(theirs):
        return None
    pairs = zip(theirs.tolist(), ours.tolist(), strict=True)
    return [_number(trainer - engine) for trainer, engine in pairs]


def ratio_bins(steps: Sequence[Step], most: int = 160) -> list[RatioBin]:
    """The log ratios of all steps' tokens in their order, as at most so many stretches of about one length."""
    known = [
        (at, token, value)
        for at, step in enumerate(steps)
        for token, value in enumerate(log_ratios_of(step) or ())
        if value is not None
    ]
    size = -(-len(known) // most) or 1
    found = []
    for begin in range(0, len(known), size):
        at, token, _ = known[begin]
        values = [value for _, _, value in known[begin : begin + size]]
        found.append(RatioBin(at, token, round(math.fsum(values) / len(values), 6), min(values), max(values)))
    return found


def decode_texts(step: Step, tokenizer: TokenTexts | None = None) -> list[str] | None:
    """The text of each completion token, as the engine sent it, else by the tokenizer; None where neither is there."""
    ids, own = step.completion_token_ids, step.token_texts
    if own is not None and (ids is None or len(own) == len(ids)):
        return list(own)
    return None if tokenizer is None or ids is None else tokenizer.texts(ids.tolist())


def entropy_of(alternatives: Iterable[Alternative]) -> float | None:
    """Entropy in nats of a token's alternatives, what they leave of the probability as one more: a lower bound.

    None where there are none.
    """
    # None is above 1, whatever was sent: of a large one `exp` would raise.
    chances = [math.exp(min(one.logprob, 0.0)) for one in alternatives if one.logprob is not None]
    if not chances:
        return None
    rest = 1.0 - math.fsum(chances)
    # Two roundings apart from 0, or from above it: one alternative listed twice, or logprobs of few digits.
    return round(math.fsum(-chance * math.log(chance) for chance in (*chances, rest) if 1e-12 < chance < 1.0), 6)


def _number(value: float | None) -> float | None:
    # Infinite ones are no JSON, NaN is a missing one. A float32 has seven digits; as a double it would show seventeen.
    return round(value, 6) if value is not None and math.isfinite(value) else None


def _alternatives(step: Step, n: int, texts: TokenTexts | None) -> list[list[Alternative]] | None:
    rows = _by_text(step, n)
    if step.top_tokens is None or len(step.top_tokens) != n:
        return rows
    ids, logprobs = step.top_tokens.ids.tolist(), step.top_tokens.logprobs.tolist()
    found = [
        [Alternative(None, one, _number(logprob)) for one, logprob in zip(*row, strict=True) if one >= 0]
        for row in zip(ids, logprobs, strict=True)
    ]
    if rows is not None and all(len(one) == len(two) for one, two in zip(found, rows, strict=True)):
        found = [
            [Alternative(two.text, one.id, one.logprob) for one, two in zip(*pair, strict=True)]
            for pair in zip(found, rows, strict=True)
        ]
    return found if texts is None else [[_with_text(one, texts) for one in row] for row in found]


def _with_text(one: Alternative, texts: TokenTexts) -> Alternative:
    return (
        one
        if one.id is None or one.text is not None
        else Alternative("".join(texts.texts([one.id])), one.id, one.logprob)
    )


def _by_text(step: Step, n: int) -> list[list[Alternative]] | None:
    top = step.top_logprobs
    if top is None or len(top) != n:
        return None
    rows = [[_alternative(item) for item in row if isinstance(item, dict)] for row in top if isinstance(row, list)]
    return rows if len(rows) == n and any(rows) else None


def _alternative(item: dict[str, Any]) -> Alternative:
    logprob = item.get("logprob")
    one = item.get("id", item.get("token_id"))
    return Alternative(
        _text(item),
        one if isinstance(one, int) and not isinstance(one, bool) else None,
        _number(finite(logprob)),
    )


def _text(item: dict[str, Any]) -> str | None:
    """The text of an alternative: of its bytes, where these are whole characters, or else as the engine spells it."""
    token, data = item.get("token"), item.get("bytes")
    try:
        return bytes(data).decode() if isinstance(data, list) and data else _spelled(token)
    except (TypeError, ValueError):
        return _spelled(token)


def _spelled(token: Any) -> str | None:
    return token if isinstance(token, str) and not token.startswith("token_id:") else None
