"""The rules that ``rollout-trace validate`` checks: a stable code, what it demands, and what to do if it is broken."""

from __future__ import annotations

from typing import NamedTuple


class Rule(NamedTuple):
    """A rule of files of trajectories and of their notes."""

    demand: str
    """What has to hold."""
    advice: str
    """What to do where it does not."""


_WRITER = "Mend the program that wrote the line, and write it anew."
_REWRITE = "Read the file with on_error='skip' and write what is good to a new one: rollout-trace merge FILE -o NEW."
_UPGRADE = "Upgrade in a newer checkout, with: pip install ."
_WITHHELD = "Leave the field out: what cannot be trusted is missing, with the reason in extra_issues or token_issue."

RULES = {
    # The file, and what a line is.
    "empty-file": Rule("A file has at least one line.", "Remove it, or look why nothing was written to it."),
    "damaged-compression": Rule(
        "Compressed bytes can be decompressed.", f"A writer was stopped, or a copy. {_REWRITE}"
    ),
    "line-too-long": Rule(
        "A line has at most 1 GiB, decompressed.", "Write large media beside the file: media='folder'."
    ),
    "truncated-line": Rule("A line is whole.", f"Its writer was stopped. {_REWRITE}"),
    "not-utf8": Rule("A line is UTF-8.", "Write it as UTF-8; half a surrogate pair is escaped (\\ud83d)."),
    "not-json": Rule("A line is one JSON object.", f"Is this a file of trajectories? {_REWRITE}"),
    "json-constant": Rule("Numbers are finite: JSON has no NaN and no Infinity.", "Write null in their place."),
    "too-deep": Rule(
        "Values are nested no deeper than Python can read: about 1,000 levels, and more from Python 3.12 on.", _WRITER
    ),
    "duplicate-key": Rule("A name occurs once in an object: readers keep the last value, some the first.", _WRITER),
    "unknown-schema": Rule(
        "schema is rollout-trace/1 (of notes: rollout-trace-note/1).", "Give files of trajectories."
    ),
    "newer-version": Rule("The version of the schema is one that this library reads.", _UPGRADE),
    "missing-field": Rule("Required fields are there.", _WRITER),
    "wrong-type": Rule("A field has the type that docs/file-format.md gives.", _WRITER),
    "number-range": Rule("Counts and indices are 0 or more.", _WRITER),
    "bad-time": Rule("Times are RFC 3339, with a time zone.", "Write them in UTC: 2026-11-21T00:31:30.123456Z."),
    "duplicate-trajectory-id": Rule(
        "A trajectory id occurs once in a file.", "Keep the last of each: rollout-trace merge FILE -o NEW."
    ),
    # Tables, tokens.
    "table-rows": Rule("messages and tools of a step are rows of the line's tables.", _WRITER),
    "token-id": Rule("Token ids are from 0 to 2147483647.", "Withhold the ids of the step: leave `tokens` out."),
    "segment-base": Rule("from names an earlier segment, and no more ids than that has.", _WRITER),
    "step-segment": Rule("A step's segment is one of the line.", _WRITER),
    "step-range": Rule("prompt <= end <= length of the segment.", _WRITER),
    "logprobs-length": Rule("There are as many logprobs as completion ids.", _WITHHELD),
    "logprob-range": Rule("Logprobs are numbers that float32 can hold.", _WITHHELD),
    "logprob-positive": Rule(
        "Logprobs are 0 or less.", "Write natural logarithms of probabilities, not probabilities."
    ),
    "logprob-missing": Rule(
        "A null among logprobs has a reason: token_issue is logprobs_incomplete.",
        "Set token_issue, so that the step is not trained on, or leave the logprobs out.",
    ),
    "top-logprobs-type": Rule("top_logprobs is a list.", _WITHHELD),
    "top-logprobs-length": Rule("top_logprobs are as many as the logprobs that they came with.", _WITHHELD),
    "texts-length": Rule("There are as many texts of tokens as completion ids.", _WITHHELD),
    # Arrays.
    "array-dtype": Rule("dtype is uint8, uint16, int32 or float32.", _UPGRADE),
    "array-shape": Rule("shape has 1 to 3 numbers.", _WRITER),
    "array-data": Rule("data is base64 of exactly the bytes that dtype and shape need.", _WRITER),
    "array-form": Rule("An array has the dtype and the axes of its field.", _WRITER),
    "array-runs": Rule("Runs are rows of the arrays of the line, of one dtype and shape.", _WRITER),
    "routed-experts": Rule("routed_experts has at most as many rows as the step has tokens.", _WITHHELD),
    "prompt-logprobs": Rule("prompt_logprobs has a row for each prompt id.", _WITHHELD),
    "prompt-top-tokens": Rule("prompt_top_tokens has a row for each prompt id, ids and logprobs alike.", _WITHHELD),
    "top-tokens": Rule("top_tokens has a row for each completion id, ids and logprobs alike.", _WITHHELD),
    "sampling-mask": Rule(
        "sampling_mask has a count for each completion id, and as many ids as these sum up to.", _WITHHELD
    ),
    "policy-spans": Rule("policy_spans are positions of the completion.", _WITHHELD),
    "policy-spans-gap": Rule(
        "policy_spans follow each other without gaps, from 0 to the end of the completion.", _WITHHELD
    ),
    # Kept bytes, media.
    "body-bytes": Rule("Kept bytes are text, or base64.", _WRITER),
    "media-missing": Rule(
        "Media that the line refers to are in the folder beside the file.", "Copy FILE.media with the file."
    ),
    "media-differs": Rule("Media have the sha256 of their name.", "Copy FILE.media anew from where it was recorded."),
    # Exchanges.
    "exchange-base": Rule(
        "from of a request names an earlier exchange, and no more bytes than its request has.", _WRITER
    ),
    "chunk-sizes": Rule("chunk_sizes of an exchange add up to the bytes of its response.", _WRITER),
    "chunk-times": Rule("There are as many chunk_times_ms as chunk_sizes, or none.", _WRITER),
    # What refers to what.
    "duplicate-step-id": Rule("Step ids are distinct within a trajectory.", _WRITER),
    "duplicate-choice": Rule("A call has one step for each of its choices.", _WRITER),
    "index-order": Rule("index grows from step to step.", _WRITER),
    "tool-run-step": Rule("step_id of a tool run is a step of the trajectory.", _WRITER),
    "parent-step": Rule(
        "parent_step_id is a step of the trajectory parent_id, where that is in the same file; and no trajectory is "
        "its own parent.",
        _WRITER,
    ),
    "time-order": Rule("Nothing ends before it has begun.", "Take both times from one clock, in UTC."),
    "negative-number": Rule("Durations and counts of tokens are 0 or more.", _WRITER),
    "usage-output": Rule(
        "The engine counts as many tokens as it sent ids, in a call with one whole answer.",
        "Some ids are missing, or were taken from another answer: do not train on the step.",
    ),
    "advantage-length": Rule("A list of advantages has one for each completion token.", _WRITER),
    # Notes.
    "note-trajectory": Rule("A note names a trajectory of the file.", "Note it of the file that has the trajectory."),
    "note-step": Rule("A note names steps that its trajectory has.", "Note it anew, with the id of a step."),
}
"""By code. Codes are never renamed; docs/validate.md explains each."""
