"""Every export of rows has the ids, masks and logprobs of the sequences, whatever limits and options are given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rollout_trace as rt
from rollout_trace import export
from rollout_trace.export import ExportReport
from rollout_trace.train.sequence import Sequence
from tests.consumers.traces import Trace, conversation_of, traces
from tests.strategies import PROFILE


class Row(NamedTuple):
    """What a trainer learns from: all ids, 1 where one was sampled, and its logprob (0.0 elsewhere)."""

    ids: list[int]
    mask: list[int]
    logprobs: list[float]


def of_sequence(row: Sequence, end: int | None) -> Row:
    assert row.logprobs is not None
    return Row(*(array[:end].tolist() for array in (row.token_ids, row.loss_mask, row.logprobs)))


def whole(prompt: list[int], response: list[int], mask: list[int], logprobs: list[float]) -> Row:
    """A row of a prompt and a response."""
    return Row(prompt + response, [0] * len(prompt) + mask, [0.0] * len(prompt) + logprobs)


def of_areal(run: rt.Trajectory, options: Any) -> Iterator[Row]:
    for row in export.areal(run, **options):
        yield Row(*(row[name][0].tolist() for name in ("input_ids", "loss_mask", "logprobs")))


def of_batches(run: rt.Trajectory, options: Any) -> Iterator[Row]:
    for layout in ({"layout": "padded", "side": "left"}, {"layout": "packed", "length": 300}):
        for batch in export.batches(run, batch_size=2, **layout, **options):
            for number in range(len(batch["trajectory_id"])):
                own = batch["sequence_ids"] == number
                row = Row(*(batch[name][own].tolist() for name in ("input_ids", "loss_mask", "logprobs")))
                assert batch["labels"][own].tolist() == [
                    one if sampled else -100 for one, sampled in zip(row.ids, row.mask, strict=True)
                ]
                if layout["layout"] == "packed":
                    yield row


def of_nemo_gym(run: rt.Trajectory, options: Any) -> Iterator[Row]:
    for rollout in export.nemo_gym(run, **options):
        row = Row([], [], [])
        for item in (one for one in rollout["response"]["output"] if "prompt_token_ids" in one):
            read = item["prompt_token_ids"][len(row.ids) :]
            assert item["prompt_token_ids"][: len(row.ids)] == row.ids
            sampled, logprobs = item["generation_token_ids"], item["generation_log_probs"]
            row = Row(
                row.ids + read + sampled,
                row.mask + [0] * len(read) + [1] * len(sampled),
                row.logprobs + [0.0] * len(read) + logprobs,
            )
        yield row


def of_nemo_rl(run: rt.Trajectory, options: Any) -> Iterator[Row]:
    for datum in export.nemo_rl(run, **options):
        row = Row([], [], [])
        for message in datum["message_log"]:
            ids, sampled = message["token_ids"].tolist(), message["role"] == "assistant"
            logprobs = message["generation_logprobs"].tolist() if sampled else [0.0] * len(ids)
            row = Row(row.ids + ids, row.mask + [int(sampled)] * len(ids), row.logprobs + logprobs)
        yield row


def of_skyrl(run: rt.Trajectory, options: Any) -> Iterator[Row]:
    output = export.skyrl(run, **options)
    names = ("prompt_token_ids", "response_ids", "loss_masks", "rollout_logprobs")
    yield from map(whole, *(output[name] or [] for name in names))


def of_slime(run: rt.Trajectory, options: Any) -> Iterator[Row]:
    for sample in export.slime(run, **options):
        begin = len(sample["tokens"]) - sample["response_length"]
        prompt, response = sample["tokens"][:begin], sample["tokens"][begin:]
        yield whole(prompt, response, sample["loss_mask"], sample["rollout_log_probs"])


def of_tinker(run: rt.Trajectory, options: Any) -> Iterator[Row]:
    for datum in export.tinker(run, advantages="steps", **options):
        fields = datum["loss_fn_inputs"]
        # Shifted: the first id is in the input alone, and is never sampled here.
        ids = [*datum["model_input"], fields["target_tokens"][-1]]
        yield Row(ids, [0, *datum["mask"]], [0.0, *fields["logprobs"]])


def of_verl(run: rt.Trajectory, options: Any) -> Iterator[Row]:
    for row in export.verl(run, **options):
        yield whole(*(row[name] for name in ("prompt_ids", "response_ids", "response_mask", "response_logprobs")))


EXPORTS = {
    "areal": of_areal, "batches": of_batches, "nemo_gym": of_nemo_gym, "nemo_rl": of_nemo_rl, "skyrl": of_skyrl,
    "slime": of_slime, "tinker": of_tinker, "verl": of_verl,
}  # fmt: skip
LIMITS = st.none() | st.integers(1, 12)
OPTIONS = st.builds(
    lambda options, within: {**options, "within": within} if options.get("on_drift") == "mask" else options,
    st.fixed_dictionaries(
        {},
        optional={
            "max_length": LIMITS,
            "max_prompt_length": LIMITS,
            "max_response_length": LIMITS,
            "truncate": st.sampled_from(["token", "turn"]),
            "linear": st.booleans(),
            "on_drift": st.sampled_from(["split", "drop", "mask"]),
        },
    ),
    st.integers(0, 4),
)


@pytest.mark.parametrize("name", EXPORTS)
@PROFILE
@given(trace=traces(), options=OPTIONS)
def test_rows_are_those_of_the_sequences(name: str, trace: Trace, options: dict[str, Any]) -> None:
    run = conversation_of(trace)
    for step in run.steps:
        step.advantage = 1.0
    rows = run.sequences(**options)
    report = ExportReport()
    found = list(EXPORTS[name](run, {**options, "report": report}))
    # Items of NeMo-Gym end with an answer: where a row was cut in a prompt, that part of it has no loss.
    expected = [of_sequence(row, row.spans[-1][1] if name == "nemo_gym" else None) for row in rows]
    # Packed rows stand where they fit.
    assert sorted(found) == sorted(expected) if name == "batches" else found == expected
    left = {what: count for what, count in report.dropped.items() if what.startswith("steps left out: ")}
    repeated = 2 if name == "batches" else 1
    assert left == {f"steps left out: {why}": repeated * len(ids) for why, ids in rows.report.left_out.items()}
    cut = [count for what, count in report.dropped.items() if what.startswith("tokens cut: ")]
    assert sum(cut) == repeated * rows.report.tokens_cut
    masked = report.dropped.get("sampled tokens masked for drift", 0)
    assert masked == repeated * sum(rows.report.masked.values())


@PROFILE
@given(trace=traces(), options=OPTIONS)
def test_limits_are_kept_and_nothing_is_lost(trace: Trace, options: dict[str, Any]) -> None:
    """Every sampled token is in one row, or its step is left out, or it was cut or masked: whatever the limits."""
    run = conversation_of(trace)
    rows = run.sequences(**options)
    for row in rows:
        response = len(row.token_ids) - row.prompt_length
        assert len(row.token_ids) <= (options.get("max_length") or len(row.token_ids))
        assert row.prompt_length <= (options.get("max_prompt_length") or row.prompt_length)
        assert 0 < response <= (options.get("max_response_length") or response)
        assert row.loss_mask.any()
    used = [name for row in rows for name in row.step_ids]
    left = [name for names in rows.report.left_out.values() for name in names]
    assert sorted(used + left) == sorted(step.id for step in run.steps)
    steps = {step.id: step for step in run.steps}
    for row in rows:
        for name, (begin, end) in zip(row.step_ids, row.spans, strict=True):
            sampled = steps[name].completion_token_ids
            assert sampled is not None
            assert np.array_equal(row.token_ids[begin:end], sampled[: end - begin])
            assert row.truncated or end - begin + rows.report.masked.get(name, 0) == len(sampled)
