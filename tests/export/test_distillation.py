"""Distillation rows: a teacher's recorded scores at their positions, in the order and with the filler documented."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openai import OpenAI

import rollout_trace as rt
from rollout_trace import export
from rollout_trace.data.exchange import Exchange
from rollout_trace.data.extras import TopTokens
from rollout_trace.data.model import Step
from rollout_trace.testing import Reply, ScriptedServer
from rollout_trace.testing.recordings import load_exchanges
from rollout_trace.wire import decode

DATA = Path(__file__).parents[1] / "data" / "wire_vllm_extras.jsonl.xz"
RECORDED = [
    "dense_comp_plp5",
    "dense_comp_plp1",
    "dense_comp_plp0",
    "dense_comp_plp0_b",
    "dense_gen_plp5",
    "dense_chat_plp3_b",
]
PROTOCOLS = {
    "/v1/chat/completions": "openai.chat",
    "/v1/completions": "openai.completions",
    "/inference/v1/generate": "vllm.generate",
}


@cache
def exchange(name: str) -> Exchange:
    return {one.name: one for one in load_exchanges(DATA)}[name]


def teacher_step(name: str, **facts: Any) -> Step:
    """A recorded call that scored its prompt."""
    one = exchange(name)
    steps = decode(
        PROTOCOLS[one.path], one.request, one.response, content_type=one.content_type, status=one.status or 0
    )
    return replace(steps[0], id=f"scores-{name}", index=9, model="big", **facts)


def wire_scores(name: str) -> list[dict[str, Any]]:
    """The recorded scores of the prompt's positions, as they are on the wire; nothing at the first."""
    answer = json.loads(exchange(name).response)
    scores = answer.get("prompt_logprobs") or answer["choices"][0]["prompt_logprobs"]
    return [one or {} for one in scores]


def student(ids: list[int], at: int = 3, *, name: str = "s0", **facts: Any) -> Step:
    """A rollout of these ids, of which the first ``at`` were its prompt."""
    return Step(
        **{
            "id": name, "call_id": name, "model": "small", "prompt_token_ids": ids[:at],
            "completion_token_ids": ids[at:], "logprobs": [-1.0] * (len(ids) - at), **facts,
        }
    )  # fmt: skip


def expected(scores: list[dict[str, Any]], k: int, filler: float) -> tuple[list[Any], list[Any]]:
    """As TRL's client makes them: by rank, the first k, filled with ids 0."""
    ids, logprobs = [], []
    for position in scores:
        best = sorted(position.items(), key=lambda item: item[1]["rank"])[:k]
        short = k - len(best)
        ids.append([int(token) for token, _ in best] + [0] * short)
        logprobs.append([float(np.float32(one["logprob"])) for _, one in best] + [filler] * short)
    return ids, logprobs


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("filler", [-9999.0, -math.inf])
def test_a_teacher_s_scores_of_a_row(name: str, filler: float) -> None:
    scoring = teacher_step(name)
    assert scoring.prompt_token_ids is not None
    ids = scoring.prompt_token_ids.tolist()
    run = rt.Trajectory(steps=[student(ids), scoring], reward=0.5)
    report = export.ExportReport()
    request = json.loads(exchange(name).request)
    asked = request.get("sampling_params", request)["prompt_logprobs"]
    k = max(1, asked)
    (row,) = export.distillation(run, teacher="big", k=k, filler=filler, report=report)
    scores = wire_scores(name)
    # With `prompt_logprobs=0` there are the own tokens' scores alone: nothing is known of the likeliest.
    assert (row["topk_ids"], row["topk_logprobs"]) == expected(scores if asked else [{}] * len(ids), k, filler)
    own = [
        float(np.float32(one[str(token)]["logprob"])) if one else filler for one, token in zip(scores, ids, strict=True)
    ]
    assert row["teacher_logprobs"] == own
    assert row["input_ids"] == ids
    assert row["loss_mask"] == [0] * 3 + [1] * (len(ids) - 3)
    assert (row["teacher"], row["reward"], row["trajectory_id"]) == ("big", 0.5, run.id)
    assert report.dropped == {}


