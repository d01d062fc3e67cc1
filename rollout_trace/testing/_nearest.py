"""The recorded call that a request is most like. Looked for only where nothing matches."""

from __future__ import annotations

from collections.abc import Sequence

from ._normal_form import NormalForm, form_of, protocol_of
from ._recorded_calls import RecordedCall
from ._requests import MatchOptions, Request, request_of
from ._text_parts import shared_part

_MOST_READ = 200
_MOST_BYTES = 16_000_000


def nearest(request: Request, calls: Sequence[tuple[RecordedCall, bool]], options: MatchOptions) -> RecordedCall | None:
    """The call with the fewest messages that differ, then with the fewest other differences; None where there is none.

    For a request that generates nothing: another such.

    Args:
        request: what was asked for.
        calls: recorded exchanges, each with whether it has been used.
        options: what may differ.
    """
    generates = protocol_of(request) is not None
    # A list of models is like no call.
    fitting = [one for one in calls if one[0].generates == generates]
    now = form_of(request, options)
    ranked = [
        (_distance(now, form_of(request_of(call.exchange), options)), is_used, at, call)
        for at, (call, is_used) in enumerate(_most_alike(request, fitting))
    ]
    return min(ranked, key=lambda one: one[:3])[3] if ranked else None


def _most_alike(request: Request, calls: list[tuple[RecordedCall, bool]]) -> list[tuple[RecordedCall, bool]]:
    """The calls whose bytes are most like a request's, as many as can be read in short time; in recorded order."""
    if len(calls) <= _MOST_READ and sum(len(call.exchange.request) for call, _ in calls) <= _MOST_BYTES:
        return calls
    text = request.body.decode("latin-1")
    likeness = [shared_part(text, call.exchange.request.decode("latin-1")) for call, _ in calls]
    left = _MOST_BYTES
    chosen: list[int] = []
    for at in sorted(range(len(calls)), key=lambda at: (calls[at][1], -likeness[at]))[:_MOST_READ]:
        left -= len(calls[at][0].exchange.request)
        if left < 0 and chosen:
            break
        chosen.append(at)
    return [calls[at] for at in sorted(chosen)]


def _distance(now: NormalForm, recorded: NormalForm) -> tuple[bool, int, int, float]:
    mine, theirs = [one.digest for one in now.messages], [one.digest for one in recorded.messages]
    start = _shared(mine, theirs)
    end = _shared(mine[start:][::-1], theirs[start:][::-1])
    names = now.settings.keys() | recorded.settings.keys()
    others = sum(now.settings.get(name, ...) != recorded.settings.get(name, ...) for name in names)
    others += now.model != recorded.model
    others += [one.digest for one in now.tools] != [one.digest for one in recorded.tools]
    first, second = (
        "".join(str(one.value) for one in form.messages[start : len(form.messages) - end]) for form in (now, recorded)
    )
    is_other = (now.protocol, now.target) != (recorded.protocol, recorded.target)
    return is_other, max(len(mine), len(theirs)) - start - end, others, -round(shared_part(first, second), 1)


def _shared(first: list[bytes], second: list[bytes]) -> int:
    """How many items two lists begin with in common."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(first), len(second)))
