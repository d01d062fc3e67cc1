"""What a person can do about a request that found no answer."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from rollout_trace import guard
from rollout_trace.wire.protocols import record_of

from . import normalize
from ._difference import Difference
from ._match_facts import Facts
from ._normal_form import key_of, protocol_of
from ._requests import MatchOptions, Request, request_of

_TEXT_FIELDS = frozenset({"content", "text", "parts", "input", "output", "arguments", "thinking", "prompt"})
"""Fields with what a model reads: a difference there is not one to leave out."""


def record_command(test: str | None) -> str:
    """What to type to record a test anew; None: all tests."""
    return f"pytest --replay=record{f' {shlex.quote(guard.printable(test))}' if test else ''}"


def hints(request: Request, found: Sequence[Difference], facts: Facts, test: str | None) -> Iterator[tuple[str, str]]:
    """Things to try, the likely first: in words, and what to type."""
    command = record_command(test)
    if facts.reason == "nothing_recorded":
        yield "Record it:", command
        return
    yield "If the change is meant, record again:", command
    if facts.reason == "order":
        yield "If these calls may come in any order, say so in the mark:", 'order="free"'
    if facts.reason != "not_recorded" or facts.nearest is None:
        return
    name, ignored = _normaliser(request, facts), _ignored(request, found)
    if name is not None:
        what = "UUIDs" if name == "uuids" else name
        yield (
            f"Only {what} differ. To leave them out, in the mark:",
            f"normalize=rollout_trace.testing.normalize.{name}",
        )
    elif ignored:
        yield "If it may differ from run to run, leave it out, in the mark:", f"ignore={ignored!r}"
    elif all(one.part == "messages" and one.kind == "changed" for one in found):
        yield (
            "If it may differ from run to run, change it in a function before it is compared:",
            "normalize=my_function",
        )


def _normaliser(request: Request, facts: Facts) -> str | None:
    """The ready-made normaliser that makes the request equal to the nearest one; None where none does."""
    if facts.nearest is None or facts.options.normalize is not None:
        return None
    for name in ("dates", "uuids"):
        options = MatchOptions(facts.options.ignore, getattr(normalize, name))
        if key_of(request, options) == key_of(request_of(facts.nearest.exchange), options):
            return name
    return None


def _ignored(request: Request, found: Sequence[Difference]) -> list[str]:
    """Paths of all that differs, where none of it is what a model reads; else nothing."""
    paths: list[str] = []
    for one in found:
        if one.part == "setting":
            paths += [_joined(one.name, detail.path) for detail in one.details]
        elif one.part == "messages" and one.kind == "changed":
            if any(not detail.path for detail in one.details):
                return []
            root = record_of(protocol_of(request)).request.messages
            paths += [_joined(root, "*", detail.path) for detail in one.details]
        else:
            return []
    is_read = any(path in _TEXT_FIELDS or not _TEXT_FIELDS.isdisjoint(path.split(".")[2:]) for path in paths)
    return [] if is_read or len(set(paths)) > 4 else list(dict.fromkeys(paths))


def _joined(*parts: str) -> str:
    path = guard.printable(".".join(part for part in parts if part), 80)
    return re.sub(r"(?<=[.])[0-9]+(?=[.]|$)", "*", path)
