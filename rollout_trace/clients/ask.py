"""Capture fields that are added to a request for its engine, and the memory of servers that refuse them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rollout_trace import guard
from rollout_trace.record.call import Refusal
from rollout_trace.wire.engine import NO_TOP_K, asks_extras, lacks_top_k, value_at, wishes_for
from rollout_trace.wire.errors import error_of
from rollout_trace.wire.lenient import loads
from rollout_trace.wire.profiles import AUTO, PROMPT_FIELDS, added_fields

if TYPE_CHECKING:
    from rollout_trace.record.call import Call
    from rollout_trace.wire.engine import Engine

ASK_AGAIN = 600.0
"""Seconds after which a refused field is sent once more: another server may be behind the address by now."""

_AS_IDS = "return_tokens_as_token_ids"
"""Names alternatives by their ids, and changes every token's text: only for callers who asked for no logprobs."""

_DOUBTFUL = 60.0
"""The same for one that may have been about the values of one request."""

REFUSAL_STATUSES = frozenset({400, 403, 422})

_MAX_REFUSALS = 4096
"""Most refusals in memory; beyond it all are dropped, and met again. An agent's requests have a handful of shapes."""

_Endpoint = tuple[str, str, str, str]
"""Address, engine, protocol, model: another model of the same server may take what this one refuses."""

# Endpoint, shape of the request, field. A request of another shape may be allowed the field: one without echo, without
# tools, unstreamed.
_Key = tuple[_Endpoint, frozenset[str], str]

_taken: dict[tuple[_Endpoint, str], float] = {}
"""Numbers of alternatives that servers took in a stream, and until when that counts, as ``time.monotonic`` seconds."""

_doubts: dict[_Key, Refusal] = {}
"""Refusals that may be of one request alone: a second one in a row counts."""

# Only read and written by single keys: a dict needs no lock for that.
_refusals: dict[_Key, Refusal] = {}


