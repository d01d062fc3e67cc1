"""Checks of a trajectory before training: missing or inconsistent data, and data that is valid but suspicious.

``Step.token_issue`` and the report of ``Trajectory.sequences()`` use the same codes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from rollout_trace.data.costs import provider_cost
from rollout_trace.data.counts import amount_of, is_count
from rollout_trace.data.extras import EXTRAS
from rollout_trace.data.model import CUT_OFF, Usage, shared
from rollout_trace.data.tokens import Segment, Span
from rollout_trace.train.check_codes import Finding, finding
from rollout_trace.train.extras import misfit
from rollout_trace.train.selection import advantage_problem, logprobs_problem, n_prompt, n_sampled, reason_left_out
from rollout_trace.train.sequences import sequences
from rollout_trace.train.shaping import biased, constrained, remedy, temperature, truncated
from rollout_trace.wire.profiles import sends_no_ids

if TYPE_CHECKING:
    from rollout_trace.data.model import Step, TokenIssue
    from rollout_trace.data.tokens import FloatArray, IntArray
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.train.sequence import Sequences

__all__ = ["DEGENERATE_LENGTH", "Finding", "InRange", "check", "check_with_rows"]

_NOT_SENT = frozenset({"not_in_this_form", "refused", "not_sent"})
"""Codes of ``ExtraIssue`` for extras that did not come; those of the others came and were withheld."""
_DEPTH: Final = 3
_TOKENS: Final = re.compile("token", re.IGNORECASE)
_CACHED: Final = re.compile("cache.*token|token.*cache", re.IGNORECASE)
_REASONED: Final = re.compile("(reason|think|thought).*token|token.*(reason|think|thought)", re.IGNORECASE)
_COST: Final = re.compile(r"(^|_)costs?(_|$)|Cost", re.ASCII)
_ERROR: Final = re.compile(r"(\w+_)?err(or)?s?(_?(message|msg|code))?", re.IGNORECASE)
_CALLERS_OWN: Final = frozenset({"metadata"})
DEGENERATE_LENGTH = 64
"""Minimum length of a completion, in ids, for ``degenerate``: a shorter run of one id is often a ruler of dashes."""

_ROOTS = (
    "Usual causes: several agents in one trajectory (open an rt.trajectory for each), a history that was reset, "
    "or a system prompt that changes (a time in it)."
)


def check(trajectory: Trajectory, *, vocab_size: int | None = None) -> list[Finding]:
    """Findings on the steps of a trajectory, in their order, then on the trajectory as a whole.

    Every step that ``trajectory.sequences()`` leaves out has a finding whose code is the reason. Steps that are not
    trainable, and completions that are cached or superseded, are not checked further.
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
    rows = sequences(trajectory, include=lambda step: not any(_advantage_findings(step)))
    findings += [*_reward_findings(trajectory), *_sequence_findings(trajectory, rows)]
    return findings + [finding(code, message) for code, message in _field_problems(trajectory.steps)], rows


# One step


def _step_findings(step: Step, in_range: InRange) -> Iterator[Finding]:
    if step.status != "ok":
        cause = "" if step.error is None else f" ({step.error.type}: {step.error.message})"
        message = f"status is {step.status!r}{cause}: it is left out of the sequences."
        # A status that a newer version wrote: no status of this version is fatal either.
        yield finding(step.status, message, step.id, unknown="warning")
    if not step.trainable:
        yield finding("not_trainable", "trainable is False: it is left out of the sequences.", step.id)
        if step.token_issue is not None and step.token_issue.code == "redacted":
            # The recorder set it, not the user: why is not known otherwise.
            yield _issue_finding(step, step.token_issue)
    if not step.trainable or step.status in ("cached", "superseded"):
        return
    turn = step.exact_turn
    # An answer that did not come says nothing of what was served.
    is_known = step.status == "ok" or step.prompt_token_ids is not None
    if turn is not None and turn.reason is not None and (turn.reason != "not_served" or is_known):
        code = "ids_not_served" if turn.reason == "not_served" else "sent_as_text"
        yield finding(code, f"{turn.reason}: {turn.detail}", step.id)
    if step.token_issue is not None:
        yield _issue_finding(step, step.token_issue)
    elif step.status == "ok":
        yield from _missing_findings(step)
    yield from _id_findings(step, in_range)
    yield from _logprob_findings(step)
    yield from _sampling_findings(step)
    yield from _advantage_findings(step)
    if not _is_finite(step.reward):
        yield finding("reward_not_finite", f"reward is {step.reward!r}; expected a finite number.", step.id)
    if step.finish_reason in CUT_OFF:
        yield finding("truncated", f"finish_reason is {step.finish_reason!r}: the completion has no end.", step.id)


