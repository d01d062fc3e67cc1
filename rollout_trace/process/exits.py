"""The end of a process of a run: closes the program's trajectory with its outcome and reward, and tells of it.

The lines that it prints are those of ``rollout-trace run``: trajectories, steps, tokens, why ids are missing.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import textwrap
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO

from rollout_trace import guard
from rollout_trace._threads import renew_after_fork
from rollout_trace.data import costs
from rollout_trace.data.model import shared
from rollout_trace.guard import printable
from rollout_trace.process import rewards
from rollout_trace.process.boot.sitecustomize import NOTHING, OUTPUT, left_by_children
from rollout_trace.process.patches import Patches
from rollout_trace.record import process_end, program, sink
from rollout_trace.record.ancestry import ENGINE

if TYPE_CHECKING:
    from rollout_trace.data.model import Step
    from rollout_trace.data.trajectory import Trajectory

_PREFIX = "rollout-trace: "
_REASONS = 5
"""Most reasons for missing ids that are printed."""

_NOT_ASKED = (
    "neither it nor a Python program that it started called a model. rollout-trace records programs that read their "
    "server's address from variables (OPENAI_BASE_URL, ANTHROPIC_BASE_URL, GOOGLE_GEMINI_BASE_URL, ...), and those "
    "that --cli names, whatever they are called: docs/any-program.md."
)
_ROOTS = 2
"""Most roots whose ids are kept: it matters only whether there is exactly one."""
_COUNTED = ("orphans", "not_model_calls", "trajectories_lost", "recorder_errors")
"""Counters of ``rt.stats()`` that are added."""


class Tally:
    """Counts of one process, or the sum of several."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Resets the tally."""
        self.files: Counter[str] = Counter()
        """Trajectories by the file that they were written to."""
        self.roots: list[tuple[str, str]] = []
        """Ids and files of the first trajectories without a parent."""
        self.counts: Counter[str] = Counter()
        """``steps``, ``with_ids``, ``input``, ``output`` (tokens), ``..._unknown`` (calls without a count of them), and
        counters of ``rt.stats()``."""
        self.without_ids: Counter[str] = Counter()
        """Steps without token ids, by the reason."""

    def add(self, trajectory: Trajectory, target: str) -> None:
        """Counts a trajectory that was written to a target. Decodes nothing."""
        self.files[target] += 1
        if trajectory.parent_id is None and len(self.roots) < _ROOTS:
            self.roots.append((trajectory.id, target))
        for step in trajectory.steps:
            self.counts["steps"] += 1
            if shared(step, "completion_token_ids") is not None:
                self.counts["with_ids"] += 1
            else:
                self.without_ids[reason_without_ids(step)] += 1
        for call in costs.calls_of(trajectory.steps):
            for name in ("input", "output"):
                if (tokens := costs.tokens_of(call, name)) is not None:
                    self.counts[name] += tokens
                elif costs.has_consumed(call):
                    self.counts[f"{name}_unknown"] += 1

    def as_json(self) -> dict[str, Any]:
        """The counts, for another process."""
        stats = guard.stats()
        self.counts.update({name: getattr(stats, name) for name in _COUNTED if hasattr(stats, name)})
        if is_unanswered:
            self.counts["unanswered"] = stats.calls
        return {name: dict(value) if isinstance(value, Counter) else value for name, value in vars(self).items()}

    def merge(self, other: dict[str, Any]) -> None:
        """Adds what ``as_json`` of another process gave."""
        for name in ("files", "counts", "without_ids"):
            getattr(self, name).update(other[name])
        self.roots = [*self.roots, *(tuple(root) for root in other["roots"])][:_ROOTS]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to tell."""
        return not self.files and not any(self.counts.values())


def reason_without_ids(step: Step) -> str:
    """Why a step has no completion ids, in words that are the same for all such steps."""
    if step.token_issue is not None:
        # The rest is particular to one call, such as what a server answered.
        return step.token_issue.message.partition(" (")[0].removesuffix(".")
    if step.status == "ok":
        return "the answer has no completion"
    return {"error": "the call failed", "cached": "the answer came from a cache"}.get(
        step.status, f"the call is {step.status}"
    )


_tally = Tally()
# A forked process has written nothing yet.
renew_after_fork(_tally, Tally.reset)

is_unanswered = False
"""Whether calls of this process go to the model, while ``rollout-trace fork`` answers those of the first one."""
why: str | None = None
"""Why the program of the run, which this process waits for, loads no recorder itself; None where it does."""
_patches: Patches | None = None
_reported_in: int | None = None
"""The process that has told what it recorded."""


def watch() -> None:
    """Counts what is written, and has the end of this process, and of those forked from it, close and tell."""
    global _patches
    if _patches is not None:
        return
    sink.on_written.append(_tally.add)
    process_end.add_closer(_end_program, first=True)
    process_end.add_closer(report)
    _patches = Patches()

    def closing_before(exit_now: Callable[[int], Any]) -> Callable[[int], Any]:
        def _exit(status: int) -> Any:
            # The program ends, whatever happens here.
            with contextlib.suppress(Exception):
                process_end.close_all()
            return exit_now(status)

        return _exit

    # It runs no function of `atexit`, and ends every process that `multiprocessing` has forked.
    _patches.replace(os, "_exit", closing_before)


def _end_program() -> None:
    """Closes the program's trajectory. Runs before what closes the others, as aborted."""
    if is_first():
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
    if not is_first():
        _leave(_tally)
        return
    total = gathered(_tally)
    if total.files:
        guard.run_all("reward", lambda: rewards.give_to_written(total.roots))
    if total.counts["unanswered"]:
        guard.warn(
            f"{_many(total.counts['unanswered'], 'call')} of processes that the program started went to the model: "
            "rollout-trace fork answers only the calls of its first process."
        )
    if "ROLLOUT_TRACE_QUIET" not in os.environ and sys.stderr is not None:
        show(total, sys.stderr, why)
    process_end.keep_interrupt()


