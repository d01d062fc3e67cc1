"""Messages that requests repeat are decoded and kept once.

An agent sends its whole conversation with every call. Equal messages become one object, and lists that extend each
other one list, so a rollout of many turns costs the messages new in each turn.
"""

from __future__ import annotations

from hashlib import blake2b
from operator import is_
from typing import Any

from msgspec import Raw, json

_LISTS_TRIED = 8


class ListSpan:
    """The first ``length`` items of a list that only grows."""

    __slots__ = ("items", "length")

    def __init__(self, items: list[Any], length: int) -> None:
        self.items = items
        self.length = length

    def get(self) -> list[Any]:
        """A new list of the items."""
        return self.items[: self.length]

    def __reduce__(self) -> tuple[Any, ...]:
        return ListSpan, (self.items, self.length)


class TableSpan(ListSpan):
    """Items of a table, which is a list that does not change, in runs of rows.

    A few rows of a line can stand for very long lists: a list is made when it is asked for.
    """

    __slots__ = ("runs",)

    def __init__(self, items: list[Any], runs: tuple[tuple[int, int], ...]) -> None:
        self.items = items
        self.length = 0
        for first, end in runs:
            self.length += end - first
        self.runs = runs
        """The rows, as [first, end)."""

    def get(self) -> list[Any]:
        """A new list of the items."""
        picked: list[Any] = []
        for first, end in self.runs:
            picked += self.items[first:end]
        return ListSpan(picked, self.length).get()

    def __reduce__(self) -> tuple[Any, ...]:
        return TableSpan, (self.items, self.runs)


class ListStore:
    """The distinct messages (or tools) of one trajectory, and the lists made of them. Not thread safe."""

    __slots__ = ("_items", "_lists")

    def __init__(self) -> None:
        self._items: dict[bytes, Any] = {}
        self._lists: list[list[Any]] = []

    def add(self, values: list[Raw]) -> ListSpan:
        """Stores a list of JSON values given as their bytes."""
        return self.add_items([self._item(memoryview(value)) for value in values])

    def add_items(self, items: list[Any]) -> ListSpan:
        """Stores a list of objects, which are told apart by identity."""
        for known in reversed(self._lists[-_LISTS_TRIED:]):
            if all(map(is_, known, items)):
                known.extend(items[len(known) :])
                return ListSpan(known, len(items))
        self._lists.append(items)
        return ListSpan(items, len(items))

    def _item(self, raw: memoryview) -> Any:
        # A digest instead of the bytes: they would double what a message costs.
        key = blake2b(raw, digest_size=16).digest()
        item = self._items.get(key)
        if item is None and key not in self._items:
            item = self._items[key] = json.decode(raw)
        return item
