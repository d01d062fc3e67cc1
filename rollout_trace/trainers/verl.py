"""Runs an agent as an agent loop of verl 0.9 (``verl/experimental/agent_loop/agent_loop.py``)."""

from __future__ import annotations

import asyncio
import copy
import os
import secrets
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from rollout_trace.collection.agents import agent_of
from rollout_trace.collection.task_files import Keyed
from rollout_trace.data.episodes import NOT_SUCCEEDED
from rollout_trace.export import verl
from rollout_trace.record.context import current
from rollout_trace.report import ExportReport
from rollout_trace.trainers.feed import Feed
from rollout_trace.trainers.id_server import SAMPLING, Answer, IdServer
from rollout_trace.trainers.served import ServedAgent, ServedTask, longest, own_key, refuse
from rollout_trace.trainers.verl_numbers import FILE, note_numbers
from rollout_trace.wire.chat_template import tokenizer_at
from rollout_trace.wire.engine import Engine

__all__ = ["agent_loop", "note_numbers"]

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from rollout_trace.collection.collect import Agent, Reward
    from rollout_trace.collection.logs import Rollout
    from rollout_trace.collection.rollouts import TrainerOptions
    from rollout_trace.data.trajectory import Trajectory


def agent_loop(
    agent: Agent,
    *,
    reward: Reward | None = None,
    output: str | os.PathLike[str] | None = None,
    in_flight: int = 256,
    **options: Unpack[TrainerOptions],
) -> Any:
    """Makes an agent loop from an agent: a subclass of verl's ``AgentLoopBase``, for ``_target_`` in its configuration.

    The agent's task is a dict: the dataset's row (``raw_prompt`` and the other columns). ``task.base_url`` is the
    address of its model: verl's servers behind an OpenAI-like chat completions endpoint, for this run only. It samples
    with verl's sampling parameters, except for those that a request sets itself. The run is recorded with exact turns,
    and verl gets the sampled ids with logprobs, and the reward.

    Each run is one row: its own with the most sampled tokens, within verl's ``prompt_length`` and ``response_length``.
    A run that failed or sampled nothing becomes a row with mask 0, and reward 0.0 if runs have rewards. The class's
    ``report`` counts what verl has no place for.

    Args:
        agent: as for ``rt.rollouts``; it runs in verl's worker process.
        reward: as for ``rt.rollouts``. None: verl scores the rows. It is also needed for an agent that sets rewards
            itself.
        output: a folder for the rollouts, in which each worker writes its own file; None: rollouts are not kept.
        in_flight: number of simultaneous rollouts of a worker.
        options: the other arguments of ``rt.rollouts``; ``engine`` is ``Engine("vllm", exact_turns=True)``.

    Raises:
        ImportError: verl cannot be imported.
        TypeError, ValueError, OSError: an argument is wrong. Raised before any rollout.
    """
    try:
        from verl.experimental.agent_loop.agent_loop import AgentLoopBase
    except ImportError as error:
        raise ImportError(f"trainers.verl needs verl 0.9, which cannot be imported: {error}") from error
    refuse("agent_loop", options, "verl decides which rollouts are made, and where", "executor")
    if output is not None:
        # The trainer is told of it, and may run in another folder.
        folder = os.fspath(output)
        folder = folder if "://" in folder else os.path.abspath(folder)
        output = os.path.join(folder, f"{os.getpid()}-{secrets.token_hex(4)}.jsonl")
    exact = Engine("vllm", exact_turns=True)
    runs = _Runs(agent, {"engine": exact, "reward": reward, "output": output, "in_flight": in_flight, **options})

    class AgentLoop(AgentLoopBase):  # type: ignore[misc]
        """The result of ``agent_loop``."""

        report = runs.report
        aclose = runs.aclose

        async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
            """Makes one run and returns its output."""
            return await runs.run(self, sampling_params, kwargs)

    return AgentLoop