def test_without_k_each_position_has_as_many_as_any() -> None:
    """vLLM lists the prompt's own token beside the k likeliest: k or k + 1."""
    scoring = teacher_step("dense_comp_plp5")
    assert scoring.prompt_token_ids is not None
    ids = scoring.prompt_token_ids.tolist()
    scores = wire_scores("dense_comp_plp5")
    (row,) = export.distillation(rt.Trajectory(steps=[student(ids), scoring]), teacher="big")
    assert (row["topk_ids"], row["topk_logprobs"]) == expected(scores, max(map(len, scores)), -9999.0)
    (row,) = export.distillation(rt.Trajectory(steps=[student(ids), scoring]), teacher="big", k=9)
    assert {len(one) for one in row["topk_ids"] + row["topk_logprobs"]} == {9}
    assert (row["topk_ids"], row["topk_logprobs"]) == expected(scores, 9, -9999.0)


def test_scores_in_another_trajectory_are_found_by_ids() -> None:
    scoring = teacher_step("dense_comp_plp5")
    assert scoring.prompt_token_ids is not None
    ids = scoring.prompt_token_ids.tolist()
    runs = [rt.Trajectory(steps=[student(ids)]), rt.Trajectory(steps=[scoring])]
    report = export.ExportReport()
    (row,) = export.distillation(iter(runs), teacher=lambda step: step.model == "big", report=report)
    assert (row["trajectory_id"], row["teacher"], report.dropped) == (runs[0].id, "big", {})


def test_a_longer_or_shorter_prompt_scores_what_it_shares() -> None:
    """A score is of the ids up to its position. What is not scored is counted."""
    scoring = teacher_step("dense_comp_plp5")
    assert scoring.prompt_token_ids is not None
    ids = scoring.prompt_token_ids.tolist()
    scores = wire_scores("dense_comp_plp5")
    (row,) = export.distillation(rt.Trajectory(steps=[student(ids[:-2]), scoring]), teacher="big", k=5)
    assert row["topk_ids"] == expected(scores[:-2], 5, -9999.0)[0]
    report = export.ExportReport()
    longer = rt.Trajectory(steps=[student([*ids, 7, 8]), scoring])
    (row,) = export.distillation(longer, teacher="big", k=5, report=report)
    assert row["topk_ids"] == expected([*scores, {}, {}], 5, -9999.0)[0]
    assert row["teacher_logprobs"][-2:] == [-9999.0] * 2
    assert report.dropped == {"sampled tokens without the teacher's scores": 2}
    other = rt.Trajectory(steps=[student([5, 6, 7, 8]), scoring])
    report = export.ExportReport()
    assert export.distillation(other, teacher="big", report=report) == []
    assert report.dropped == {"rows without the teacher's scores": 1}
    with pytest.raises(rt.ExportError, match="rows without the teacher's scores"):
        export.distillation(other, teacher="big", strict=True)


def test_the_teacher_s_own_answer_is_in_no_row() -> None:
    """Its call goes on from the row's ids, and samples a token after them."""
    scoring = teacher_step("dense_comp_plp5")
    assert scoring.prompt_token_ids is not None
    ids = scoring.prompt_token_ids.tolist()
    run = rt.Trajectory(steps=[student(ids), scoring])
    (merged,) = run.sequences()
    assert len(merged.token_ids) > len(ids)
    report = export.ExportReport()
    (row,) = export.distillation(run, teacher="big", report=report)
    assert (len(row["input_ids"]), report.dropped) == (len(ids), {})
    assert len(run.steps) == 2


def test_the_sampler_s_own_alternatives() -> None:
    """`top_logprobs` of the rollout: for self-distillation, or where the teacher sampled the row itself."""
    top = TopTokens(
        np.array([[4, 9, 8], [5, 3, -1]], np.int32),
        np.array([[-2.0, -0.5, -9999.0], [-0.25, -3.0, np.nan]], np.float32),
    )
    run = rt.Trajectory(steps=[student([1, 2, 3, 4, 5], top_tokens=top)])
    (row,) = export.distillation(run)
    assert row["topk_ids"] == [[0, 0]] * 3 + [[9, 4], [5, 3]]
    assert row["topk_logprobs"] == [[-9999.0, -9999.0]] * 3 + [[-0.5, -2.0], [-0.25, -3.0]]
    assert row["teacher_logprobs"] == [-9999.0] * 3 + [-1.0, -1.0]
    assert row["teacher"] == "small"
    (row,) = export.distillation(run, k=1)
    assert row["topk_ids"] == [[0]] * 3 + [[9], [5]]
    report = export.ExportReport()
    assert export.distillation(run, source="prompt", report=report) == []
    assert report.dropped == {"rows without the teacher's scores": 1}


