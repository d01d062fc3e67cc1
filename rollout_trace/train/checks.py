"""Checks of a trajectory before training: missing or inconsistent data, and data that is valid but suspicious.

``Step.token_issue`` and the report of ``Trajectory.sequences()`` use the same codes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rollout_trace._field_docs import document_fields
from rollout_trace.data.model import CUT_OFF, shared
from rollout_trace.train.check_codes import CODES, Grade
from rollout_trace.train.problems import InRange, field_problems
from rollout_trace.train.selection import advantage_problem, logprobs_problem, n_prompt, n_sampled, reason_left_out
from rollout_trace.train.shaping import biased, constrained, remedy, temperature, truncated
from rollout_trace.wire.profiles import sends_no_ids

if TYPE_CHECKING:
    from rollout_trace.data.model import Step, TokenIssue
    from rollout_trace.data.tokens import FloatArray, IntArray
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.train.sequence import Sequences

DEGENERATE_LENGTH = 64
"""Minimum length of a completion, in ids, for ``degenerate``: a shorter run of one id is often a ruler of dashes."""

_ROOTS = (
    "Usual causes: several agents in one trajectory (open an rt.trajectory for each), a history that was reset, "
    "or a system prompt that changes (a time in it)."
)


@document_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A result of a check. ``str(finding)`` is one line."""

    code: str
    """A key of ``CODES``, or the code of a ``token_issue`` that a newer version wrote."""
    grade: Grade
    """``fatal``: the step, or the trajectory, cannot be trained on. ``warning``: it can, but may spoil training.
    ``info``: no fault."""
    message: str
    """A sentence with what was found."""
    step_id: str | None = None
    """None for a finding on the whole trajectory."""
    position: int | None = None
    """Index of a token in the completion, or in the prompt where ``message`` names it; None where no token is meant."""

    def __str__(self) -> str:
        places = {"step": self.step_id, "token": self.position}
        where = ", ".join(f"{name} {value}" for name, value in places.items() if value is not None)
        line = f"{self.grade}: {self.code}{f' ({where})' if where else ''}: {self.message}"
        return " ".join(line.split())


def check(trajectory: Trajectory, *, vocab_size: int | None = None) -> list[Finding]:
    """Findings on the steps of a trajectory, in their order, then on the trajectory as a whole.

    Every step that ``trajectory.sequences()`` leaves out has a finding whose code is the reason. Steps that are not
    trainable, and completions that are cached or superseded, are not checked further.

    Args:
        trajectory: the trajectory to check; it is not changed.
        vocab_size: valid ids are below this number. None: any int32 from 0 on is valid.
    """
    return check_with_rows(trajectory, vocab_size=vocab_size)[0]


def check_with_rows(trajectory: Trajectory, *, vocab_size: int | None = None) -> tuple[list[Finding], Sequences]:
    """The findings of ``check``, and the rows that they were made from, which are built once.

    The rows are those of ``trajectory.sequences()``, except that steps whose advantage does not fit their completion,
    for which it raises, are left out as ``excluded``; each has a finding ``advantage_invalid``.
    """
    in_range = InRange(vocab_size)
    findings = [item for step in trajectory.steps for item in _step_findings(step, in_range)]
    # `sequences()` raises for an advantage that does not fit; here it is a finding of its step.
    rows = trajectory.sequences(include=lambda step: not any(_advantage_findings(step)))
    findings += [*_reward_findings(trajectory), *_sequence_findings(trajectory, rows)]
    return findings + [_finding(code, message) for code, message in field_problems(trajectory.steps)], rows


def _finding(
    code: str, message: str, step_id: str | None = None, position: int | None = None, *, unknown: Grade = "fatal"
) -> Finding:
    """A finding with the grade of its code; with the grade ``unknown`` where the code is not in the table."""
    grade = CODES[code][0] if code in CODES else unknown
    return Finding(code=code, grade=grade, message=message, step_id=step_id, position=position)


# One step


