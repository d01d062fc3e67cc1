"""Findings: their type, and their codes with grades and meanings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias

from rollout_trace._field_docs import document_fields

Grade: TypeAlias = Literal["fatal", "warning", "info"]
"""``fatal``: the step or trajectory cannot be trained on. ``warning``: it can, but may harm training. ``info``: nothing
is wrong."""

ISSUE_CODES: Mapping[str, tuple[Grade, str]] = MappingProxyType(
    {
        "ids_missing": ("fatal", "the step has no completion ids"),
        "lengths_differ": ("fatal", "not one logprob for each completion id"),
        "ids_unconfirmed": ("fatal", "ids came only in the logprobs, and no count confirms that all came"),
        "ids_differ": ("fatal", "ids and logprobs name different tokens"),
        "several_completions": ("fatal", "a tool loop inside the server: the answer is several completions"),
        "logprobs_partial": ("fatal", "some of the sampled text came without its logprobs"),
        "echo_unresolved": ("fatal", "completions with `echo`: which logprobs are the prompt's is not certain"),
        "nothing_sampled": ("fatal", "completions with `echo`: all logprobs are the prompt's"),
        "stream_inconsistent": ("fatal", "chunks of a stream that no count explains"),
        "usage_differs": ("fatal", "the number of tokens is not the number the engine counted"),
        "logprobs_incomplete": ("fatal", "some logprobs are null or missing"),
        "logprobs_not_finite": ("fatal", "a logprob is NaN or infinite"),
        "logprobs_positive": ("fatal", "a logprob is above 0"),
        "ids_out_of_range": ("fatal", "an id is negative, too large for int32, or not below `vocab_size`"),
        "response_malformed": ("fatal", "a field of the answer had the wrong type and was left out"),
        "protocol_not_decoded": ("fatal", "this version does not read the protocol of the call"),
        "background_not_fetched": ("fatal", "a background answer was never fetched"),
        "bytes_left_out": ("fatal", "the call was longer than `max_call_bytes`, and what was kept is not all of it"),
        "recorder_failed": ("fatal", "the recorder itself failed during the call"),
        "not_on_wire": ("fatal", "a framework reported the call, and its bytes were not recorded: there are no ids"),
        "redacted": ("fatal", "text of the step was redacted, and its ids were removed with it"),
        "cached": ("info", "answered without a call: nothing was sampled"),
    }
)
"""The codes of ``Step.token_issue``, with grade and meaning; checks use some of them for findings of their own."""

CODES: Mapping[str, tuple[Grade, str]] = MappingProxyType(
    {
        **ISSUE_CODES,
        # Of a step.
        "prompt_ids_missing": ("fatal", "the step has no prompt ids: where its completion stands is not known"),
        "advantage_invalid": ("fatal", "the advantage is neither a finite number nor one for each completion id"),
        "reward_not_finite": ("fatal", "the reward of the trajectory or of a step is NaN, infinite, or no number"),
        "error": ("warning", "the call failed"),
        "cancelled": ("warning", "the call was cancelled"),
        "abandoned": ("warning", "the stream was not read to its end"),
        "running": ("warning", "the call has not ended"),
        "superseded": ("info", "another step has the same completion, or a framework threw this one away"),
        "not_trainable": ("info", "`trainable` is False: nothing else of the step is checked"),
        "empty_completion": ("warning", "nothing was sampled, not even a stop token"),
        "logprobs_missing": ("warning", "ids without logprobs: a trainer must compute them itself"),
        "retokenized": ("warning", "the ids were made from text: they need not be those that were sampled"),
        "truncated": ("warning", "the completion was cut off at a length limit"),
        "degenerate": ("warning", "one id in a row fills more than half of a completion of 64 ids or more"),
        "logprobs_all_zero": ("warning", "every logprob is 0: a grammar forced the tokens, or sampling was greedy"),
        "logprobs_not_sampled": ("info", "the logprobs are of temperature 1, the tokens were sampled at another one"),
        "constrained_sampling": (
            "warning",
            "a grammar decided which tokens could follow: a required tool, a JSON schema",
        ),
        "distribution_truncated": ("warning", "top-p, top-k or the like: some tokens could not be sampled"),
        "distribution_biased": ("warning", "penalties, a bias or beam search made tokens more or less likely"),
        # Of the trajectory.
        "aborted": ("warning", "the engine aborted an answer, and no later step continues it"),
        "extra_withheld": ("warning", "experts, masks or the like came, and do not fit the ids: they were not kept"),
        "extra_not_sent": ("warning", "experts, masks or the like were asked for, and did not come"),
        "sent_as_text": ("info", "`exact_turns`: the call continues an earlier one and went out as text"),
        "ids_not_served": ("warning", "`exact_turns`: the server did not serve the ids that it was sent"),
        "usage_unread": ("warning", "a field of the answer looks like a count of tokens or a cost, and was not read"),
        "error_unread": ("warning", "a field of an answer that is `ok` looks like an error"),
        "nothing_trainable": ("fatal", "no step can be trained on"),
        "drift": ("warning", "a prompt repeats an earlier completion in text but not in ids"),
        "several_roots": ("warning", "prompts that have no beginning in common"),
        "forks": ("info", "prompts that go on from one beginning in different ways"),
        "logprobs_modes_differ": ("warning", "raw logprobs in some steps, processed ones in others"),
        "reward_missing": ("warning", "neither the trajectory nor a step has a reward"),
        # Of several trajectories: found by `rollout-trace check`.
        "repeated_rollout": ("warning", "another trajectory has the same group and the same `rollout_index`"),
    }
)
"""All codes, with grade and meaning, as in the table of ``docs/checks.md``. Codes keep their meaning; later versions
may add some."""


FOR_TRAINING: frozenset[str] = frozenset(
    (
        *("ids_missing", "prompt_ids_missing", "not_on_wire", "nothing_trainable", "not_trainable", "retokenized"),
        *("logprobs_missing", "logprobs_all_zero", "logprobs_not_sampled", "logprobs_modes_differ"),
        *("constrained_sampling", "distribution_truncated", "distribution_biased"),
        *("drift", "several_roots", "forks", "reward_missing"),
    )
)
"""Codes that matter to a trainer alone: ``rollout-trace check --profile observe`` leaves them out."""


@document_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding of a check. ``str(finding)`` is one line."""

    code: str
    """A key of ``CODES``, or the code of a ``token_issue`` that a newer version wrote."""
    grade: Grade
    """``fatal``: the step or trajectory cannot be trained on. ``warning``: it can, but may harm training. ``info``:
    nothing is wrong."""
    message: str
    """A sentence with what was found."""
    step_id: str | None = None
    """Id of the step; None for a finding on the whole trajectory."""
    position: int | None = None
    """Index of a token in the completion, or in the prompt if ``message`` says so; None if no token is concerned."""

    def __str__(self) -> str:
        places = {"step": self.step_id, "token": self.position}
        where = ", ".join(f"{name} {value}" for name, value in places.items() if value is not None)
        line = f"{self.grade}: {self.code}{f' ({where})' if where else ''}: {self.message}"
        return " ".join(line.split())


def finding(
    code: str, message: str, step_id: str | None = None, position: int | None = None, *, unknown: Grade = "fatal"
) -> Finding:
    """A finding with the grade of its code; with the grade ``unknown`` where the code is not in the table."""
    grade = CODES[code][0] if code in CODES else unknown
    return Finding(code=code, grade=grade, message=message, step_id=step_id, position=position)
