"""The end of a process of a run: closes the program's trajectory with its outcome and reward, and tells of it.

The lines that it prints are those of ``rollout-trace run``.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import textwrap
from collections.abc import Callable
from typing import Any, TextIO

from rollout_trace import guard
from rollout_trace.guard import printable
from rollout_trace.process import rewards
from rollout_trace.process.boot.sitecustomize import NOTHING, OUTPUT, UNSEEN, left_by_children
from rollout_trace.process.patches import Patches
from rollout_trace.record import process_end, program, tally
from rollout_trace.record.ancestry import ENGINE
from rollout_trace.record.tally import Tally

_PREFIX = "rollout-trace: "
_REASONS = 5
"""Most reasons for missing ids that are printed."""

_patches: Patches | None = None
_reported_in: int | None = None
"""The process that has told what it recorded."""


def watch() -> None:
    """Has the end of this process, and of those forked from it, close the program's trajectory first."""
    global _patches
    if _patches is not None:
        return
    process_end.add_closer(_end_program, first=True)
    process_end.add_closer(report)
    _patches = Patches()
    # It runs no function of `atexit`, and ends every process that `multiprocessing` has forked.
    _patches.replace(os, "_exit", _closing_before)


def _closing_before(exit_now: Callable[[int], Any]) -> Callable[[int], Any]:
    def _exit(status: int) -> Any:
        try:
            process_end.close_all()
        except Exception:
            # The program ends, whatever happens here.
            pass
        return exit_now(status)

    return _exit


def _end_program() -> None:
    """Closes the program's trajectory. Runs before what closes the others, as aborted."""
    if _is_first():
        guard.run_all("reward", rewards.give_to_open)
    if process_end.is_signalled():
        program.close(status="aborted")
    else:
        program.close(error=process_end.uncaught())


def report() -> None:
    """Prints the summary in the first process of the run; leaves the counts for it in the others. Once a process."""
    global _reported_in
    if _reported_in == os.getpid():
        return
    _reported_in = os.getpid()
    own = tally.own()
    if not _is_first():
        if _is_first_alive():
            _leave(own)
        return
    total = gathered(own)
    guard.run_all("reward", lambda: rewards.give_to_written(total))
    if "ROLLOUT_TRACE_QUIET" not in os.environ and sys.stderr is not None:
        show(total, sys.stderr)
    process_end.keep_interrupt()


def _is_first() -> bool:
    """Whether this is the process whose end is the end of the run: the first Python process of the command."""
    return _first_id() == str(os.getpid())


def _is_first_alive() -> bool:
    """Whether the first process still runs, so that what is left for it will be read."""
    first = _first_id()
    if not first.isdigit() or sys.platform == "win32":
        return False
    try:
        os.kill(int(first), 0)
    except OSError:
        return False
    return True


def _first_id() -> str:
    """Its process id; empty where there is none."""
    return os.environ.get("ROLLOUT_TRACE_FIRST", "").partition(":")[2].partition(":")[0]


def _leave(own: Tally) -> None:
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
