"""Converts a call's facts to the head of a journal record, and back.

A head has what ``recorded_steps`` needs to make the same steps later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from operator import attrgetter
from typing import Any

import msgspec
import orjson

from rollout_trace.data.exact_turn import ExactTurn
from rollout_trace.data.model import ErrorInfo
from rollout_trace.file.plain import dumps, loads
from rollout_trace.record.call import AttemptMark, Call, Failure, Refusal
from rollout_trace.record.settings import Settings
from rollout_trace.wire.engine import Engine
from rollout_trace.wire.profiles import EngineProfile, profiles

# Before two threads can be the first to read it: file/fields.py.
msgspec.json.Decoder(ExactTurn)
_PLAIN = frozenset({int, float, bool, str})
_OWN_SLOTS = frozenset(
    {"id", "agent", "attempts", "began", "chunks", "cut", "ended", "eof", "failure", "faults", "first_byte"}
    | {"is_decompressed", "log", "profile", "protocol", "refusals", "request", "settings", "started", "steps"}
    | {"journal_due", "journal_progress", "peeks", "exact_turn", "on_ids_not_served", "_tail", "hides", "ids_field"}
)
_OTHER_SLOTS = tuple(name for kind in Call.__mro__ for name in getattr(kind, "__slots__", ()) if name not in _OWN_SLOTS)
"""What else a call has, all of it numbers, texts and None: stored as it is, so that a new slot needs no line here."""
_others = attrgetter(*_OTHER_SLOTS)
_SETTINGS = tuple(
    item.name
    for item in fields(Settings)
    if item.name not in ("protocol_of", "engine", "trajectory", "wishes", "source")
)

_latest: tuple[Settings | None, dict[str, Any]] = (None, {})
"""The settings of the latest call, and what its record has of them, as JSON."""
_WISHES = tuple(item.name for item in fields(Engine))


def head_of(call: Call) -> dict[str, Any]:
    """The facts of a call, without its bytes."""
    global _latest
    profile, settings, latest = call.profile, call.settings, _latest
    # Made once for the calls of one client, which share their settings.
    if latest[0] is not settings:
        latest = _latest = settings, _record_of(settings)
    head: dict[str, Any] = {
        **latest[1],
        "call": call.id,
        "protocol": call.protocol,
        "agent": call.agent,
        "engine": None if profile is None else profile.name,
        "times": (call.started, call.began, call.first_byte, call.ended),
        "attempts": [
            (mark.started, mark.began, mark.ended, mark.status, mark.error, mark.known) for mark in call.attempts
        ],
        "is_decompressed": call.is_decompressed,
        "eof": call.eof,
        "others": dict(zip(_OTHER_SLOTS, _others(call), strict=True)),
    }
    if call.cut is not None or call.failure is not None or call.faults or call.left_out:
        head.update(ends_of(call))
    if call.exact_turn is not None:
        head["exact_turn"] = call.exact_turn
    if call.refusals:
        head["refusals"] = {name: refusal.message for name, refusal in call.refusals.items()}
    return head


def _record_of(settings: Settings) -> dict[str, Any]:
    own = {name: value for name in _SETTINGS if type(value := getattr(settings, name)) in _PLAIN}
    record = {"settings": orjson.Fragment(dumps(own))}
    if settings.wishes is not None:
        record["wishes"] = orjson.Fragment(dumps({name: getattr(settings.wishes, name) for name in _WISHES}))
    return record


def ends_of(call: Call) -> dict[str, Any]:
    """How a call failed, and whether a stream that was not kept whole was at its end. Empty where neither holds."""
    failed = {name: value for name, value in (("cut", call.cut), ("failure", call.failure)) if value is not None}
    head: dict[str, Any] = {name: [value.kind, value.info] for name, value in failed.items()}
    if call.faults:
        head["faults"] = list(call.faults)
    if call.left_out and call.saw_done():
        head["saw_done"] = True
    return head


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
    call.id = _text(head["call"])
    call.agent = head.get("agent")
    if (engine := head.get("engine")) is not None:
        # One of another version: nothing is known of it but its name.
        call.profile = next((one for one in profiles() if one.name == engine), None) or EngineProfile(engine)
    call.started, call.began, call.first_byte, call.ended = head["times"]
    call.attempts = attempts_of(head)
    call.is_decompressed, call.eof = bool(head.get("is_decompressed")), bool(head.get("eof"))
    for name, value in _known(head.get("others"), _OTHER_SLOTS).items():
        setattr(call, name, value)
    if head.get("exact_turn"):
        call.exact_turn = msgspec.convert(head["exact_turn"], ExactTurn)
    call.refusals = {name: Refusal(text, 0.0) for name, text in (head.get("refusals") or {}).items()}
    set_ends(call, head)
    return call


def copy_of(call: Call) -> Call:
    """A call with the same bytes and the same facts, by what a record has of them."""
    copy = call_of(loads(dumps(head_of(call))))
    copy.request, copy.chunks = call.request, call.chunks
    return copy


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


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a text, got {value!r:.80}")
    return value
