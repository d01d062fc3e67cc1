"""Lines for people: values on one line, cut to a width, with nothing in them that a terminal would act on."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable
from hashlib import sha256
from typing import Any, NamedTuple, TypeAlias

from rollout_trace import credentials, guard
from rollout_trace.file.plain import common_prefix

Paint: TypeAlias = Callable[[str, str], str]
"""From a text and a style to the text to print. Styles: ``red`` (in differences, what was recorded), ``green`` (what is
now), ``yellow``, ``cyan``, ``bold``, ``dim``."""

_DATA_ADDRESS = re.compile(r"data:([\w.+-]+/[\w.+-]+)[^,\s]{0,100};base64,([A-Za-z0-9+/=_-]*)")
_BASE64 = re.compile(r"(?<![A-Za-z0-9+/=_-])[A-Za-z0-9+/_-]{256,}={0,2}(?![A-Za-z0-9+/=_-])")
_STARTS = (("iVBORw0KGgo", "image"), ("/9j/", "image"), ("R0lGOD", "image"), ("UklGR", "image"), ("JVBERi", "pdf"))
_CONTEXT = 24
"""Equal characters that are shown before a difference."""


def unpainted(text: str, style: str) -> str:
    """Paints nothing."""
    return text


def cells(text: str) -> int:
    """Columns of a terminal that a printable text takes: two for a wide character, none for one that combines."""
    return len(text) if text.isascii() else sum(map(_cells_of, text))


def _cells_of(letter: str) -> int:
    return 0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def one_line(value: Any) -> str:
    """A value as text that is not escaped yet: texts as they are, others as JSON; data in base64 as its kind and size.

    Keys of this process's clients are cut out.
    """
    if isinstance(value, bytes):
        return f"<{value[:40]!r}…, {size(len(value))}>" if len(value) > 40 else repr(value)
    if not isinstance(value, str):
        value = json.dumps(value, ensure_ascii=False)
    return credentials.cut(_without_data(value))


def _without_data(text: str) -> str:
    if len(text) < 64:
        return text
    return _BASE64.sub(_data_named, _DATA_ADDRESS.sub(_address_named, text))


def _address_named(found: re.Match[str]) -> str:
    return _data_name(found[1].partition("/")[0] if found[1].startswith("image/") else found[1], found[2])


def _data_named(found: re.Match[str]) -> str:
    text = found[0]
    kind = next((kind for start, kind in _STARTS if text.startswith(start)), None)
    # A run of letters and digits is data only where it has capitals, small letters and digits.
    is_data = all(re.search(pattern, text) for pattern in ("[A-Z]", "[a-z]", "[0-9]"))
    return _data_name(kind or "data", text) if kind or is_data else text


def _data_name(kind: str, data: str) -> str:
    digest = sha256(data.encode()).hexdigest()[:6]
    return f"<{kind}, {size(len(data.rstrip('=')) * 3 // 4)}, {digest}>"


def size(number: int) -> str:
    """``340 bytes``, ``12 kB``, ``3.4 MB``."""
    if number < 1000:
        return f"{number} bytes"
    if number < 999_500:
        return f"{number / 1000:.0f} kB"
    return f"{number / 1e6:.1f} MB"


def beginning(text: str, room: int) -> str:
    """The text escaped, cut to some columns; what is left out is counted: ``It is…  (340 more)``."""
    shown = guard.escaped(text[: room + 1])
    if len(text) <= room and cells(shown) <= room:
        return shown
    taken, length = _taken(text, room - len(f"… ({len(text):,} more)"))
    return f"{taken}… ({len(text) - length:,} more)"


def _taken(text: str, room: int) -> tuple[str, int]:
    """As much of a text, escaped, as has room; and how many characters of it that is."""
    parts, used = [], 0
    for letter in text:
        shown = guard.escaped(letter)
        used += cells(shown)
        if used > room:
            break
        parts.append(shown)
    return "".join(parts), len(parts)


class Window(NamedTuple):
    """A piece of a text around a difference; escaped."""

    before: str
    """Equal text, with ``…`` where more of it is left out."""
    changed: str
    after: str
    """Equal text, and how much of it is left out."""


class Windows(NamedTuple):
    """What two texts look like where they first differ."""

    recorded: Window
    now: Window
    equal: int
    """Equal characters before the difference."""
    line: int
    """The line of the difference, from 1."""


def windows(recorded: str, now: str, room: int) -> Windows:
    """The pieces of two texts around their first difference, each with room in some columns."""
    equal = common_prefix(recorded, now)
    tail = _shared_end(recorded[equal:], now[equal:])
    start = 0 if equal <= _CONTEXT + 1 else equal - _CONTEXT
    return Windows(
        _window(recorded, start, equal, len(recorded) - tail, room),
        _window(now, start, equal, len(now) - tail, room),
        equal,
        recorded.count("\n", 0, equal) + 1,
    )


def _window(text: str, start: int, first: int, last: int, room: int) -> Window:
    before = ("…" if start else "") + guard.escaped(text[start:first])
    more = f"… ({len(text):,} more)"
    changed = text[first:last]
    rest = text[first:]
    left = room - cells(before)
    if len(rest) <= left and cells(guard.escaped(rest)) <= left:
        return Window(before, _visible(changed), guard.escaped(text[last:]))
    shown, length = _taken(changed, max(8, left - len(more)))
    if length < len(changed):
        return Window(before, shown, f"… ({len(rest) - length:,} more)")
    shown = _visible(changed)
    after, count = _taken(text[last:], max(0, left - len(more) - cells(shown)))
    return Window(before, shown, f"{after}… ({len(text) - last - count:,} more)")


def _visible(changed: str) -> str:
    # A difference of spaces alone would not be seen.
    return changed.replace(" ", "·") if changed and not changed.strip(" ") else guard.escaped(changed)


def _shared_end(first: str, second: str) -> int:
    return common_prefix(first[::-1], second[::-1])


def shared_part(first: str, second: str) -> float:
    """How much of two texts is equal at their beginning and end, from 0 to 1."""
    start = common_prefix(first, second)
    return (start + _shared_end(first[start:], second[start:])) / max(len(first), len(second), 1)


def times(number: int) -> str:
    """``once``, ``twice``, ``3 times``."""
    return {1: "once", 2: "twice"}.get(number, f"{number:,} times")


def ordinal(number: int) -> str:
    """``1st``, ``2nd``, ``11th``."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{ending}"
