"""What records of a journal hold: a call as a record's head, and back; and texts, as differences of earlier ones.

A head has what ``recorded_steps`` needs to make the same steps later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from operator import attrgetter
from typing import Any, NamedTuple
from weakref import ref

import msgspec

from rollout_trace._threads import renew_after_fork
from rollout_trace.data.exact_turn import ExactTurn
from rollout_trace.data.model import ErrorInfo
from rollout_trace.file.encode import PARTS
from rollout_trace.file.journal import STEPS, Record
from rollout_trace.file.plain import Difference, difference
from rollout_trace.record.call import AttemptMark, Call, Failure, Refusal
from rollout_trace.record.settings import Settings
from rollout_trace.wire.engine import Engine
from rollout_trace.wire.profiles import EngineProfile, profiles

# Before two threads can be the first to read it: file/fields.py.
msgspec.json.Decoder(ExactTurn)
_PLAIN = frozenset({int, float, bool, str})
_OWN_SLOTS = frozenset(
    {"_id", "agent", "attempts", "began", "chunks", "cut", "ended", "eof", "failure", "faults", "first_byte"}
    | {"is_decompressed", "log", "profile", "protocol", "refusals", "request", "settings", "started", "steps"}
    | {"journal_due", "journal_progress", "peeks", "exact_turn", "on_ids_not_served"}
)
_OTHER_SLOTS = tuple(name for kind in Call.__mro__ for name in getattr(kind, "__slots__", ()) if name not in _OWN_SLOTS)
"""What else a call has: stored where it is a number or a text, so that a new slot needs no line here."""
_others = attrgetter(*_OTHER_SLOTS)
_SETTINGS = tuple(
    item.name
    for item in fields(Settings)
    if item.name not in ("protocol_of", "engine", "trajectory", "wishes", "source")
)

_latest: tuple[Settings | None, dict[str, Any]] = (None, {})
"""The settings of the latest call, and their record."""
_WISHES = tuple(item.name for item in fields(Engine))


def head_of(call: Call) -> dict[str, Any]:
    """The facts of a call, without its bytes."""
    global _latest
    profile, settings, latest = call.profile, call.settings, _latest
    # Made once for the calls of one client, which share their settings.
    if latest[0] is not settings:
        record = {name: value for name in _SETTINGS if type(value := getattr(settings, name)) in _PLAIN}
        latest = _latest = settings, record
    head: dict[str, Any] = {
        "call": call.id,
        "protocol": call.protocol,
        "agent": call.agent,
        "engine": None if profile is None else profile.name,
        "settings": latest[1],
        "times": (call.started, call.began, call.first_byte, call.ended),
        "attempts": [
            (mark.started, mark.began, mark.ended, mark.status, mark.error, mark.known) for mark in call.attempts
        ],
        "has_request": call.request is not None,
        "is_decompressed": call.is_decompressed,
        "eof": call.eof,
        "others": {
            name: value for name, value in zip(_OTHER_SLOTS, _others(call), strict=True) if type(value) in _PLAIN
        },
    }
    head.update(ends_of(call))
    if settings.wishes is not None:
        head["wishes"] = {name: getattr(settings.wishes, name) for name in _WISHES}
    if call.exact_turn is not None:
        head["exact_turn"] = call.exact_turn
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


# The latest texts of a trajectory, of which the next one is written as a difference; bounded over the process

MOST = 4
"""Bases of a trajectory: as many agents may take turns in one, and each is still compared with itself."""
LIMIT = 64 * 1024 * 1024
"""Most bytes of bases in this process; past it the oldest are dropped, and the next requests are written whole."""
SHORT = 1024
"""Bytes below which a text is written whole, and is no base: to compare it would take longer than to write it."""
_ENOUGH = 0.5
"""A base of which this part can be left out is taken; the others are not compared."""


class _Base:
    """One earlier text."""

    __slots__ = ("__weakref__", "data", "kind", "number")

    def __init__(self, number: int, kind: int, data: bytes) -> None:
        self.number = number
        self.kind = kind
        self.data: bytes | None = data
        """None once it was dropped."""


class Part(NamedTuple):
    """A text as it goes into a record."""

    middle: bytes
    reference: tuple[int, int, int] | None
    """Number of the record with the base, bytes of its beginning, bytes of its end; None: the text is whole."""
    base: _Base | None


class Bases:
    """The bases of one trajectory. Any thread, and the garbage collector: the tuple is replaced, never changed."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: tuple[_Base, ...] = ()

    def difference(self, text: bytes, kind: int = 0) -> Part:
        """The text as a difference of the base that it has most in common with.

        Args:
            text: the text.
            kind: only bases of this kind are looked at.
        """
        if len(text) < SHORT:
            return Part(text, None, None)
        best: tuple[Difference, _Base] | None = None
        for base in self._kept:
            data = base.data
            if base.kind != kind or data is None:
                continue
            found = difference(text, data)
            if best is None or len(found.middle) < len(best[0].middle):
                best = found, base
            if len(best[0].middle) <= len(text) * (1 - _ENOUGH):
                break
        # A reference takes some bytes itself, and makes the record depend on another one.
        if best is None or len(best[0].middle) + 64 > len(text):
            return Part(text, None, None)
        return Part(best[0].middle, (best[1].number, best[0].prefix, best[0].suffix), best[1])

    def add(self, number: int, text: bytes, part: Part, kind: int = 0) -> None:
        """Makes a text that was written a base, unless it is short. It takes the place of the one that it continues."""
        if len(text) < SHORT:
            return
        base = _Base(number, kind, text)
        others = [one for one in self._kept if one is not part.base and one.data is not None]
        same = [one for one in others if one.kind == kind][: MOST - 1]
        self._kept = (base, *same, *(one for one in others if one.kind != kind))
        if part.base is not None:
            _held.drop(part.base)
        _held.add(base)

    def clear(self) -> None:
        """Drops all bases."""
        kept, self._kept = self._kept, ()
        for base in kept:
            _held.drop(base)


