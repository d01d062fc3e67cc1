"""Extras of rows (routed experts, sampling masks, versions, ...) in the forms of consumers, and counts of the others.

What a consumer has no field for is counted as metadata; an extra that it would take and cannot be given is counted as
tokens are, so that ``strict=True`` raises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollout_trace.data.extras import SamplingMask
from rollout_trace.data.model import shared

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Sequence as SequenceOf

    from rollout_trace.data.extras import ExpertArray
    from rollout_trace.data.model import Step
    from rollout_trace.data.tokens import IntArray
    from rollout_trace.report import ExportReport
    from rollout_trace.train.sequence import Sequence

_NAMES = {
    "routed_experts": "routed experts",
    "sampling_mask": "sampling masks",
    "top_tokens": "top tokens",
    "prompt_logprobs": "logprobs of prompts",
    "prompt_top_tokens": "top tokens of prompts",
    "placeholders": "placeholders of images and other media",
}
"""Names in reports by field of ``Sequence``. Policy versions are counted by ``count_unused``."""
_STORED = frozenset({"routed_experts", "prompt_logprobs", "prompt_top_tokens"})
GAPS = "rows whose routed experts have gaps"
LOST_EXPERTS = "rows whose routed experts are left out because other rows have none"
OTHER_SHAPES = "rows whose routed experts are left out because other rows have another number of layers or experts"


def count_extras(rows: Iterable[Sequence], report: ExportReport, *taken: str) -> None:
    """Counts the rows with extras for which the consumer has no field: all but those of these names."""
    for row in rows:
        for name, words in _NAMES.items():
            value = None if name in taken else getattr(row, name)
            has = int(value is not None and len(value) > 0)
            report.drop(words, has, where=f"step {row.step_ids[0]}", metadata=True)


def count_step_extras(step: Step, report: ExportReport) -> None:
    """Counts the extras of a step's tokens, for a format of steps that has no field for any of them."""
    for name, words in _NAMES.items():
        # Stored forms, so that no array is made to be counted. Placeholders are of rows alone.
        value = shared(step, name) if name in _STORED else getattr(step, name, None)
        report.drop(words, int(value is not None), where=f"step {step.id}", metadata=True)


def count_raw(step: Step, report: ExportReport) -> None:
    """Counts what was kept of a step as it came, for a format of steps that has no place for it."""
    where = f"step {step.id}"
    report.drop("top logprobs", step.top_logprobs is not None and step.top_tokens is None, where=where, metadata=True)
    kept = step.request_bytes is not None or step.response_bytes is not None
    report.drop("bytes of requests and responses", kept, where=where, metadata=True)


def whole_experts(row: Sequence, end: int | None = None) -> ExpertArray | None:
    """The experts of all tokens before the last one of ``[0, end)``: [end - 1, layers, k]; None where some are missing.

    For consumers without a mark for missing rows, which would replay whatever stands there. The last token of a
    completion was not run through the model, so no engine has its experts. From the last sampled token on, where a row
    was cut in a prompt, no loss depends on the experts: missing ones are those of the token before.
    """
    import numpy as np

    experts, known = row.routed_experts, row.routed_experts_mask
    last = (len(row.token_ids) if end is None else end) - 1
    needed = min(row.spans[-1][1] - 1, last)
    if experts is None or known is None or needed < 1 or not known[:needed].all():
        return None
    if known[needed:last].all():
        return experts[:last]
    # For each position the latest one that has experts.
    filled: ExpertArray = experts[np.maximum.accumulate(np.where(known[:last], np.arange(last), 0))]
    return filled


def experts_of_all(rows: SequenceOf[tuple[Sequence, int | None]], report: ExportReport) -> list[ExpertArray] | None:
    """``whole_experts`` of every row, given with its end, for a column; None unless all have them, of one shape."""
    found = [whole_experts(row, end) for row, end in rows]
    whole = [experts for experts in found if experts is not None]
    has = sum(row.routed_experts is not None for row, _ in rows)
    report.drop(GAPS, has - len(whole))
    if len(whole) < len(found):
        report.drop(LOST_EXPERTS, len(whole))
        return None
    if len({experts.shape[1:] for experts in whole}) > 1:
        report.drop(OTHER_SHAPES, len(whole))
        return None
    return whole or None


def note_masks(rows: Iterable[Sequence], report: ExportReport) -> None:
    """Notes the rows without a sampling mask where others have one: a trainer that replays masks needs all."""
    missing = [row.sampling_mask is None for row in rows]
    if not all(missing):
        report.note("rows without a sampling mask, where others have one", sum(missing))


def parts_of_mask(mask: SamplingMask, spans: Iterable[tuple[int, int]]) -> list[SamplingMask]:
    """The positions ``[begin, end)`` of a mask, for each of these spans."""
    offsets = mask.offsets
    parts = []
    for begin, end in spans:
        first, stop = int(offsets[begin]), int(offsets[end])
        logprobs = None if mask.logprobs is None else mask.logprobs[first:stop]
        parts.append(SamplingMask(mask.ids[first:stop], mask.counts[begin:end], logprobs))
    return parts


def rectangle(mask: SamplingMask, width: int) -> IntArray:
    """int32 [positions, width]: the ids at each position, followed by zeros."""
    import numpy as np

    ids = np.zeros((len(mask), width), np.int32)
    ids[np.arange(width) < mask.counts[:, None]] = mask.ids
    return ids


def sampled_versions(row: Sequence) -> list[str | int | None]:
    """The versions of the weights that sampled the row, in order; None for sampled tokens of which none is known."""
    spans = row.policy_spans or ()
    versions: list[str | int | None] = [span.version for span in spans]
    covered = sum(span.end - span.begin for span in spans)
    return versions if covered == int(row.loss_mask.sum()) else [*versions, None]


def as_number(version: str | int | None) -> int | None:
    """A version as a number, if it is one: 7, or the text "7", as engines send it. None for any other."""
    if isinstance(version, str) and version.isascii() and version.isdigit():
        return int(version)
    return version if isinstance(version, int) else None


def whole_number(version: str | int | None, report: ExportReport, step_id: str) -> int | None:
    """``as_number``; counts a version that is none."""
    number = as_number(version)
    lost = number is None and version is not None
    report.drop("policy versions that are no whole numbers", lost, where=f"step {step_id}", metadata=True)
    return number


def whole_numbers(
    versions: Iterable[str | int | None], known: int, report: ExportReport, what: str, where: str | None = None
) -> list[int]:
    """Versions as numbers; empty where one is none, or not known, and then ``known`` of them are counted as lost."""
    numbers = [as_number(version) for version in versions]
    found = [number for number in numbers if number is not None]
    if len(found) < len(numbers):
        report.drop(f"policy versions of {what} where not all are integers", known, where=where, metadata=True)
        return []
    return found


def listed_spans(row: Sequence, start: int) -> list[list[Any]] | None:
    """[begin, end, version] of the row's policy spans, in positions from ``start`` on; None where it has none."""
    if row.policy_spans is None:
        return None
    return [[span.begin - start, span.end - start, span.version] for span in row.policy_spans]
