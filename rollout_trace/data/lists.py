"""Messages that requests repeat are decoded and kept once.

An agent sends its whole conversation with every call. Equal messages become one object, and lists that extend each
other one list, so a rollout of many turns costs the messages new in each turn.
"""

from __future__ import annotations

from copy import deepcopy
from hashlib import blake2b
from operator import is_
from typing import Any, NoReturn

from msgspec import Raw, json

_LISTS_TRIED = 8


class FrozenList(list[Any]):
    """A list that cannot be changed: what would be added to a step's own copy of its messages would be lost.

    A list in everything else: equal to one, written as one by any JSON library. Copies are plain lists.
    """

    __slots__ = ()

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(
            "this list of a step cannot be changed: it is what was recorded. Change a copy, made with list(...)."
        )

    append = extend = insert = pop = remove = clear = sort = reverse = _refuse
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse

    def __copy__(self) -> list[Any]:
        return list(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return deepcopy(list(self), memo)

    def __reduce__(self) -> tuple[Any, ...]:
        # Otherwise its items would be appended to an empty one.
        return FrozenList, (list(self),)


class ListSpan:
    """The first ``length`` items of a list that only grows."""

    __slots__ = ("items", "length")

    def __init__(self, items: list[Any], length: int) -> None:
        self.items = items
        self.length = length

    def get(self) -> FrozenList:
        """A new list of the items."""
        # Copied at once: another thread, whose call is decoded, may let the list grow.
        return FrozenList(self.items[: self.length])

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

    def get(self) -> FrozenList:
        """A new list of the items."""
        picked: list[Any] = []
        for first, end in self.runs:
            picked += self.items[first:end]
        return FrozenList(picked)

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
