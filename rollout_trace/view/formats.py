"""The formats of ``rollout-trace convert``: what each is for, what it keeps, and what it has no place for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from rollout_trace.file.addresses import replacing
from rollout_trace.file.plain import dumps

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory

Write: TypeAlias = Callable[[str, "Iterable[Trajectory]", Mapping[str, Any]], int]
Output: TypeAlias = Literal["rows", "lines", "object", "folder"]
OUTPUTS: dict[Output, str] = {
    "rows": ".jsonl, .jsonl.gz, .jsonl.zst or .parquet",
    "lines": ".jsonl, .jsonl.gz or .jsonl.zst",
    "object": ".json: one object",
    "folder": "a folder with a .json for each run; or .jsonl, .jsonl.gz or .jsonl.zst",
}


SUFFIXES: dict[Output, tuple[str, ...]] = {
    "rows": (".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet"),
    "lines": (".jsonl", ".jsonl.gz", ".jsonl.zst"),
    "object": (".json",),
    "folder": ("",),
}
"""Of the names of files; a folder can have any."""


class Format(NamedTuple):
    """A format."""

    name: str
    """Of the exporter in ``rollout_trace.export``, whose signature has the options."""
    consumer: str
    output: Output
    write: Write
    """Writes trajectories to a path, with the options, and returns the number of rows or documents."""
    streams: bool
    """Whether one trajectory is in memory at a time."""
    media: bool
    """Whether images and the like are in it."""
    keeps: str
    loses: str


def _exporter(name: str) -> Any:
    from rollout_trace import export

    return getattr(export, name)


def _rows(name: str) -> Write:
    """The rows of an exporter, by the file's ending."""

    def write(path: str, trajectories: Iterable[Trajectory], options: Mapping[str, Any]) -> int:
        return int(_exporter("write")(path, _exporter(name).rows(trajectories, **options)))

    return write


def _skyrl(path: str, trajectories: Iterable[Trajectory], options: Mapping[str, Any]) -> int:
    output = _exporter("skyrl")(trajectories, **options)
    with replacing(path) as file:
        file.write(dumps(output))
    return len(output["response_ids"])


def _atif(path: str, trajectories: Iterable[Trajectory], options: Mapping[str, Any]) -> int:
    if path.endswith((".jsonl", ".jsonl.gz", ".jsonl.zst")):
        return _rows("atif")(path, trajectories, options)
    if Path(path).suffix in (".json", ".parquet"):
        raise ValueError(f"{path}: expected the path of a folder, or a name that ends with .jsonl.")
    return int(_exporter("write_atif")(path, trajectories, **options))


_TOKENS = "token ids, loss mask, logprobs, reward"
_UNSCORED = "texts; where some runs are scored, the others"


