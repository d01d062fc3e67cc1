"""Parquet files and Arrow tables of any rows: groups, what does not fit, and readers other than datasets."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow.parquet import ParquetFile, read_table

from rollout_trace.export import arrow, steps, write_parquet, write_steps
from tests.consumers import recorded, vllm_extras

SCHEMA = {"ids": "list<int32>", "logprobs": "list<float32>", "reward": "float64", "task": "json", "name": "string"}


def test_rows_are_written_in_groups(tmp_path: Path) -> None:
    """However many and however long they are: while rows come, the file already has those before."""
    path = tmp_path / "rows.parquet"
    seen = []

    def rows() -> Iterator[dict[str, Any]]:
        for at in range(2500):
            seen.append(sum(file.stat().st_size for file in tmp_path.iterdir()))
            yield {"ids": np.arange(at, at + 3, dtype=np.int32)}
        for _ in range(3):
            yield {"ids": np.zeros(3_000_000, np.int32)}

    assert write_parquet(path, rows(), SCHEMA) == 2503
    file = ParquetFile(path)
    counts = [file.metadata.row_group(at).num_rows for at in range(file.num_row_groups)]
    assert sum(counts) == 2503
    assert max(counts) <= 1000
    assert counts[-1] == 1
    assert seen[999] < seen[1001] < seen[2001]
    table = file.read()
    assert table["ids"].slice(0, 2500).to_pylist() == [[at, at + 1, at + 2] for at in range(2500)]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"ids": [2**31]}, "row 2, column 'ids': expected list<"),
        ({"ids": [0.5]}, "row 2, column 'ids': expected list<"),
        ({"ids": np.array([1.0, 2.0])}, "row 2, column 'ids': expected list<"),
        ({"logprobs": [1e300]}, "row 2, column 'logprobs': expected list<"),
        ({"ids": "text"}, "row 2, column 'ids': expected list<"),
        ({"name": 7}, "row 2, column 'name': expected string; "),
        ({"name": "cut \ud83d"}, "row 2, column 'name': expected string; "),
        ({"reward": "high"}, "row 2, column 'reward': expected double; "),
        ({"reward": math.nan}, "row 2, $.reward: nan is not a finite number"),
        ({"logprobs": np.array([-math.inf], np.float32)}, "row 2, $.logprobs[0]: -inf is not a finite number"),
        ({"task": {"a": [math.nan]}}, "row 2, $.task.a[0]: nan is not a finite number"),
        ({"id": [1]}, "row 2: the schema has no column 'id'; it has ids, logprobs, reward, task, name."),
    ],
)
def test_a_row_that_does_not_fit(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    """It is named, with its column; no file appears."""
    good = {"ids": [1], "logprobs": [-0.5], "reward": 1, "task": {}, "name": "n"}
    with pytest.raises(ValueError, match=re.escape(message)):
        write_parquet(tmp_path / "rows.parquet", [good, good, row, good], SCHEMA)
    assert os.listdir(tmp_path) == []
    assert write_parquet(tmp_path / "rows.parquet", [good, {}, good], SCHEMA) == 3


def test_a_schema_of_arrow_or_none(tmp_path: Path) -> None:
    """One of Arrow's own is taken as it is; without any, the first rows tell, and the others must fit."""
    path = tmp_path / "rows.parquet"
    nested = pa.schema([("prompt", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())])))])
    rows: list[dict[str, Any]] = [{"prompt": [{"role": "user", "content": "hi"}]}, {"prompt": []}]
    assert write_parquet(path, rows, nested) == 2
    assert read_table(path).schema.equals(nested)
    assert write_parquet(path, rows) == 2
    assert read_table(path).to_pylist() == rows
    mixed = [{"n": 1}] * 1000 + [{"n": "text"}]
    with pytest.raises(ValueError, match="row 1000, column 'n': expected int64"):
        write_parquet(path, mixed)
    with pytest.raises(ValueError, match="there are no rows to take types from: give a schema"):
        write_parquet(path, [])
    assert write_parquet(path, [], {"n": "int64"}) == 0
    assert read_table(path).to_pylist() == []
    assert arrow([], {"n": "int64"}).schema.names == ["n"]


def test_json_is_text_to_other_readers(tmp_path: Path) -> None:
    """Any JSON, characters cut in half and numbers of any size included."""
    values: list[Any] = [{"a": ["cut \ud83d", 2**70, 0.1, None]}, [], "text", 0, None, {"数": "🐍"}]
    write_parquet(tmp_path / "rows.parquet", [{"task": value} for value in values], SCHEMA)
    texts = pd.read_parquet(tmp_path / "rows.parquet")["task"]
    assert [None if text is None else json.loads(text) for text in texts] == values


def test_pandas_reads_ids_as_arrays(tmp_path: Path) -> None:
    """Of the types that were written, equal to the recorded ones."""
    found = recorded.tool_agent()
    write_steps(tmp_path / "steps.parquet", found)
    frame = pd.read_parquet(tmp_path / "steps.parquet")
    for row, (_, read) in zip(steps(found, arrays=True), frame.iterrows(), strict=True):
        for name in ("prompt_ids", "completion_ids", "logprobs"):
            assert read[name].dtype == row[name].dtype
            assert np.array_equal(read[name], row[name])


def test_extras_come_back_bit_for_bit(tmp_path: Path) -> None:
    """Recorded experts and masks, as datasets and pandas read them; NaN, where nothing is known, is null."""
    path = tmp_path / "extras.parquet"
    rows = [row for run in vllm_extras.runs() for row in run.sequences()]
    types = {"experts": "list<list<list<uint8>>>", "kept": "list<int32>", "scores": "list<float32?>"}
    made = [
        {
            "experts": row.routed_experts,
            "kept": None if row.sampling_mask is None else row.sampling_mask.ids,
            "scores": np.where(row.loss_mask, np.asarray(row.logprobs), np.nan).astype(np.float32),
        }
        for row in rows
    ]
    assert write_parquet(path, made, types) == len(rows)
    data = datasets.load_dataset("parquet", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache"))
    frame = pd.read_parquet(path)
    for at, (row, names) in enumerate(zip(rows, vllm_extras.RUNS, strict=True)):
        experts = vllm_extras.experts(*names)
        assert np.array_equal(np.array(data[at]["experts"], experts.dtype)[:-1], experts)
        assert np.array_equal(np.stack([np.stack(one) for one in frame["experts"][at]])[:-1], experts)
        if row.sampling_mask is not None:
            assert data[at]["kept"] == [token for one in vllm_extras.mask(*names) for token in one]
        sampled = [value is not None for value in data[at]["scores"]]
        assert sampled == row.loss_mask.astype(bool).tolist()
        found = np.array([value for value in data[at]["scores"] if value is not None], np.float32)
        assert row.logprobs is not None
        assert np.array_equal(found, row.logprobs[row.loss_mask == 1])
