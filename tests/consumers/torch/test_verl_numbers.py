"""``trainers.verl.note_numbers``: verl's own worker, trainer, engine and loss take steps, on a CPU; its transfer queue,
the server and the processes of its workers have stand-ins.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import openai
import pytest
import torch
from openai import AsyncOpenAI
from page_blocks import blocks_of
from transformers import AutoModelForCausalLM

import rollout_trace as rt
from rollout_trace.clients import exact_turns
from rollout_trace.testing import ScriptedServer
from rollout_trace.trainers.verl import agent_loop, note_numbers
from tests.consumers.torch import test_verl_adapter as adapter

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import transfer_queue
    from omegaconf import OmegaConf
    from verl.trainer.ppo.v1 import agent_loop_tq
    from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY
    from verl.utils import tensordict_utils
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.engine.fsdp import transformer_impl
    from verl.workers.utils.losses import ppo_loss

pytestmark = pytest.mark.filterwarnings("default")  # of verl itself
SAMPLES, RESPONSE = 4, 83


class Queue:
    """The functions of the transfer queue that are used, in this process."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self.tags: dict[str, dict[str, Any]] = {}
        self.seen: set[str] = set()

    def get(self, keys: Sequence[str], partition_id: str, select_fields: Sequence[str] | None = None) -> Any:
        rows = [self.rows[key] for key in keys]
        names = select_fields or [name for name in rows[0] if all(name in row for row in rows)]
        # As verl's own workers put them.
        kept = [{name: row[name] for name in names if select_fields is None or name in row} for row in rows]
        return tensordict_utils.list_of_dict_to_tensordict(kept)

    def put(self, keys: Sequence[str], partition_id: str, fields: Any, tags: Any = None) -> Any:
        for at, key in enumerate(keys):
            row = {name: value[at] for name, value in fields.items()}
            self.rows.setdefault(key, {}).update({name: getattr(one, "data", one) for name, one in row.items()})
            self.tags[key] = self.tags.get(key, {}) if tags is None else tags[at]
        return self.meta(keys)

    def sampled(self) -> Any:
        """The rows that are new."""
        new = [key for key in self.rows if key not in self.seen]
        self.seen.update(new)
        return self.meta(new)

    def meta(self, keys: Sequence[str]) -> Any:
        return transfer_queue.KVBatchMeta(
            keys=list(keys), tags=[self.tags[key] for key in keys], partition_id="train", extra_info={}
        )

    async def aput(self, **given: Any) -> Any:
        return self.put(**given)

    async def aput_tag(self, key: str, partition_id: str, tag: Mapping[str, Any]) -> None:
        """The state of a prompt, which nobody waits for here."""