def test_tokens_that_were_excluded_are_filler() -> None:
    """vLLM's -9999.0 is no logprob: a filter or a grammar left the token out."""
    top = TopTokens(
        np.array([[-1, -1], [2, 7], [3, 8]], np.int32),
        np.array([[np.nan, np.nan], [-0.5, -9999], [-9999, -1]], np.float32),
    )
    scoring = student([1, 2, 3, 4], name="scores", prompt_logprobs=[np.nan, -0.5, -9999.0], prompt_top_tokens=top)
    run = rt.Trajectory(steps=[student([1, 2, 3], 1), replace(scoring, model="big")])
    (row,) = export.distillation(run, teacher="big", filler=-math.inf)
    assert row["teacher_logprobs"] == [-math.inf, -0.5, -math.inf]
    assert (row["topk_ids"], row["topk_logprobs"]) == ([[0], [2], [8]], [[-math.inf], [-0.5], [-1.0]])


def test_other_extras_of_the_rows_are_counted() -> None:
    scoring = teacher_step("dense_comp_plp1")
    assert scoring.prompt_token_ids is not None
    ids = scoring.prompt_token_ids.tolist()
    routed: Any = np.ones((len(ids) - 1, 2, 2), np.uint8)
    report = export.ExportReport()
    run = rt.Trajectory(steps=[student(ids, routed_experts=routed, policy_version=7), scoring])
    assert len(export.distillation(run, teacher="big", report=report)) == 1
    assert report.dropped == {"policy versions": 1, "routed experts": 1}
    assert report.metadata == {"policy versions", "routed experts"}


def test_rows_of_files_and_one_by_one(tmp_path: Path) -> None:
    scoring = teacher_step("dense_comp_plp1")
    assert scoring.prompt_token_ids is not None
    run = rt.Trajectory(steps=[student(scoring.prompt_token_ids.tolist()), scoring])
    rows = export.distillation(run, teacher="big", k=2)
    assert list(export.iter_distillation(run, teacher="big", k=2)) == rows
    for name in ("rows.jsonl", "rows.parquet"):
        assert export.write_distillation(tmp_path / name, run, teacher="big", k=2) == 1
    assert [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()] == rows
    pyarrow = pytest.importorskip("pyarrow")
    assert pyarrow.parquet.read_table(tmp_path / "rows.parquet").to_pylist() == rows
    assert export.arrow(rows).to_pylist() == rows


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "k=0: expected a number of tokens from 1 on"),
        ({"k": True}, "k=True"),
        ({"source": "both"}, "source='both': expected 'prompt', 'sampled' or None"),
        ({"source": "sampled", "teacher": "big"}, "a teacher scores rows as prompts"),
        ({"filler": math.nan}, "filler=nan"),
    ],
)
def test_options_of_another_value_are_refused(options: Any, message: str) -> None:
    for function in (export.distillation, export.iter_distillation):
        with pytest.raises(ValueError, match=message):
            function([], **options)
    with pytest.raises(ValueError, match="filler=-inf: files need a finite number"):
        export.write_distillation("rows.jsonl", [], filler=-math.inf)


def test_a_rollout_and_its_teacher_s_call_through_the_client() -> None:
    """As the docstring shows it: the row's ids are sent to the teacher as a prompt, under the same trajectory."""
    with ScriptedServer(["one two", Reply("x", token_ids=[3])]) as server:
        client = rt.wrap_openai(OpenAI(base_url=server.base_url, api_key="k", max_retries=0), engine="vllm")
        with client, rt.trajectory() as run:
            client.chat.completions.create(model="small", messages=[{"role": "user", "content": "Count."}])
            (row,) = run.sequences()
            asked: dict[str, Any] = {"prompt_logprobs": 2}
            client.completions.create(model="big", prompt=row.token_ids.tolist(), max_tokens=1, extra_body=asked)
    scored = run.steps[1]
    assert scored.prompt_token_ids is not None
    assert scored.prompt_token_ids.tolist() == row.token_ids.tolist()
    report = export.ExportReport()
    made = export.distillation(run, teacher="big", report=report)
    # The scripted server has no scores: the row is counted as one without them, and the teacher's answer is in none.
    assert (made, report.dropped) == ([], {"rows without the teacher's scores": 1})