class _Task(dict[str, Any]):
    """A row of the dataset."""

    batch: _Batch


class _LedAgent(ServedAgent):
    """An agent whose model answers at an address for each of its runs."""

    def call(self, task: Any, rollout: Any) -> Any:
        """Calls the user's function."""
        batch: _Batch = task.batch
        return super().call(ServedTask(task, base_url=batch.address(rollout), group=batch.uid), rollout)


class _Runs:
    """The rollouts of a worker."""

    def __init__(self, agent: Any, options: dict[str, Any]) -> None:
        self.report = ExportReport()
        self._has_rewards = options["reward"] is not None
        self._file = options["output"]
        self._server = IdServer(self._policy_of)
        self._feed = Feed(agent_of(agent, _LedAgent), **{"progress": False, **options})
        self._waiting: dict[Any, _Batch] = {}
        """Those that more runs may join."""
        self._open: dict[str, _Batch] = {}
        self._no_experts: Any = None
        """Those of one token [1, layers, k], all 0, in the shape of the model's; None as long as it is not known."""

    async def run(self, loop: Any, params: Mapping[str, Any], row: Mapping[str, Any]) -> Any:
        """One run of verl's. All that begin in one turn of the event loop, of one prompt, are a group."""
        uid = str(row.get("uid", secrets.token_hex(8)))
        key = uid, str(sorted(params.items()))
        batch = self._waiting.get(key)
        if batch is None:
            batch = self._waiting[key] = _Batch(loop, dict(params), uid)
            batch.made = asyncio.ensure_future(self._make(key, uid, row))
        at = batch.count
        batch.count += 1
        # Of a run that is cancelled, the others go on.
        run = (await asyncio.shield(batch.made))[at]
        return await self._output(batch, run, row)

    async def _make(self, key: Any, uid: str, row: Mapping[str, Any]) -> tuple[Trajectory, ...]:
        batch = self._waiting.pop(key)
        task = _Task({name: value.tolist() if hasattr(value, "tolist") else value for name, value in row.items()})
        task.batch = batch
        self._server.start()
        batch.url, self._open[batch.id] = self._server.url, batch
        try:
            (group,) = await self._feed.amake([Keyed(own_key(uid), task)], batch.count)
        finally:
            del self._open[batch.id]
        self.report.drop("trajectories inside another", len(group.inside))
        self._has_rewards = self._has_rewards or any(run.reward is not None for run in group.trajectories)
        return group.trajectories

    def _policy_of(self, run: str) -> _Policy | None:
        batch = self._open.get(run.partition(".")[0])
        is_running = batch is not None and run in batch.attempts and batch.attempts[run].is_open
        return _Policy(batch, run) if batch is not None and is_running else None

    async def aclose(self) -> None:
        """Cuts the rollouts that run, and waits until all is written; the end of the worker does the same."""
        await self._feed.aclose()
        # In a thread: the server waits for its answers, and those for this event loop.
        await asyncio.to_thread(self._server.close)

    async def _output(self, batch: _Batch, run: Trajectory, row: Mapping[str, Any]) -> Any:
        from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

        own = run.reward
        rows = list(verl(run, report=self.report)) if run.steps else []
        found = longest(rows, lambda one: sum(one["response_mask"]), self.report)
        is_masked = found is None or run.status in NOT_SUCCEEDED
        found = found or {
            "prompt_ids": batch.render({"messages": list(row["raw_prompt"])}, is_open=True),
            "response_ids": [batch.eos],
            "response_mask": [0],
            "metrics": {},
            "extra_fields": {"turn_scores": [], "tool_rewards": [], "trajectory_id": run.id, "group_id": run.group_id},
        }
        # verl makes columns of what all rows have alone: a reward by name, or none, of one row would fail the batch.
        found["extra_fields"] |= {"reward_extra_info": {}, "rewards": run.rewards, FILE: self._file}
        found["reward_score"] = 0.0 if own is None and self._has_rewards else own
        return AgentLoopOutput(**await self._with_experts(batch, batch.cut(found, self.report, is_masked=is_masked)))

    async def _with_experts(self, batch: _Batch, row: dict[str, Any]) -> dict[str, Any]:
        """A row with experts where verl replays them: it takes those of all rows, and fails where one has none."""
        import numpy as np

        if not batch.loop.rollout_config.enable_rollout_routing_replay:
            return {**row, "routed_experts": None}
        if row["routed_experts"] is not None:
            self._no_experts = np.zeros_like(row["routed_experts"][:1])
            return row
        self.report.drop("rows without the experts of all their tokens, masked", any(row["response_mask"]))
        if self._no_experts is None:  # The first run of all was lost: a token is sampled for the shape.
            params = {**batch.params, "max_tokens": 1}
            sample = await batch.loop.server_manager.generate(
                request_id=secrets.token_hex(16), prompt_ids=row["prompt_ids"], sampling_params=params
            )
            self._no_experts = None if sample.routed_experts is None else np.zeros_like(sample.routed_experts[:1])
        return {**row, "response_mask": [0] * len(row["response_mask"]), "routed_experts": self._no_experts}


