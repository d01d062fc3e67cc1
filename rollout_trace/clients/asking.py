"""What a request gets added for its engine, and what is remembered of servers that refuse it."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rollout_trace import guard
from rollout_trace.engines import added_fields
from rollout_trace.wire.errors import error_of

if TYPE_CHECKING:
    from rollout_trace.call import Call

_Key = tuple[str, str, str, str]

_REFUSING = frozenset({400, 403, 422})


@dataclass(frozen=True, slots=True)
class Refusal:
    """A server's refusal of what a profile adds."""

    key: _Key
    """Address, engine, protocol and model: another model of the same server may take the fields."""
    said: str
    """The status and the message."""


# Written once a key and only ever read by key: a dict needs no lock for that.
_refusals: dict[_Key, Refusal] = {}


def asking(client: Any, call: Call, options: Any) -> Any:
    """The request options with the fields that the call's engine is asked with; the same object where none is added."""
    profile = call.profile
    if profile is None:
        return options
    asks = profile.ask.get(call.protocol)
    body, extra = options.json_data, options.extra_json
    if not asks or not isinstance(body, Mapping):
        return options
    sent = {**body, **extra} if extra and isinstance(extra, Mapping) else body
    if _refusals:
        call.refusal = _refusals.get(_key(client, call, sent))
        if call.refusal is not None:
            return options
    added = added_fields(asks, sent)
    return _with(options, added, extra) if added else options


def _with(options: Any, added: dict[str, Any], extra: Any) -> Any:
    # A copy: the options, and the body in them, may be the caller's own.
    options = copy.copy(options)
    options.json_data = {**options.json_data, **added}
    if extra and not added.keys().isdisjoint(extra):
        options.extra_json = {name: value for name, value in extra.items() if name not in added}
    return options


def refusal_of(client: Any, call: Call, asked: Any, bare: Any, status: Any, content: bytes) -> Refusal | None:
    """The refusal in an answer to a request with added fields; None where it is about something else."""
    if status not in _REFUSING or not isinstance(asked.json_data, Mapping):
        return None
    added = {name: value for name, value in asked.json_data.items() if bare.json_data.get(name) is not value}
    words = "|".join(re.escape(name) for name in _names(added))
    # Whole words: an error about the caller's `top_logprobs` is not one about our `logprobs`.
    found = re.search(rf"(?<!\w)(?:{words})(?!\w)", content.decode("utf-8", "replace"))
    if found is None:
        return None
    said = f"HTTP {status}: {error_of(content, status).message[:300]}"
    return Refusal(_key(client, call, {**bare.json_data, **(bare.extra_json or {})}), said)


def remember(refusal: Refusal) -> None:
    """From now on such requests get nothing added, in this process."""
    if _refusals.setdefault(refusal.key, refusal) is refusal:
        _, engine, _, model = refusal.key
        guard.warn_once(
            f"refused:{refusal.key}",
            f"the server of model {model!r} refuses what engine={engine!r} asks for ({refusal.said}); its calls are "
            "made without, and hold what it sends by itself.",
        )


def _names(added: Mapping[str, Any]) -> set[str]:
    """What a refusal can call the fields: their names, and the items of lists, whole or by their last part."""
    items = {item for value in added.values() if isinstance(value, list) for item in value if isinstance(item, str)}
    return {*added, *items, *(item.rpartition(".")[2] for item in items)}


def _key(client: Any, call: Call, body: Mapping[str, Any]) -> _Key:
    engine = "" if call.profile is None else call.profile.name
    return str(client.base_url), engine, call.protocol, str(body.get("model"))
