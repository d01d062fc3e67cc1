"""Storage for lists: messages and tools that requests repeat, and the texts of tokens.

An agent sends its whole conversation with every call. Equal messages become one object, and lists that extend each
other share one list, so memory grows by the messages that are new in each turn. The texts of a completion's tokens are
one bytes object: a list of 2,500 takes 140 kB and as many objects, joined they take the bytes of the text and one more
for each.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import accumulate
from operator import is_
from typing import Any, ClassVar, NoReturn

from msgspec import Raw, json

from rollout_trace.data.id_text import common_prefix
from rollout_trace.data.tokens import Stored

_RECENT_LISTS = 8
"""Lists that a new one is compared with, latest first: as many conversations can take turns in one trajectory."""
_TEXTS, _TEXT_BYTES = 4, 2 * 1024 * 1024
"""Texts of lists that a new one is compared with, and how long all may be."""
_COMMA = ord(",")
_NEW = object()
BETWEEN = b"\xff"
"""Stands between two texts: a byte that is in no UTF-8."""
TO_STORED = bytes.maketrans(b"\x7f", BETWEEN)
_TO_PLAIN = bytes.maketrans(BETWEEN, b"\x7f")
_PLAIN = "\x7f"
"""Takes the place of ``BETWEEN`` while the bytes are decoded, where no text contains it."""
_decode = json.Decoder().decode
_split = json.Decoder(list[Raw]).decode


class FrozenList(list[Any]):
    """A list whose methods for changing it raise TypeError. Copies are plain lists.

    Steps build their lists on access, so a change would be lost; an advantage is checked only when it is set. It is a
    subclass of ``list``: it compares equal to one, and any JSON library writes it as one.
    """

    __slots__ = ()

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(
            "this list of a step cannot be changed: it holds what was recorded. Change a copy, made with list(...)."
        )

    append = extend = insert = pop = remove = clear = sort = reverse = _refuse
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse

    def __copy__(self) -> list[Any]:
        return list(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return deepcopy(list(self), memo)

    def __reduce__(self) -> tuple[Any, ...]:
        # The default for lists restores by appending, which this class refuses.
        return FrozenList, (list(self),)


class ListSpan(Stored):
    """The first ``length`` items of a list that only grows."""

    __slots__ = ("items", "length")

    def __init__(self, items: list[Any], length: int) -> None:
        self.items = items
        self.length = length

    def get(self) -> FrozenList:
        """A new list of the items."""
        # A copy, not a view: decoding another call can extend the shared list at any time.
        return FrozenList(self.items[: self.length])

    def __deepcopy__(self, memo: dict[int, Any]) -> ListSpan:
        # Of objects that anybody can change, unlike numbers and texts.
        return type(self)(*deepcopy(self.__reduce__()[1], memo))


class TableSpan(ListSpan):
    """Runs of rows of a table (a list that does not change). The items are copied out only by ``get``.

    Eagerly built lists could exhaust memory: a short line of a file can refer to very long runs, once per step.
    """

    __slots__ = ("runs",)

    def __init__(self, items: list[Any], runs: tuple[tuple[int, int], ...]) -> None:
        self.items = items
        self.length = sum([end - first for first, end in runs])
        self.runs = runs
        """Half-open ranges ``(first, end)`` of rows."""

    def get(self) -> FrozenList:
        """A new list of the items."""
        picked: list[Any] = []
        for first, end in self.runs:
            picked += self.items[first:end]
        return FrozenList(picked)

    def __reduce__(self) -> tuple[Any, ...]:
        return TableSpan, (self.items, self.runs)


class _Text:
    """The text of a list, and its items."""

    __slots__ = ("_first", "_new", "ends", "items", "text")

    def __init__(self, text: bytes, ends: list[int], new: list[Raw], items: list[Any]) -> None:
        """``ends`` are of the items before those that are ``new``."""
        self.text = text
        self.ends = ends
        """Where the items end in it, behind a 0; that alone where white space is between them, as few clients write."""
        self.items = items
        self._new = new
        self._first = ends[1] if len(ends) > 1 else memoryview(new[0]).nbytes + 1 if new else 0
        """Where the first item ends."""

    def shared(self, text: bytes, at: int = 0) -> int:
        """The number of items with which another text's list begins, too; ``at``: where that list begins."""
        if not text.startswith(memoryview(self.text)[: self._first], at):
            return 0
        if self._new:
            # Looked at only now: most texts are compared with none. Before each item stands the bracket, or a comma.
            sizes = [memoryview(value).nbytes + 1 for value in self._new]
            self._new = []
            self.ends += accumulate(sizes, initial=self.ends.pop())
            if self.ends[-1] + 1 != len(self.text):
                self.ends = [0]
        size = self.ends[-1]
        if not text.startswith(memoryview(self.text)[:size], at):
            size = min(size, common_prefix(text, self.text, at))
        count = bisect_right(self.ends, size) - 1
        # A number may go on.
        end = at + self.ends[count]
        return count if text[end : end + 1] in (b",", b"]") else max(0, count - 1)


