"""Finds and shows differences between JSON values, of replayed requests and of trajectories."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher
from hashlib import blake2b
from typing import Any, NamedTuple, TypeAlias

from rollout_trace import credentials, guard
from rollout_trace.data.id_text import common_prefix
from rollout_trace.view.numbers import size

Paint: TypeAlias = Callable[[str, str], str]
"""From a text and a style to the text to print. Styles: ``red`` (in differences, what was recorded), ``green`` (what is
now), ``yellow``, ``cyan``, ``bold``, ``dim``."""

_MOST = 8
"""Differences that are shown."""
_ITEMS = 8
"""Items that are shown of a list of numbers, from the first that differs on."""
_CONTEXT = 24
"""Equal characters that are shown before a difference."""
_SCALARS = frozenset({str, int, float, bool})
_ROWS = 4
"""Lines that a value has at most."""
_DATA = re.compile(
    r"data:(?P<kind>[\w.+-]+/[\w.+-]+)[^,\s]{0,100};base64,(?P<data>[\w+/=-]{64,})"
    r"|(?<![\w+/=-])[\w+/-]{256,}={0,2}(?![\w+/=-])",
    re.ASCII,
)
"""Data in base64: an address that holds it, or a long text of it alone."""


class _Missing:
    def __repr__(self) -> str:
        return "(not there)"


MISSING = _Missing()
"""Stands for the value of a field that is not there."""


class Change(NamedTuple):
    """One value that differs."""

    path: str
    """``messages.3.content``; of lists of numbers the position where they part: ``prompt[250:]``."""
    recorded: Any
    now: Any


def changes(recorded: Any, now: Any, path: str = "") -> Iterator[Change]:
    """The values that differ between two values of JSON. Items of lists that moved are matched by ``difflib``."""
    if isinstance(recorded, dict) and isinstance(now, dict):
        for key in {**recorded, **now}:
            yield from changes(recorded.get(key, MISSING), now.get(key, MISSING), _joined(path, key))
    elif isinstance(recorded, list) and isinstance(now, list):
        yield from _of_lists(recorded, now, path)
    elif recorded is MISSING or now is MISSING or digest_of(recorded) != digest_of(now):
        yield Change(path, recorded, now)


def _of_lists(recorded: list[Any], now: list[Any], path: str) -> Iterator[Change]:
    if not any(isinstance(item, (dict, list)) for one in (recorded, now) for item in one):
        at = next((at for at, pair in enumerate(zip(recorded, now, strict=False)) if _differ(*pair)), len(now))
        at = min(at, len(recorded), len(now))
        if max(len(recorded), len(now)) > at:
            yield Change(f"{path}[{at}:]", recorded[at : at + _ITEMS], now[at : at + _ITEMS])
        return
    digests = [digest_of(item) for item in recorded], [digest_of(item) for item in now]
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, *digests, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        shared = min(i2 - i1, j2 - j1)
        for at in range(shared):
            yield from changes(recorded[i1 + at], now[j1 + at], _joined(path, j1 + at))
        yield from (Change(_joined(path, at), recorded[at], MISSING) for at in range(i1 + shared, i2))
        yield from (Change(_joined(path, at), MISSING, now[at]) for at in range(j1 + shared, j2))


def _differ(recorded: Any, now: Any) -> bool:
    # Not of each number of a long list; of lists and objects, in which Python takes True for 1, by their JSON.
    if recorded is now or (type(recorded) is type(now) and type(recorded) in _SCALARS and recorded == now):
        return False
    return digest_of(recorded) != digest_of(now)


def _joined(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def digest_of(value: Any) -> bytes:
    """Digest of a JSON value. Equal values have equal ones: 1 and 1.0, objects with their keys in any order."""
    text = json.dumps(_plain(value), sort_keys=True, separators=(",", ":"))
    return blake2b(text.encode(), digest_size=16).digest()


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    return int(value) if isinstance(value, float) and value.is_integer() else value


def named(found: Sequence[Change]) -> str:
    """The places that differ, in a sentence: ``seed, messages.3.content and 2 more places``."""
    paths = [guard.printable(one.path or "all of it", 80) for one in found]
    shown = paths if len(paths) <= 4 else [*paths[:3], f"{len(paths) - 3} more places"]
    return f"{', '.join(shown[:-1])} and {shown[-1]}" if len(shown) > 1 else "".join(shown)


def lines_of(
    found: Sequence[Change],
    width: int = 100,
    paint: Paint | None = None,
    names: tuple[str, str] = ("recorded", "now"),
) -> list[str]:
    """The differences, each under its path: the lines of both values, with their names, from where they part on."""
    lines = []
    for one in found[:_MOST]:
        if one.path:
            lines.append("  " + painted(guard.printable(one.path, width - 2), "cyan", paint))
        lines += [f"    {painted(line, style, paint)}" for line, style in _both(one, width - 14, names)]
    if len(found) > _MOST:
        lines.append(f"  and {len(found) - _MOST:,} more differences")
    return lines


def _both(change: Change, room: int, names: tuple[str, str]) -> Iterator[tuple[str, str]]:
    """The lines of both values, with their colours."""
    recorded, now = (_rows(value, change, room) for value in (change.recorded, change.now))
    length = len(recorded)
    while len(recorded) > 1 and len(now) > 1 and recorded[-1] == now[-1]:
        del recorded[-1], now[-1]
    if len(recorded) < length:
        recorded[-1], now[-1] = (f"{rows_of(one[-1], room - 1)[0]}…" for one in (recorded, now))
    marks = []
    if len(recorded) == len(now) == 1 and (recorded[0] + now[0]).replace("…", "").isascii():
        equal = common_prefix(recorded[0], now[0])
        tail = common_prefix(recorded[0][equal:][::-1], now[0][equal:][::-1])
        # Under texts that have little in common they would say nothing.
        if 2 * (equal + tail) >= max(len(recorded[0]), len(now[0])):
            marks = [" " * equal + "^" * max(1, len(now[0]) - equal - tail)]
    for name, rows, style in zip((*names, ""), (recorded, now, marks), ("red", "green", "dim"), strict=True):
        yield from ((f"{name if not at else '':10}{row}", style) for at, row in enumerate(rows))


def _rows(value: Any, change: Change, room: int) -> list[str]:
    """The lines of a value, from the one on in which it differs, or from shortly before that place in a long one."""
    text, equal = _text_of(value), common_prefix(_text_of(change.recorded), _text_of(change.now))
    line = text.rfind("\n", 0, equal) + 1
    begin = line if equal - line <= room // 2 else equal - _CONTEXT
    shown = ("…" if begin > line else "") + text[begin : begin + room * _ROWS]
    lines = [guard.escaped(one) for one in shown.split("\n")]
    if len(lines) > 1 and not lines[-1]:
        # A line end behind all would not be seen.
        lines[-2:] = [f"{lines[-2]}\\n"]
    rows = [row for one in lines for row in rows_of(one, room)]
    if len(rows) <= _ROWS and begin + room * _ROWS >= len(text):
        return rows if text else ["(empty)"]
    kept = rows[:_ROWS]
    return [*kept[:-1], f"{rows_of(kept[-1], room - 1)[0]}…"]


def rows_of(text: str, room: int) -> list[str]:
    """A text in rows of at most so many columns; a wide letter takes two. One empty row of an empty text."""
    rows, free = [""], room
    for letter in text:
        if (wide := _columns(letter)) > free:
            rows.append("")
            free = room
        rows[-1] += letter
        free -= wide
    return rows


def columns(text: str) -> int:
    """The columns that a text takes on a terminal."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def _columns(letter: str) -> int:
    return 0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def _text_of(value: Any) -> str:
    """A value as text that is not escaped yet, without the keys of this process's clients; base64 as kind and size."""
    if isinstance(value, (bytes, _Missing)):
        return repr(value)
    text = credentials.cut(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
    return text if len(text) < 64 else _DATA.sub(_data_named, text)


def _data_named(found: re.Match[str]) -> str:
    """``<image/png, 12.3 kB, 5ceb29>``: the last are digits of its digest. A long word is no data."""
    kind, data = found["kind"], found["data"] or found[0]
    if kind is None and not all(re.search(letters, data) for letters in ("[A-Z]", "[a-z]", "[0-9]")):
        return data
    digest = blake2b(data.encode(), digest_size=3).hexdigest()
    return f"<{kind or 'base64'}, {size(len(data.rstrip('=')) * 3 // 4)}, {digest}>"


def painted(text: str, style: str, paint: Paint | None) -> str:
    """The text in a style, where there are colours."""
    return text if paint is None or not text else paint(text, style)
