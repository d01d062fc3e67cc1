"""Merging of streams whose chunks are cumulative (repeat the earlier ones) or incremental (only new tokens)."""

from __future__ import annotations

from typing import Any


class GrowingList:
    """A list from a stream of either kind: contents and the engine's count decide which kind each chunk is.

    A chunk is cumulative if it begins with the items so far and has as many items as are counted; incremental if it and
    the items so far make up the count. It cannot be both.
    """

    def __init__(self) -> None:
        self.items: list[Any] | None = None
        self.incremental: bool | None = None
        """None until a chunk has decided it."""
        self.problem: str | None = None
        """Why the items cannot be trusted; None while they can."""

    def add(self, items: list[Any] | None, counted: int | None) -> None:
        """Merges the items of a chunk. ``counted``: the engine's count of all items so far."""
        if items is None:
            return
        before = self.items or []
        repeats = items[: len(before)] == before
        if not before:
            self.items = [*items]
        elif repeats and len(items) == counted:
            # A whole list that the count confirms replaces whatever was doubtful before.
            self.items, self.problem = [*items], None
            self.incremental = False if len(items) > len(before) else self.incremental
        elif len(before) + len(items) == counted:
            self.items = before + items
            # A stream that was cumulative before and is incremental now has mixed up its chunks.
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
    """A text from a stream of either kind. Its chunks decide which; where they do not, the lists beside it do."""

    def __init__(self) -> None:
        self._chunks: list[str] = []
        self._repeats = True
        self._grew = False

    def add(self, text: str | None) -> None:
        """Adds the text of a chunk."""
        # An empty text after the first adds nothing as a delta, and as a snapshot would take away what came.
        if text is None or (self._chunks and not text):
            return
        if self._chunks:
            self._repeats = self._repeats and text.startswith(self._chunks[-1])
            self._grew = self._grew or len(text) > len(self._chunks[-1]) > 0
        self._chunks.append(text)

    def get(self, ids: GrowingList, logprobs: GrowingList) -> str | None:
        """The whole text; None where there was none.

        In every release of SGLang logprobs are of the same kind as the text; ids need not be.
        """
        if not self._chunks:
            return None
        # A single chunk, or equal ones ("a", "a"), can be of either kind: then the lists decide.
        whole = self._repeats and logprobs.incremental is not True
        if whole and (self._grew or logprobs.incremental is False or not ids.incremental):
            return self._chunks[-1]
        return "".join(self._chunks)