def _issue_finding(step: Step, issue: TokenIssue) -> Finding:
    if issue.code == "ids_missing" and sends_no_ids(step.engine, step.protocol):
        # Nothing was lost: there are no ids to be had.
        return Finding(code=issue.code, grade="info", message=issue.message, step_id=step.id)
    return finding(issue.code, issue.message, step.id)


def _missing_findings(step: Step) -> Iterator[Finding]:
    """Findings on missing ids and logprobs, for a step without a ``token_issue`` that would explain them."""
    length = n_sampled(step)
    if length is None:
        yield finding("ids_missing", "completion_token_ids is None.", step.id)
    elif not length:
        yield finding("empty_completion", "completion_token_ids is empty.", step.id)
    elif step.logprobs is None:
        yield finding("logprobs_missing", "logprobs is None: importance ratios need them recomputed.", step.id)
    if n_prompt(step) is None:
        yield finding("prompt_ids_missing", "prompt_token_ids is None.", step.id)


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
            yield finding("ids_out_of_range", message, step.id, at)
    if step.token_source == "retokenized":
        message = 'the ids were made from text; sequences(allow={"retokenized"}) takes them all the same.'
        yield finding("retokenized", message, step.id)
    length = n_sampled(step)
    if length is None or length < DEGENERATE_LENGTH:
        return
    completion = step.completion_token_ids
    # A run of more than half of the ids has about as many pairs of equal neighbours: most completions end here.
    if completion is not None and 2 * (np.count_nonzero(completion[1:] == completion[:-1]) + 1) > length:
        start, length = _longest_run(completion)
        if 2 * length > len(completion):
            message = f"id {completion[start]} stands {length} times in a row in {len(completion)} ids."
            yield finding("degenerate", message, step.id, start)


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
        yield finding("lengths_differ", message, step.id, min(length, len(logprobs)))
    if logprobs_problem(logprobs) is not None:
        yield from _unsound_logprobs(step, logprobs)
    if len(logprobs) and not logprobs.any():
        message = f"all {len(logprobs)} logprobs are 0: the model had no choice in these tokens."
        yield finding("logprobs_all_zero", message, step.id)


def _unsound_logprobs(step: Step, logprobs: FloatArray) -> Iterator[Finding]:
    import numpy as np

    finite = np.isfinite(logprobs)
    positive = (logprobs > 0) & finite
    faults = [("logprobs_not_finite", ~finite, "not finite"), ("logprobs_positive", positive, "above 0")]
    # The decoder writes missing logprobs as NaN: that issue has its finding already.
    is_told = step.token_issue is not None and step.token_issue.code == "logprobs_incomplete"
    for code, bad, what in faults[is_told:]:
        if bad.any():
            at = int(bad.argmax())
            message = f"logprobs[{at}] is {logprobs[at]}; {bad.sum()} of {len(logprobs)} are {what}."
            yield finding(code, message, step.id, at)