@dataclass(slots=True, eq=False)
class ListStore:
    """The distinct messages (or tools) of one trajectory, and the lists that requests made of them. Not thread safe."""

    long_text: ClassVar[int] = 2048
    """Bytes of a list from which on its text is compared."""
    _items: dict[bytes, Any] = field(default_factory=dict)
    _lists: list[list[Any]] = field(default_factory=list)
    _texts: list[_Text] = field(default_factory=list)
    """The latest ones, latest first."""

    def add(self, values: list[Raw]) -> ListSpan:
        """Stores a list of JSON values, given as their bytes, and returns its span."""
        return self.add_items(self._stored(values))

    def add_text(self, text: bytes, before: list[Raw] | None = None) -> ListSpan:
        """Stores the list that a JSON text is, and returns its span.

        Args:
            before: values that stand before those of the text.

        Raises:
            ValidationError: the text is no list.
        """
        items = self._stored(_split(text)) if len(text) < self.long_text else self._stored_text(text)
        return self.add_items([*self._stored(before), *items] if before else items)

    def known(self, text: bytes, at: int) -> int:
        """The place behind those items of a text's list that an earlier list begins with; ``at`` if there is none."""
        return at + max([one.ends[one.shared(text, at)] for one in self._texts], default=0)

    def finish(self) -> None:
        """Frees what lists are compared with. Nothing can be stored afterwards."""
        self._texts.clear()

    def _stored(self, values: list[Raw]) -> list[Any]:
        known, items = self._items, []
        for value in values:
            # Keyed by digest: keeping the bytes too would double the memory of each message.
            key = blake2b(value, digest_size=16).digest()
            item = known.get(key, _NEW)
            if item is _NEW:
                item = known[key] = _decode(value)
            items.append(item)
        return items

    def _stored_text(self, text: bytes) -> list[Any]:
        """The items of a list. Those that an earlier one begins with are not looked at."""
        best, count = None, 0
        for one in self._texts:
            shared = one.shared(text)
            if shared > count:
                best, count = one, shared
        if best is None:
            values = _split(text)
            found = _Text(text, [0], values, self._stored(values))
        else:
            end = best.ends[count]
            # Behind what is shared stands a comma, or the end.
            values = _split(b"[" + text[end + 1 :]) if text[end] == _COMMA else []
            found = _Text(text, best.ends[: count + 1], values, [*best.items[:count], *self._stored(values)])
            if values and count == len(best.items):
                self._texts.remove(best)
        if values:
            self._texts.insert(0, found)
            del self._texts[_TEXTS:]
            while len(self._texts) > 1 and sum([len(one.text) for one in self._texts]) > _TEXT_BYTES:
                self._texts.pop()
        # A copy: the list that is stored may be extended.
        return [*found.items]

    def add_items(self, items: list[Any]) -> ListSpan:
        """Stores a list of objects and returns its span. Items are compared by identity.

        The store keeps ``items`` and may extend it: the caller must not use that list afterwards.
        """
        for stored in reversed(self._lists[-_RECENT_LISTS:]):
            # `map` ends with the shorter list: either may be a prefix of the other. Most differ in their first item.
            if not (stored and items and stored[0] is not items[0]) and all(map(is_, stored, items)):
                stored.extend(items[len(stored) :])
                return ListSpan(stored, len(items))
        self._lists.append(items)
        return ListSpan(items, len(items))


class PackedTexts(Stored):
    """Texts, one for each token: the stored form of ``Step.token_texts``."""

    __slots__ = ("data", "count")  # noqa: RUF023 - the order of the arguments

    def __init__(self, data: bytes, count: int) -> None:
        self.data = data
        """The texts in UTF-8 (half a surrogate pair as three bytes), with ``BETWEEN`` between them."""
        self.count = count
        """Number of texts: no data are one empty text, or none at all."""

    @classmethod
    def of(cls, texts: Iterable[str]) -> PackedTexts:
        """Texts as they are stored."""
        parts = [text.encode("utf-8", "surrogatepass") for text in texts]
        return cls(BETWEEN.join(parts), len(parts))

    def __len__(self) -> int:
        return self.count

    def get(self) -> FrozenList:
        """The texts; a new list each time."""
        if not self.count:
            return FrozenList()
        plain = self.plain()
        if plain is not None:
            return FrozenList(plain.split(_PLAIN))
        return FrozenList([part.decode("utf-8", "surrogatepass") for part in self.data.split(BETWEEN)])

    def plain(self) -> str | None:
        """The texts as one, with U+007F between them; None where one of them contains it, or there are none."""
        if not self.count or b"\x7f" in self.data:
            return None
        return self.data.translate(_TO_PLAIN).decode("utf-8", "surrogatepass")

    def joined(self) -> str:
        """The text that the tokens make."""
        return self.data.replace(BETWEEN, b"").decode("utf-8", "surrogatepass")


def from_plain(text: str) -> PackedTexts:
    """The texts of what ``plain`` returned."""
    return PackedTexts(text.encode("utf-8", "surrogatepass").translate(TO_STORED), text.count(_PLAIN) + 1)


def as_token_texts(values: Any, name: str = "token_texts") -> PackedTexts:
    """Texts set by hand, as they are stored. Raises ValueError for anything but a list of texts."""
    try:
        if not isinstance(values, (str, bytes)):
            return PackedTexts.of(values)
    except (TypeError, AttributeError):
        pass
    raise ValueError(f"{name}: expected a list of texts, one for each completion token, got {repr(values)[:60]}.")