def fields_to_add(call: Call, address: Callable[[], object], body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields to add to a request, by name, for its engine to return ids, logprobs, and what was wished beside.

    A field whose value is a list includes the caller's items. A name with a dot is that of a field in an object of the
    caller's, see ``merged``. A remembered refusal of one is added to the call's ``refusals``. ``address`` is called
    only if any server has refused a field: building it is slow.
    """
    profile = call.profile
    asks = None if profile is None else profile.ask.get(call.protocol)
    wishes = call.settings.wishes
    if profile is None or profile is AUTO or not (asks or wishes):
        return {}
    added = added_fields(asks or (), body)
    asks_more = wishes is not None and asks_extras(wishes)
    if wishes is not None and asks_more:
        added.update(requested_extras(call, wishes, body))
    if _refusals and added:
        endpoint, shape = _endpoint(address, call, body), _shape(call, body)
        for name in [*added]:
            while name in added:
                key = _key_name(call, name, added[name])
                refusal = _refusal_in_force((endpoint, shape, key))
                if refusal is None:
                    break
                call.refusals[key] = refusal
                _take_back(call, added, name)
    if asks_more:
        drop_dependent(call, added, body)
    return added


def requested_extras(call: Call, wishes: Engine, body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of ``rt.Engine``'s options that the caller has not set. Warns of what this form of call never has."""
    engine = "" if call.profile is None else call.profile.name
    asks = () if call.profile is None else call.profile.ask.get(call.protocol, ())
    # What a request of this form must not have has no number either.
    withheld = {name for ask in asks if ask.without is not None and body.get(ask.without) for name in ask.fields}
    streamed, has_tools = bool(body.get("stream")), bool(body.get("tools"))
    fields: dict[str, Any] = {}
    for wish in wishes_for(engine, wishes, call.protocol, streamed=streamed, has_tools=has_tools):
        if wish.obstacle is not None and not call.settings.quiet:
            guard.warn_once(
                f"wish:{engine}:{call.protocol}:{streamed}:{wish.option}",
                f"Engine({engine!r}, {wish.option}={getattr(wishes, wish.option)!r}): {wish.obstacle}.",
            )
        for name, value in wish.asks.items():
            if name not in withheld and _is_free(name, body):
                # SGLang has one number for the alternatives of prompt and completion.
                fields[name] = max(fields[name], value) if name in fields else value
    if engine == "vllm" and wishes.sampling_mask and lacks_top_k(body) and not call.settings.quiet:
        guard.warn_once("no_top_k", f"Engine('vllm', sampling_mask=True): {NO_TOP_K}.")
    return fields


def _is_free(name: str, body: Mapping[str, Any]) -> bool:
    """Whether the caller has not set a field, and does not see what it changes."""
    outer, _, inner = name.partition(".")
    if inner:
        # Without the object the request is wrong, and the caller must see that.
        return isinstance(body.get(outer), Mapping) and body[outer].get(inner) is None
    if name == _AS_IDS and (body.get("logprobs") not in (None, False) or body.get("top_logprobs")):
        return False
    return body.get(name) is None


def drop_dependent(call: Call, added: dict[str, Any], body: Mapping[str, Any]) -> None:
    """Removes wished fields that mean nothing, or are refused, without another one."""
    is_chat = call.protocol == "openai.chat"
    if is_chat and not added.get("logprobs", body.get("logprobs")):
        added.pop("top_logprobs", None)
    if not added.get("top_logprobs" if is_chat else "logprobs"):
        added.pop(_AS_IDS, None)


def merged(added: Mapping[str, Any], body: Mapping[str, Any]) -> dict[str, Any]:
    """Added fields as fields of the body itself; an object of the caller's is copied, with the fields that go into it.

    ``sampling_params.logprobs`` is the field ``logprobs`` in ``sampling_params``.
    """
    fields: dict[str, Any] = {}
    for name, value in added.items():
        outer, _, inner = name.partition(".")
        if inner:
            fields.setdefault(outer, {**body[outer]})[inner] = value
        else:
            fields[name] = value
    return fields


def without_refused(
    call: Call, added: Mapping[str, Any], body: Mapping[str, Any], status: Any, content: bytes
) -> dict[str, Any] | None:
    """The added fields without those that an error response refuses; None where its status is not that of a refusal.

    An error that names none of them may still be about one: vLLM's about beams says ``logprobs`` of ids, and some
    servers say nothing at all. Then the request goes out as its caller made it, before an error reaches the caller.
    The refusals are added to the call's ``refusals``.
    """
    if status not in REFUSAL_STATUSES:
        return None
    message = f"HTTP {status}: {error_of(content, status).message[:300]}"
    refusal = Refusal(message, time.monotonic() + ASK_AGAIN)
    remaining = dict(added)
    named = _fields_named_in(content, added)
    for name in _blamed(call, added, body, named) or added:
        # Ids may be refused for themselves: that they are too many, say.
        is_doubtful = name in ID_FIELDS and name not in named
        call.refusals[_key_name(call, name, added[name])] = replace(refusal, is_doubtful=is_doubtful)
        _take_back(call, remaining, name)
    drop_dependent(call, remaining, body)
    return remaining


def _blamed(call: Call, added: Mapping[str, Any], body: Mapping[str, Any], named: list[str]) -> list[str]:
    """The fields to take back for an error that names some."""
    if call.settings.wishes is None:
        return named
    # What is refused for its ids may be said in any words; the text alone is tried before all else is dropped.
    if not named and (ids := [name for name in added if name in ID_FIELDS]):
        return ids
    if not named:
        # It may still be about one that was wished: the caller's call must not fail for it.
        wished = requested_extras(call, call.settings.wishes, body)
        return [name for name, value in wished.items() if added.get(name) == value]
    if "top_logprobs" in added:
        # vLLM calls the number of alternatives `logprobs`, which Responses ask for in `include`.
        return [*dict.fromkeys("top_logprobs" if name in ("logprobs", "include") else name for name in named)]
    return named


def _take_back(call: Call, added: dict[str, Any], name: str) -> None:
    """Removes a field; one whose value was wished gets the value that the engine's name alone asks for."""
    plain = _plain_values(call).get(name)
    if _is_changed(plain, added[name]):
        added[name] = plain
    else:
        del added[name]


def _key_name(call: Call, name: str, value: Any) -> str:
    """Name of a field in the memory of refusals; a number that was wished is part of it: a smaller one may be taken."""
    plain = _plain_values(call).get(name)
    return f"{name}={value}" if _is_changed(plain, value) or (plain is None and type(value) is int) else name


def _is_changed(plain: Any, value: Any) -> bool:
    return plain is not None and not isinstance(plain, (list, dict)) and value != plain


def _plain_values(call: Call) -> dict[str, Any]:
    """The fields that the engine's name alone asks for, and their values."""
    asks = () if call.profile is None else call.profile.ask.get(call.protocol, ())
    return {name: value for ask in asks for name, value in ask.fields.items()}


def may_refuse_in_stream(
    call: Call, address: Callable[[], object], added: Mapping[str, Any], body: Mapping[str, Any]
) -> bool:
    """Whether the server's refusal of an added field would be in a stream: vLLM's, of a number that it may not take."""
    if call.profile is None or call.profile.name != "vllm" or not body.get("stream"):
        return False
    asked = _count_asked(added)
    return asked is not None and _taken.get((_endpoint(address, call, body), asked), 0.0) < time.monotonic()


def took_in_stream(
    call: Call, address: Callable[[], object], added: Mapping[str, Any], body: Mapping[str, Any]
) -> None:
    """Remembers that a stream was begun with the added fields: for a while the next ones are not waited for."""
    asked = _count_asked(added)
    if asked is not None:
        if len(_taken) >= _MAX_REFUSALS:
            _taken.clear()
        _taken[_endpoint(address, call, body), asked] = time.monotonic() + ASK_AGAIN


def without_alternatives(call: Call, added: Mapping[str, Any]) -> dict[str, Any]:
    """The added fields without a number of alternatives that was wished: what the engine's name alone asks for."""
    remaining = dict(added)
    for name in _COUNTS:
        if type(remaining.get(name)) is int:
            _take_back(call, remaining, name)
    return remaining


_COUNTS = ("top_logprobs", "logprobs", "sampling_params.logprobs")


def _count_asked(added: Mapping[str, Any]) -> str | None:
    """The field with the number of alternatives, and its value; None where none are asked for."""
    return next((f"{name}={added[name]}" for name in _COUNTS if type(added.get(name)) is int and added[name]), None)


def update_refusals(call: Call, address: Callable[[], object], body: Callable[[], Mapping[str, Any]]) -> None:
    """Updates the refusals in memory after a successful call: fields the server took, fields it refused before.

    Only after a success: a request that fails without the added fields too was not refused because of them. ``address``
    and ``body``, added fields included, are only called if needed: nearly no call meets a refusal.
    """
    if not (_refusals or call.refusals) or call.profile is None:
        return
    sent = body()
    endpoint, shape = _endpoint(address, call, sent), _shape(call, sent)
    for name in _capture_fields(call, sent):
        value = value_at(sent, name)
        # Sent as null or false, a field asks for nothing: its success proves nothing.
        if value is not None and value is not False:
            _refusals.pop((endpoint, shape, name), None)
            _refusals.pop((endpoint, shape, _key_name(call, name, value)), None)
            _doubts.pop((endpoint, shape, name), None)
    for name, refusal in call.refusals.items():
        key = endpoint, shape, name
        if refusal.is_doubtful and key not in _doubts and len(_doubts) < _MAX_REFUSALS:
            _doubts[key] = refusal
        elif _refusals.get(key) is not refusal:
            refusal.expires -= (ASK_AGAIN - _DOUBTFUL) * refusal.is_doubtful
            _remember(key, refusal)


ID_FIELDS = frozenset({name.partition(".")[0] for name in PROMPT_FIELDS.values()})
"""Fields that hold the ids of a prompt, or the object with them."""


def refusal_of(call: Call, address: Callable[[], object], body: Mapping[str, Any], name: str) -> Refusal | None:
    """The refusal in force of one field for requests like this one."""
    return _refusal_in_force((_endpoint(address, call, body), _shape(call, body), name)) if _refusals else None


def refuser_of(call: Call, address: Callable[[], object], body: Mapping[str, Any], name: str) -> Callable[[str], None]:
    """Returns what remembers a field as refused for requests like this one."""
    # Its caller may change it; what it holds is looked at only if it comes to that.
    kept = {**body}

    def refuse(message: str) -> None:
        key = _endpoint(address, call, kept), _shape(call, kept), name
        _remember(key, Refusal(message, time.monotonic() + ASK_AGAIN))

    return refuse


def _remember(key: _Key, refusal: Refusal) -> None:
    if len(_refusals) >= _MAX_REFUSALS:
        _refusals.clear()
    _refusals[key] = refusal
    endpoint, _, name = key
    _, engine, _, model = endpoint
    guard.warn_once(
        f"refused:{endpoint}:{name}",
        f"the server of model {model!r} refuses {name!r}, which was added for engine={engine!r} ({refusal.message}). "
        "Such calls are now made without it; they hold only what the server sends by itself.",
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
    param = _param(content)
    if param is not None and (exact := [name for name in added if param in _names(name, added[name])]):
        return exact
    text, found = content.decode("utf-8", "replace"), set()
    # The longest first: an error about "prompt logprobs" is not one about `logprobs`.
    for name in sorted(added, key=len, reverse=True):
        names = sorted(_names(name, added[name]), key=len, reverse=True)
        words = "|".join(re.escape(one).replace("_", "[_ ]") for one in names)
        # Whole words: an error about the caller's `top_logprobs` is not one about our `logprobs`.
        text, count = re.subn(rf"(?<!\w)(?:{words})(?!\w)", " ", text)
        if count:
            found.add(name)
    return [name for name in added if name in found]


def _names(name: str, value: Any) -> set[str]:
    """Names that a server may use for a field: its own, and those in its list or object, whole or their last part."""
    items = [item for item in value if isinstance(item, str)] if isinstance(value, (list, dict)) else []
    return {name, name.rpartition(".")[2], *items, *(item.rpartition(".")[2] for item in items)}


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
    captured = _capture_fields(call, body)
    ignored = {"model", "messages", "prompt", "input", *captured}
    outer = {name.partition(".")[0] for name in captured if "." in name}
    return frozenset(
        name
        for name, value in body.items()
        if name not in ignored and _is_set(_without(value, name, captured) if name in outer else value)
    )


def _without(value: Any, name: str, captured: set[str]) -> Any:
    """An object without the capture fields in it."""
    if not isinstance(value, Mapping):
        return value
    return {inner: item for inner, item in value.items() if f"{name}.{inner}" not in captured}


def _is_set(value: Any) -> bool:
    """False for values that mean the same as no field: null, false, empty, and the numbers 0 and 1 (as of ``n``)."""
    return value is True or value not in (0, 1) if isinstance(value, (bool, int, float)) else bool(value)


def _capture_fields(call: Call, body: Mapping[str, Any]) -> set[str]:
    """Names of all fields that may be added to a request of this form."""
    names = set(_plain_values(call))
    if call.exact_turn is not None:
        names |= ID_FIELDS
    if call.settings.wishes is not None and call.profile is not None:
        form = {"streamed": bool(body.get("stream")), "has_tools": bool(body.get("tools"))}
        for wish in wishes_for(call.profile.name, call.settings.wishes, call.protocol, **form):
            names.update(wish.asks)
    return names
