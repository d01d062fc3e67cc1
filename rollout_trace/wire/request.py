"""What a request asked for."""

from __future__ import annotations

from typing import Any

from msgspec import DecodeError, Raw, json

from rollout_trace.shared_lists import ListStore
from rollout_trace.wire.facts import RequestFacts
from rollout_trace.wire.lenient import UNREADABLE, loads

_FIELDS = json.Decoder(dict[str, Raw])
_ITEMS = json.Decoder(list[Raw])
_TRANSPORT = frozenset({"stream", "stream_options"})


def read(body: bytes | None, messages: ListStore, tools: ListStore) -> RequestFacts:
    """The facts of a request body. A body that is missing or no JSON object has none.

    ``stream`` and ``stream_options`` are left out of ``sampling``: they say how an answer travels, not what it is.
    """
    if not body:
        return RequestFacts()
    try:
        return _read_shared(body, messages, tools)
    except UNREADABLE:
        return _read_plain(body)


def _read_shared(body: bytes, messages: ListStore, tools: ListStore) -> RequestFacts:
    values: dict[str, Any] = _FIELDS.decode(body)
    model = values.pop("model", None)
    return RequestFacts(
        model=_string(None if model is None else json.decode(model)),
        messages=_list(values, "messages", messages),
        tools=_list(values, "tools", tools),
        sampling={name: json.decode(value) for name, value in values.items() if name not in _TRANSPORT},
    )


def _list(values: dict[str, Any], name: str, store: ListStore) -> Any:
    """Takes a field that is a list out of the others. What is no list stays with them."""
    try:
        items = _ITEMS.decode(values[name])
    except (KeyError, DecodeError):
        return None
    del values[name]
    return store.add(items)


def _read_plain(body: bytes) -> RequestFacts:
    """Reads what the strict reader refuses: NaN, lone surrogates, bytes that are no UTF-8."""
    try:
        values = loads(body)
    except ValueError:
        return RequestFacts()
    if not isinstance(values, dict):
        return RequestFacts()
    lists = {
        name: values.pop(name, None) if isinstance(values.get(name), list) else None for name in ("messages", "tools")
    }
    return RequestFacts(
        model=_string(values.pop("model", None)),
        messages=lists["messages"],
        tools=lists["tools"],
        sampling={name: value for name, value in values.items() if name not in _TRANSPORT},
    )


def _string(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else str(value)
