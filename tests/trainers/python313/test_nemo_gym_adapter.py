"""``trainers.nemo_gym``: NeMo-Gym's model server, resources server and client, all its own, around an agent server."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from nemo_gym import server_utils
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.global_config import NEMO_GYM_CONFIG_DICT_ENV_VAR_NAME
from nemo_gym.server_utils import ServerClient, get_response_json
from omegaconf import OmegaConf
from openai import AsyncOpenAI
from page_blocks import blocks_below, run_block
from responses_api_models.vllm_model.app import VLLMModel, VLLMModelConfig

import rollout_trace as rt
from rollout_trace.testing import Reply, ScriptedServer
from rollout_trace.trainers.nemo_gym import agent_server

TASKS, SAMPLES = 2, 6

pytestmark = pytest.mark.filterwarnings("default")  # of NeMo-Gym itself


@pytest.fixture(autouse=True)
def configured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its servers are child processes with their configuration in the environment."""
    monkeypatch.setenv(NEMO_GYM_CONFIG_DICT_ENV_VAR_NAME, "{}")
    monkeypatch.setattr(server_utils, "_GLOBAL_AIOHTTP_CLIENT", None)  # It is of one event loop.


def answered(request: Any) -> Reply:
    text = "".join(str(one["content"]) for one in request["messages"])
    number = int(text.rpartition("How much is ")[2].split()[0])
    return Reply(f"It is {number + 2}" + "." * (len(text) % 7))


class Sums(SimpleResourcesServer):  # type: ignore[misc]
    """Verifies by the texts of the response."""

    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        said = [item for item in body.response.output if getattr(item, "role", None) == "assistant"]
        return BaseVerifyResponse(**body.model_dump(), reward=float(len(said)))


@contextlib.asynccontextmanager
async def serving(client: ServerClient, kind: str, server: Any) -> AsyncIterator[None]:
    """Serves an app of NeMo-Gym's at a free port, and puts its address into the client's configuration."""
    served = uvicorn.Server(uvicorn.Config(server.setup_webserver(), port=0, log_level="warning"))
    running = asyncio.ensure_future(served.serve())
    while not served.started:
        await asyncio.sleep(0.01)
        assert not running.done()
    port = served.servers[0].sockets[0].getsockname()[1]
    client.global_config_dict[server.config.name] = {kind: {"it": {"host": "127.0.0.1", "port": port}}}
    try:
        yield
    finally:
        served.should_exit = True
        await running


def rows_of_dataset() -> list[dict[str, Any]]:
    return [
        {"responses_create_params": {"input": [{"role": "user", "content": f"How much is {task} + 2?"}]},
         "answer": str(task + 2), "_ng_task_index": task, "_ng_rollout_index": sample}
        for task in range(TASKS) for sample in range(SAMPLES)
    ]  # fmt: skip


async def collect(made: Any, *, verified: bool, rows: list[dict[str, Any]], model: str = "policy") -> list[Any]:
    """What the agent server answers to ``/run``, and to ``/v1/responses`` of the first row."""
    client = ServerClient(
        head_server_config=BaseServerConfig(host="127.0.0.1", port=1), global_config_dict=OmegaConf.create({})
    )
    own = {"host": "127.0.0.1", "port": 1, "entrypoint": "app.py"}
    with ScriptedServer(answered) as engine:
        settings = {"base_url": engine.base_url, "api_key": "none", "model": "tiny", "uses_reasoning_parser": False}
        ids = {"return_token_id_information": True, "request_prompt_and_generation_token_ids": True}
        policy = VLLMModel(config=VLLMModelConfig(name=model, **own, **settings, **ids), server_client=client)
        sums = Sums(config=BaseResourcesServerConfig(name="sums", domain="math", **own), server_client=client)
        refs: dict[str, Any] = {"model_server": {"type": "responses_api_models", "name": model}}
        if verified:
            refs["resources_server"] = {"type": "resources_servers", "name": "sums"}
        config = made.model_fields["config"].annotation(name="agent", **own, **refs)
        agent = made(config=config, server_client=client)
        async with (
            serving(client, "responses_api_models", policy),
            serving(client, "resources_servers", sums),
            serving(client, "responses_api_agents", agent),
        ):
            asked = [client.post(server_name="agent", url_path="/run", json=row) for row in rows]
            answers = [await get_response_json(one) for one in await asyncio.gather(*asked)]
            alone = await client.post(
                server_name="agent", url_path="/v1/responses", json=rows[0]["responses_create_params"]
            )
            answers.append(await get_response_json(alone))
        await server_utils.get_global_aiohttp_client().close()
    return answers


