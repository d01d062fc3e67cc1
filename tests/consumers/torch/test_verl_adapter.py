"""``trainers.verl``: verl's own worker, client and parser run an agent that is a function; its server is a stand-in."""

from __future__ import annotations

import asyncio
import importlib
import re
import sys
import threading
import warnings
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError, OpenAI
from page_blocks import blocks_below

import rollout_trace as rt
from rollout_trace.clients import exact_turns
from rollout_trace.trainers import served
from rollout_trace.trainers.verl import agent_loop

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import verl as verl_itself
    from hydra import compose, initialize_config_dir
    from verl import DataProto
    from verl.experimental.agent_loop.agent_loop import AgentLoopWorker, _agent_loop_registry
    from verl.workers.rollout.llm_server import LLMServerClient
    from verl.workers.rollout.replica import TokenOutput

pytestmark = pytest.mark.filterwarnings("default")  # of verl itself
SAMPLES = 6
ROOT = Path(__file__).parents[3]
PARAMETERS = {"drawer": {"type": "string", "description": "Its number."}}
LOOK = {
    "name": "look",
    "description": "Opens a drawer.",
    "parameters": {"type": "object", "properties": PARAMETERS, "required": ["drawer"]},
}
TOOLS: Any = [{"type": "function", "function": LOOK}]


class Remote:
    """A method of an actor."""

    def __init__(self, called: Callable[..., Any]) -> None:
        self.remote = called


class Server:
    """verl's load balancer and its only server, which samples by a rule, each letter by itself."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.asked: list[tuple[str, list[int], dict[str, Any], list[int], list[float]]] = []
        self.step = 7
        self.require_acquire_fields = self.require_release_fields = Remote(self._no_fields)
        self.acquire_server, self.release_server = Remote(self._acquire), Remote(lambda **_: None)
        self.generate = Remote(self._generate)
        self.holds, self.held, self.cut = False, threading.Event(), threading.Event()
        """Whether it samples without an end, and whether it does, or was cut."""
        self.stop_reason, self.has_experts = "completed", False

    async def _no_fields(self) -> list[str]:
        return []

    async def _acquire(self, request_id: str) -> tuple[str, Server]:
        return request_id, self

    async def _generate(self, *, request_id: str, prompt_ids: list[int], sampling_params: Any, **others: Any) -> Any:
        assert others == {"image_data": None, "video_data": None}
        params, longest = dict(sampling_params), sampling_params.pop("max_tokens")
        if self.holds:
            self.held.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.cut.set()
        ids = self.answer(self.tokenizer.decode(prompt_ids))[:longest]
        logprobs = [-(zlib.crc32(str((prompt_ids, ids[: at + 1])).encode()) % 4096) / 512 for at in range(len(ids))]
        # The client makes its own id of each request.
        self.asked.append((request_id, prompt_ids, params, ids, logprobs))
        return TokenOutput(
            token_ids=ids,
            log_probs=logprobs if params["logprobs"] else None,
            stop_reason=self.stop_reason,
            routed_experts=experts_of([*prompt_ids, *ids][:-1]) if self.has_experts else None,
            extra_fields={"global_steps": self.step},
        )

    def answer(self, prompt: str) -> list[int]:
        """A call of the tool where there is one, and it was not called; else the sum."""
        if "# Tools" in prompt and "<tool_response>" not in prompt:
            text = '{"name": "look", "arguments": {"drawer": "2"}}'
            return [*self.ids("<tool_call>"), *self.ids(text), *self.ids("</tool_call>"), self.tokenizer.eos_token_id]
        return [*self.ids("It is " + "4!"[: 1 + len(prompt) % 2]), self.tokenizer.eos_token_id]

    def ids(self, text: str) -> list[int]:
        whole = [text] if text.startswith("<") else list(text)
        return [one for piece in whole for one in self.tokenizer.encode(piece)]


def experts_of(ids: Sequence[int]) -> Any:
    """Those of each token [tokens, 3 layers, 2], which depend on all before."""
    seen = np.cumsum(ids)
    return np.stack([1 + seen % (7 + at) for at in range(6)], axis=1).reshape(-1, 3, 2).astype(np.uint8)


def make_worker(
    loop: Any, prompt: int = 700, response: int = 400, kind: Any = AgentLoopWorker, **others: Any
) -> tuple[Any, Server]:
    """verl's worker by its own constructor and configuration."""
    lengths = {"prompt_length": prompt, "response_length": response}
    given = {"name": "vllm", **lengths, "val_kwargs.temperature": 0.25, "agent.default_agent_loop": "ours", **others}
    settings = [f"actor_rollout_ref.rollout.{name}={value}" for name, value in given.items()]
    with initialize_config_dir(str(Path(verl_itself.__file__).parent / "trainer" / "config"), version_base=None):
        config = compose("ppo_trainer", [f"actor_rollout_ref.model.path={ROOT}/tests/data/tiny-model", *settings])
    client = LLMServerClient(config)
    worker = kind(config, client)
    server = Server(worker.tokenizer)
    client._load_balancer = server
    globals()["Loop"] = loop
    _agent_loop_registry["ours"] = {"_target_": f"{__name__}.Loop"}
    return worker, server


