"""Tokens of many steps as few bytes, for the page as one file. ``page/packed.js`` undoes it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

from rollout_trace.view.model import Alternative, StepView, Tokens
from rollout_trace.view.values import builtins

_Name: TypeAlias = tuple[str | None, int | None]
"""Text and id of a token."""


class Packer:
    """Packs the steps of trajectories; ``names`` are the texts and ids that their tokens refer to.

    Numbers keep the digits that the page shows: logprobs of sampled tokens are as recorded, entropies have three behind
    the point, logprobs of alternatives at most three.
    """

    def __init__(self) -> None:
        self._numbers: dict[_Name, int] = {}

    @property
    def names(self) -> dict[str, list[Any]]:
        """In columns, in the order of their numbers."""
        return {"texts": [text for text, _ in self._numbers], "ids": [id for _, id in self._numbers]}

    def steps(self, views: Sequence[StepView]) -> list[dict[str, Any]]:
        """The steps, as JSON holds them."""
        packed = []
        for view in views:
            tokens, view.tokens = view.tokens, None
            step = builtins(view)
            view.tokens = tokens
            packed.append(step if tokens is None else {**step, "tokens": self._tokens(tokens)})
        return packed

    def _number(self, name: _Name) -> int:
        return self._numbers.setdefault(name, len(self._numbers))

    def _tokens(self, tokens: Tokens) -> dict[str, Any]:
        texts: Sequence[str | None] = tokens.texts or [None] * tokens.n
        ids: Sequence[int | None] = tokens.ids or [None] * tokens.n
        names: list[_Name] = list(zip(texts, ids, strict=True))
        packed: dict[str, Any] = {"n": tokens.n, "names": [self._number(name) for name in names]}
        if tokens.texts is None:
            packed["no_texts"] = True
        if tokens.ids is None:
            packed["no_ids"] = True
        if tokens.logprobs is not None:
            packed["logprobs"] = tokens.logprobs
        if tokens.entropy is not None:
            packed["entropy"] = [None if value is None else round(value * 1_000) for value in tokens.entropy]
        if tokens.alternatives is not None:
            logprobs = tokens.logprobs or [None] * tokens.n
            sampled = [(*name, logprob) for name, logprob in zip(names, logprobs, strict=True)]
            packed["alternatives"] = self._alternatives(tokens.alternatives, sampled)
        return packed

    def _alternatives(
        self,
        all_of_them: Sequence[Sequence[Alternative]],
        sampled: Sequence[tuple[str | None, int | None, float | None]],
    ) -> dict[str, list[Any]]:
        """Their number at each token; their names, -1 for the token that was sampled; the logprobs of the others."""
        counts, names, logprobs = [], [], []
        for some, token in zip(all_of_them, sampled, strict=True):
            counts.append(len(some))
            for one in some:
                if (one.text, one.id, one.logprob) == token:
                    names.append(-1)
                else:
                    names.append(self._number((one.text, one.id)))
                    logprobs.append(_chance(one.logprob))
        return {"counts": counts, "names": names, "logprobs": logprobs}


def _chance(logprob: float | None) -> int | None:
    """Thousandths of a logprob, as exact as its probability is shown: less where that is below 0.1, and below 0.01."""
    if logprob is None or not math.isfinite(logprob):
        return None
    digits = 3 if logprob > -2.3 else 2 if logprob > -4.6 else 1
    return round(1_000 * round(logprob, digits))
