"""What ``datasets`` reads of the exported files, and of tables in memory, is what was recorded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from page_blocks import blocks_of, run_block

import rollout_trace as rt
from rollout_trace import export
from rollout_trace.export import (
    STEP_COLUMNS,
    arrow,
    chat,
    dataset,
    steps,
    write_chat,
    write_jsonl,
    write_parquet,
    write_steps,
)
from tests.consumers import recorded
from tests.export.extras import same_extras
from tests.file.test_format import with_extras

Made = Callable[[], list[rt.Trajectory]]
SEQUENCES = {
    "token_ids": "list<int32>",
    "loss_mask": "list<int8>",
    "logprobs": "list<float32>",
    "step_ids": "list<string>",
    "reward": "float64",
}
NUMBERS = ("prompt_ids", "completion_ids", "reward", "step_reward", "rollout_index", "turn")


def load(*paths: Path) -> Any:
    """Files as ``datasets`` loads them, into a cache beside them."""
    kind, files = "parquet" if paths[0].suffix == ".parquet" else "json", list(map(str, paths))
    return datasets.load_dataset(kind, data_files=files, split="train", cache_dir=str(paths[0].parent / "cache"))


def sequence_rows(trajectories: list[rt.Trajectory]) -> list[dict[str, Any]]:
    """The merged rows, as arrays."""
    return [
        {name: getattr(row, name) for name in SEQUENCES}
        for trajectory in trajectories
        for row in trajectory.sequences()
    ]


@pytest.mark.parametrize("made", recorded.EVERY)
@pytest.mark.parametrize("name", ["steps.parquet", "steps.jsonl", "steps.jsonl.gz", "steps.jsonl.zst"])
def test_steps_come_back(tmp_path: Path, made: Made, name: str) -> None:
    """Ids, logprobs and rewards are equal, bit for bit; of parquet every other column is as well."""
    found = made()
    rows = steps(found)
    assert write_steps(tmp_path / name, iter(found)) == len(rows)
    if not rows:
        return  # datasets refuses a file without rows.
    back = load(tmp_path / name)
    assert len(back) == len(rows)
    assert back.column_names == list(STEP_COLUMNS)
    for row, again in zip(rows, back, strict=True):
        for column in NUMBERS:
            assert again[column] == row[column], column
        for column in ("logprobs", "advantages"):
            # Of a JSON column whose values are of several types, datasets has the whole file read by pandas, which
            # rounds decimals: requests to several engines have such values.
            if made is recorded.engines and name != "steps.parquet" and row[column] is not None:
                assert again[column] == pytest.approx(row[column], rel=1e-5, abs=1e-9), column
            else:
                assert bits(again[column]) == bits(row[column]), column
    if name == "steps.parquet":
        # datasets reads numbers in JSON with an error in their last digit: only messages are compared of those columns.
        exact = [name for name in STEP_COLUMNS if name not in ("sampling", "task", "extra")]
        for row, again in zip(rows, back, strict=True):
            assert {name: again[name] for name in exact} == {name: row[name] for name in exact}
        assert [listed(row) for row in pyarrow.parquet.read_table(tmp_path / name).to_pylist()] == rows


def listed(row: dict[str, Any]) -> dict[str, Any]:
    """A row of a table with its JSON decoded."""
    texts = [name for name, kind in STEP_COLUMNS.items() if kind == "json" and row[name] is not None]
    return {**row, **{name: json.loads(row[name]) for name in texts}}


def bits(values: list[float] | None) -> list[int] | None:
    """Those of the numbers as float32: of JSON lines, too, datasets reads doubles with an error in the last digit."""
    found: list[int] | None = None if values is None else np.array(values, np.float32).view(np.int32).tolist()
    return found


def test_extras_come_back(tmp_path: Path) -> None:
    """Every extra of each step, bit for bit, through datasets and through pyarrow alone."""
    trajectory = with_extras()
    write_steps(tmp_path / "steps.parquet", trajectory)
    for rows in (
        load(tmp_path / "steps.parquet"),
        map(listed, pyarrow.parquet.read_table(tmp_path / "steps.parquet").to_pylist()),
    ):
        for row, step in zip(rows, trajectory.steps, strict=True):
            same_extras(row, step)
    assert arrow(steps(trajectory, arrays=True)).to_pylist() == arrow(steps(trajectory)).to_pylist()


@pytest.mark.parametrize("made", recorded.EVERY)
def test_sequences_come_back(tmp_path: Path, made: Made) -> None:
    """Merged rows as arrays into parquet and into JSON: ids, masks, logprobs and rewards are equal."""
    rows = sequence_rows(made())
    files = [tmp_path / "rows.parquet", tmp_path / "rows.jsonl"]
    assert write_parquet(files[0], iter(rows), SEQUENCES) == write_jsonl(files[1], iter(rows)) == len(rows)
    for file in files if rows else ():
        back = load(file)
        assert len(back) == len(rows)
        for row, again in zip(rows, back, strict=True):
            assert again["token_ids"] == row["token_ids"].tolist()
            assert again["loss_mask"] == row["loss_mask"].tolist()
            assert again["logprobs"] == (None if row["logprobs"] is None else row["logprobs"].tolist())
            assert (again["reward"], again["step_ids"]) == (row["reward"], list(row["step_ids"]))


def test_types_are_the_columns_own(tmp_path: Path) -> None:
    """In the file, and as datasets sees them."""
    write_steps(tmp_path / "steps.parquet", recorded.annotated())
    schema = pyarrow.parquet.read_schema(tmp_path / "steps.parquet")
    assert (schema.field("prompt_ids").type, schema.field("logprobs").type) == (pa.list_(pa.int32()), floats())
    assert schema.field("messages").type == pa.json_()
    features = load(tmp_path / "steps.parquet").features
    assert features["completion_ids"] == datasets.List(datasets.Value("int32"))
    assert features["logprobs"] == datasets.List(datasets.Value("float32"))
    assert features["messages"] == datasets.Json()
    assert features["reward"] == datasets.Value("float64")


def floats() -> Any:
    return pa.list_(pa.float32())


@pytest.mark.parametrize("columns", [(), ("reward", "task", "step_ids")])
def test_the_schema_does_not_depend_on_the_rows(tmp_path: Path, columns: tuple[str, ...]) -> None:
    """No trajectories, ones whose optional fields are all None, and full ones give files that can be put together."""
    (bare,) = recorded.completions()
    bare.reward = bare.task = None
    given: tuple[list[rt.Trajectory], ...] = ([], [bare], recorded.annotated(), recorded.anthropic_agent())
    schemas = []
    for at, trajectories in enumerate(given):
        write_steps(tmp_path / f"steps{at}.parquet", trajectories)
        write_chat(tmp_path / f"chat{at}.parquet", trajectories, columns=columns)
        schemas.append([pyarrow.parquet.read_schema(tmp_path / f"{name}{at}.parquet") for name in ("steps", "chat")])
        assert arrow(steps(trajectories)).schema.equals(schemas[-1][0])
        assert dataset(chat(trajectories, columns=columns)).features.arrow_schema.equals(schemas[-1][1])
    assert all(steps_schema.equals(schemas[0][0]) and other.equals(schemas[0][1]) for steps_schema, other in schemas)
    assert len(load(*(tmp_path / f"steps{at}.parquet" for at in range(4)))) == 2 + 18


@pytest.mark.parametrize("made", [*recorded.EVERY, recorded.anthropic_agent])
@pytest.mark.parametrize("arguments", ["dict", "json"])
def test_conversations_come_back(tmp_path: Path, made: Made, arguments: Any) -> None:
    """From JSON lines, from parquet, and as a dataset in memory; a dict lacks what it did not have."""
    found = made()
    options: dict[str, Any] = {"arguments": arguments, "weight": True, "columns": ["reward", "task"]}
    rows = chat(found, **options)
    for name in ("chat.jsonl", "chat.parquet"):
        assert write_chat(tmp_path / name, found, **options) == len(rows)
        check_conversations(load(tmp_path / name), rows)
    check_conversations(dataset(rows), rows)


def check_conversations(back: Any, rows: list[dict[str, Any]]) -> None:
    assert len(back) == len(rows)
    for row, again in zip(rows, back, strict=True):
        assert again["messages"] == row["messages"]
        assert again.get("tools") == row.get("tools")
        assert again["reward"] == row["reward"]
        if row["task"] is not None:
            assert again["task"] == row["task"]


def test_a_dataset_of_arrays_is_the_dataset_of_lists() -> None:
    """Arrays go into the table as they are."""
    found = recorded.annotated()
    with_arrays, with_lists = dataset(steps(found, arrays=True)), dataset(steps(found))
    assert with_arrays.features == with_lists.features
    assert with_arrays[:] == with_lists[:]
    assert [row["completion_ids"] for row in with_arrays] == [row["completion_ids"] for row in steps(found)]


def test_numbers_in_json_keep_ten_decimals(tmp_path: Path) -> None:
    """Beside values of any shape; in parquet a logprob near 0 keeps all its digits. docs/export.md says so."""
    rows = [{"logprobs": [-3.1234567e-9, -0.12345678901234], "any": value} for value in ({"a": 1}, [2], "text")]
    types = {"logprobs": "list<float64>", "any": "json"}
    assert write_jsonl(tmp_path / "rows.jsonl", rows) == write_parquet(tmp_path / "rows.parquet", rows, types) == 3
    assert load(tmp_path / "rows.jsonl")[0]["logprobs"] == [-3.1e-9, -0.123456789]
    assert load(tmp_path / "rows.parquet")[0]["logprobs"] == rows[0]["logprobs"]


def test_the_blocks_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of docs/export.md that need datasets or its tables."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    runs = recorded.tool_agent()
    with rt.JSONLWriter("rollouts.jsonl") as out:
        for one in runs:
            out.write(one)
    names = {"rt": rt, "export": export, "datasets": datasets, "trajectories": runs, "rows": export.trl(runs)}
    for at in range(2):
        write_chat(f"sft-{at}.jsonl", runs[at::2])
    parts = (
        "Dataset.from_generator",
        "features=export.features",
        'datasets.load_dataset("parquet"',
        "export.dataset(export.steps",
    )
    for part in parts:
        (block,) = [one for one in blocks_of("docs/export.md") if part in one.text]
        run_block(block, names)
        assert part not in parts[:2] or len(names["data"]) == len(runs)
    assert len(names["data"]) == sum(len(one.steps) for one in runs)
