"""Routed experts, sampling masks and versions in the rows of each consumer, and what is counted instead."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import rollout_trace as rt
from rollout_trace import export
from rollout_trace.export import ExportReport
from tests.consumers import extras
from tests.consumers.traces import trajectory_of
from tests.export.plain import plain

NOT_TAKEN = {
    "top tokens": 1,
    "top tokens of prompts": 1,
    "logprobs of prompts": 1,
}
MASKS = {"sampling masks": 1}
EXPERTS = {"routed experts": 1}
VERSIONS = {"policy versions": 2}
LOST = "rows whose routed experts are left out because other rows have none"
COUNTED = {
    "areal": {**NOT_TAKEN, **MASKS, **EXPERTS},
    "nemo_gym": {**NOT_TAKEN, **MASKS, **EXPERTS, **VERSIONS},
    "nemo_rl": NOT_TAKEN,
    "openrlhf": {**NOT_TAKEN, **MASKS, **EXPERTS, **VERSIONS},
    "skyrl": {**NOT_TAKEN, **VERSIONS},
    "slime": NOT_TAKEN,
    "tinker": {**NOT_TAKEN, **MASKS, **EXPERTS, **VERSIONS},
    "trl": {**NOT_TAKEN, **MASKS, **EXPERTS, **VERSIONS},
    "trl_rollout": {**NOT_TAKEN, **MASKS, **EXPERTS},
    "verifiers": NOT_TAKEN,
    "verl": {**NOT_TAKEN, **MASKS},
}


def given(name: str, runs: Any, **options: Any) -> tuple[Any, dict[str, int]]:
    """What an exporter gives, and what it counts."""
    report = ExportReport()
    options = {"advantages": None, **options} if name == "tinker" else options
    return getattr(export, name)(runs, report=report, **options), report.dropped


@pytest.mark.parametrize("name", COUNTED)
def test_what_a_consumer_has_no_field_for_is_counted_as_metadata(name: str) -> None:
    options: Any = {"advantages": None} if name == "tinker" else {}
    exporter = getattr(export, name)
    report = ExportReport()
    rows = exporter(extras.run(), report=report, **options)
    assert report.dropped == COUNTED[name]
    assert report.metadata == set(COUNTED[name])
    assert plain(exporter(extras.run(), strict=True, report=ExportReport(), **options)) == plain(rows)
    with pytest.raises(rt.ExportError, match=r"\): 1\. Without strict='metadata'|policy versions"):
        exporter(extras.run(), strict="metadata", **options)


@pytest.mark.parametrize("name", COUNTED)
def test_arrays_of_a_row_are_its_own_and_can_be_written(name: str) -> None:
    """torch warns of arrays that cannot be written."""
    made = extras.run()
    before = plain([step.routed_experts for step in made.steps])
    rows, _ = given(name, made)

    def spoil(value: Any) -> None:
        for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            spoil(item)
        if isinstance(value, np.ndarray):
            value[...] = 1

    spoil(rows)
    assert plain([step.routed_experts for step in made.steps]) == before


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32])
def test_verl_gets_the_experts_of_all_tokens_but_the_last(dtype: Any) -> None:
    (row,) = export.verl(extras.run(dtype=dtype), report=ExportReport())
    assert row["routed_experts"].dtype == dtype
    assert np.array_equal(row["routed_experts"], extras.experts(0, 6))


def test_experts_are_of_all_rows_or_none() -> None:
    whole, without = extras.run(), trajectory_of(extras.TRACE)
    for runs in ([whole, without], [without, whole]):
        for name, field in (("verl", "routed_experts"), ("slime", "rollout_routed_experts")):
            rows, dropped = given(name, runs)
            assert len(rows) == 2
            assert not any(field in row for row in rows)
            assert dropped[LOST] == 1
            with pytest.raises(rt.ExportError, match="other rows have none"):
                getattr(export, name)(runs, strict=True)
        output, dropped = given("skyrl", runs)
        assert "rollout_expert_indices" not in output
        assert dropped[LOST] == 1


@pytest.mark.parametrize("name", ["skyrl", "slime", "verifiers", "verl"])
def test_a_gap_in_the_experts_is_not_filled(name: str) -> None:
    """These consumers would replay expert 0 there."""
    rows, dropped = given(name, extras.gap())
    assert "expert" not in str(plain(rows)).replace("policy_spans", "")
    assert dropped["rows whose routed experts have gaps"] == 1
    with pytest.raises(rt.ExportError, match="routed experts have gaps"):
        getattr(export, name)(extras.gap(), strict=True)


def test_rows_of_other_models_lose_their_experts() -> None:
    other = extras.run()
    other.steps = [replace(step, routed_experts=step.routed_experts[:, :2]) for step in other.steps]  # type: ignore[index]
    rows, dropped = given("verl", [extras.run(), other])
    assert not any("routed_experts" in row for row in rows)
    assert (
        dropped["rows whose routed experts are left out because other rows have another number of layers or experts"]
        == 2
    )


def test_skyrl_gets_arrays() -> None:
    """In the types of its tensors: it refuses lists, and uint16."""
    output, _ = given("skyrl", extras.run())
    (found,) = output["rollout_expert_indices"]
    assert found.dtype == np.uint8
    assert np.array_equal(found, extras.experts(0, 6))
    for most, dtype in ((300, "int16"), (40_000, "int32")):
        run = extras.run()
        run.steps = [
            replace(step, routed_experts=np.full(step.routed_experts.shape, most, np.uint16))  # type: ignore[union-attr]
            for step in run.steps
        ]
        output, _ = given("skyrl", run)
        assert output["rollout_expert_indices"][0].dtype == dtype
        assert set(output["rollout_expert_indices"][0].flat) == {most}


def test_skyrl_gets_those_of_each_step() -> None:
    output, _ = given("skyrl", extras.run(), stepwise=True)
    found = [one.tolist() for one in output["rollout_expert_indices"]]
    assert found == [extras.experts(0, 3).tolist(), extras.experts(0, 6).tolist()]


def test_skyrl_gets_sampling_masks() -> None:
    """Of the response, in every row: -1 behind the ids of a token, and where nothing was sampled or known."""
    run, other = extras.run(), extras.run()
    other.id, other.steps = "other", [replace(step, sampling_mask=None) for step in other.steps]
    output, _ = given("skyrl", [run, other])
    (row,) = run.sequences()
    assert row.sampling_mask is not None
    support, nothing = output["rollout_sample_support"]
    offsets = row.sampling_mask.offsets
    for at, ids in enumerate(support.tolist(), row.prompt_length):
        known = row.sampling_mask.ids[offsets[at] : offsets[at + 1]].tolist()
        assert ids == known + [-1] * (support.shape[1] - len(known))
    assert (nothing == -1).all()
    assert nothing.dtype == np.int32
    assert "rollout_sample_support" not in given("skyrl", other)[0]


def nodes(runs: Any) -> list[dict[str, Any]]:
    (episode,) = export.verifiers(runs, report=ExportReport())
    return [node for node in episode["traces"][0]["nodes"] if len(node["token_ids"])]


def array_of(form: dict[str, Any]) -> Any:
    assert form["__nd__"] is True
    return np.frombuffer(form["data"], form["dtype"]).reshape(form["shape"])


def test_nodes_of_verifiers_have_their_part_and_the_last_row_twice() -> None:
    first, second = nodes(extras.run())
    assert np.array_equal(array_of(first["routed_experts"]), extras.experts(0, 4))
    assert np.array_equal(array_of(second["routed_experts"]), extras.experts(4, 7).clip(max=extras.experts(5, 6)[0]))
    assert array_of(first["sampling_mask"]["counts"]).tolist() == [1, 2]
    assert array_of(second["sampling_mask"]["ids"]).tolist() == [*extras.kept(6), *extras.kept(7)]
    assert array_of(second["sampling_mask"]["counts"]).dtype == np.int32


def test_the_file_of_verifiers_has_no_arrays(tmp_path: Any) -> None:
    report = ExportReport()
    export.write_verifiers(tmp_path / "traces.jsonl", extras.run(), report=report)
    assert report.dropped == {**NOT_TAKEN, **MASKS, **EXPERTS}
    assert b"__nd__" not in (tmp_path / "traces.jsonl").read_bytes()


def test_spans_of_versions_are_beside_the_steps_of_verifiers() -> None:
    (episode,) = export.verifiers(extras.run(versions=(7, 8)), report=ExportReport())
    steps = episode["traces"][0]["info"]["rollout_trace"]["steps"]
    assert [step["policy_spans"] for step in steps] == [[[0, 1, 7], [1, 2, 8]]] * 2


@pytest.mark.parametrize(
    ("versions", "expected"), [((7,), (7, 7)), ((7, 9), (7, 9)), (("12", "9"), (9, 12)), ((9, "12"), (9, 12))]
)
def test_verl_gets_the_first_and_last_version(versions: tuple[Any, ...], expected: tuple[int, int]) -> None:
    (row,) = export.verl(extras.run(versions=versions), report=ExportReport())
    extra = row["extra_fields"]
    assert (extra["min_global_steps"], extra["max_global_steps"]) == expected


@pytest.mark.parametrize("versions", [("step-7",), ("7", "default"), ("-1",), ("٣",)])
def test_a_version_that_is_no_number_is_counted(versions: tuple[Any, ...]) -> None:
    for name in ("verl", "nemo_rl"):
        (row,), dropped = given(name, extras.run(versions=versions))
        assert "min_global_steps" not in str(row)
        assert row.get("weight_version") is None
        assert dropped["policy versions of rows where not all are integers"] == 2


def test_a_version_that_is_missing_is_none() -> None:
    made = extras.run()
    made.steps = [made.steps[0], replace(made.steps[1], policy_spans=None, policy_version=None)]
    (row,), dropped = given("verl", made)
    assert "min_global_steps" not in row["extra_fields"]
    assert dropped["policy versions of rows where not all are integers"] == 1


def test_trl_gets_the_spans_for_its_reward_functions() -> None:
    found, _ = given("trl_rollout", extras.run(versions=(7, 8)))
    assert found["policy_spans"] == [[[0, 1, 7], [1, 2, 8], [3, 4, 7], [4, 5, 8]]]


def test_rows_without_extras_have_no_fields_of_them() -> None:
    made = trajectory_of(extras.TRACE)
    for name in ("nemo_rl", "skyrl", "slime", "verl"):
        rows, dropped = given(name, made)
        assert dropped == {}
        assert not any(word in str(plain(rows)) for word in ("expert", "top_p", "sampling_mask"))


def test_atif_counts_what_its_steps_have_no_field_for() -> None:
    report = ExportReport()
    made = extras.run(versions=(7, 8))
    made.steps = [
        replace(step, messages=[{"role": "user", "content": str(at)}], completion=rt.Completion(content="a"))
        for at, step in enumerate(made.steps)
    ]
    (document,) = export.atif(made, report=report)
    names = ("routed experts", "sampling masks", "top tokens", "logprobs of prompts", "top tokens of prompts")
    assert report.dropped == dict.fromkeys(names, 2)
    assert report.metadata == set(names)
    assert [one["extra"]["policy_spans"] for one in document["steps"] if one["source"] == "agent"] == [
        [[0, 1, 7], [1, 2, 8]]
    ] * 2
