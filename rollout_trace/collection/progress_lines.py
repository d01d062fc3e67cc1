"""The progress as text: lines for a log, and the pieces of a bar that fit a terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from rollout_trace import guard
from rollout_trace.collection.progress import Progress, Reporter

if TYPE_CHECKING:
    from rollout_trace.collection.summary import CollectSummary
    from rollout_trace.data.model import Cost

EVERY = 10.0
"""Seconds between two lines."""
UNCHANGED = 60.0
"""Seconds between two lines that say the same."""
NAME = "collect"
GAP = "  "
_BAR = (8, 40)
"""Columns of the shortest bar and of the longest."""
_SHOWN_KINDS = 4
_FREE = 3
"""Columns that stay free: a terminal shows ``^C`` behind the bar, and must not begin a new line for it."""
_SHORTENED = 8
"""Pieces of a higher rank are left out before any is shortened."""


class Piece(NamedTuple):
    """A part of the text."""

    text: str
    rank: int
    """Pieces of a higher rank are left out first where the line is too short."""
    style: str = ""
    shorter: tuple[str, ...] = ()
    """Instead of the text, where the line is too short; the longest first."""


def duration(seconds: float) -> str:
    """Hours, minutes and seconds: ``4:05``, ``1:04:05``, ``2d 1:04:05``."""
    whole = round(seconds)
    days, hours, minutes = whole // 86_400, whole // 3600 % 24, whole // 60 % 60
    text = f"{hours}:{minutes:02}:{whole % 60:02}" if days or hours else f"{minutes}:{whole % 60:02}"
    return f"{days}d {text}" if days else text


def compact(number: float) -> str:
    """Three digits at most, and a unit: ``8.5``, ``12``, ``1.2k``, ``34M``."""
    for unit in ("", "k", "M", "G"):
        if number < 9.95 and (unit or number % 1):
            return f"{number:.1f}{unit}"
        if number < 999.5:
            return f"{number:.0f}{unit}"
        number /= 1000
    return f"{number:.0f}T"


def money(cost: Cost) -> str:
    """An amount of money: ``$1.23``, ``$0.0042``, ``1.23 EUR``."""
    amount = f"{cost.amount:,.2f}" if cost.amount >= 0.1 or not cost.amount else f"{cost.amount:.2g}"
    return f"${amount}" if cost.currency == "USD" else f"{amount} {guard.printable(cost.currency, 10)}"


def kinds(failures: Mapping[str, int], shown: int = _SHOWN_KINDS) -> str:
    """Failures by their kind, the most frequent first: ``2 RateLimitError, 1 timeout``."""
    most = sorted(failures.items(), key=lambda item: (-item[1], item[0]))
    texts = [f"{number:,} {guard.printable(kind, 40)}" for kind, number in most[:shown]]
    if len(most) > shown:
        texts.append(f"{sum(number for _, number in most[shown:]):,} other")
    return ", ".join(texts)


def _first(progress: Progress) -> list[Piece]:
    """Returns the line on how far the run is."""
    found = [Piece(f"{progress.done:,}/{progress.planned:,}", 0, "bold")]
    if progress.planned:
        # Rounded down: 100% is the end.
        found.append(Piece(f"{100 * progress.done // progress.planned}%", 9))
    if progress.state == "ended":
        return [*found, Piece(f"in {duration(progress.elapsed)}", 3)]
    if progress.state == "stopping":
        found.append(Piece(f"stopping, {progress.running} running", 2, "yellow", ("stopping",)))
    else:
        found.append(Piece(f"{progress.running} running", 2))
    if progress.eta is not None:
        found.append(Piece(f"{duration(progress.eta)} left", 3, "cyan"))
    else:
        found.append(Piece(duration(progress.elapsed), 6))
    return found


def _second(progress: Progress) -> list[Piece]:
    """Returns the line on how well the run goes."""
    found = []
    if number := sum(progress.by_status.values()) - progress.by_status.get("completed", 0):
        text = f"{number:,} failed"
        named = [f"{text} ({kinds(progress.failures, shown)})" for shown in (_SHOWN_KINDS, 1) if progress.failures]
        found.append(Piece(named[0] if named else text, 1, "red", (*named[1:], text)))
    counts = (("ready", 3, ""), ("stale", 2, "yellow"), ("left_behind", 5, "yellow"), ("retried", 9, ""))
    for name, rank, style in counts:
        if number := getattr(progress, name):
            found.append(Piece(f"{number:,} {name.replace('_', ' ')}", rank, style))
    if progress.exact_turns is not None:
        found.append(Piece(f"{100 * progress.exact_turns:.0f}% exact turns", 8))
    if progress.mean_reward is not None:
        found.append(Piece(f"reward {progress.mean_reward:.3g}", 4))
    if progress.reward_failures:
        errors = "reward error" if progress.reward_failures == 1 else "reward errors"
        found.append(Piece(f"{progress.reward_failures:,} {errors}", 5, "yellow"))
    if progress.tokens_per_second is not None:
        found.append(Piece(f"{compact(progress.tokens_per_second)} tok/s", 6))
    if progress.cost is not None:
        found.append(Piece(money(progress.cost), 7))
    return found


def arrange(progress: Progress, width: int) -> list[tuple[int, list[Piece]]]:
    """One line for a terminal of this width, or two; each as the columns of its bar (0: it has none) and its pieces."""
    first, second = _first(progress), _second(progress)
    room = max(1, width - _FREE)
    if not second or _columns([*first, *second]) + _BAR[0] + len(GAP) <= room:
        return [_fitted([*first, *second], room, has_bar=True)]
    return [_fitted(first, room, has_bar=True), _fitted(second, room, has_bar=False)]


def _fitted(pieces: list[Piece], width: int, *, has_bar: bool) -> tuple[int, list[Piece]]:
    shortest = _BAR[0] + len(GAP) if has_bar else 0
    left = list(pieces)
    while _columns(left) + shortest > width:
        at = max(range(len(left)), key=lambda at: _SHORTENED if left[at].shorter else left[at].rank)
        if left[at].shorter:
            left[at] = left[at]._replace(text=left[at].shorter[0], shorter=left[at].shorter[1:])
        elif len(left) > 1:
            del left[at]
        else:
            break
    room = width - _columns(left) - len(GAP)
    return (min(_BAR[1], room) if has_bar and room >= _BAR[0] else 0), left


def _columns(pieces: list[Piece]) -> int:
    return sum(len(piece.text) for piece in pieces) + len(GAP) * (len(pieces) - 1)


class Lines(Reporter):
    """Writes a line to stderr at the beginning, one in 10 seconds, one at each tenth, and one at the end."""

    def __init__(self) -> None:
        self._at = 0.0
        self._tenth = 0
        self._said = ""
        self._kinds: set[str] = set()

    def begin(self, progress: Progress) -> None:
        self._tenth = _tenth(progress)
        number = f"{progress.planned:,} " if progress.planned else ""
        self.note(f"{number}rollouts, to {progress.output}")

    def update(self, progress: Progress) -> None:
        self._note_failure(progress)
        waited, tenth = progress.elapsed - self._at, _tenth(progress)
        said = f"{progress.done} {progress.running} {progress.state} {progress.failures}"
        if tenth > self._tenth or waited >= (EVERY if said != self._said else UNCHANGED):
            self._at, self._tenth, self._said = progress.elapsed, tenth, said
            self.note(_line(progress))

    def end(self, progress: Progress, summary: CollectSummary) -> None:
        self._note_failure(progress)
        self.note(f"ended: {_line(progress)}")
        self._put_summary(summary, 100)

    def note(self, text: str) -> None:
        self._put(f"{NAME}: {guard.printable(text)}")

    def _note_failure(self, progress: Progress) -> None:
        """Shows the latest failure, if there is one of a new kind: a person is to see it at once."""
        new = progress.failures.keys() - self._kinds
        self._kinds |= new
        if new and progress.latest_failure is not None:
            self.note(progress.latest_failure)

    def _put_summary(self, summary: CollectSummary, width: int) -> None:
        self._put("\n".join(guard.printable(line) for line in summary.render(width).splitlines()))

    def _put(self, lines: str) -> None:
        # Looked up each time: it may have been replaced.
        if sys.stderr is not None:
            print(lines, file=sys.stderr, flush=True)


def _line(progress: Progress) -> str:
    return ", ".join(piece.text for piece in [*_first(progress), *_second(progress)])


def _tenth(progress: Progress) -> int:
    return 10 * progress.done // progress.planned if progress.planned else 0
