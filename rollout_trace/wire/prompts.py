"""Requests with several prompts, as texts or as token ids, and the prompt that each choice answers."""

from __future__ import annotations

from typing import Any

from rollout_trace.data.lists import ListSpan
from rollout_trace.wire.facts import RequestFacts


class Prompts:
    """The prompts of one request. Choices are numbered prompt by prompt, ``n`` for each."""

    def __init__(self, prompts: Any, n: Any) -> None:
        """``prompts``: one text, one list of ids, or a list of either."""
        single = isinstance(prompts, str) or ids_of(prompts) is not None
        self.all: list[Any] = [prompts] if single else prompts if isinstance(prompts, list) else []
        self._n = n if type(n) is int and n > 0 else 1

    def position(self, index: int, choices: int, *, whole: bool) -> int | None:
        """Position of the prompt that a choice answers; None where it is not certain.

        ``choices``: number of choices so far; ``whole``: no more will come. Some servers ignore ``n``.
        """
        if len(self.all) < 2:
            return 0 if self.all or choices == 1 else None
        per_prompt = self._n
        if whole and choices != per_prompt * len(self.all):
            if choices != len(self.all):
                return None
            # As many choices as prompts, although more were requested: the server ignored `n`.
            per_prompt = 1
        position = index // per_prompt
        return position if 0 <= position < len(self.all) else None

    def at(self, index: int, choices: int, *, whole: bool) -> Any:
        """The prompt that a choice answers; None where it is not certain, or there are none."""
        position = self.position(index, choices, whole=whole)
        return None if position is None or not self.all else self.all[position]

    def sent_ids(self, prompt: Any, counted: int | None) -> list[int] | None:
        """The ids of a prompt that was sent as ids; None where the engine's count (``counted``) differs."""
        ids = ids_of(prompt)
        if ids is None or counted is None:
            return ids
        lengths = [len(ids_of(one) or ()) for one in self.all]
        # With several prompts engines count all of them or the first alone.
        return ids if counted in (sum(lengths), lengths[0]) else None


def messages_of(request: RequestFacts) -> list[Any]:
    """The messages of a request as a plain list."""
    messages = request.messages
    return messages.get() if isinstance(messages, ListSpan) else messages or []


def ids_of(prompt: Any) -> list[int] | None:
    """The prompt itself where it is a list of token ids; else None."""
    if isinstance(prompt, list) and prompt and all(type(value) is int for value in prompt):
        return prompt
    return None
