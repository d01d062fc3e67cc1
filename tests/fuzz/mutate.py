"""Damage to recorded exchanges: bytes cut, flipped and repeated; fields deleted, swapped and given another type."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

_JUNK: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 10**400, -9999.0, 1e308, 0.5, -0.0, float("nan"), float("inf"),
    "", "x", "token_id:7", "\ud800", "é", [], [None], [1, "2", None], {}, {"a": {"b": []}}, [[]], {"index": 0},
)  # fmt: skip


def mutate(body: bytes, rng: random.Random, *, streamed: bool) -> bytes:
    """One damaged body."""
    how = rng.random()
    if how < 0.35:
        return _bytes(body, rng)
    return _stream(body, rng) if streamed else _json(body, rng)


def _bytes(body: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(body) + 1)
    kind = rng.randrange(5)
    if kind == 0:
        return body[:at]
    if kind == 1:
        return body[at:]
    if kind == 2:
        return body[:at] + bytes([rng.randrange(256)]) + body[at + 1 :]
    other = rng.randrange(len(body) + 1)
    low, high = min(at, other), max(at, other)
    return body[:low] + body[high:] if kind == 3 else body[:high] + body[low:]


def _json(body: bytes, rng: random.Random) -> bytes:
    try:
        value = json.loads(body)
    except ValueError:
        return _bytes(body, rng)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        value = damage(value, rng)
    return json.dumps(value).encode()


def _stream(body: bytes, rng: random.Random) -> bytes:
    events = body.split(b"\n\n")
    at = rng.randrange(len(events))
    kind = rng.randrange(6)
    if kind == 0:
        del events[at]
    elif kind == 1:
        events.insert(at, rng.choice(events))
    elif kind == 2:
        rng.shuffle(events)
    else:
        head, separator, data = events[at].partition(b"data: ")
        events[at] = head + separator + _json(data, rng)
    return rng.choice((b"\n\n", b"\n\n", b"\r\n\r\n", b"\r\r")).join(events)


def damage(value: Any, rng: random.Random) -> Any:
    """A JSON value with a random place deleted, replaced by junk, or by another place."""
    holder, key = _somewhere(value, rng)
    if holder is None:
        return junk(rng)
    kind = rng.randrange(3)
    if kind == 0:
        del holder[key]
    elif kind == 1:
        holder[key] = junk(rng)
    else:
        other, name = _somewhere(value, rng)
        holder[key] = json.loads(json.dumps(other[name] if other else None))
    return value


def junk(rng: random.Random) -> Any:
    """A value that belongs nowhere."""
    # A copy: what is put in may be damaged in its turn.
    return copy.deepcopy(rng.choice(_JUNK))


def _somewhere(value: Any, rng: random.Random) -> tuple[Any, Any]:
    """A random container within a value and one of its keys; deep places as often as shallow ones."""
    place: tuple[Any, Any] = (None, None)
    for _ in range(rng.randrange(1, 8)):
        if not isinstance(value, (dict, list)) or not value:
            break
        key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
        place = (value, key)
        value = value[key]
    return place
