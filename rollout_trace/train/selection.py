"""Which steps can be trained on token for token, and the reason code of each step that cannot."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from operator import attrgetter, index
from typing import TYPE_CHECKING, Any, SupportsIndex, TypedDict, get_args

from rollout_trace import guard
from rollout_trace._field_docs import document_fields
from rollout_trace._wrong_use import did_you_mean
from rollout_trace.data.model import STORED, StepStatus, stored_ids
from rollout_trace.data.tokens import FLOAT32_MAX, Span
from rollout_trace.data.user_values import brief
from rollout_trace.train.check_codes import ISSUE_CODES
from rollout_trace.train.extras import versions_of
from rollout_trace.train.shaping import constrained
from rollout_trace.wire.profiles import sends_no_ids

if TYPE_CHECKING:
    from typing import Literal

    from rollout_trace.data.model import Step
    from rollout_trace.data.tokens import FloatArray
    from rollout_trace.data.trajectory import Trajectory


@document_fields
class SequenceOptions(TypedDict, total=False):
    """The options of ``Trajectory.sequences()`` and of token-level exports."""

    linear: bool
    """True: extend only the last sequence, as in SkyRL and Tinker. False (the default): extend the longest sequence
    that is a prefix of the prompt."""
    on_drift: Literal["split", "raise", "drop", "mask"]
    """What to do if a prompt repeats an earlier completion in other ids. ``split`` (the default): begin a new sequence;
    ``raise``: raise DriftError; ``drop``: leave out the sequence that would begin there; ``mask``, with ``within``:
    continue the sequence, with the prompt's ids and mask 0 from the first differing id on."""
    within: int
    """With ``on_drift="mask"``: maximum number of sampled tokens to mask at one place, counted from the completion's
    first differing id to its end. If there are more, or it is the whole completion, a new sequence begins."""
    max_length: int | None
    """Maximum length of a sequence in tokens; all its arrays are truncated to it. None: no limit."""
    max_prompt_length: int | None
    """Maximum number of tokens before the first sampled one. Sequences with more are left out, since a truncated prompt
    is a different prompt. None: no limit."""
    max_response_length: int | None
    """Maximum number of tokens from the first sampled one on; the rest is cut off, as with ``max_length``. None: no
    limit."""
    truncate: Literal["token", "turn"]
    """Where ``max_length`` and ``max_response_length`` cut: after exactly that many tokens (the default), or after the
    last completion that fits completely."""
    policy_versions: Collection[str | int] | Callable[[str | int | None], bool] | None
    """Allowed versions of the weights, or a function that returns True for them. If any part of a usable step has
    another version, all steps of the trajectory are left out, with the reason ``policy_version``. Versions sent by
    engines are strings: ``{"7"}``. None: any."""
    reward: Literal["copy", "last", "split"]
    """How to assign the trajectory's reward: all of it to each sequence (the default), all to the one with the last
    step and 0 to the others, or in equal parts to all."""
    include: Callable[[Step], bool] | None
    """A function that returns True for the usable steps to keep; the others are left out as ``excluded``."""
    constrained: Literal["keep", "drop"]
    """``drop``: leave out steps that were sampled under a grammar, as ``constrained_sampling``; their tokens stay in
    the prompts of later steps, with mask 0. ``keep`` (the default): keep them."""
    allow: Collection[str]
    """Reasons that do not exclude a step, such as ``{"retokenized", "not_trainable"}``."""


NEVER_ALLOWED = ("ids_missing", "prompt_ids_missing", "empty_completion", "lengths_differ", "logprobs_not_finite",
                 "logprobs_positive")  # fmt: skip
"""Faults of the arrays themselves. A ``token_issue`` of the same name can be allowed where the arrays are sound."""

_CHOICES = (
    ("on_drift", ("split", "raise", "drop", "mask")),
    ("truncate", ("token", "turn")),
    ("reward", ("copy", "last", "split")),
    ("constrained", ("keep", "drop")),
)  # fmt: skip
LIMITS = ("max_length", "max_prompt_length", "max_response_length")
"""Options with a number of tokens."""
NO_OPTIONS = SequenceOptions()
INFINITY = float("inf")


