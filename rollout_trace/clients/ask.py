"""Capture fields that are added to a request for its engine, and the memory of servers that refuse them."""

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
"""Seconds after which a refused field is sent once more: another server may be behind the address by now."""

_REFUSAL_STATUSES = frozenset({400, 403, 422})

_MAX_REFUSALS = 4096
"""Most refusals in memory; beyond it all are dropped, and met again. An agent's requests have a handful of shapes."""

_Endpoint = tuple[str, str, str, str]
"""Address, engine, protocol, model: another model of the same server may take what this one refuses."""

# Endpoint, shape of the request, field. A request of another shape may be allowed the field: one without echo, without
# tools, unstreamed.
_Key = tuple[_Endpoint, frozenset[str], str]

# Only read and written by single keys: a dict needs no lock for that.
_refusals: dict[_Key, Refusal] = {}


def fields_to_add(call: Call, address: Callable[[], object], body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields to add to a request, by name, for its engine to return ids and logprobs.

    A field whose value is a list includes the caller's items.

    Args:
        call: its profile has the fields. A remembered refusal of one is added to the call's ``refusals``.
        address: returns the server's address, as text or an object with that ``str``. Only called if any server has
            refused a field: building it is slow.
        body: of the caller's request.
    """
    profile = call.profile
    asks = None if profile is None else profile.ask.get(call.protocol)
    if not asks:
        return {}
    added = added_fields(asks, body)
    if _refusals and added:
        endpoint, shape = _endpoint(address, call, body), _shape(call, body)
        for name in [*added]:
            refusal = _refusal_in_force((endpoint, shape, name))
            if refusal is not None:
                del added[name]
                call.refusals[name] = refusal
    return added


def without_refused(call: Call, added: Mapping[str, Any], status: Any, content: bytes) -> dict[str, Any] | None:
    """The added fields without those that an error response refuses; None if the error is about something else.

    Args:
        call: the refusals are added to its ``refusals``.
        added: the fields that were added to the failed request.
        status: HTTP status of the response.
        content: its body.
    """
    refused = _fields_named_in(content, added) if status in _REFUSAL_STATUSES else []
    if not refused:
        return None
    message = f"HTTP {status}: {error_of(content, status).message[:300]}"
    call.refusals.update(dict.fromkeys(refused, Refusal(message, time.monotonic() + ASK_AGAIN)))
    return {name: value for name, value in added.items() if name not in refused}


def update_refusals(call: Call, address: Callable[[], object], body: Callable[[], Mapping[str, Any]]) -> None:
    """Updates the refusals in memory after a successful call: fields the server took, fields it refused before.

    Only after a success: a request that fails without the added fields too was not refused because of them.

    Args:
        call: with the refusals that it met.
        address: returns the server's address.
        body: returns the body of the successful request, added fields included. Both are only called if needed: nearly
            no call meets a refusal.
    """
    if not (_refusals or call.refusals) or call.profile is None:
        return
    sent = body()
    endpoint, shape = _endpoint(address, call, sent), _shape(call, sent)
    for name in _capture_fields(call):
        value = sent.get(name)
        # Sent as null or false, a field asks for nothing: its success proves nothing.
        if value is not None and value is not False:
            _refusals.pop((endpoint, shape, name), None)
    for name, refusal in call.refusals.items():
        if _refusals.get((endpoint, shape, name)) is not refusal:
            _remember((endpoint, shape, name), refusal)


def _remember(key: _Key, refusal: Refusal) -> None:
    if len(_refusals) >= _MAX_REFUSALS:
        _refusals.clear()
    _refusals[key] = refusal
    endpoint, _, name = key
    _, engine, _, model = endpoint
    guard.warn_once(
        f"refused:{endpoint}:{name}",
        f"the server of model {model!r} refuses {name!r}, which engine={engine!r} asks for ({refusal.message}); "
        "calls like this one are made without, and hold what it sends by itself.",
    )


def _refusal_in_force(key: _Key) -> Refusal | None:
    refusal = _refusals.get(key)
    if refusal is None or time.monotonic() < refusal.expires:
        return refusal
    # Renewed at once: this call alone sends the field again, not all that begin before it is answered.
    refusal.expires = time.monotonic() + ASK_AGAIN
    return None


def _fields_named_in(content: bytes, added: Mapping[str, Any]) -> list[str]:
    """The added fields that an error response names: in its ``param``, if that is one of them, else anywhere in it."""
    text = content.decode("utf-8", "replace")
    return [name for name in added if _param(content) in _names(name, added[name])] or [
        # Whole words: an error about the caller's `top_logprobs` is not one about our `logprobs`.
        name
        for name in added
        if re.search(rf"(?<!\w)(?:{'|'.join(map(re.escape, _names(name, added[name])))})(?!\w)", text)
    ]


def _names(name: str, value: Any) -> set[str]:
    """Names that a server may use for a field: its own, and the items of its list, whole or by their last part."""
    items = [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
    return {name, *items, *(item.rpartition(".")[2] for item in items)}


def _param(content: bytes) -> str | None:
    """The ``param`` of an error response in OpenAI's shape; None without one."""
    try:
        value = loads(content)
    except ValueError:
        return None
    error = value.get("error") if isinstance(value, dict) else None
    param = error.get("param") if isinstance(error, dict) else None
    return param if isinstance(param, str) else None


def _endpoint(address: Callable[[], object], call: Call, body: Mapping[str, Any]) -> _Endpoint:
    engine = "" if call.profile is None else call.profile.name
    return str(address()), engine, call.protocol, str(body.get("model"))


def _shape(call: Call, body: Mapping[str, Any]) -> frozenset[str]:
    """Names of the fields that a request sets, without prompt and capture fields.

    Whether a server accepts a capture field depends on them (stream, tools, echo).
    """
    ignored = {"model", "messages", "prompt", "input", *_capture_fields(call)}
    return frozenset(name for name, value in body.items() if name not in ignored and _is_set(value))


def _is_set(value: Any) -> bool:
    """False for values that mean the same as no field: null, false, empty, and the numbers 0 and 1 (as of ``n``)."""
    return value is True or value not in (0, 1) if isinstance(value, (bool, int, float)) else bool(value)


def _capture_fields(call: Call) -> set[str]:
    asks = () if call.profile is None else call.profile.ask.get(call.protocol, ())
    return {name for ask in asks for name in ask.fields}