def is_first() -> bool:
    """Whether this is the process whose end is the end of the run."""
    return _first_id() == str(os.getpid())


def _first_id() -> str:
    """Id of the process whose end is the end of the run, the first Python process of the command; empty without one."""
    return os.environ.get("ROLLOUT_TRACE_FIRST", "").partition(":")[2].partition(":")[0]


def _leave(own: Tally) -> None:
    """Leaves the counts of this process for the first one of the run, if that runs, in a file beside the output."""
    counts, first = own.as_json(), _first_id()
    if own.is_empty or not first.isdigit() or sys.platform == "win32":
        return
    try:
        os.kill(int(first), 0)
    except OSError:
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
        parts = [_many(sum(total.files.values()), "trajectory"), _many(counts["steps"], "step")]
        for name, what in (("input", "prompt"), ("output", "sampled")):
            at_least = "at least " if counts[f"{name}_unknown"] else ""
            if counts[name] or not at_least:
                parts.append(f"{at_least}{counts[name]:,} {what} tokens")
        own = os.environ.get(OUTPUT)
        files = map(_near, sorted(total.files, key=lambda path: (path != own, path)))
        lines.append(f"{', '.join(parts)} in {', '.join(map(printable, files))}")
        missing = counts["steps"] - counts["with_ids"]
        if missing:
            lines.append(f"no token ids in {missing:,} of {_many(counts['steps'], 'step')}: {_reasons(total)}")
    elif not counts["trajectories_lost"] and not counts["orphans"]:
        nothing = " ".join(NOTHING.removeprefix(_PREFIX).split())
        lines.append(nothing if why is None else f"nothing was recorded: {printable(why)}, and {_NOT_ASKED}")
    if counts["orphans"]:
        lines.append(f"no file has {_many(counts['orphans'], 'call')} of trajectories that had closed already")
    if counts["not_model_calls"]:
        lines.append(f"{_many(counts['not_model_calls'], 'request')} looked like a model call but got another answer")
    if counts["trajectories_lost"]:
        lost = counts["trajectories_lost"]
        lines.append(f"{_many(lost, 'trajectory')} could not be written; the log above has the reason")
    if counts["recorder_errors"]:
        lines.append(f"{_many(counts['recorder_errors'], 'failure')} of the recorder; the log above has them")
    return lines


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
