"""TRL's and verl's own code for distillation: the rows are what TRL's client makes, and both losses take them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from trl.generation.vllm_client import VLLMClient
from verl.trainer.distillation.fsdp.losses import compute_forward_kl_topk

import rollout_trace as rt
from rollout_trace import export
from rollout_trace.data.model import Step
from rollout_trace.testing import Exchange, load_exchanges
from rollout_trace.wire import decode

DATA = Path(__file__).parents[2] / "data" / "wire_vllm_extras.jsonl.xz"
RECORDED = ["dense_comp_plp5", "dense_comp_plp1"]
PROMPT, VOCABULARY = 3, 2048

pytestmark = pytest.mark.filterwarnings("default")


@cache
def exchange(name: str) -> Exchange:
    return {one.name: one for one in load_exchanges(DATA)}[name]


def rollout(name: str) -> rt.Trajectory:
    """A recorded call that scored a prompt, beside a rollout of the same ids."""
    one = exchange(name)
    body = one.response
    (scores,) = decode("openai.completions", one.request, body, content_type="application/json", status=one.status or 0)
    assert scores.prompt_token_ids is not None
    ids = scores.prompt_token_ids.tolist()
    sampled = Step(
        id="a", call_id="a", model="small", prompt_token_ids=ids[:PROMPT], completion_token_ids=ids[PROMPT:],
        logprobs=[-1.0] * (len(ids) - PROMPT),  # type: ignore[arg-type]
    )  # fmt: skip
    return rt.Trajectory(steps=[sampled, scores])


def row_of(name: str, k: int, **options: Any) -> dict[str, Any]:
    (row,) = export.distillation(rollout(name), teacher=lambda step: step.prompt_logprobs is not None, k=k, **options)
    return row


def trl_arrays(name: str, k: int) -> dict[str, Any]:
    """What TRL's client makes of the same answer."""
    (choice,) = json.loads(exchange(name).response)["choices"]
    arrays: dict[str, Any] = VLLMClient._format_sequence_logprobs(choice, choice["prompt_token_ids"], PROMPT, k)
    return arrays


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("k", [1, 3, 6, 9])
def test_rows_are_what_trl_s_client_makes(name: str, k: int) -> None:
    row, its = row_of(name, k, filler=float("-inf")), trl_arrays(name, k)
    assert row["input_ids"][PROMPT:] == [one for (one,) in its["actual_token_ids"]]
    assert row["topk_ids"][PROMPT:] == its["logprob_token_ids"]
    assert row["topk_logprobs"][PROMPT:] == np.float32(its["logprobs"]).tolist()
    assert row["teacher_logprobs"][PROMPT:] == np.float32(its["actual_logprobs"])[:, 0].tolist()


def logits(length: int) -> Any:
    torch.manual_seed(1)
    return torch.randn(1, length, VOCABULARY, requires_grad=True)


def forward_kl(row: dict[str, Any], student: Any) -> list[float]:
    """KL of the teacher's k tokens at each position of the completion: row i of the logits predicts id i + 1."""
    own = torch.log_softmax(student.detach()[0].double(), -1).numpy()
    sums = []
    for at in range(PROMPT, len(row["input_ids"])):
        pairs = zip(row["topk_ids"][at], row["topk_logprobs"][at], strict=True)
        sums.append(sum(np.exp(value) * (value - own[at - 1, token]) for token, value in pairs if value > -9999.0))
    return sums


@pytest.mark.parametrize("k", [3, 9])
def test_verl_s_loss_takes_them(k: int) -> None:
    """Shifted by one to the left, and with a filler whose probability is zero."""
    row = row_of("dense_comp_plp5", k)
    student = logits(len(row["input_ids"]))
    ids = torch.tensor([*row["topk_ids"][1:], [0] * k])
    logprobs = torch.tensor([*row["topk_logprobs"][1:], [-9999.0] * k])
    settings: Any = SimpleNamespace(distillation_loss=SimpleNamespace(log_prob_min_clamp=None))
    found: Any = compute_forward_kl_topk(
        student, torch.nested.as_nested_tensor([logprobs], layout=torch.jagged),
        torch.nested.as_nested_tensor([ids], layout=torch.jagged), settings, "bshd",
    )  # fmt: skip
    losses = found["distillation_losses"] if isinstance(found, dict) else found[0]
    assert losses[0, PROMPT - 1 : -1].tolist() == pytest.approx(forward_kl(row, student), rel=1e-4)
    losses[0, PROMPT - 1 : -1].sum().backward()
    assert torch.isfinite(student.grad).all()


@pytest.mark.parametrize("k", [3, 9])
def test_trl_s_loss_takes_them(k: int) -> None:
    # Here, as its import warns that it is experimental, and a warning in a module of tests is an error.
    from trl.experimental.server_distillation.server_distillation_trainer import ServerDistillationTrainer

    row = row_of("dense_comp_plp5", k, filler=float("-inf"))
    student = logits(len(row["input_ids"]))
    ids = torch.tensor(row["input_ids"])
    labels = torch.where(torch.tensor(row["loss_mask"]) == 1, ids, -100)[None, PROMPT:]
    teacher = {
        "topk_logprobs": torch.tensor(row["topk_logprobs"])[None, PROMPT:],
        "topk_token_ids": torch.tensor(row["topk_ids"])[None, PROMPT:],
    }
    trainer = SimpleNamespace(
        loss_add_tail=True, _reduce_divergence_loss=ServerDistillationTrainer._reduce_divergence_loss
    )
    its = trl_arrays("dense_comp_plp5", k)
    same = {
        "topk_logprobs": torch.tensor(its["logprobs"])[None],
        "topk_token_ids": torch.tensor(its["logprob_token_ids"])[None],
    }
    log_probs = torch.log_softmax(student[:, PROMPT - 1 : -1], -1)
    loss = ServerDistillationTrainer._compute_server_forward_kl_loss(trainer, teacher, log_probs, labels)
    expected = ServerDistillationTrainer._compute_server_forward_kl_loss(trainer, same, log_probs, labels)
    assert loss.item() == pytest.approx(expected.item())
    assert loss.item() > 0
    loss.backward()
    assert torch.isfinite(student.grad).all()
