"""Files whose first rows lack what later ones have, and shards of such files: ``datasets`` takes types from the first
10 MB of the first file, unless it is given them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import orjson
import pytest

import rollout_trace as rt
from rollout_trace import export
from rollout_trace.data.extras import TopTokens
from rollout_trace.data.model import Completion, ToolCall

Write = Callable[..., int]
FIRST_CHUNK = 10 << 20
CALL = ToolCall(id="c", name="add", arguments='{"a": 0.5, "b": [1, "x"]}')
NUMBERS = itertools.count()


def written(name: str) -> Write:
    """The writer of a format; of one that has rows alone, ``write_jsonl`` of them."""
    found = getattr(export, f"write_{name}", None)
    if found is not None:
        return found  # type: ignore[no-any-return]
    return lambda path, runs, **options: export.write_jsonl(path, getattr(export, name)(runs, **options))


VERL = {"data_source": "tests", "ability": "none"}
WRITERS: list[tuple[str, dict[str, Any]]] = [
    ("chat", {}),
    ("chat", {"columns": tuple(export.CHAT_COLUMNS), "weight": True}),
    ("chat", {"columns": (), "arguments": "json"}),
    ("steps", {}),
    ("turns", {}),
    ("trl", {}),
    ("trl_dpo", {}),
    ("trl_kto", {"threshold": 0.5}),
    ("trl_prompts", {}),
    ("distillation", {}),
    ("exchanges", {}),
    ("verifiers", {}),
    ("verl_prompts", VERL),
]
NAMES = [f"{name}{at}" for at, (name, _) in enumerate(WRITERS)]


def step(messages: list[Any], text: str, size: int, **fields: Any) -> rt.Step:
    """A step with ``size`` tokens sampled, and the two likeliest at each position."""
    ids = np.arange(100_000, 100_000 + size, dtype=np.int32)
    name = f"step-{next(NUMBERS)}"
    return rt.Step(
        id=name, call_id=name, index=0, protocol="openai.chat", model="m", messages=messages, finish_reason="stop",
        completion=Completion(content=text, **fields.pop("answer", {})),
        prompt_token_ids=np.array([1, 2, 3], np.int32), completion_token_ids=ids, token_source="engine",
        logprobs=np.full(size, -0.1234567, np.float32),
        top_tokens=TopTokens(np.stack([ids, ids + 1], 1), np.full((size, 2), -0.5, np.float32)), **fields,
    )  # fmt: skip


def bare(group: str, size: int = 2, pad: str = "") -> list[rt.Trajectory]:
    """Two runs of a group that say as little as they can: no tools, no names, whole numbers as rewards."""
    runs = []
    for at in range(2):
        one = rt.Trajectory(group_id=group, steps=[step([{"role": "user", "content": f"{group}{pad}"}], "hi", size)])
        one.reward = at
        runs.append(one)
    return runs


def full(group: str) -> list[rt.Trajectory]:
    """Two runs with tools, contents in parts, decimals, and all that is missing in ``bare``."""
    schema = {"type": "object", "properties": {"a": {"type": ["number", "string"]}}}
    tools = [{"type": "function", "function": {"name": "add", "description": group, "parameters": schema}}]
    call = {"id": "c", "type": "function", "function": {"name": CALL.name, "arguments": CALL.arguments}}
    runs = []
    for at in range(2):
        content = [{"type": "text", "text": group}]
        messages = [{"role": "system", "content": "sys"}, {"role": "user", "content": group}]
        first = step(messages, "calling", 3, tools=tools, answer={"tool_calls": [CALL], "reasoning": "so"})
        second = [*messages, {"role": "assistant", "content": "calling", "tool_calls": [call]},
                  {"role": "tool", "tool_call_id": "c", "content": content}]  # fmt: skip
        ids = np.concatenate([first.prompt_token_ids, first.completion_token_ids, [7]]).astype(np.int32)
        last = replace(
            step(second, "done", 2, tools=tools, sampling={"temperature": 0.5}), prompt_token_ids=ids, index=1
        )
        one = rt.Trajectory(
            group_id=group, rollout_index=at, name="solver", steps=[first, last], status="completed",
            task=rt.Task(id=group, data={"q": [1, "two", None]}), metadata={"a": {"b": at}},
        )  # fmt: skip
        one.reward, one.rewards, one.metrics = 0.25 + at, {"format": at}, {"n": 1.5}
        one.steps[0].reward, one.steps[0].policy_version = 0.125, 7
        runs.append(one)
    one.steps[1].trainable = True
    return runs


def unscored(group: str) -> list[rt.Trajectory]:
    runs = bare(group)
    for one in runs:
        one.reward = None
    return runs


def load(paths: list[Path], features: Any) -> Any:
    cache = paths[0].parent / f"cache{len(list(paths[0].parent.iterdir()))}"
    return datasets.load_dataset(
        "json", data_files=list(map(str, paths)), split="train", features=features, cache_dir=str(cache)
    )


def plain(value: Any) -> Any:
    """Numbers to nine decimals: datasets reads numbers in JSON with an error in the last digit."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items() if item is not None}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return round(value, 6) if isinstance(value, float) else value


