"""Explains recorded calls: why a request has no answer, which were not made, what a new recording changed."""

from __future__ import annotations

import shlex
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal, TypeAlias

from rollout_trace import guard
from rollout_trace.data.exchange import Exchange
from rollout_trace.view.plain_text import short
from rollout_trace.wire.protocols import record_of

from . import normalize
from ._differences import MISSING, Change, Paint, changes, columns, lines_of, named, painted, rows_of
from ._normal_form import MatchOptions, Request, form_of, key_of, parsed, protocol_of, request_of, target_of

_MOST = 20
_ENDS = {
    "complete": "", "cut": "(cut off)", "unreachable": "(no answer: unreachable)", "closed": "(closed by the client)",
}  # fmt: skip
_EXACT = MatchOptions()
_READ = frozenset(
    {"messages", "input", "prompt", "contents", "instructions", "system", "systemInstruction", "tools", "body"}
)
"""Fields with what a model reads: a difference there is not one to leave out. ``body``: one without fields."""

Reason: TypeAlias = Literal["nothing_recorded", "not_recorded", "used", "order"]
"""``nothing_recorded``: the cassette is empty. ``not_recorded``: no recorded request is equal. ``used``: one is, and
was asked for before as often as it was recorded. ``order``: one is, and another should come first."""


@dataclass(frozen=True)
class Unmatched:
    """A request that no recorded exchange answers, and why."""

    request: Request
    reason: Reason
    sentence: str
    """What is wrong, without what differs."""
    nearest: Exchange | None
    """The recorded exchange that it is most like; None where nothing is recorded."""
    expected: Exchange | None
    """The exchange that it is compared with: the nearest, or the one that should come before it."""
    options: MatchOptions

    def text(self, *, width: int = 100, paint: Paint | None = None, test: str | None = None) -> str:
        """What is wrong, what differs from the recorded call, and what to do. ``test``: its name, for a command."""
        found: list[Change] = []
        if self.expected is not None:
            found = differences(request_of(self.expected), self.request, self.options)
        sentence = f"{self.sentence} in {named(found)}." if self.reason == "not_recorded" and found else self.sentence
        first = "\n".join(painted(line, "bold", paint) for line in textwrap.wrap(sentence, width))
        lines = lines_of(found, width, paint)
        if not lines and protocol_of(self.request) is not None:
            lines = [f"    {painted(f'now       {call_line(self.request, width - 14)}', 'green', paint)}"]
        hints = ([*textwrap.wrap(text, width - 4), f"  {code}"] for text, code in self._hints(found, test))
        to_do = "\n".join(["What to do:", *("  - " + "\n    ".join(lines) for lines in hints)])
        return "\n\n".join(filter(None, [first, "\n".join(lines), to_do]))

    def _hints(self, found: Sequence[Change], test: str | None) -> Iterator[tuple[str, str]]:
        """Things to try: in words, and what to type."""
        if self.reason == "nothing_recorded":
            yield "Record it:", record_command(test)
            return
        yield "If the change is meant, record again:", record_command(test)
        if self.reason == "order":
            yield "If these calls may come in any order, say so in the mark:", 'order="free"'
        in_path = {"protocol", "request", *(["stream"] if record_of(protocol_of(self.request)).has_path_facts else [])}
        if self.reason != "not_recorded" or not found or not in_path.isdisjoint(one.path for one in found):
            return
        paths = [one.path for one in found]
        if (name := self._normaliser()) is not None:
            yield (
                f"Only {name} differ. To leave them out, in the mark:",
                f"normalize=rollout_trace.testing.normalize.{name.lower()}",
            )
        elif all(one.split(".")[0] not in _READ and all(map(str.isidentifier, one.split("."))) for one in paths):
            yield "If it may differ from run to run, leave it out, in the mark:", f"ignore={paths!r}"
        else:
            what = "If it may differ from run to run, change it before it is compared, in the mark"
            yield (
                f"{what} (rollout_trace.testing.normalize has functions for dates, UUIDs and numbers):",
                "normalize=my_function",
            )

    def _normaliser(self) -> str | None:
        """Returns which ``normalize`` function, dates or UUIDs, would remove all differences; None if neither."""
        if self.options.normalize is not None or self.expected is None:
            return None
        for name in ("dates", "UUIDs"):
            options = MatchOptions(self.options.ignore, getattr(normalize, name.lower()))
            if key_of(self.request, options) == key_of(request_of(self.expected), options):
                return name
        return None


def record_command(test: str | None) -> str:
    """Returns the command that records a test again; None: all tests."""
    return f"pytest --replay=record{f' {shlex.quote(guard.printable(test))}' if test else ''}"


def differences(recorded: Request, now: Request, options: MatchOptions = _EXACT) -> list[Change]:
    """Returns the differences between two requests; body fields under their own names, with their owner."""
    forms = form_of(recorded, options), form_of(now, options)
    found = []
    for one in changes(*forms):
        value = one.recorded if one.now is MISSING else one.now
        whose = _name_in(value) or _whose(one.path, forms[1]) or _whose(one.path, forms[0])
        found.append(one._replace(path=one.path.removeprefix("body.") + (f" ({whose})" if whose else "")))
    return found


def _whose(path: str, value: Any) -> str | None:
    """The role of the message, or the name of the tool, that a path leads into."""
    found: str | None = None
    for part in path.split("."):
        if isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            value = value.get(part) if isinstance(value, dict) else None
        found = _name_in(value) or found
    return found


def _name_in(value: Any) -> str | None:
    """The name or the role that an object has."""
    if not isinstance(value, dict):
        return None
    inner = value["function"] if isinstance(value.get("function"), dict) else value
    return next((one for one in (inner.get("name"), value.get("role")) if isinstance(one, str)), None)