def _step_findings(step: Step, in_range: InRange) -> Iterator[Finding]:
    if step.status != "ok":
        # A status that a newer version wrote: no status of this version is fatal either.
        yield _finding(step.status, _status_message(step), step.id, unknown="warning")
    if not step.trainable:
        yield _finding("not_trainable", "trainable is False: it is left out of the sequences.", step.id)
        if step.token_issue is not None and step.token_issue.code == "redacted":
            # The recorder set it, not the user: why is not known otherwise.
            yield _issue_finding(step, step.token_issue)
    if not step.trainable or step.status in ("cached", "superseded"):
        return
    if step.token_issue is not None:
        yield _issue_finding(step, step.token_issue)
    elif step.status == "ok":
        yield from _missing_findings(step)
    yield from _id_findings(step, in_range)
    yield from _logprob_findings(step)
    yield from _sampling_findings(step)
    yield from _advantage_findings(step)
    if not _is_finite(step.reward):
        yield _finding("reward_not_finite", f"reward is {step.reward!r}; expected a finite number.", step.id)
    if step.finish_reason in CUT_OFF:
        yield _finding("truncated", f"finish_reason is {step.finish_reason!r}: the completion has no end.", step.id)


def _issue_finding(step: Step, issue: TokenIssue) -> Finding:
    if issue.code == "ids_missing" and sends_no_ids(step.engine, step.protocol):
        # Nothing was lost: there are no ids to be had.
        return Finding(code=issue.code, grade="info", message=issue.message, step_id=step.id)
    return _finding(issue.code, issue.message, step.id)


def _status_message(step: Step) -> str:
    cause = "" if step.error is None else f" ({step.error.type}: {step.error.message})"
    return f"status is {step.status!r}{cause}: it is left out of the sequences."


def _missing_findings(step: Step) -> Iterator[Finding]:
    """Findings on missing ids and logprobs, for a step without a ``token_issue`` that would explain them."""
    length = n_sampled(step)
    if length is None:
        yield _finding("ids_missing", "completion_token_ids is None.", step.id)
    elif not length:
        yield _finding("empty_completion", "completion_token_ids is empty.", step.id)
    elif step.logprobs is None:
        yield _finding("logprobs_missing", "logprobs is None: importance ratios need them recomputed.", step.id)
    if n_prompt(step) is None:
        yield _finding("prompt_ids_missing", "prompt_token_ids is None.", step.id)


def _id_findings(step: Step, in_range: InRange) -> Iterator[Finding]:
    import numpy as np

    vocab_size = in_range.vocab_size
    for name in ("prompt_token_ids", "completion_token_ids"):
        if in_range(shared(step, name)):
            continue
        ids: IntArray = getattr(step, name)
        bad = (ids < 0) if vocab_size is None else (ids < 0) | (ids >= vocab_size)
        if bad.any():
            at = int(np.argmax(bad))
            below = "2147483648" if vocab_size is None else f"vocab_size {vocab_size}"
            message = f"{name}[{at}] is {ids[at]}; {bad.sum()} of {len(ids)} ids are not from 0 to below {below}."
            yield _finding("ids_out_of_range", message, step.id, at)
    if step.token_source == "retokenized":
        message = 'the ids were made from text; sequences(allow={"retokenized"}) takes them all the same.'
        yield _finding("retokenized", message, step.id)
    length = n_sampled(step)
    if length is None or length < DEGENERATE_LENGTH:
        return
    completion = step.completion_token_ids
    # A run of more than half of the ids has about as many pairs of equal neighbours: most completions end here.
    if completion is not None and 2 * (np.count_nonzero(completion[1:] == completion[:-1]) + 1) > length:
        start, length = _longest_run(completion)
        if 2 * length > len(completion):
            message = f"id {completion[start]} stands {length} times in a row in {len(completion)} ids."
            yield _finding("degenerate", message, step.id, start)


def _longest_run(ids: IntArray) -> tuple[int, int]:
    """Start and length of the longest run of one id; ``ids`` must not be empty."""
    import numpy as np

    starts = np.flatnonzero(np.concatenate(([True], ids[1:] != ids[:-1])))
    lengths = np.diff(starts, append=len(ids))
    longest = int(np.argmax(lengths))
    return int(starts[longest]), int(lengths[longest])


def _logprob_findings(step: Step) -> Iterator[Finding]:
    logprobs, length = step.logprobs, n_sampled(step)
    if logprobs is None:
        return
    if length is not None and length != len(logprobs):
        message = f"{length} completion ids but {len(logprobs)} logprobs."
        yield _finding("lengths_differ", message, step.id, min(length, len(logprobs)))
    if logprobs_problem(logprobs) is not None:
        yield from _unsound_logprobs(step, logprobs)
    if len(logprobs) and not logprobs.any():
        message = f"all {len(logprobs)} logprobs are 0: the model had no choice in these tokens."
        yield _finding("logprobs_all_zero", message, step.id)