async def solve(task: Any, rollout: rt.Rollout) -> str:
    """Some runs fail before or after a call, have a sub-agent, or a second conversation, or several turns."""
    fate = task.get("_ng_rollout_index", 0)
    messages = list(task["responses_create_params"]["input"])

    async def ask(*messages: Any) -> Any:
        message = (await client.chat.completions.create(model=task.model, messages=messages)).choices[0].message
        return {"role": "assistant", "content": message.content}

    async with AsyncOpenAI(base_url=task.base_url, api_key=task.api_key, max_retries=0) as client:
        if fate == 1:
            raise RuntimeError("before its first call")
        if fate == 2:
            with rt.trajectory("helper"):
                await ask({"role": "user", "content": "How much is 5 + 2?"})
        messages.append(await ask(*messages))
        if fate == 3:
            raise RuntimeError("after a call")
        for number in range(fate % 3):
            messages.append({"role": "user", "content": f"How much is {number} + 2?"})
            messages.append(await ask(*messages))
        if fate == 4:
            await ask({"role": "user", "content": "How much is 9 + 2, said again and at some length?"})
    return str(messages[-1]["content"])


def rows_of(run: rt.Trajectory) -> list[list[tuple[list[int], list[int], list[float]]]]:
    """Of each row of a run its answers, from the steps: the prompt's ids, those sampled, their logprobs."""
    rows: list[Any] = []
    for step in run.steps:
        assert step.prompt_token_ids is not None
        assert step.completion_token_ids is not None
        assert step.logprobs is not None
        prompt, said = step.prompt_token_ids.tolist(), step.completion_token_ids.tolist()
        if not rows or prompt[: len(rows[-1][-1][0] + rows[-1][-1][1])] != rows[-1][-1][0] + rows[-1][-1][1]:
            rows.append([])
        rows[-1].append((prompt, said, step.logprobs.tolist()))
    return rows


@pytest.mark.parametrize("verified", [True, False])
def test_nemo_gym_gets_what_was_sampled(verified: bool, tmp_path: Path) -> None:
    """Failed runs, sub-agents, runs of several rows; ids, logprobs, rewards and groups are those of the steps."""

    def grade(task: Any, answer: str, trajectory: rt.Trajectory) -> float | None:
        return None if len(trajectory.steps) == 3 else len(trajectory.steps) + int(task.get("answer", 0)) / 10

    made = agent_server(solve, output=tmp_path / "runs.jsonl", reward=None if verified else grade)
    rows = rows_of_dataset()
    *found, alone = asyncio.run(asyncio.wait_for(collect(made, verified=verified, rows=rows), 300))
    runs = {one.id: one for one in rt.read(tmp_path / "runs.jsonl")}
    left_out = 0
    for row, answer in zip(rows, found, strict=True):
        read = BaseVerifyResponse.model_validate(answer)
        run = runs[answer["trajectory_id"]]
        fate, task = row["_ng_rollout_index"], row["_ng_task_index"]
        assert (answer["_ng_task_index"], answer["_ng_rollout_index"], answer["answer"]) == (task, fate, row["answer"])
        assert run.metadata is not None
        assert run.metadata["nemo_gym"] == {"task_index": task, "rollout_index": fate}
        assert run.group_id == str(task)
        expected = rows_of(run)
        left_out += max(0, len(expected) - 1)
        best = max(expected, key=lambda calls: sum(len(said) for _, said, _ in calls), default=[])
        trained = [item for item in read.response.output if hasattr(item, "generation_token_ids")]
        assert [
            (item.prompt_token_ids, item.generation_token_ids, item.generation_log_probs) for item in trained
        ] == best
        failed = fate in (1, 3) or (run.reward is None and not verified)
        assert read.mask_sample == failed
        assert read.failure_kind == ("agent_run_error" if failed else None)
        assert read.reward == (0.0 if failed else float(len(best)) if verified else run.reward)
        if fate in (1, 3):
            assert str(read.failure_reason).startswith("RuntimeError: ")
    assert not [what for what in made.report.dropped if what.startswith("fields of an answer")]
    assert made.report.dropped.get("rows left out: of other sequences", 0) == left_out > 0
    assert made.report.dropped["trajectories inside another"] == TASKS
    assert alone["output"][-1]["generation_token_ids"] == found[0]["response"]["output"][-1]["generation_token_ids"]


def test_what_is_wrong_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match="the agent is 3"):
        agent_server(3)
    with pytest.raises(TypeError, match="takes no samples"):
        agent_server(len, samples=2)  # type: ignore[call-arg]
    (tmp_path / "runs.jsonl").write_text("{}\n")
    with pytest.raises(FileExistsError, match=r"runs\.jsonl is not empty"):
        agent_server(len, output=tmp_path / "runs.jsonl")
    monkeypatch.setitem(sys.modules, "nemo_gym.base_resources_server", None)
    with pytest.raises(ImportError, match=r"needs NeMo-Gym 0\.7, which cannot be imported: "):
        agent_server(len)


def test_the_page_gives_nemo_gym_its_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = blocks_below("docs/train-others.md", "NeMo-Gym")
    assert len([line for line in block.text.splitlines() if line.strip()]) < 20
    names: dict[str, Any] = {"__name__": "app"}
    run_block(block, names)
    # Columns of the dataset take the place of nothing.
    row = {**rows_of_dataset()[0], "reward": 7.0, "mask_sample": True, "failure_kind": "none"}
    answer, _ = asyncio.run(asyncio.wait_for(collect(names["Server"], verified=False, rows=[row]), 300))
    assert (answer["reward"], answer["mask_sample"]) == (1.0, False)
    (run, *_) = rt.read("runs.jsonl")
    assert run.reward == 1.0
