"""The formats of ``rollout-trace convert``: what each is for, what it keeps, what it has no place for, its options."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from rollout_trace.data.trajectory import Trajectory
from rollout_trace.data.user_values import brief
from rollout_trace.file.addresses import replacing
from rollout_trace.file.plain import dumps

Output: TypeAlias = Literal["rows", "lines", "object", "folder"]
OUTPUTS: dict[Output, str] = {
    "rows": ".jsonl, .jsonl.gz, .jsonl.zst or .parquet",
    "lines": ".jsonl, .jsonl.gz or .jsonl.zst",
    "object": ".json: one object",
    "folder": "a folder with a .json for each run; or .jsonl, .jsonl.gz or .jsonl.zst",
}
_LINES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
SUFFIXES: dict[Output, tuple[str, ...]] = {
    "rows": (*_LINES, ".parquet"),
    "lines": _LINES,
    "object": (".json",),
    "folder": ("",),
}
"""Of the names of files; a folder can have any."""
_GIVEN = frozenset({"trajectories", "path", "folder", "strict", "report", "options", "arrays"})
"""Parameters that are no options: ``convert`` gives them."""
_CODE = ("Callable", "Include")
"""Annotations of options that take Python functions and objects."""


class BadOption(ValueError):
    """An option that an exporter does not have, or whose value has another type."""


class Format(NamedTuple):
    """A format."""

    name: str
    """Of the exporter in ``rollout_trace.export``, whose signature has the options."""
    consumer: str
    output: Output
    streams: bool
    """Whether one trajectory is in memory at a time."""
    media: bool
    """Whether images and the like are in it."""
    keeps: str
    loses: str

    def write(self, path: str, trajectories: Iterable[Trajectory], options: Mapping[str, Any]) -> int:
        """Writes trajectories with the options of the exporter; returns the number of rows or documents.

        Raises ValueError for a value, a reward or a path that does not fit; ExportError as the exporter.
        """
        from rollout_trace import export

        if self.name == "atif" and Path(path).suffix in (".json", ".parquet"):
            raise ValueError(f"{path}: expected the path of a folder, or a name that ends with .jsonl.")
        if self.output == "folder" and not path.endswith(_LINES):
            return int(export.write_atif(path, trajectories, **options))
        exporter: Any = getattr(export, self.name)
        if self.output == "object":
            found = exporter(trajectories, **options)
            with replacing(path) as file:
                file.write(dumps(found))
            return len(found["response_ids"])
        return int(export.write(path, exporter.rows(trajectories, **options)))


_TOKENS = "token ids, loss mask, logprobs, reward"
_UNSCORED = "texts; where some runs are scored, the others"

_FORMATS = (
    Format("chat", "fine-tuning on text: TRL, verl, OpenAI's format", "rows", True, True,
           "messages, tools, reward and ids; with option columns= more",
           "token ids, logprobs; steps without an answer"),
    Format("steps", "one row for each model call, everything recorded", "rows", True, True,
           "a row a step: ids, logprobs, messages, rewards, extras",
           "steps that cannot be trained on; tool runs; timing"),
    Format("turns", "Agent-lightning's columns for agents on repositories", "rows", True, True,
           "a row a call: repo, instance, ids, logprobs, reward, messages",
           "answers as text; extras; steps without ids"),
    Format("exchanges", "BenchFlow: llm_trajectory.jsonl", "lines", True, True,
           "a line an HTTP exchange, failures too: request, response, usage, status, timing; ids and logprobs",
           "headers; tool runs; extras"),
    Format("trl", "TRL's SFTTrainer, token for token", "rows", True, False,
           "token ids with labels, reward", "logprobs, step rewards, policy versions, texts"),
    Format("trl_dpo", "TRL's DPOTrainer", "rows", False, True,
           "of each group the best run over the worst, as messages",
           "token ids; unscored runs; groups with one reward"),
    Format("trl_kto", "TRL's KTOTrainer", "rows", False, True,
           "each scored run with a label, as messages", "token ids; unscored runs; runs exactly at the mean"),
    Format("trl_prompts", "TRL's GRPOTrainer", "rows", False, True,
           "a task a row: first messages, tools, ids and rewards of its runs", "answers, token ids"),
    Format("verl", "verl's AgentLoopOutput", "lines", False, False,
           f"{_TOKENS}, step rewards, advantages on request", _UNSCORED),
    Format("verl_prompts", "verl's prompt dataset", "rows", True, True,
           "a task a row: first messages, ground truth", "answers, tools, token ids, rewards"),
    Format("skyrl", "SkyRL's GeneratorOutput", "object", False, False,
           f"{_TOKENS}, stop reasons", "texts; runs without a reward; step rewards; policy versions"),
    Format("slime", "slime's Sample", "lines", False, False,
           f"{_TOKENS}, versions, experts, masks", _UNSCORED),
    Format("areal", "AReaL's workflows", "lines", True, False,
           f"{_TOKENS}, versions of the weights", "texts; runs without a reward; rows without logprobs; step rewards"),
    Format("openrlhf", "OpenRLHF's agent executors", "lines", False, False,
           f"{_TOKENS}, one row a run", f"{_UNSCORED}; step rewards; policy versions; sub-agents"),
    Format("rllm", "rLLM's Episode", "lines", True, True,
           "episodes of trajectories of steps: ids, logprobs, messages, rewards",
           "runs without a reward; calls without logprobs; extras"),
    Format("art", "OpenPipe ART's TrajectoryGroup", "lines", False, True,
           "groups of runs as exchanges: messages, ids, logprobs, rewards",
           "runs without a reward; step rewards; calls without logprobs"),
    Format("agent_lightning", "Agent-lightning's triplets", "lines", True, True,
           "a rollout a run: ids, logprobs, messages and reward of each call",
           "steps that cannot be trained on; extras"),
    Format("openenv", "OpenEnv's TrainingTrace", "lines", True, True,
           "a trace a trajectory: ids, logprobs and mask of each call, requests", "calls without logprobs; extras"),
    Format("nemo_gym", "NeMo-Gym's rollouts", "lines", True, False,
           "Responses items with ids and logprobs, reward", "runs without a reward; rows without logprobs; images"),
    Format("nemo_rl", "NeMo-RL's DatumSpec", "lines", False, False,
           f"{_TOKENS} as a message log, experts, masks", f"{_UNSCORED}; rows without logprobs"),
    Format("tinker", "Tinker's Datum", "lines", False, False,
           "shifted token ids, mask, logprobs, advantages (grpo)", "texts; rows without logprobs or advantage"),
    Format("distillation", "distillation", "rows", True, False,
           "token ids, mask, a teacher's likeliest tokens", "texts; positions without recorded alternatives"),
    Format("atif", "Harbor: ATIF 1.8 documents", "folder", True, True,
           "messages, tool calls and results, sub-agents, ids, logprobs, metrics",
           "ids of steps that cannot be trained on; extras"),
    Format("verifiers", "verifiers, prime-rl: traces.jsonl", "lines", True, True,
           "episodes as graphs: ids, mask, logprobs, texts, rewards", "routed experts, sampling masks"),
)  # fmt: skip
FORMATS: dict[str, Format] = {one.name: one for one in _FORMATS}


def options_of(name: str) -> dict[str, str]:
    """The options of an exporter that can be given as text: their names and annotations."""
    from rollout_trace import export
    from rollout_trace.export import ChatOptions

    function = getattr(export, name)
    found = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            found[parameter.name] = str(parameter.annotation)
        elif "ChatOptions" in str(parameter.annotation):
            found |= _annotations(ChatOptions)
        else:
            from rollout_trace.train.selection import SequenceOptions

            found |= {**_annotations(SequenceOptions), "drop_constant_groups": "bool"}
    return {
        name: kind
        for name, kind in found.items()
        if name not in _GIVEN and (kind.startswith("Collection[") or not any(code in kind for code in _CODE))
    }


def required_of(name: str) -> list[str]:
    """The options that an exporter cannot do without."""
    from rollout_trace import export

    parameters = inspect.signature(getattr(export, name)).parameters.values()
    return [
        one.name
        for one in parameters
        if one.name not in _GIVEN and one.default is one.empty and one.kind is not one.VAR_KEYWORD
    ]


def _annotations(kind: type) -> dict[str, str]:
    """Of a TypedDict, with those that it inherits."""
    return {name: str(getattr(value, "__forward_arg__", value)) for name, value in kind.__annotations__.items()}


def parse_options(name: str, texts: Iterable[str]) -> Mapping[str, Any]:
    """The values of options that are given as ``name=value``. Raises BadOption: unknown, missing, of another type."""
    known, found = options_of(name), {}
    for text in texts:
        option, equals, value = text.partition("=")
        option = option.strip().replace("-", "_")
        if not equals:
            raise BadOption(f"{text!r} is not an option; give name=value, such as {next(iter(known), 'name')}=...")
        if option not in known:
            raise BadOption(f"{name} has no option {option!r}; it has {', '.join(known) or 'none'}.")
        found[option] = _value(option, known[option], value.strip())
    missing = [option for option in required_of(name) if option not in found]
    if missing:
        raise BadOption(f"{name} needs {' and '.join(f'--option {one}=...' for one in missing)}.")
    return found


def _value(option: str, kind: str, text: str) -> Any:
    if kind.startswith("Collection["):
        return [one.strip() for one in text.split(",") if one.strip()]
    if text.lower() in ("none", "null") and "None" in kind:
        return None
    plain = kind.replace("| None", "").strip()
    if plain == "bool":
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if text.lower() not in words:
            raise BadOption(f"{option}={brief(text)}: expected true or false.")
        return words[text.lower()]
    if plain in ("int", "float"):
        try:
            return int(text) if plain == "int" else float(text)
        except ValueError:
            raise BadOption(f"{option}={brief(text)}: expected a {'whole ' * (plain == 'int')}number.") from None
    return text
