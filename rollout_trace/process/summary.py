"""What a run has recorded, in the lines that ``rollout-trace run`` prints at its end."""

from __future__ import annotations

import contextlib
import json
import os
import textwrap
from typing import Any, TextIO

from rollout_trace.guard import printable
from rollout_trace.process.boot.sitecustomize import NOTHING, OUTPUT, UNSEEN, left_by_children
from rollout_trace.record.ancestry import ENGINE
from rollout_trace.record.tally import Tally

_PREFIX = "rollout-trace: "
_REASONS = 5
"""Most reasons for missing ids that are printed."""


def leave(own: Tally) -> None:
    """Leaves the counts of this process for the first one of the run, in a file beside the output."""
    counts = own.as_json()
    if own.is_empty:
        return
    line = json.dumps(counts).encode() + b"\n"
    # One write to a file opened to append: those of other processes cannot come between.
    file = os.open(left_by_children(), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line)
    finally:
        os.close(file)


def gathered(own: Tally) -> Tally:
    """The counts of this process and of those that have ended; deletes what they left."""
    total = Tally()
    total.merge(own.as_json())
    path = left_by_children()
    try:
        with open(path, "rb") as file:
            lines = file.read().splitlines()
        os.unlink(path)
    except OSError:
        return total
    for line in lines:
        # A process may have been killed in the middle of its line.
        with contextlib.suppress(ValueError, KeyError):
            total.merge(json.loads(line))
    return total


def show(total: Tally, stream: TextIO, why: str | None = None) -> None:
    """Prints the summary; ``why`` as for ``lines_of``."""
    try:
        width = max(40, os.get_terminal_size(stream.fileno()).columns)
    except (OSError, ValueError):
        width = 100
    options: Any = {"break_long_words": False, "break_on_hyphens": False}
    for line in lines_of(total, why):
        stream.write(textwrap.fill(_PREFIX + line, width - 1, subsequent_indent="  ", **options) + "\n")
    stream.flush()


def lines_of(total: Tally, why: str | None = None) -> list[str]:
    """The lines of the summary, without the name in front of each.

    Args:
        total: what was counted.
        why: why the program of the run loads no recorder itself, where it does not.
    """
    counts = total.counts
    lines = []
    if total.files:
        lines.append(f"{_amounts(total)} in {_files(total)}")
        missing = counts["steps"] - counts["with_ids"]
        if missing:
            lines.append(f"no token ids in {missing:,} of {_many(counts['steps'], 'step')}: {_reasons(total)}")
    elif not counts["trajectories_lost"] and not counts["orphans"]:
        nothing = " ".join(NOTHING.removeprefix(_PREFIX).split())
        seen = f"{printable(why or '')}, and no Python program that it started called a model"
        lines.append(nothing if why is None else nothing.replace(UNSEEN, seen))
    if counts["orphans"]:
        lines.append(f"{_many(counts['orphans'], 'call')} of trajectories that had closed already, recorded in no file")
    if counts["not_model_calls"]:
        lines.append(f"{_many(counts['not_model_calls'], 'request')} looked like a model call and had no such answer")
    if counts["trajectories_lost"]:
        lost = counts["trajectories_lost"]
        lines.append(f"{_many(lost, 'trajectory')} could not be written; the log above has the reason")
    if counts["recorder_errors"]:
        lines.append(f"{_many(counts['recorder_errors'], 'failure')} of the recorder; the log above has them")
    return lines


def _amounts(total: Tally) -> str:
    counts = total.counts
    parts = [_many(sum(total.files.values()), "trajectory"), _many(counts["steps"], "step")]
    for name, what in (("input", "prompt"), ("output", "sampled")):
        at_least = "at least " if counts[f"{name}_unknown"] else ""
        if counts[name] or not at_least:
            parts.append(f"{at_least}{counts[name]:,} {what} tokens")
    return ", ".join(parts)


def _files(total: Tally) -> str:
    own = os.environ.get(OUTPUT)
    return ", ".join(printable(_near(path)) for path in sorted(total.files, key=lambda path: (path != own, path)))


def _near(path: str) -> str:
    """A path as seen from the current folder, where it is inside that."""
    with contextlib.suppress(ValueError, OSError):
        relative = os.path.relpath(path)
        return path if relative.startswith(os.pardir) else relative
    return path


def _reasons(total: Tally) -> str:
    most = total.without_ids.most_common()
    told = [f"{printable(reason, 120)} ({count:,})" for reason, count in most[:_REASONS]]
    if len(most) > _REASONS:
        told.append(f"other reasons ({sum(count for _, count in most[_REASONS:]):,})")
    # Where the run has an engine, it asked for ids as far as that has a place for them.
    is_hint = ENGINE not in os.environ and any("not asked" in reason for reason in total.without_ids)
    hint = "; --engine asks for them" if is_hint else ""
    return "; ".join(told) + hint


def _many(count: int, what: str) -> str:
    plural = f"{what[:-1]}ies" if what.endswith("y") else f"{what}s"
    return f"{count:,} {what if count == 1 else plural}"
