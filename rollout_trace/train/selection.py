"""Which steps can be trained on token for token, and why the others cannot: one word for each reason."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, TypedDict, get_args

from rollout_trace._field_docs import document_fields
from rollout_trace.data.model import StepStatus, shared
from rollout_trace.data.tokens import Span
from rollout_trace.train.check_codes import ISSUE_CODES

if TYPE_CHECKING:
    from typing import Literal

    from rollout_trace.data.model import Step
    from rollout_trace.data.tokens import FloatArray


@document_fields
class SequenceOptions(TypedDict, total=False):
    """The options of ``Trajectory.sequences()``, which token-level exports take as well."""

    linear: bool
    """Only the last sequence may go on, as SkyRL and Tinker do it; otherwise the longest that is a prefix."""
    on_drift: Literal["split", "raise", "drop"]
    """A prompt that repeats an earlier completion in other ids: begin a new sequence (the default), raise DriftError,
    or leave out the sequences that would begin so."""
    max_length: int | None
    """Tokens a sequence may have; the rest of all its arrays is cut off."""
    truncate: Literal["token", "turn"]
    """Where ``max_length`` cuts: after exactly as many tokens (the default), or after the last completion that is whole
    within them."""
    policy_versions: Collection[str | int] | Callable[[str | int | None], bool] | None
    """Versions of the weights that all usable steps of a trajectory must be of, or a function that is true of them:
    one step of another version leaves out all, ``policy_version``."""
    reward: Literal["copy", "last", "split"]
    """The trajectory's reward goes to each sequence (the default), to the one with the last step while the others get
    0, or in equal parts to all."""
    include: Callable[[Step], bool] | None
    """Which of the usable steps to take."""
    allow: Collection[str]
    """Reasons for leaving steps out that do not count: ``{"retokenized", "not_trainable"}``."""


NEVER_ALLOWED = {
    "ids_missing": "there are no completion ids",
    "prompt_ids_missing": "there are no prompt ids",
    "empty_completion": "nothing was sampled",
    "lengths_differ": "there is not one logprob for each id",
    "logprobs_not_finite": "a logprob is not finite",
    "logprobs_positive": "a logprob is above 0",
}
"""Of ids and logprobs as they are; a ``token_issue`` of the same name, whose step holds sound ids, can be allowed."""

_WORDS = (
    ("on_drift", ("split", "raise", "drop")),
    ("truncate", ("token", "turn")),
    ("reward", ("copy", "last", "split")),
)  # fmt: skip
NO_OPTIONS = SequenceOptions()
INFINITY = float("inf")


def check_options(options: SequenceOptions) -> None:
    """Refuses what no option can be.

    Raises:
        TypeError: there is no such option, or ``allow`` is a text.
        ValueError: an option has no such value.
    """
    unknown = options.keys() - SequenceOptions.__annotations__.keys()
    if unknown:
        known = ", ".join(SequenceOptions.__annotations__)
        raise TypeError(f"sequences() has no option {', '.join(sorted(unknown))}; it has {known}.")
    for name, words in _WORDS:
        value = options.get(name, words[0])
        if value not in words:
            raise ValueError(f"{name}={value!r}: expected {', '.join(map(repr, words))}.")
    limit = options.get("max_length")
    if limit is not None and limit < 1:
        raise ValueError(f"max_length={limit!r}: expected a number of tokens, or None for no limit.")
    check_allow(options.get("allow", ()))
    versions = options.get("policy_versions")
    if isinstance(versions, (str, int)):
        raise TypeError(f"policy_versions={versions!r}: expected a set, such as {{{versions!r}}}, or a function.")


def is_of_versions(steps: Iterable[Step], options: SequenceOptions) -> bool:
    """Whether all steps are of the policy versions that the options ask for."""
    versions = options.get("policy_versions")
    if versions is None:
        return True
    wanted = versions if callable(versions) else versions.__contains__
    return all(wanted(version) for version in {step.policy_version for step in steps})


REASONS = frozenset({*get_args(StepStatus), *ISSUE_CODES, *NEVER_ALLOWED, "not_trainable", "retokenized"}) - {"ok"}
"""Why a step is left out: what ``allow=`` may name."""


def check_allow(allow: Collection[str]) -> None:
    """Refuses what no set of reasons can be, a text above all: any part of it would be a reason.

    Raises:
        TypeError: it is none.
        ValueError: there is no such reason.
    """
    if isinstance(allow, str):
        raise TypeError(f"allow={allow!r}: expected a set of reasons, such as {{{allow!r}}}.")
    if not isinstance(allow, Collection):
        raise TypeError(f"allow={allow!r}: expected a set of reasons.")
    unknown = [reason for reason in allow if reason not in REASONS]
    if unknown:
        from difflib import get_close_matches

        near = get_close_matches(str(unknown[0]), REASONS, 1)
        meant = f"; did you mean {near[0]!r}?" if near else "."
        known = ", ".join(sorted(REASONS))
        raise ValueError(f"allow: {unknown[0]!r} is no reason for leaving a step out{meant} The reasons: {known}.")


def left_out(step: Step, options: SequenceOptions = NO_OPTIONS) -> str | None:
    """Why a step is not trained on: a status, ``not_trainable``, the code of its ``token_issue``, or what its ids or
    logprobs break; None where it is."""
    allowed = options.get("allow", ())
    for reason in (_by_its_record(step, allowed), _by_its_tokens(step)):
        if reason is not None:
            return reason
    if step.token_source == "retokenized" and "retokenized" not in allowed:
        return "retokenized"
    include = options.get("include")
    return "excluded" if include is not None and not include(step) else None


def n_sampled(step: Step) -> int | None:
    """How many completion ids a step has, without making the array of them; None where it has none."""
    held = shared(step, "completion_token_ids")
    return None if held is None else held.stop - held.start if isinstance(held, Span) else len(held)


def _by_its_record(step: Step, allowed: Collection[str]) -> str | None:
    if step.status != "ok" and step.status not in allowed:
        return step.status
    if not step.trainable and "not_trainable" not in allowed:
        return "not_trainable"
    issue = step.token_issue
    return issue.code if issue is not None and issue.code not in allowed else None


def _by_its_tokens(step: Step) -> str | None:
    length = n_sampled(step)
    if length is None:
        return "ids_missing"
    if shared(step, "prompt_token_ids") is None:
        return "prompt_ids_missing"
    if not length:
        return "empty_completion"
    logprobs = step.logprobs
    if logprobs is None:
        return None
    return "lengths_differ" if len(logprobs) != length else of_logprobs(logprobs)


def of_logprobs(logprobs: FloatArray) -> str | None:
    """Why logprobs cannot be trained on; None where they can."""
    if not len(logprobs):
        return None
    # A NaN is the least and the greatest of what it stands among, and no comparison with it holds.
    least, greatest = logprobs.min(), logprobs.max()
    if not (least > -INFINITY and greatest < INFINITY):
        return "logprobs_not_finite"
    return "logprobs_positive" if greatest > 0 else None
