"""The fields that the options of ``rt.Engine`` add to a request, and how they are merged with the caller's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rollout_trace import guard
from rollout_trace.wire.engine import NO_TOP_K, lacks_top_k, wishes_for

if TYPE_CHECKING:
    from rollout_trace.record.call import Call
    from rollout_trace.wire.engine import Engine

_AS_IDS = "return_tokens_as_token_ids"
"""Names alternatives by their ids, and changes every token's text: only for callers who asked for no logprobs."""


def wished_fields(call: Call, wishes: Engine, body: Mapping[str, Any]) -> dict[str, Any]:
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

    Args:
        added: by name; ``sampling_params.logprobs`` is the field ``logprobs`` in ``sampling_params``.
        body: of the caller's request.
    """
    fields: dict[str, Any] = {}
    for name, value in added.items():
        outer, _, inner = name.partition(".")
        if inner:
            fields.setdefault(outer, {**body[outer]})[inner] = value
        else:
            fields[name] = value
    return fields


__all__ = ["drop_dependent", "merged", "wished_fields"]