def _unsound_logprobs(step: Step, logprobs: FloatArray) -> Iterator[Finding]:
    import numpy as np

    # The decoder writes missing logprobs as NaN: that issue has its finding already.
    if step.token_issue is None or step.token_issue.code != "logprobs_incomplete":
        yield from _bad_logprobs(step, "logprobs_not_finite", logprobs, ~np.isfinite(logprobs), "not finite")
    yield from _bad_logprobs(step, "logprobs_positive", logprobs, (logprobs > 0) & np.isfinite(logprobs), "above 0")


def _bad_logprobs(step: Step, code: str, logprobs: FloatArray, bad: Any, what: str) -> Iterator[Finding]:
    if bad.any():
        at = int(bad.argmax())
        message = f"logprobs[{at}] is {logprobs[at]}; {bad.sum()} of {len(logprobs)} are {what}."
        yield _finding(code, message, step.id, at)


def _sampling_findings(step: Step) -> Iterator[Finding]:
    """Findings on settings for which a trainer's forward pass gives other logprobs than those of the sampling
    distribution."""
    requested = temperature(step)
    if step.logprobs is not None and step.logprobs_mode == "raw" and requested is not None and requested != 1:
        message = f"logprobs_mode is 'raw' and temperature {requested}: they are not of the sampling distribution."
        yield _finding("logprobs_not_sampled", message, step.id)
    if not n_sampled(step):
        return
    for code, shaped_by, what in (
        ("constrained_sampling", constrained(step), "a grammar decided which tokens could follow"),
        ("distribution_truncated", truncated(step), "some tokens could not be sampled"),
        ("distribution_biased", biased(step), "tokens were made more or less likely"),
    ):
        if shaped_by is not None:
            message = f"{what} ({shaped_by}): a trainer's own forward pass does not give what was sampled from."
            yield _finding(code, f"{message} What helps: {remedy(step, code, shaped_by)}.", step.id)


def _advantage_findings(step: Step) -> Iterator[Finding]:
    if step.advantage is None:
        return
    problem = advantage_problem(step, n_sampled(step))
    if problem is not None:
        yield _finding("advantage_invalid", problem[0], step.id, problem[1])


def _is_finite(reward: Any) -> bool:
    """Returns whether a reward is finite; True for None, which means not scored."""
    try:
        return reward is None or math.isfinite(reward)
    except (TypeError, OverflowError):
        return False


# The whole trajectory


def _reward_findings(trajectory: Trajectory) -> Iterator[Finding]:
    if not _is_finite(trajectory.reward):
        yield _finding("reward_not_finite", f"reward is {trajectory.reward!r}; expected a finite number.")
    if trajectory.reward is None and all(step.reward is None for step in trajectory.steps):
        yield _finding("reward_missing", "reward is None, and so is that of every step: not scored.")


def _sequence_findings(trajectory: Trajectory, rows: Sequences) -> Iterator[Finding]:
    report = rows.report
    if not report.sequences:
        yield _finding("nothing_trainable", f"none of {len(trajectory.steps)} steps can be trained on.")
    if report.roots > 1:
        yield _finding("several_roots", f"prompts begin in {report.roots} different ways. {_ROOTS}")
    if report.forks:
        times = "once" if report.forks == 1 else f"{report.forks} times"
        message = f"a prompt was continued in another way than before, {times}; each continuation is a row of its own."
        yield _finding("forks", message)
    for event in report.drift:
        yield _finding("drift", str(event), event.step_id, event.position)
    yield from _abort_findings(trajectory, rows)
    if _modes_differ(trajectory.steps) and _modes_differ(one for one in trajectory.steps if not reason_left_out(one)):
        yield _finding("logprobs_modes_differ", "logprobs_mode is 'raw' in some steps and 'processed' in others.")


def _modes_differ(steps: Iterable[Step]) -> bool:
    return {"raw", "processed"} <= {step.logprobs_mode for step in steps if step.logprobs is not None}


def _abort_findings(trajectory: Trajectory, rows: Sequences) -> Iterator[Finding]:
    """Findings on aborted answers that no step continues: one that drifted from an answer continues it all the same."""
    continued = {step_id for row in rows for step_id in row.step_ids[:-1]}
    continued.update(event.previous_step_id for event in rows.report.drift)
    used = {step_id for row in rows for step_id in row.step_ids}
    for step in trajectory.steps:
        if step.finish_reason == "abort" and step.id in used and step.id not in continued:
            message = f"finish_reason is 'abort' after {n_sampled(step)} ids, and no later prompt goes on from them."
            yield _finding("aborted", message, step.id)