@dataclass(eq=False)
class _Batch:
    """Runs of one prompt with the same sampling parameters."""

    loop: Any
    """One of verl's agent loops: it has the policy, the tokenizer, the settings."""
    params: dict[str, Any]
    uid: str
    count: int = 0
    id: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    url: str = ""
    """Of the server at which the model answers."""
    attempts: dict[str, Trajectory] = field(default_factory=dict)
    """What each attempt is recorded in, by the name of its address."""
    made: asyncio.Future[tuple[Trajectory, ...]] = field(init=False)
    eos: int = field(init=False)

    def __post_init__(self) -> None:
        self.events = asyncio.get_running_loop()
        self.eos = self.loop.tokenizer.eos_token_id

    def address(self, rollout: Rollout) -> str:
        """Returns the model's address for one attempt, valid while it runs; called inside it."""
        name, run = f"{self.id}.{rollout.index}.{rollout.attempt}", current()
        assert run is not None
        self.attempts[name] = run
        return f"{self.url}/{name}/v1"

    def render(self, request: Mapping[str, Any], *, is_open: bool) -> list[int]:
        """The ids of messages, by the chat template of the tokenizer."""
        settings = {**self.loop.apply_chat_template_kwargs, **(request.get("chat_template_kwargs") or {})}
        ids: list[int] = _ids_of(self.loop.tokenizer)(request["messages"], request.get("tools"), is_open, settings)
        return ids

    def cut(self, row: dict[str, Any], report: ExportReport, *, is_masked: bool) -> dict[str, Any]:
        """A row within verl's lengths; one whose prompt is cut, or that failed, is masked."""
        config = self.loop.rollout_config
        prompt, mask, experts = row["prompt_ids"], row["response_mask"], row.get("routed_experts")
        end, begin = config.response_length, max(0, len(row["prompt_ids"]) - config.prompt_length)
        report.drop("sampled tokens beyond response_length", sum(mask[end:]))
        report.drop("rows whose prompt is longer than prompt_length, masked", begin > 0)
        if is_masked or begin > 0:
            mask = [0] * len(mask)
        logprobs = row.get("response_logprobs")
        if logprobs is None and self.params.get("logprobs"):
            mask, logprobs = [0] * len(mask), [0.0] * len(mask)
            report.drop("rows without logprobs, masked")
        parts = {"response_ids": row["response_ids"], "response_mask": mask, "response_logprobs": logprobs}
        kept = {name: None if values is None else values[:end] for name, values in parts.items()}
        kept["routed_experts"] = None if experts is None else experts[begin : len(prompt) + end]
        return {**row, **kept, "prompt_ids": prompt[begin:]}