class Actor:
    """The workers of the actor: verl's engine and loss, and no processes."""

    def __init__(self, queue: Queue, config: Any) -> None:
        self._queue = queue
        self._dispatch_info = {"actor": [0]}
        self._config = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
        model = AutoModelForCausalLM.from_pretrained(adapter.ROOT / "tests/data/tiny-model", dtype=torch.float32)
        self.parameters = list(model.parameters())
        self._optimizer = torch.optim.AdamW(self.parameters, lr=1e-3)
        settings = SimpleNamespace(entropy_checkpointing=False)
        known = {"module": model, "pad_to_length": False, "use_ulysses_sp": False, "engine_config": settings}
        self._engine: Any = object.__new__(transformer_impl.FSDPEngineWithLMHead)
        self._engine.__dict__ |= {**known, "_autocast_dtype": torch.float32, "get_data_parallel_group": lambda: None}
        self.computed: dict[str, tuple[Any, Any]] = {}
        """Logprobs and entropies of each row before an update, position i of token i + 1."""

    def compute_log_prob(self, batch: Any) -> Any:
        with torch.no_grad():
            _, output = self._engine.forward_step(self._data(batch), None, forward_only=True)
        found = output["model_output"]
        pairs = [
            (one, other) for one, other in zip(found["log_probs"].unbind(), found["entropy"].unbind(), strict=True)
        ]
        self.computed |= dict(zip(batch.keys, pairs, strict=True))
        return self._queue.put(batch.keys, "train", {name: found[name].unbind() for name in ("log_probs", "entropy")})

    def update_actor(self, batch: Any) -> Any:
        data = self._data(batch)
        tokens = int(data["response_mask"].values().sum())
        tensordict_utils.assign_non_tensor(data, dp_size=1, batch_num_tokens=tokens, global_batch_size=len(batch))
        loss, _ = self._engine.forward_step(data, partial(ppo_loss, self._config), forward_only=False)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return {"metrics": {"mfu": [0.0], "loss": [loss.item()]}}

    def _data(self, batch: Any) -> Any:
        data = self._queue.get(batch.keys, "train")
        known = {"use_remove_padding": False, "use_fused_kernels": False, **batch.extra_info}
        tensordict_utils.assign_non_tensor(data, **known)
        return data


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    queue = Queue()
    for name, called in (
        ("init", lambda: None), ("kv_batch_get", queue.get), ("kv_batch_put", queue.put),
        ("async_kv_batch_put", queue.aput), ("async_kv_put", queue.aput_tag),
    ):  # fmt: skip
        monkeypatch.setattr(transfer_queue, name, called)
    for name in ("get_device_id", "get_device_name"):
        monkeypatch.setattr(transformer_impl, name, lambda: "cpu")
    yield queue
    TRAINER_REGISTRY.pop("noting", None)


def make_trainer(queue: Queue, config: Any) -> Any:
    """That of docs/mismatch.md, with what its ``init`` makes."""
    (block,) = [one for one in blocks_of("docs/mismatch.md") if "class Noting" in one.text]
    names: dict[str, Any] = {}
    exec(block.text, names)
    trainer = object.__new__(TRAINER_REGISTRY["noting"])
    OmegaConf.set_struct(config, False)
    config.algorithm.adv_estimator = "grpo"
    config.actor_rollout_ref.actor.ppo_mini_batch_size = 2
    config.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu = 8
    config.actor_rollout_ref.rollout.n = SAMPLES
    trainer.__dict__ |= {
        "config": config,
        "actor_rollout_wg": Actor(queue, config),
        "replay_buffer": SimpleNamespace(sample=lambda **_: (queue.sampled(), {})),
        "reward_loop_manager": SimpleNamespace(reward_loop_worker_handles=[None]),
        "checkpoint_manager": SimpleNamespace(sleep_replicas=lambda: None),
        "tokenizer": SimpleNamespace(eos_token_id=0),
        "curr_step_profile": False,
        "use_reference_policy": False,
        "use_critic": False,
        "global_steps": 1,
    }
    return trainer


async def agent(task: Any, rollout: rt.Rollout) -> float:
    """A run with a short answer, one that fails, and two longer than a response, of which one has two conversations."""
    fate, said = rollout.index, list(task["raw_prompt"])
    async with AsyncOpenAI(base_url=task.base_url, api_key="none") as client:
        if fate == 1:
            raise RuntimeError("before its first call")
        if fate >= 2:
            await adapter.turns(client, said, tools=adapter.TOOLS)
        if fate in (0, 2):
            await adapter.turns(client, said)
    return float(fate)


def expected_of(run: rt.Trajectory, computed: tuple[Any, Any], length: int) -> dict[str, tuple[Any, Any]]:
    """Logprobs and entropies of each step of the run's row with the most sampled tokens, NaN where it was cut."""
    row = max(run.sequences(), key=lambda one: int(one.loss_mask.sum()))
    end = row.prompt_length + length
    found = {}
    for step, (begin, stop) in zip(row.step_ids, row.spans, strict=True):
        if begin < end:
            kept = [np.full(stop - begin, np.nan, np.float32) for _ in computed]
            for to, values in zip(kept, computed, strict=True):
                to[: min(stop, end) - begin] = values[begin - 1 : min(stop, end) - 1]
            found[step] = (kept[0], kept[1])
    return found