def _sampling_findings(step: Step) -> Iterator[Finding]:
    """Findings on settings for which a trainer's forward pass gives other logprobs than those of the sampling
    distribution."""
    requested = temperature(step)
    if step.logprobs is not None and step.logprobs_mode == "raw" and requested is not None and requested != 1:
        message = f"logprobs_mode is 'raw' and temperature {requested}: they are not of the sampling distribution."
        yield finding("logprobs_not_sampled", message, step.id)
    if not n_sampled(step):
        return
    for code, shaped_by, what in (
        ("constrained_sampling", constrained(step), "a grammar decided which tokens could follow"),
        ("distribution_truncated", truncated(step), "some tokens could not be sampled"),
        ("distribution_biased", biased(step), "tokens were made more or less likely"),
    ):
        if shaped_by is not None:
            message = f"{what} ({shaped_by}): a trainer's own forward pass does not give what was sampled from."
            yield finding(code, f"{message} What helps: {remedy(step, code, shaped_by)}.", step.id)


def _advantage_findings(step: Step) -> Iterator[Finding]:
    if step.advantage is None:
        return
    problem = advantage_problem(step, n_sampled(step))
    if problem is not None:
        yield finding("advantage_invalid", problem[0], step.id, problem[1])


def _is_finite(reward: Any) -> bool:
    """Returns whether a reward is finite; True for None, which means not scored."""
    try:
        return reward is None or math.isfinite(reward)
    except (TypeError, OverflowError):
        return False


# The whole trajectory


def _reward_findings(trajectory: Trajectory) -> Iterator[Finding]:
    if not _is_finite(trajectory.reward):
        yield finding("reward_not_finite", f"reward is {trajectory.reward!r}; expected a finite number.")
    if trajectory.reward is None and all(step.reward is None for step in trajectory.steps):
        yield _unscored(trajectory)


def _unscored(trajectory: Trajectory) -> Finding:
    if trajectory.parent_id is None:
        return finding("reward_missing", "no reward is set, on the trajectory or on a step.")
    # It is its run that is scored, or not: that has a finding of its own.
    message = "no reward of its own. rt.reward(value, children=True) in the run gives its reward to sub-agents too."
    return Finding(code="reward_missing", grade="info", message=message)


def _sequence_findings(trajectory: Trajectory, rows: Sequences) -> Iterator[Finding]:
    report = rows.report
    if not report.sequences:
        yield finding("nothing_trainable", f"none of {len(trajectory.steps)} steps can be trained on.")
    if report.roots > 1:
        yield finding("several_roots", f"prompts begin in {report.roots} different ways. {_ROOTS}")
    if report.forks:
        times = "once" if report.forks == 1 else f"{report.forks} times"
        message = f"a prompt was continued in another way than before, {times}; each continuation is a row of its own."
        yield finding("forks", message)
    for event in report.drift:
        yield finding("drift", str(event), event.step_id, event.position)
    yield from _abort_findings(trajectory, rows)
    if _modes_differ(trajectory.steps) and _modes_differ(one for one in trajectory.steps if not reason_left_out(one)):
        yield finding("logprobs_modes_differ", "logprobs_mode is 'raw' in some steps and 'processed' in others.")


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
            yield finding("aborted", message, step.id)


# Ids that are out of range


class InRange:
    """Called with the stored ids of a step, whether they are all in range. For the steps of one trajectory."""

    def __init__(self, vocab_size: int | None) -> None:
        """``vocab_size``: ids from 0 to below it are in range. None: all that are not negative."""
        self.vocab_size = vocab_size
        self._sound: dict[Segment, int] = {}
        """Segments whose ids are in range, and those of their bases, up to this position."""

    def __call__(self, stored: Any) -> bool:
        """Returns whether what ``shared(step, ...)`` gives is in range. False may be due to an id before a span."""
        if stored is None:
            return True
        return self._is_sound_span(stored) if isinstance(stored, Span) else self._is_sound(stored)

    def _is_sound_span(self, span: Span) -> bool:
        segment: Segment | None = span.segment
        stop, found = span.stop, []
        while segment is not None:
            known = self._sound.get(segment)
            if known is not None and known >= stop:
                break
            begin = segment.start if known is None else known
            if stop > begin:
                if not self._is_sound(segment.own_ids[begin - segment.start : stop - segment.start]):
                    return False
                found.append((segment, stop))
            if known is not None:
                break
            stop = min(stop, segment.start)
            segment = segment.base
        # Only now: one that is not in range, in a base, is in range for none of those above it.
        self._sound.update(found)
        return True

    def _is_sound(self, ids: IntArray) -> bool:
        import numpy as np

        if not len(ids):
            return True
        # Not the methods of the array, which take half as long again.
        least = np.minimum.reduce(ids)
        return bool(least >= 0 and (self.vocab_size is None or np.maximum.reduce(ids) < self.vocab_size))