class _Held:
    """The bases of this process, oldest first. Only single operations on a dict: see ``file.journal``."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forgets all. For a forked process: its trajectories are its own."""
        self._all: dict[int, ref[_Base]] = {}
        self._total = 0
        self._added = 0

    def add(self, base: _Base) -> None:
        """Counts a base; past the limit, drops the oldest."""
        self._all[id(base)] = ref(base)
        self._total += len(base.data or b"")
        self._added += 1
        # Threads may count past each other: now and then the total is summed up anew.
        if self._total > LIMIT or self._added % 256 == 0:
            self._shrink()

    def drop(self, base: _Base) -> None:
        """Frees a base that is no longer one."""
        data, base.data = base.data, None
        if self._all.pop(id(base), None) is not None and data is not None:
            self._total -= len(data)

    def _shrink(self) -> None:
        total, sizes = 0, []
        for key, found in list(self._all.items()):
            base = found()
            data = None if base is None else base.data
            if base is None or data is None:
                self._all.pop(key, None)
            else:
                sizes.append((base, len(data)))
                total += len(data)
        for base, size in sizes if total > LIMIT else ():
            if total <= LIMIT // 2:
                break
            # Half of it at once, so that not every further base walks through all.
            base.data = None
            self._all.pop(id(base), None)
            total -= size
        self._total = total


_held = _Held()
renew_after_fork(_held, _Held.reset)


def texts_of(records: Iterable[Record]) -> Iterator[tuple[Record, list[bytes | None]]]:
    """The records with texts, and these whole, by number: each base comes before what needs it. None: it is missing."""
    numbered: dict[int, Record] = {}
    for record in records:
        number = record.head.get("number")
        if isinstance(number, int) and ("difference" in record.head or record.kind == STEPS):
            numbered.setdefault(number, record)
    # How often each text is still needed: it is dropped with the last record that needs it.
    needed = Counter((one[0], kind) for record in numbered.values() for kind, one in _references(record) if one)
    kept: dict[tuple[int, int], bytes] = {}
    for number in sorted(numbered):
        record = numbered[number]
        texts = []
        for (kind, reference), blob in zip(_references(record), record.blobs, strict=False):
            text = _whole_text(reference, kind, bytes(blob), kept, needed)
            if text is not None and needed[number, kind]:
                kept[number, kind] = text
            texts.append(text)
        yield record, texts or [None]


def _references(record: Record) -> list[tuple[int, Any]]:
    if record.kind != STEPS:
        return [(0, record.head.get("difference"))]
    return list(enumerate(record.head.get("differences") or [None] * len(PARTS), 1))


def _whole_text(
    reference: Any, kind: int, middle: bytes, kept: dict[tuple[int, int], bytes], needed: Counter[tuple[int, int]]
) -> bytes | None:
    """The whole text; None where its base is missing."""
    if not reference:
        return middle
    number, prefix, suffix = reference
    base = kept.get((number, kind))
    needed[number, kind] -= 1
    if not needed[number, kind]:
        kept.pop((number, kind), None)
    try:
        return None if base is None else Difference(prefix, suffix, middle).apply(base)
    except (ValueError, TypeError):
        return None
