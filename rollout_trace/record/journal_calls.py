"""A call as the head of a journal's record, and back: what ``recorded_steps`` needs to make the same steps later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import msgspec

from rollout_trace.data.model import ErrorInfo
from rollout_trace.engines.engine import Engine
from rollout_trace.engines.profiles import EngineProfile, profiles
from rollout_trace.record.call import AttemptMark, Call, Failure
from rollout_trace.record.settings import Refusal, Settings

_HEADERS = ("content-type", "content-encoding", "x-request-id", "request-id")
"""The response headers that steps are made from."""
_RAW_HEADERS = {name.encode(): name for name in _HEADERS}
_PLAIN = (int, float, bool, str)
_OWN_SLOTS = frozenset(
    {"_id", "agent", "attempts", "began", "chunks", "cut", "ended", "eof", "failure", "faults", "first_byte"}
    | {"is_decompressed", "log", "profile", "protocol", "refusals", "request", "settings", "started", "steps"}
    | {"journal_due", "journal_progress", "peeks"}
)
_OTHER_SLOTS = tuple(name for kind in Call.__mro__ for name in getattr(kind, "__slots__", ()) if name not in _OWN_SLOTS)
"""What else a call has: stored where it is a number or a text, so that a new slot needs no line here."""
_SETTINGS = tuple(
    item.name
    for item in fields(Settings)
    if item.name not in ("protocol_of", "engine", "trajectory", "wishes", "source")
)

_WISHES = tuple(item.name for item in fields(Engine))


def head_of(call: Call) -> dict[str, Any]:
    """The facts of a call, without its bytes."""
    profile, settings = call.profile, call.settings
    head: dict[str, Any] = {
        "call": call.id,
        "protocol": call.protocol,
        "agent": call.agent,
        "engine": None if profile is None else profile.name,
        "settings": {name: value for name in _SETTINGS if type(value := getattr(settings, name)) in _PLAIN},
        "times": (call.started, call.began, call.first_byte, call.ended),
        "attempts": [
            (mark.started, mark.began, mark.ended, mark.status, mark.error, _headers(mark.headers))
            for mark in call.attempts
        ],
        "has_request": call.request is not None,
        "is_decompressed": call.is_decompressed,
        "eof": call.eof,
    }
    head.update(ends_of(call))
    others = {name: value for name in _OTHER_SLOTS if type(value := getattr(call, name, None)) in _PLAIN}
    if others:
        head["others"] = others
    if settings.wishes is not None:
        head["wishes"] = {name: getattr(settings.wishes, name) for name in _WISHES}
    if call.refusals:
        head["refusals"] = {name: refusal.message for name, refusal in call.refusals.items()}
    return head


def ends_of(call: Call) -> dict[str, Any]:
    """How a call failed, and whether a stream that was not kept whole was at its end. Empty where neither holds."""
    failed = {name: value for name, value in (("cut", call.cut), ("failure", call.failure)) if value is not None}
    head: dict[str, Any] = {name: [value.kind, value.info] for name, value in failed.items()}
    if call.faults:
        head["faults"] = list(call.faults)
    if call.left_out and call.saw_done():
        head["saw_done"] = True
    return head


def _headers(headers: Mapping[str, str]) -> dict[str, str]:
    raw = getattr(headers, "raw", None)
    if type(raw) is list:
        # Of the HTTP libraries' own objects: a third of the time that looking up each name takes.
        return {
            _RAW_HEADERS[name]: value.decode("latin-1") for key, value in raw if (name := key.lower()) in _RAW_HEADERS
        }
    return {name: value for name in _HEADERS if (value := headers.get(name)) is not None}


# Back


def call_of(head: Mapping[str, Any]) -> Call:
    """A call with these facts, without its bytes.

    Raises:
        Exception: a fact is missing, or of another type than this library writes.
    """
    wishes = _known(head.get("wishes"), _WISHES)
    settings = Settings(
        lambda method, path: None,
        **_known(head.get("settings"), _SETTINGS),
        wishes=Engine(**wishes) if wishes else None,
    )
    call = Call(settings, _text(head["protocol"]))
    call._id = _text(head["call"])
    call.agent = head.get("agent")
    call.profile = _profile(head.get("engine"))
    call.started, call.began, call.first_byte, call.ended = head["times"]
    call.attempts = attempts_of(head)
    call.is_decompressed, call.eof = bool(head.get("is_decompressed")), bool(head.get("eof"))
    for name, value in _known(head.get("others"), _OTHER_SLOTS).items():
        setattr(call, name, value)
    call.refusals = {name: Refusal(text, 0.0) for name, text in (head.get("refusals") or {}).items()}
    set_ends(call, head)
    return call


def attempts_of(head: Mapping[str, Any]) -> list[AttemptMark]:
    """The attempts of a record.

    Raises:
        Exception: as ``call_of``.
    """
    return [_mark(*attempt[:6]) for attempt in head["attempts"]]


def set_ends(call: Call, head: Mapping[str, Any]) -> None:
    """Sets how a call failed, from the record of its end or a later one."""
    call.cut = _failure(head.get("cut")) or call.cut
    call.failure = _failure(head.get("failure")) or call.failure
    call.faults = [_text(fault) for fault in head.get("faults") or call.faults]
    if head.get("saw_done"):
        call.set_done()


def _known(values: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: values[name] for name in names if isinstance(values, Mapping) and name in values}


def _mark(started: Any, began: Any, ended: Any, status: Any, error: Any, headers: Any) -> AttemptMark:
    mark = AttemptMark()
    mark.started, mark.began, mark.ended = float(started), float(began), ended
    mark.status, mark.headers = status, dict(headers)
    mark.error = None if error is None else msgspec.convert(error, ErrorInfo)
    return mark


def _failure(value: Any) -> Failure | None:
    return None if value is None else Failure(value[0], msgspec.convert(value[1], ErrorInfo))


def _profile(name: str | None) -> EngineProfile | None:
    if name is None:
        return None
    # One of another version: nothing is known of it but its name.
    return next((one for one in profiles() if one.name == name), None) or EngineProfile(name)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a text, got {value!r:.80}")
    return value
