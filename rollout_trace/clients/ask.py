"""What a request gets added for its engine, and what is remembered of servers that refuse it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rollout_trace import guard
from rollout_trace.engines.profiles import added_fields
from rollout_trace.record.settings import Refusal
from rollout_trace.wire.errors import error_of
from rollout_trace.wire.lenient import loads

if TYPE_CHECKING:
    from rollout_trace.record.call import Call

ASK_AGAIN = 600.0
"""Seconds after which a server that refused a field is asked for it once more: it may be another one by now."""

_REFUSING = frozenset({400, 403, 422})

_MOST = 4096
"""Refusals remembered at a time. An agent has a handful of shapes; more than this are forgotten, and met again."""

# Address, engine, protocol, model; then the shape of the request, and the field. Another model of the same server may
# take what this one refuses, and so may a request of another shape: one without echo, without tools, unstreamed.
_Place = tuple[str, str, str, str]
_Key = tuple[_Place, frozenset[str], str]

# Only ever read and written by key: a dict needs no lock for that.
_refusals: dict[_Key, Refusal] = {}


def fields_to_add(call: Call, address: Callable[[], object], body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that the call's engine is asked with, by name. A field that is a list holds the caller's items too.

    Args:
        call: whose profile says what to ask for. A refusal that is known is noted on it.
        address: gives that of the server, a text or what becomes one. Asked for only where there are refusals.
        body: of the request, as its caller wants it.
    """
    profile = call.profile
    asks = None if profile is None else profile.ask.get(call.protocol)
    if not asks:
        return {}
    added = added_fields(asks, body)
    if _refusals and added:
        place, shape = _place(address, call, body), _shape(call, body)
        for name in [*added]:
            known = _remembered((place, shape, name))
            if known is not None:
                del added[name]
                call.refusals[name] = known
    return added


def without_refused(call: Call, added: Mapping[str, Any], status: Any, content: bytes) -> dict[str, Any] | None:
    """The added fields that are left when those are gone that an answer refuses; None where it is about something else.

    Args:
        call: gets the refusals noted on it.
        added: the fields that the refused request was asked with.
        status: HTTP status of the answer.
        content: its body.
    """
    refused = _named(added, content) if status in _REFUSING else []
    if not refused:
        return None
    said = f"HTTP {status}: {error_of(content, status).message[:300]}"
    call.refusals.update(dict.fromkeys(refused, Refusal(said, time.monotonic() + ASK_AGAIN)))
    return {name: value for name, value in added.items() if name not in refused}


def learn(call: Call, address: Callable[[], object], body: Callable[[], Mapping[str, Any]]) -> None:
    """Remembers what a request that was answered shows of its server: which fields it takes, which it has refused.

    Not before: a request that fails without the added fields too was not refused because of them.

    Args:
        call: with the refusals that were met.
        address: gives that of the server.
        body: gives that of the request that was answered, added fields included. Both are asked for only if needed:
            nearly no call meets a refusal.
    """
    if not (_refusals or call.refusals) or call.profile is None:
        return
    sent = body()
    place, shape = _place(address, call, sent), _shape(call, sent)
    for name in _fields(call):
        value = sent.get(name)
        if value is not None and value is not False:
            _refusals.pop((place, shape, name), None)
    for name, refusal in call.refusals.items():
        if _refusals.get((place, shape, name)) is not refusal:
            _remember((place, shape, name), refusal)


def _remember(key: _Key, refusal: Refusal) -> None:
    if len(_refusals) >= _MOST:
        _refusals.clear()
    _refusals[key] = refusal
    place, _, name = key
    guard.warn_once(
        f"refused:{place}:{name}",
        f"the server of model {place[3]!r} refuses {name!r}, which engine={place[1]!r} asks for ({refusal.message}); "
        "calls like this one are made without, and hold what it sends by itself.",
    )


def _remembered(key: _Key) -> Refusal | None:
    known = _refusals.get(key)
    if known is None or time.monotonic() < known.expires:
        return known
    # This call asks; those that begin before it is answered do not.
    known.expires = time.monotonic() + ASK_AGAIN
    return None


def _named(added: Mapping[str, Any], content: bytes) -> list[str]:
    """The added fields that a refusal names: in its ``param``, if that is one, else anywhere in it."""
    text = content.decode("utf-8", "replace")
    return [name for name in added if _param(content) in _names(name, added[name])] or [
        # Whole words: an error about the caller's `top_logprobs` is not one about our `logprobs`.
        name
        for name in added
        if re.search(rf"(?<!\w)(?:{'|'.join(map(re.escape, _names(name, added[name])))})(?!\w)", text)
    ]


def _names(name: str, value: Any) -> set[str]:
    """What a refusal can call a field: its name, and the items of its list, whole or by their last part."""
    items = [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
    return {name, *items, *(item.rpartition(".")[2] for item in items)}


def _param(content: bytes) -> str | None:
    """The field that an error of OpenAI's shape is about."""
    try:
        value = loads(content)
    except ValueError:
        return None
    error = value.get("error") if isinstance(value, dict) else None
    param = error.get("param") if isinstance(error, dict) else None
    return param if isinstance(param, str) else None


def _place(address: Callable[[], object], call: Call, body: Mapping[str, Any]) -> _Place:
    engine = "" if call.profile is None else call.profile.name
    return str(address()), engine, call.protocol, str(body.get("model"))


def _shape(call: Call, body: Mapping[str, Any]) -> frozenset[str]:
    """What a request sets beside its prompt and what it is asked with: that decides whether a server can give it."""
    ours = {"model", "messages", "prompt", "input", *_fields(call)}
    return frozenset(name for name, value in body.items() if name not in ours and _is_set(value))


def _is_set(value: Any) -> bool:
    """False for what is as good as leaving a field out: null, false, nothing, and the numbers 0 and 1 (``n``)."""
    return value is True or value not in (0, 1) if isinstance(value, (bool, int, float)) else bool(value)


def _fields(call: Call) -> set[str]:
    asks = () if call.profile is None else call.profile.ask.get(call.protocol, ())
    return {name for ask in asks for name in ask.fields}