def check_options(options: SequenceOptions) -> None:
    """Validates names and values of options; raises TypeError or ValueError."""
    unknown = options.keys() - SequenceOptions.__annotations__.keys()
    if unknown:
        known = ", ".join(SequenceOptions.__annotations__)
        raise TypeError(f"sequences() has no option {', '.join(sorted(unknown))}; it has {known}.")
    for name, choices in _CHOICES:
        value = options.get(name, choices[0])
        if value not in choices:
            raise ValueError(f"{name}={value!r}: expected {', '.join(map(repr, choices))}.")
    for name in LIMITS:
        limit: Any = options.get(name)
        if limit is not None and not is_count(limit):
            raise ValueError(f"{name}={limit!r}: expected a number of tokens, or None for no limit.")
    masks = options.get("on_drift") == "mask"
    if "within" in options:
        if not is_count(options["within"], 0):
            raise ValueError(f"within={options['within']!r}: expected a number of tokens, from 0 on.")
        if not masks:
            raise ValueError(f'within={options["within"]!r} works only with on_drift="mask". Give both, or neither.')
    elif masks:
        raise ValueError('on_drift="mask" needs within=: how many sampled tokens may lose their mask at one place.')
    check_allow(options.get("allow", ()))
    versions = options.get("policy_versions")
    if isinstance(versions, (str, int)):
        raise TypeError(f"policy_versions={versions!r}: expected a set, such as {{{versions!r}}}, or a function.")


def is_count(value: object, least: int = 1) -> bool:
    """Returns whether a value is a whole number, of numpy's too, of at least ``least``; ``True`` is none."""
    return isinstance(value, SupportsIndex) and not isinstance(value, bool) and index(value) >= least


def have_wanted_versions(steps: Iterable[Step], options: SequenceOptions) -> bool:
    """Returns whether every step's policy version is one that the options allow."""
    versions = options.get("policy_versions")
    if versions is None:
        return True
    found: set[str | int | None] = set()
    for step in steps:
        # None where it is not known which version sampled the completion.
        found.update([span.version for span in versions_of(step, n_sampled(step) or 0)] or (None,))
    return all(map(versions if callable(versions) else versions.__contains__, found))


REASONS = frozenset(
    {*get_args(StepStatus), *ISSUE_CODES, *NEVER_ALLOWED, "not_trainable", "retokenized", "constrained_sampling"}
) - {"ok"}
"""The reasons for leaving a step out that ``allow=`` may name."""


def check_allow(allow: Collection[str]) -> None:
    """Validates a set of reasons. A string raises TypeError: ``in`` would match any part of it."""
    if isinstance(allow, str) or not isinstance(allow, Collection):
        example = f", such as {{{allow!r}}}" if isinstance(allow, str) else ""
        raise TypeError(f"allow={allow!r}: expected a set of reasons{example}.")
    unknown = [reason for reason in allow if reason not in REASONS]
    if unknown:
        meant = did_you_mean(unknown[0], sorted(REASONS))
        raise ValueError(f"allow: {unknown[0]!r} is not a reason for leaving a step out. {meant}")


def reason_left_out(step: Step, options: SequenceOptions = NO_OPTIONS) -> str | None:
    """Says why a step is not trained on; None if it is.

    The reason is a status, ``not_trainable``, the code of its ``token_issue``, or the fault of its ids or logprobs.
    """
    allowed = options.get("allow", ())
    if step.status != "ok" and step.status not in allowed:
        return step.status
    if not step.trainable and "not_trainable" not in allowed:
        return "not_trainable"
    if step.token_issue is not None and step.token_issue.code not in allowed:
        return step.token_issue.code
    if (problem := _token_problem(step)) is not None:
        return problem
    if step.token_source == "retokenized" and "retokenized" not in allowed:
        return "retokenized"
    if options.get("constrained") == "drop" and "constrained_sampling" not in allowed and constrained(step) is not None:
        return "constrained_sampling"
    include = options.get("include")
    return "excluded" if include is not None and not include(step) else None