def batch_of(count: int, samples: int, **meta: Any) -> DataProto:
    """As verl's trainer makes it: each prompt ``samples`` times."""
    rows = [at // samples for at in range(count * samples)]
    prompts = np.empty(len(rows), dtype=object)
    prompts[:] = [[{"role": "user", "content": f"How much is {row} + 2?"}] for row in rows]
    columns = {
        "raw_prompt": prompts,
        "uid": np.array([f"uid-{row}" for row in rows], dtype=object),
        "index": np.array(rows),
        "extra_info": np.array([{"index": row} for row in rows], dtype=object),
    }
    return DataProto.from_dict(non_tensors=columns, meta_info={"global_steps": 8, **meta})


def made(worker: Any, loop: Any, batch: DataProto) -> DataProto:
    async def all_of_them() -> Any:
        try:
            return await worker.generate_sequences(batch)
        finally:
            await loop.aclose()

    return asyncio.run(all_of_them())


def rows_of(run: rt.Trajectory) -> list[tuple[list[int], list[int], list[float], int]]:
    """Ids, mask, logprobs and length of the prompt of each row, from the steps."""
    rows: list[Any] = []
    for step in run.steps:
        assert step.prompt_token_ids is not None
        assert step.completion_token_ids is not None
        assert step.logprobs is not None
        prompt, said = list(step.prompt_token_ids), list(step.completion_token_ids)
        if not rows or prompt[: len(rows[-1][0])] != rows[-1][0]:
            rows.append((prompt, [0] * len(prompt), [0.0] * len(prompt), len(prompt)))
        ids, mask, logprobs, cut = rows[-1]
        between = len(prompt) - len(ids)
        mask, logprobs = mask + [0] * between + [1] * len(said), logprobs + [0.0] * between
        rows[-1] = ([*prompt, *said], mask, [*logprobs, *step.logprobs], cut)
    return rows


async def turns(client: Any, messages: Sequence[Any], **given: Any) -> str:
    """An agent's usual loop."""
    said = list(messages)
    while True:
        response = await client.chat.completions.create(model="m", messages=said, **given)
        message = response.choices[0].message
        if not message.tool_calls:
            return str(message.content)
        said.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            assert call.function.name == "look"
            said.append({"role": "tool", "tool_call_id": call.id, "content": f"a coin in {call.function.arguments}"})


async def agent(task: Any, rollout: rt.Rollout) -> str:
    """Some runs fail before or after a call, have a sub-agent, or a second conversation, or stream."""
    assert (task["uid"], task["extra_info"]) == (rollout.group, {"index": task["index"]})
    fate, asked = rollout.index % SAMPLES, task["raw_prompt"]
    async with AsyncOpenAI(base_url=task.base_url, api_key="none") as client:
        if fate == 1:
            raise RuntimeError("before its first call")
        if fate == 2:
            with rt.trajectory("helper"):
                await turns(client, [{"role": "user", "content": "Where is it?"}])
        if fate == 5:
            stream = await client.chat.completions.create(model="m", messages=asked, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
        answer = await turns(client, asked, tools=TOOLS)
        if fate == 3:
            raise RuntimeError("after its calls")
        if fate == 4:
            await turns(client, [{"role": "user", "content": "Look again, please."}], tools=TOOLS, temperature=0.5)
        return answer


def grade(task: Any, answer: str, trajectory: rt.Trajectory) -> float:
    return float(answer.endswith("4")) + len(trajectory.steps) / 8


def test_verls_batch_has_what_its_server_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy machine 18 runs at once may wait for longer than that for a tokenizer, and go as text.
    monkeypatch.setattr(exact_turns, "PATIENCE", 300.0)
    loop = agent_loop(agent, reward=grade, output=tmp_path)
    worker, server = make_worker(loop)
    given = batch_of(3, SAMPLES)
    batch = made(worker, loop, given)
    runs = {run.id: run for run in rt.read(tmp_path)}
    outer = [run for run in runs.values() if run.parent_id is None]
    assert len(batch) == len(outer) == 3 * SAMPLES
    assert {run.status for run in outer} == {"completed", "failed"}
    several = [run for run in outer if run.rollout_index == 4]
    assert all(len(run.sequences()) == 2 for run in several)
    for at, (uid, name) in enumerate(
        zip(given.non_tensor_batch["uid"], batch.non_tensor_batch["trajectory_id"], strict=True)
    ):
        run, one = runs[name], batch.batch[at]
        assert (run.group_id, run.rollout_index) == (uid, at % SAMPLES)
        read = one["attention_mask"].bool()
        width = one["prompts"].shape[0]
        prompt, answered = one["prompts"][read[:width]].tolist(), read[width:]
        reward = one["rm_scores"].sum().item()
        if run.status == "failed":
            assert not one["response_mask"].any()
            assert (reward, bool(run.steps)) == (0.0, run.rollout_index == 3)
            assert prompt == server.tokenizer.apply_chat_template(
                given.non_tensor_batch["raw_prompt"][at], tools=TOOLS if run.steps else None,
                add_generation_prompt=True, return_dict=False,
            )  # fmt: skip
            continue
        ids, mask, logprobs, cut = max(rows_of(run), key=lambda row: sum(row[1]))
        assert prompt == ids[:cut]
        assert one["responses"][answered].tolist() == ids[cut:]
        assert one["response_mask"][answered].tolist() == mask[cut:]
        assert one["rollout_log_probs"][answered].tolist() == logprobs[cut:]
        assert reward == run.reward
        assert [batch.non_tensor_batch[f"{end}_global_steps"][at] for end in ("min", "max")] == [7, 7]
    # Each sample of the server is a step once, and later turns went out as the ids before them.
    steps = [step for run in runs.values() for step in run.steps]
    recorded = [(step.prompt_token_ids, step.completion_token_ids, step.logprobs) for step in steps]
    assert sorted(tuple(map(list, one)) for one in recorded) == sorted(  # type: ignore[arg-type]
        (prompt, ids, logprobs) for _, prompt, _, ids, logprobs in server.asked
    )
    later = [step for step in steps if step.messages and step.messages[-1]["role"] == "tool"]
    assert later
    assert {
        None if step.exact_turn is None else (step.exact_turn.is_exact, step.exact_turn.reason) for step in later
    } == {(True, None)}
    assert {params["temperature"] for _, _, params, _, _ in server.asked} == {1.0, 0.5}
    assert loop.report.dropped["trajectories inside another"] == 3
    assert loop.report.dropped["rows left out: of other sequences"] == len(several)


def test_an_evaluation_samples_with_its_own_parameters() -> None:
    def solve(task: Any) -> None:
        with OpenAI(base_url=task.base_url, api_key="none") as client:
            client.chat.completions.create(model="m", messages=task["raw_prompt"])

    loop = agent_loop(solve)
    worker, server = make_worker(loop)
    batch = made(worker, loop, batch_of(1, 2, validate=True))
    assert [params["temperature"] for _, _, params, _, _ in server.asked] == [0.25, 0.25]
    # Nobody gave a reward: verl scores the rows.
    assert "rm_scores" not in batch.batch
    assert batch.batch["response_mask"].sum(1).tolist() == [len(ids) for _, _, _, ids, _ in server.asked]


def test_rows_keep_within_verls_lengths() -> None:
    found: list[Any] = []

    def solve(task: Any) -> float:
        with OpenAI(base_url=task.base_url, api_key="none") as client:
            said = task["raw_prompt"]
            given: Any
            for given in ({"max_tokens": 5}, {}):
                (choice,) = client.chat.completions.create(model="m", messages=said, **given).choices
                found.append(choice.finish_reason)
                said = [*said, choice.message.model_dump(exclude_none=True), {"role": "user", "content": "." * 9}]
        return 1.0

    for prompt, response in ((60, 24), (12, 80)):
        loop = agent_loop(solve, reward=lambda task, result, trajectory: result)
        worker, server = make_worker(loop, prompt, response)
        one = made(worker, loop, batch_of(1, 1)).batch[0]
        (_, first, _, said, _), (_, before, params, ids, _) = server.asked
        assert params["max_tokens"] == min(response, prompt + response - len(before))
        assert before[: len(first) + len(said)] == [*first, *said]
        between = len(before) - len(first) - len(said)
        mask = [*[1] * len(said), *[0] * between, *[1] * len(ids)]
        there = one["attention_mask"].bool()
        assert one["prompts"][there[:prompt]].tolist() == first[-prompt:]
        assert one["responses"][there[prompt:]].tolist() == [*before, *ids][len(first) :][:response]
        cut = sum(mask[response:])
        assert loop.report.dropped.get("sampled tokens beyond response_length", 0) == cut
        if len(first) > prompt:
            assert not one["response_mask"].any()
            assert loop.report.dropped["rows whose prompt is longer than prompt_length, masked"] == 1
        else:
            assert cut > 0
            assert one["response_mask"].tolist() == mask[:response]
        assert one["rm_scores"].sum().item() == 1.0
    assert found == ["length", "stop"] * 2


def test_experts_keep_to_their_tokens(tmp_path: Path) -> None:
    def solve(task: Any, rollout: rt.Rollout) -> float:
        if rollout.index == 0:
            raise RuntimeError("before a call")
        with OpenAI(base_url=task.base_url, api_key="none") as client:
            for _ in range(rollout.index):
                choice = client.chat.completions.create(model="m", messages=task["raw_prompt"]).choices[0]
                more = [choice.message.model_dump(exclude_none=True), {"role": "user", "content": "." * 9}]
                task["raw_prompt"] += more
        return 1.0

    for prompt, response in ((60, 24), (12, 80)):
        loop = agent_loop(solve, output=tmp_path, reward=lambda task, result, trajectory: result)
        worker, server = make_worker(loop, prompt, response, enable_rollout_routing_replay=True)
        server.has_experts = True
        given = batch_of(1, 3)
        batch = made(worker, loop, given)
        # Each run had a task of its own.
        assert (
            given.non_tensor_batch["raw_prompt"].tolist() == batch_of(1, 1).non_tensor_batch["raw_prompt"].tolist() * 3
        )
        runs = {run.id: run for run in rt.read(tmp_path)}
        assert not batch.batch[0]["routed_experts"].any()
        for at in (1, 2):
            one, run = batch.batch[at], runs[batch.non_tensor_batch["trajectory_id"][at]]
            ((ids, _, _, first),) = rows_of(run)
            begin, end = max(0, first - prompt), first + response
            there, experts = one["attention_mask"].bool(), one["routed_experts"]
            expected = experts_of(ids[:-1])[begin:end]
            assert one["input_ids"][there].tolist() == ids[begin:end]
            assert experts[there][: len(expected)].tolist() == expected.tolist()
            assert not experts[~there].any()
            assert one["response_mask"].any() == (begin == 0)


@pytest.mark.parametrize("is_async", [False, True])
def test_it_closes_while_the_policy_samples(is_async: bool) -> None:
    def ask(task: Any) -> None:
        with OpenAI(base_url=task.base_url, api_key="none", max_retries=0) as client:
            client.chat.completions.create(model="m", messages=task["raw_prompt"])

    async def aask(task: Any) -> None:
        async with AsyncOpenAI(base_url=task.base_url, api_key="none") as client:
            await client.chat.completions.create(model="m", messages=task["raw_prompt"])

    loop = agent_loop(aask if is_async else ask)
    worker, server = make_worker(loop)
    server.holds = True

    async def closed() -> None:
        rows = asyncio.ensure_future(worker.generate_sequences(batch_of(1, 2)))
        await asyncio.to_thread(server.held.wait)
        await loop.aclose()
        await asyncio.to_thread(server.cut.wait)
        with pytest.raises(RuntimeError, match="the rollouts have ended"):
            await rows

    asyncio.run(closed())


def test_an_attempt_that_has_ended_samples_nothing_more() -> None:
    refused = threading.Event()

    def ask(task: Any) -> None:
        with OpenAI(base_url=task.base_url, api_key="none") as client:
            with pytest.raises(NotFoundError):  # When the client has tried again.
                client.chat.completions.create(model="m", messages=task["raw_prompt"])
        refused.set()

    def leave(task: Any) -> None:
        threading.Thread(target=ask, args=(task,)).start()
        server.held.wait()

    loop = agent_loop(leave)
    worker, server = make_worker(loop)
    server.holds = True

    async def cut() -> Any:
        rows = await worker.generate_sequences(batch_of(1, 1))
        await asyncio.to_thread(server.cut.wait)
        await asyncio.to_thread(refused.wait)
        await loop.aclose()
        return rows

    assert not asyncio.run(cut()).batch["response_mask"].any()


def test_workers_share_a_prompt(tmp_path: Path) -> None:
    """Two of them count its samples from 0, and none is an earlier attempt at another."""

    def solve(task: Any) -> float:
        with OpenAI(base_url=task.base_url, api_key="none") as client:
            client.chat.completions.create(model="m", messages=task["raw_prompt"])
        return 1.0

    for _ in range(2):
        loop = agent_loop(solve, output=tmp_path, reward=lambda task, result, trajectory: result)
        made(make_worker(loop)[0], loop, batch_of(1, 2))
        served._TOKEN += "x"  # As another process has its own.
    (group,) = rt.groups(rt.read(tmp_path))
    assert (group.id, len(group.trajectories), group.n_earlier_attempts) == ("uid-0", 4, 0)


def test_answers_that_were_broken_off_and_several_of_one_seed() -> None:
    def ask(task: Any) -> list[str | None]:
        with OpenAI(base_url=task.base_url, api_key="none") as client:
            answer = client.chat.completions.create(model="m", messages=task["raw_prompt"], n=2, seed=4)
        found.extend(choice.finish_reason for choice in answer.choices)
        return []

    found: list[str] = []
    for reason in ("abort", "aborted"):
        loop = agent_loop(ask)
        worker, server = make_worker(loop)
        server.stop_reason = reason
        made(worker, loop, batch_of(1, 1))
        assert [params["seed"] for _, _, params, _, _ in server.asked] == [4, 5]
    assert found == ["abort"] * 4


def test_what_the_policy_cannot_do_is_refused() -> None:
    found: list[str] = []

    def solve(task: Any) -> None:
        with OpenAI(base_url=task.base_url, api_key="none") as client:
            for text, given in (
                ("", {"response_format": {"type": "json_object"}}),
                ("", {"tools": TOOLS, "tool_choice": "required"}),
                ("." * 99, {}),
            ):
                with pytest.raises(BadRequestError) as refused:
                    client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}], **given)
                found.append(refused.value.body["message"])  # type: ignore[index]
        with OpenAI(base_url=re.sub(r"/[^/]+/v1$", "/other/v1", task.base_url), api_key="none") as client:
            with pytest.raises(NotFoundError) as missing:
                client.chat.completions.create(model="m", messages=task["raw_prompt"])
        found.append(missing.value.body["message"])  # type: ignore[index]

    loop = agent_loop(solve)
    worker, server = make_worker(loop, 20, 20)
    batch = made(worker, loop, batch_of(1, 1))
    assert not server.asked
    assert not batch.batch["response_mask"].any()
    assert found[0] == "the trainer's policy takes no response_format."
    assert found[1] == "the trainer's policy cannot be made to call a tool. Give tool_choice='auto' or 'none'."
    assert found[2].endswith("prompt_length 20 and response_length 20 leave no room for an answer.")
    assert found[3].startswith("There is nothing here: the run has ended")


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = blocks_below("docs/train-verl.md", "An agent as an agent loop")
    assert len(block.text.splitlines()) < 20
    (settings,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "train-verl.md").read_text(), re.DOTALL)
    (tmp_path / "my_agent.py").write_text(block.text)
    (tmp_path / "agent.yaml").write_text(settings)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    agents: Any = {"agent.agent_loop_config_path": str(tmp_path / "agent.yaml"), "agent.default_agent_loop": "solver"}
    worker, server = make_worker(None, **agents)
    rows = batch_of(2, 2)
    rows.non_tensor_batch["reward_model"] = np.array([{"ground_truth": "4"}] * 4, dtype=object)
    batch = made(worker, importlib.import_module("my_agent").Solver, rows)
    assert batch.batch["rm_scores"].sum(1).tolist() == [run.reward for run in rt.read("rollouts")] == [1.0] * 4
    assert batch.batch["response_mask"].sum(1).tolist() == [len(ids) for _, _, _, ids, _ in server.asked]
    monkeypatch.delitem(sys.modules, "my_agent")


def test_what_is_wrong_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match="the agent is 3"):
        agent_loop(3)
    with pytest.raises(TypeError, match=r"agent_loop\(\) takes no executor, samples: verl decides"):
        agent_loop(agent, executor="process", samples=2)  # type: ignore[call-arg]
    monkeypatch.setitem(sys.modules, "verl.experimental.agent_loop.agent_loop", None)
    with pytest.raises(ImportError, match=r"needs verl 0\.9, which cannot be imported: "):
        agent_loop(agent)