def _formats() -> Iterator[Format]:
    yield Format(
        "chat", "fine-tuning on text: TRL, verl, OpenAI's format", "rows", _rows("chat"), True, True,
        "messages, tools, reward and ids; with option columns= more", "token ids, logprobs; steps without an answer",
    )  # fmt: skip
    yield Format(
        "steps", "one row for each model call, everything recorded", "rows", _rows("steps"), True, True,
        "a row a step: ids, logprobs, messages, rewards, extras", "steps that cannot be trained on; tool runs; timing",
    )  # fmt: skip
    yield Format(
        "turns", "Agent-lightning's columns for agents on repositories", "rows", _rows("turns"), True, True,
        "a row a call: repo, instance, ids, logprobs, reward, messages", "answers as text; extras; steps without ids",
    )  # fmt: skip
    yield Format(
        "exchanges", "BenchFlow: llm_trajectory.jsonl", "lines", _rows("exchanges"), True, True,
        "a line an HTTP exchange, failures too: request, response, usage, status, timing; ids and logprobs",
        "headers; tool runs; extras",
    )  # fmt: skip
    yield Format(
        "trl", "TRL's SFTTrainer, token for token", "rows", _rows("trl"), True, False,
        "token ids with labels, reward", "logprobs, step rewards, policy versions, texts",
    )  # fmt: skip
    yield Format(
        "trl_dpo", "TRL's DPOTrainer", "rows", _rows("trl_dpo"), False, True,
        "of each group the best run over the worst, as messages", "token ids; unscored runs; groups with one reward",
    )  # fmt: skip
    yield Format(
        "trl_kto", "TRL's KTOTrainer", "rows", _rows("trl_kto"), False, True,
        "each scored run with a label, as messages", "token ids; unscored runs; runs exactly at the mean",
    )  # fmt: skip
    yield Format(
        "trl_prompts", "TRL's GRPOTrainer", "rows", _rows("trl_prompts"), False, True,
        "a task a row: first messages, tools, ids and rewards of its runs", "answers, token ids",
    )  # fmt: skip
    yield Format(
        "verl", "verl's AgentLoopOutput", "lines", _rows("verl"), False, False,
        f"{_TOKENS}, step rewards, advantages on request", _UNSCORED,
    )  # fmt: skip
    yield Format(
        "verl_prompts", "verl's prompt dataset", "rows", _rows("verl_prompts"), True, True,
        "a task a row: first messages, ground truth", "answers, tools, token ids, rewards",
    )  # fmt: skip
    yield Format(
        "skyrl", "SkyRL's GeneratorOutput", "object", _skyrl, False, False,
        f"{_TOKENS}, stop reasons", "texts; runs without a reward; step rewards; policy versions",
    )  # fmt: skip
    yield Format(
        "slime", "slime's Sample", "lines", _rows("slime"), False, False,
        f"{_TOKENS}, versions, experts, masks", _UNSCORED,
    )  # fmt: skip
    yield Format(
        "areal", "AReaL's workflows", "lines", _rows("areal"), True, False,
        f"{_TOKENS}, versions of the weights", "texts; runs without a reward; rows without logprobs; step rewards",
    )  # fmt: skip
    yield Format(
        "openrlhf", "OpenRLHF's agent executors", "lines", _rows("openrlhf"), False, False,
        f"{_TOKENS}, one row a run", f"{_UNSCORED}; step rewards; policy versions; sub-agents",
    )  # fmt: skip
    yield Format(
        "rllm", "rLLM's Episode", "lines", _rows("rllm"), True, True,
        "episodes of trajectories of steps: ids, logprobs, messages, rewards",
        "runs without a reward; calls without logprobs; extras",
    )  # fmt: skip
    yield Format(
        "art", "OpenPipe ART's TrajectoryGroup", "lines", _rows("art"), False, True,
        "groups of runs as exchanges: messages, ids, logprobs, rewards",
        "runs without a reward; step rewards; calls without logprobs",
    )  # fmt: skip
    yield Format(
        "agent_lightning", "Agent-lightning's triplets", "lines", _rows("agent_lightning"), True, True,
        "a rollout a run: ids, logprobs, messages and reward of each call", "steps that cannot be trained on; extras",
    )  # fmt: skip
    yield Format(
        "openenv", "OpenEnv's TrainingTrace", "lines", _rows("openenv"), True, True,
        "a trace a trajectory: ids, logprobs and mask of each call, requests", "calls without logprobs; extras",
    )  # fmt: skip
    yield Format(
        "nemo_gym", "NeMo-Gym's rollouts", "lines", _rows("nemo_gym"), True, False,
        "Responses items with ids and logprobs, reward", "runs without a reward; rows without logprobs; images",
    )  # fmt: skip
    yield Format(
        "nemo_rl", "NeMo-RL's DatumSpec", "lines", _rows("nemo_rl"), False, False,
        f"{_TOKENS} as a message log, experts, masks",
        f"{_UNSCORED}; rows without logprobs",
    )  # fmt: skip
    yield Format(
        "tinker", "Tinker's Datum", "lines", _rows("tinker"), False, False,
        "shifted token ids, mask, logprobs, advantages (grpo)", "texts; rows without logprobs or advantage",
    )  # fmt: skip
    yield Format(
        "distillation", "distillation", "rows", _rows("distillation"), True, False,
        "token ids, mask, a teacher's likeliest tokens", "texts; positions without recorded alternatives",
    )  # fmt: skip
    yield Format(
        "atif", "Harbor: ATIF 1.8 documents", "folder", _atif, True, True,
        "messages, tool calls and results, sub-agents, ids, logprobs, metrics",
        "ids of steps that cannot be trained on; extras",
    )  # fmt: skip
    yield Format(
        "verifiers", "verifiers, prime-rl: traces.jsonl", "lines", _rows("verifiers"), True, True,
        "episodes as graphs: ids, mask, logprobs, texts, rewards", "routed experts, sampling masks",
    )  # fmt: skip


FORMATS: dict[str, Format] = {one.name: one for one in _formats()}