def n_sampled(step: Step) -> int | None:
    """Number of completion ids of a step, without building their array; None where it has none."""
    return _n_ids(stored_ids(step)[1])


def n_prompt(step: Step) -> int | None:
    """Number of prompt ids of a step; None where it has none."""
    return _n_ids(stored_ids(step)[0])


_stored_tokens = attrgetter(*(STORED + name for name in ("prompt_token_ids", "completion_token_ids", "logprobs")))


def _n_ids(ids: Any) -> int | None:
    return None if ids is None else ids.stop - ids.start if type(ids) is Span else len(ids)


def _token_problem(step: Step) -> str | None:
    prompt, completion, logprobs = _stored_tokens(step)
    length = _n_ids(completion)
    if length is None:
        return "ids_missing"
    if prompt is None:
        return "prompt_ids_missing"
    if not length:
        return "empty_completion"
    if logprobs is None:
        return None
    return "lengths_differ" if len(logprobs) != length else logprobs_problem(logprobs)


def logprobs_problem(logprobs: FloatArray) -> str | None:
    """The code of what makes logprobs unusable for training; None where they are sound."""
    import numpy as np

    if not len(logprobs):
        return None
    # NaN propagates through min and max, and every comparison with it is False: hence `not (a and b)`. The methods of
    # arrays take half as long again, and this is asked of every step.
    least, greatest = np.minimum.reduce(logprobs), np.maximum.reduce(logprobs)
    if not (least > -INFINITY and greatest < INFINITY):
        return "logprobs_not_finite"
    return "logprobs_positive" if greatest > 0 else None


def advantage_array(step: Step, length: int) -> FloatArray | None:
    """float32 [length of the completion], read-only; None without an advantage. Raises ValueError if it is unsound."""
    import numpy as np

    if step.advantage is None:
        return None
    problem = advantage_problem(step, length)
    if problem is not None:
        raise ValueError(f"step {step.id!r}: {problem[0]}")
    return np.broadcast_to(np.asarray(step.advantage).astype(np.float32), (length,))


def advantage_problem(step: Step, length: int | None) -> tuple[str, int | None] | None:
    """A sentence on what is wrong with an advantage, and the index of the token; None where it is sound.

    Sound is a finite number, or one for each token. ``length`` None: the number of tokens is not known, and any fits.
    """
    import numpy as np

    if step.advantage is None:
        return None
    try:
        values = np.asarray(step.advantage)
    except ValueError:  # Lists of different lengths.
        values = np.empty((0, 0), object)
    if values.dtype.kind not in "iuf" or values.ndim > 1:
        return f"advantage is {brief(step.advantage)}; expected a number, or one for each completion id.", None
    if values.ndim and length is not None and len(values) != length:
        return f"{length} completion ids but {len(values)} advantages.", min(length, len(values))
    each = np.atleast_1d(values)
    # Not `> FLOAT32_MAX`: every comparison with NaN is False.
    bad = ~(np.abs(each) <= FLOAT32_MAX)
    if not bad.any():
        return None
    at = int(bad.argmax())
    return f"an advantage is {each[at]}; expected a number that float32 holds.", at if values.ndim else None


def warn_without_rows(trajectory: Trajectory) -> None:
    """Warns of a trajectory without rows, whose steps have no token ids: what would make some."""
    come = 'They come where the engine is named when recording, rt.wrap_openai(client, engine="vllm")'
    if all(sends_no_ids(step.engine, step.protocol) for step in trajectory.steps):
        come = "What was called sends none"
    guard.warn_once(
        "no-rows",
        f"trajectory {trajectory.id} has no rows to train on: its steps have no token ids. {come}; "
        "trajectory.retokenize(tokenizer) makes ids from the texts.",
    )