def test_what_the_trainer_computed_comes_back(
    tmp_path: Path, queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # On a busy machine a run may wait for longer than that for a tokenizer, and go as text: as other rows.
    monkeypatch.setattr(exact_turns, "PATIENCE", 300.0)
    loop = agent_loop(agent, reward=lambda task, result, run: result, output=tmp_path)
    kind = agent_loop_tq.AgentLoopWorkerTQ.__ray_metadata__.modified_class
    worker, _ = adapter.make_worker(loop, response=RESPONSE, kind=kind, n=SAMPLES)
    trainer = make_trainer(queue, worker.config)
    before = [one.detach().clone() for one in trainer.actor_rollout_wg.parameters]

    async def steps() -> None:
        for step in (1, 2):
            given = adapter.batch_of(2, 1)
            columns = {**given.non_tensor_batch, "uid": np.array([f"{step}-a", f"{step}-b"], dtype=object)}
            asked = tensordict_utils.get_tensordict(columns)
            tensordict_utils.assign_non_tensor_data(asked, "global_steps", step)
            await worker.generate_sequences(asked)
            await asyncio.gather(*worker.background_tasks)
            trainer.global_steps = step
            trainer._step_once({}, {}, 2)
        await loop.aclose()

    asyncio.run(steps())
    assert any(not torch.equal(*pair) for pair in zip(before, trainer.actor_rollout_wg.parameters, strict=True))
    computed = {
        queue.rows[key]["extra_fields"]["trajectory_id"]: numbers
        for key, numbers in trainer.actor_rollout_wg.computed.items()
    }
    runs = list(rt.read(tmp_path))
    assert len(runs) == len(computed) == 2 * 2 * SAMPLES
    kinds = set()
    for run in runs:
        expected = {} if run.status == "failed" else expected_of(run, computed[run.id], RESPONSE)
        is_cut = any(np.isnan(pair[0]).any() for pair in expected.values())
        kinds.add((len(run.sequences()), len(run.steps) - len(expected), is_cut))
        for one in run.steps:
            found = (one.trainer_logprobs, one.entropy)
            if one.id not in expected:
                assert found == (None, None)
                continue
            for given, wanted in zip(found, expected[one.id], strict=True):
                assert given is not None
                assert given.dtype == np.float32
                assert given.tobytes() == wanted.tobytes()
    # Rows, steps without numbers, and whether a row was cut inside a completion.
    assert kinds == {(1, 0, False), (0, 0, False), (2, 1, True), (1, 0, True)}
    assert not [one for one in caplog.records if "not noted" in one.getMessage()]


def test_what_goes_wrong_is_a_warning(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    note_numbers(SimpleNamespace(keys=["a"], partition_id="train"))
    assert "numbers of a batch were not noted: KeyError" in caplog.text


def test_a_file_that_is_not_there_leaves_the_others(
    tmp_path: Path, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "here.jsonl"
    with ScriptedServer("It is 5.") as server, openai.OpenAI(base_url=server.base_url, api_key="none") as client:
        rt.wrap_openai(client, engine="vllm")
        with rt.recording(file), rt.trajectory() as run:
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "2 and 3?"}])
    (row,) = run.sequences()
    mask = torch.tensor(row.loss_mask[row.prompt_length :].tolist(), dtype=torch.float32)
    place = {"trajectory_id": run.id, "step_ids": list(row.step_ids), "spans": [list(span) for span in row.spans]}
    extra = [{**place, "rollouts_file": str(path)} for path in (tmp_path / "elsewhere.jsonl", file)]
    numbers = [torch.full_like(mask, -0.5)] * 2
    columns = {"extra_fields": extra, "response_mask": [mask] * 2, "old_log_probs": numbers, "entropy": numbers}
    note_numbers(queue.put(["a", "b"], "train", columns))
    (found,) = rt.read(file)
    assert found.steps[0].trainer_logprobs is not None
    assert set(found.steps[0].trainer_logprobs.tolist()) == {-0.5}
    gone = tmp_path / "elsewhere.jsonl"
    assert f"numbers were not noted for 1 of the rows in {gone}: FileNotFoundError" in caplog.text