class _Policy:
    """verl's servers, for one run."""

    def __init__(self, batch: _Batch, run: str) -> None:
        self._batch, self._run, self._loop = batch, run, batch.loop
        self.render = batch.render

    def sample(self, request: Mapping[str, Any], prompt: list[int]) -> Future[Answer]:
        """Begins to sample an answer; called in a thread of the server."""
        config = self._loop.rollout_config
        left = config.prompt_length + config.response_length - len(prompt)
        asked = request.get("max_completion_tokens") or request.get("max_tokens") or config.response_length
        if left < 1:
            raise ValueError(
                f"the prompt has {len(prompt)} tokens, and prompt_length {config.prompt_length} and response_length "
                f"{config.response_length} leave no room for an answer."
            )
        own = {name: request[name] for name in SAMPLING if request.get(name) is not None}
        params = {**self._batch.params, **own, "max_tokens": min(asked, left)}
        return asyncio.run_coroutine_threadsafe(self._sample(request, prompt, params), self._batch.events)

    async def _sample(self, request: Mapping[str, Any], prompt: list[int], params: dict[str, Any]) -> Answer:
        tools = request.get("tools") if request.get("tool_choice") != "none" else None
        parser = self._parser() if tools else None
        if parser is not None and parser.stop_token_ids:
            params["stop_token_ids"] = [*(params.get("stop_token_ids") or ()), *parser.stop_token_ids]
        longest = params["max_tokens"]  # verl's servers take it out of the parameters.
        output = await self._loop.server_manager.generate(
            request_id=self._run, prompt_ids=prompt, sampling_params=params
        )
        ids, tokenizer = list(output.token_ids), self._loop.tokenizer
        message: dict[str, Any] = {"content": tokenizer.decode(ids, skip_special_tokens=True)}
        if parser is not None:
            message = await _message(parser, ids, tools, tokenizer) or message
        reason = "tool_calls" if message.get("tool_calls") else "stop"
        if output.stop_reason in ("abort", "aborted"):
            reason = "abort"
        elif len(ids) >= longest and ids[-1] not in tokenizer.all_special_ids:
            reason = "length"
        versions = {output.extra_fields.get(f"{end}_global_steps") for end in ("min", "max")}
        experts = None if output.routed_experts is None else output.routed_experts.tolist()
        # verl's client gives an empty list where none were asked for.
        logprobs, version = output.log_probs or None, versions.pop() if len(versions) == 1 else None
        return Answer(ids, logprobs, message, reason, version, experts)

    def _parser(self) -> Any:
        from verl.experimental.agent_loop.tool_parser import ToolParser

        return ToolParser.get_tool_parser(self._loop.rollout_config.multi_turn.format, self._loop.tokenizer)


async def _message(parser: Any, ids: list[int], tools: Any, tokenizer: Any) -> dict[str, Any] | None:
    """The message with tool calls, by verl's parser; None where there is none."""
    from pydantic import ValidationError
    from verl.tools.schemas import OpenAIFunctionToolSchema

    try:
        known = [OpenAIFunctionToolSchema.model_validate(tool) for tool in tools]
    except ValidationError:  # Of a schema that verl has no words for; most parsers do not look at it.
        known = None
    text, calls = await parser.extract_tool_calls(ids, known)
    if not calls:
        return None
    for token in tokenizer.all_special_tokens:
        text = text.replace(token, "")
    made = [
        {
            "id": call.tool_call_id or f"call_{secrets.token_hex(12)}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in calls
    ]
    return {"content": text if text.strip() else None, "tool_calls": made}


@lru_cache(maxsize=2)
def _ids_of(tokenizer: Any) -> Any:
    """Returns a function from messages to ids, using a copy of a tokenizer that neither truncates nor pads."""
    own = copy.deepcopy(tokenizer)
    own.backend_tokenizer.no_truncation()
    own.backend_tokenizer.no_padding()
    return tokenizer_at(own)
