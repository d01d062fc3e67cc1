"""Streams whose chunks repeat what came before (cumulative), or bring only what is new (incremental)."""

from __future__ import annotations

from typing import Any


class GrowingList:
    """A list of tokens that a stream brings one way or the other: its content and the engine's count tell which.

    A chunk of as many items as are counted, which begins with those before, is the whole; one that makes up the count
    together with those before is new. It cannot be both.
    """

    def __init__(self) -> None:
        self.items: list[Any] | None = None
        self.incremental: bool | None = None
        """None until a chunk was one or the other."""
        self.problem: str | None = None
        """Why the items cannot be trusted."""

    def add(self, items: list[Any] | None, counted: int | None) -> None:
        """Takes what a chunk holds; ``counted``: how many the engine says there are by now."""
        if items is None:
            return
        before = self.items or []
        repeats = items[: len(before)] == before
        if not before:
            self.items = [*items]
        elif repeats and len(items) == counted:
            self.items, self.problem = [*items], None
            self.incremental = False if len(items) > len(before) else self.incremental
        elif len(before) + len(items) == counted:
            self.items = before + items
            if items and self.incremental is False:
                self._doubt(items, before, counted)
            self.incremental = True if items else self.incremental
        else:
            self.items = [*items] if repeats else before + items
            self._doubt(items, before, counted)

    def _doubt(self, items: list[Any], before: list[Any], counted: int | None) -> None:
        total = "no count" if counted is None else f"a count of {counted}"
        self.problem = f"a chunk of {len(items)} tokens came after {len(before)} with {total}."


class GrowingText:
    """A text that a stream brings one way or the other. Its chunks tell, and where they do not, the lists beside it."""

    def __init__(self) -> None:
        self._chunks: list[str] = []
        self._repeats = True
        self._grew = False

    def add(self, text: str | None) -> None:
        """Takes the text of a chunk."""
        if text is None or (self._chunks and not text):
            return
        if self._chunks:
            self._repeats = self._repeats and text.startswith(self._chunks[-1])
            self._grew = self._grew or len(text) > len(self._chunks[-1]) > 0
        self._chunks.append(text)

    def get(self, ids: GrowingList, logprobs: GrowingList) -> str | None:
        """The whole text; None where there was none.

        Logprobs come as the text does, in every release of SGLang; ids do not.
        """
        if not self._chunks:
            return None
        whole = self._repeats and logprobs.incremental is not True
        if whole and (self._grew or logprobs.incremental is False or not ids.incremental):
            return self._chunks[-1]
        return "".join(self._chunks)