# Extras, and fields that nothing reads


def _field_problems(steps: Iterable[Step]) -> Iterator[tuple[str, str]]:
    """Yields code and message of each problem with extras and unread fields, with the number of steps that have it."""
    found: dict[tuple[str, str], tuple[str, dict[str, None]]] = {}
    unread = " is in no place that is known; please report the provider and the field."
    for step in steps:
        for code, field, text in _extra_problems(step):
            found.setdefault((code, field), (text, {}))[1][step.id] = None
    for step in steps:
        for code, path in _unread(step) if step.status != "cached" else ():
            found.setdefault((code, f"`{path}`"), (unread, {}))[1][step.id] = None
    for (code, field), (text, ids) in found.items():
        first = next(iter(ids))
        where = f"step {first}" if len(ids) == 1 else f"{len(ids)} steps, the first {first}"
        yield code, f"{field} ({where}){text}"


def _extra_problems(step: Step) -> Iterator[tuple[str, str, str]]:
    """Yields the issues of ``Step.extra_issues``, and extras that do not fit the ids of their step."""
    for issue in step.extra_issues:
        code = "extra_not_sent" if issue.code in _NOT_SENT else "extra_withheld"
        yield code, f"{issue.field}, {issue.code}", f": {issue.message}"
    prompt, sampled = n_prompt(step), n_sampled(step)
    for name in EXTRAS:
        if shared(step, name) is None:
            continue
        if prompt is None or sampled is None:
            yield "extra_withheld", f"{name}, ids_missing", ": without token ids its positions are not known."
        elif (problem := misfit(step, name, prompt, sampled)) is not None:
            yield "extra_withheld", f"{name}, not_aligned", f": {problem}."


def _unread(step: Step) -> Iterator[tuple[str, str]]:
    """Code and path of fields that look like a usage, a cost or an error, and stand in ``extra``: no place is known."""
    usage, completion = step.usage or Usage(), step.completion
    counts, rest = list(_fields("usage.extra", usage.extra)), list(_fields("extra", step.extra))
    rest += _fields("completion.extra", None if completion is None else completion.extra)
    has_cache = usage.cache_read is not None or usage.cache_write is not None
    known = ((_TOKENS, usage.output is not None), (_CACHED, has_cache), (_REASONED, usage.reasoning is not None))
    names = [pattern for pattern, is_known in known if not is_known]
    # Counts are seldom beside the usage where there is one.
    for path, name, value in counts if usage.output is not None else [*counts, *rest]:
        if is_count(value) and value and any(pattern.search(name) for pattern in names):
            yield "usage_unread", path
    # With one's own key OpenRouter's fee is no cost of the call: read, and not known.
    is_own_key = (usage.extra or {}).get("is_byok")
    if step.cost is None and step.choice == 0 and provider_cost(step) is None and not is_own_key:
        costs = (path for path, name, value in [*counts, *rest] if _COST.search(name) and amount_of(value))
        yield from (("usage_unread", path) for path in costs)
    if step.status == "ok" and step.error is None:
        yield from (("error_unread", path) for path, name, value in rest if _ERROR.fullmatch(name) and value)


def _fields(path: str, values: Any, depth: int = _DEPTH) -> Iterator[tuple[str, str, Any]]:
    """Path, name and value of each field of an object and of the objects in it."""
    for name, value in values.items() if isinstance(values, Mapping) and depth else ():
        if name not in _CALLERS_OWN:
            yield f"{path}.{name}", name, value
            yield from _fields(f"{path}.{name}", value, depth - 1)