def check(paths: list[Path], features: Any) -> None:
    """What is loaded of the files is what stands in them, in order."""
    lines = [orjson.loads(line) for path in paths for line in path.read_bytes().splitlines()]
    back = load(paths, features)
    assert back.features == features
    assert len(back) == len(lines) > 0
    for line, row in zip(lines, back, strict=True):
        assert plain(row) == plain(line)


@pytest.mark.parametrize(("name", "options"), WRITERS, ids=NAMES)
def test_shards_load_in_every_order(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    """Of runs with little, with all and without rewards."""
    write, paths = written(name), []
    for at, runs in enumerate((bare("a"), full("b"), unscored("c"))):
        path = tmp_path / f"{at}.jsonl"
        if write(path, runs, **options):
            paths.append(path)
    features = export.features(name, **({"columns": options["columns"]} if "columns" in options else {}))
    for order in itertools.permutations(paths):
        check(list(order), features)


@pytest.mark.more
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize(("name", "options"), WRITERS, ids=NAMES)
def test_what_comes_after_the_first_ten_megabytes_loads(
    tmp_path: Path, name: str, options: dict[str, Any], order: tuple[int, int]
) -> None:
    # Of rows of tokens the ids are long, of others the prompt, of which prompts and pairs have one for two runs.
    tokens = {"trl": 65_000, "distillation": 16_000}.get(name, 2)
    text = 0 if tokens > 2 else 1_900_000 if name in ("trl_dpo", "trl_prompts", "verl_prompts") else 950_000
    long = [run for at in range(6) for run in bare(f"a{at}", tokens, "x" * text)]
    parts = [long, full("b")]
    runs = [run for at in order for run in parts[at]]
    path = tmp_path / "all.jsonl"
    written(name)(path, runs, **options)
    assert FIRST_CHUNK < path.stat().st_size < 2 * FIRST_CHUNK
    check([path], export.features(name, **({"columns": options["columns"]} if "columns" in options else {})))


@pytest.mark.parametrize(("name", "options"), WRITERS, ids=NAMES)
def test_every_line_has_every_column_and_rewards_are_floats(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    path = tmp_path / "all.jsonl"
    written(name)(path, [*bare("a"), *full("b"), *unscored("c")], **options)
    text = path.read_text()
    # BenchFlow's reader refuses null, and so may a service that is given nothing but messages and tools.
    optional = {"duration_ms"} if name == "exchanges" else {"tools"} if options.get("columns") == () else set()
    lines = [orjson.loads(line) for line in text.splitlines()]
    columns = list(export.features(name, **({"columns": options["columns"]} if "columns" in options else {})))
    for line in lines:
        assert [*line] == [column for column in columns if column in line]
        assert set(columns) - set(line) <= optional
        rewards = [line.get("reward"), line.get("step_reward"), *(line.get("rewards") or ())]
        rewards = rewards if name == "trl_prompts" else rewards[:2]
        assert {type(reward) for reward in rewards} <= {float, type(None)}


def test_features_are_those_of_parquet(tmp_path: Path) -> None:
    for name, write in (("chat", export.write_chat), ("steps", export.write_steps), ("trl", export.write_trl)):
        path = tmp_path / f"{name}.parquet"
        write(path, full("b"))
        back = datasets.load_dataset("parquet", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache"))
        assert back.features == export.features(name)


def test_features_says_what_it_knows() -> None:
    with pytest.raises(ValueError, match="exporter='verl': expected one whose rows have columns: chat, distillation"):
        export.features("verl")
    with pytest.raises(TypeError, match="'columns' is no option of features\\('trl'\\)"):
        export.features("trl", columns=())
    with pytest.raises(ValueError, match="there is no column 'rewrd'"):
        export.features("chat", columns=("rewrd",))
