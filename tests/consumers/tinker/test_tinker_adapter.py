"""``trainers.tinker``: what Tinker's own training client sends of groups of rollouts, over a loopback service."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
import tinker
from page_blocks import blocks_below, run_block

import rollout_trace as rt
from rollout_trace.report import ExportReport
from rollout_trace.trainers.tinker import data
from tests.consumers import recorded
from tests.consumers.tinker.service import Sample
from tests.consumers.tinker.training import TrainingService

PARAMS = tinker.SamplingParams(max_tokens=4)
SAMPLES = 5


def ids_of(body: dict[str, Any]) -> list[int]:
    return [token for chunk in body["prompt"]["chunks"] for token in chunk["tokens"]]


def sampled(body: dict[str, Any]) -> Sample:
    """Two ids and their logprobs, by the prompt."""
    total = sum(ids_of(body)) % 1000
    return {"sequences": [([total, total + 1], [-total / 1024, -0.5], "stop")]}


@pytest.fixture
def service() -> Any:
    service = TrainingService()
    service.script = sampled
    service.start()
    yield service
    service.stop()


def tokens_at(span: tuple[str, str, int, int], service: TrainingService) -> list[int]:
    """The tokens that a span names, as the service was asked for them and sampled them."""
    kind, name, offset, length = span
    body = service.asked[int(name.split("-")[1])]
    ids = ids_of(body) if kind == "prompt_tokens" else sampled(body)["sequences"][0][0]
    assert len(ids[offset : offset + length]) == length > 0
    return list(ids[offset : offset + length])


async def ask(sampler: Any, prompt: list[int]) -> list[int]:
    (sequence,) = (await sampler.sample(tinker.ModelInput.from_ints(prompt), 1, PARAMS)).sequences
    return [*prompt, *sequence.tokens]


def grade(task: int, result: Any, trajectory: rt.Trajectory) -> float:
    return float(len(trajectory.steps))


def test_the_client_sends_rows_with_their_provenance(service: TrainingService) -> None:
    with tinker.ServiceClient(base_url=service.url, api_key="tml-0") as client:
        training = client.create_lora_training_client(base_model="tiny", rank=32).result()
        sampler = rt.wrap_tinker(training.save_weights_and_get_sampling_client().result())

        async def agent(task: int, rollout: rt.Rollout) -> None:
            """Turns that go on; one run fails, one has a sub-agent, one a second conversation."""
            if rollout.index == 1:
                raise RuntimeError("before its first call")
            said = [task, 5]
            for turn in range(1 + rollout.index):
                said = [*await ask(sampler, said), *[7, 8][: turn % 3]]
            if rollout.index == 2:
                with rt.trajectory("helper"):
                    await ask(sampler, [3])
            if rollout.index == 3:
                await ask(sampler, [4, task])

        report = ExportReport()

        async def trained() -> list[Any]:
            groups = rt.rollouts(agent, [100, 200], samples=SAMPLES, reward=grade)
            return [group async for group in groups]

        groups = asyncio.run(trained())
        rows = data(groups, report=report)
        training.forward_backward(rows, loss_fn="importance_sampling").result()
    ((_, sent),) = service.batches
    runs = [run for group in groups for run in group.trajectories if run.status == "completed"]
    sequences = [(run, row) for run in runs for row in run.sequences()]
    assert len(sequences) == len(sent) == 2 * SAMPLES
    advantages = {
        run.id: value for group in groups for run, value in zip(group.trajectories, group.advantages(), strict=True)
    }
    for row, (run, sequence) in zip(sent, sequences, strict=True):
        assert sequence.logprobs is not None
        assert row["model_input"] == sequence.token_ids[:-1].tolist()
        assert row["target_tokens"] == sequence.token_ids[1:].tolist()
        assert row["logprobs"] == sequence.logprobs[1:].tolist()
        assert row["advantages"] == pytest.approx((sequence.loss_mask[1:] * advantages[run.id]).tolist())
        for name, spans in row["spans"].items():
            assert [token for span in spans for token in tokens_at(span, service)] == row[name]
        kinds = [kind for kind, _, _, length in row["spans"]["target_tokens"] for _ in range(length)]
        assert [kind == "sampled_tokens" for kind in kinds] == sequence.loss_mask[1:].astype(bool).tolist()
    assert report.dropped["rows without an advantage"] == 2


def test_rows_of_other_samplers_have_no_provenance() -> None:
    runs = recorded.tool_agent()
    rows = data(rt.groups(runs))
    assert len(rows) == len(runs)
    assert all(row.model_input_spans is None for row in rows)


def test_the_page(service: TrainingService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tests").symlink_to(Path(__file__).parents[2])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TINKER_BASE_URL", service.url)
    monkeypatch.setenv("TINKER_API_KEY", "tml-0")
    (block,) = blocks_below("docs/train-tinker.md", "An agent while it trains")
    assert len(block.text.splitlines()) < 20
    run_block(block, {"__name__": "page"})
    assert [len(rows) for _, rows in service.batches] == [4, 4]
    assert len(service.updates) == 2
    runs = list(rt.read("tinker.jsonl"))
    assert sorted(row["target_tokens"] for _, rows in service.batches for row in rows) == sorted(
        run.sequences()[0].token_ids[1:].tolist() for run in runs
    )
    assert all(row["spans"]["model_input"] for _, rows in service.batches for row in rows)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tinker", None)
    with pytest.raises(ImportError, match=r"needs tinker 0\.38, which cannot be imported: "):
        data([])