def unused_text(exchanges: Sequence[Exchange], *, width: int = 100, paint: Paint | None = None) -> str:
    """A numbered list of recorded calls, one line each: model, last message, answer. "" where there are none."""
    lines = []
    for number, one in enumerate(exchanges[:_MOST], 1):
        answered = _short(_answer(one), width * 2 // 5 - 4)
        asked = call_line(request_of(one), width - columns(answered) - 10)
        lines.append(f"{number:>4}. {asked} {painted(f'-> {answered}', 'dim', paint)}")
    if len(exchanges) > _MOST:
        lines.append(f"      and {len(exchanges) - _MOST:,} more")
    return "\n".join(lines)


def changes_text(
    before: Sequence[Exchange], after: Sequence[Exchange], *, width: int = 100, paint: Paint | None = None
) -> str:
    """Says what a new recording changed: calls added, removed and changed, and answers. "" if nothing.

    Calls with equal requests are the same call, wherever they stand: parallel ones are recorded in any order.
    """
    blocks: list[list[str]] = []
    for number, old, new in _pairs(before, after):
        if old is not None and new is not None:
            blocks += _changed(f"call {number}", old, new, width, paint)
        elif new is not None:
            blocks.append([f"+ call {number} added: {call_line(request_of(new), width - 20)}"])
        elif old is not None:
            blocks.append([f"- call {number} removed: {call_line(request_of(old), width - 22)}"])
    lines = [painted(line, "bold", paint) if not at else line for one in blocks[:_MOST] for at, line in enumerate(one)]
    if len(blocks) > _MOST:
        lines.append(f"and {len(blocks) - _MOST:,} more changes")
    return "\n".join(lines)


def _pairs(before: Sequence[Exchange], after: Sequence[Exchange]) -> list[tuple[int, Exchange | None, Exchange | None]]:
    """The calls that are the same one, by their numbers: those with equal requests, the others in their order."""
    known: dict[bytes, list[tuple[int, Exchange]]] = defaultdict(list)
    for number, one in enumerate(before, 1):
        known[key_of(request_of(one), _EXACT)].append((number, one))
    found: list[tuple[int, Exchange | None, Exchange | None]] = []
    new = []
    for number, one in enumerate(after, 1):
        equal = known[key_of(request_of(one), _EXACT)]
        if equal:
            found.append((number, equal.pop(0)[1], one))
        else:
            new.append((number, one))
    old = sorted((pair for left in known.values() for pair in left), key=lambda pair: pair[0])
    for was, now in zip_longest(old, new):
        number = (now or was or (0,))[0]
        found.append((number, None if was is None else was[1], None if now is None else now[1]))
    return sorted(found, key=lambda one: one[0])


def _changed(name: str, old: Exchange, new: Exchange, width: int, paint: Paint | None) -> Iterator[list[str]]:
    found = differences(request_of(old), request_of(new))
    if found:
        yield [*textwrap.wrap(f"~ {name} changed: {named(found)}", width), *lines_of(found, width, paint)]
    answers = _answer(old), _answer(new)
    if answers[0] != answers[1]:
        yield [f"~ answer of {name} changed", *lines_of([Change("", *answers)], width, paint)]


def call_line(request: Request, room: int) -> str:
    """``gpt-4o, user: What is the weather in…``: the model, and the beginning of the last message."""
    from ._api import chat_messages
    from .conversations import text_of

    protocol = protocol_of(request)
    if protocol is None:
        return _short(target_of(request), room)
    model, messages = form_of(request, _EXACT)["model"], chat_messages(protocol, request.body)
    body = parsed(request.body)
    model = model or (body.get("model") if isinstance(body, dict) else None)
    last = messages[-1] if messages else {"role": "no messages"}
    calls = [one.get("function", one) for one in last.get("tool_calls") or () if isinstance(one, dict)]
    said = text_of(last) or " ".join(f"{one.get('name')}({one.get('arguments') or ''})" for one in calls)
    return _short(f"{f'{model}, ' if model else ''}{last['role']}: {said}", max(8, room))


def _short(text: str, room: int) -> str:
    """A text in a line of at most so many columns."""
    line = short(text, room)
    return line if columns(line) <= room else f"{rows_of(line, room - 3)[0]}..."


def _answer(exchange: Exchange) -> str:
    """The text and the tool calls of an answer, or its error. It is not escaped."""
    # Not above: it imports the decoders.
    from rollout_trace.wire import decode
    from rollout_trace.wire.body import decompress
    from rollout_trace.wire.protocols import model_in_path

    end = _ENDS[exchange.outcome]
    protocol = protocol_of(request_of(exchange))
    status = f"status {exchange.status}:" if (exchange.status or 0) >= 400 else ""
    try:
        body = decompress(exchange.response, dict(exchange.headers).get("content-encoding"))
    except ValueError as error:  # A library for it may not be installed.
        return f"({error})"
    if exchange.status is None or protocol is None:
        return " ".join(filter(None, [status, body.decode(errors="replace"), end]))
    steps = decode(
        protocol,
        exchange.request,
        body,
        content_type=exchange.content_type or None,
        status=exchange.status,
        model=model_in_path(protocol, exchange.path),
    )
    return " ".join(filter(None, [status, " | ".join(map(_said, steps)), end]))


def _said(step: Any) -> str:
    parts = [] if step.error is None else [step.error.message]
    if (completion := step.completion) is not None:
        parts += [one for one in (completion.content, completion.refusal) if isinstance(one, str)]
        parts += [f"{call.name}({call.arguments or ''})" for call in completion.tool_calls]
    return " ".join(parts)
