"""What a parquet writer holds while rows come: a row group as Arrow arrays, and the rows of one batch."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow.parquet import ParquetFile

from rollout_trace.export import write_parquet

LENGTH = 100_000
"""Ids of a row: 0.4 MB."""


def test_one_row_group_is_in_memory(tmp_path: Path) -> None:
    """None of those before it, not even its first batch."""
    held: list[int] = []
    gc.collect()
    before = pyarrow.total_allocated_bytes()

    def rows() -> Iterator[dict[str, Any]]:
        for at in range(200):
            held.append(pyarrow.total_allocated_bytes() - before)
            yield {"text": f"{at:06}" * LENGTH}

    assert write_parquet(tmp_path / "rows.parquet", rows(), {"text": "string"}) == 200
    file = ParquetFile(tmp_path / "rows.parquet")
    counts = [file.metadata.row_group(at).num_rows for at in range(file.num_row_groups)]
    assert sum(counts) == 200
    assert len(counts) > 5
    largest = 6 * LENGTH * max(counts)
    assert max(held) < 2 * largest
    # Between two groups there are Arrow's buffers alone.
    assert min(held[max(counts) :]) < largest
    assert file.read()["text"].to_pylist() == [f"{at:06}" * LENGTH for at in range(200)]


def test_rows_are_in_memory_until_they_are_arrays(tmp_path: Path) -> None:
    """Not until their row group is written: as Python objects they take more."""
    held: list[int] = []
    arrays: list[weakref.ref[Any]] = []

    def rows() -> Iterator[dict[str, Any]]:
        for at in range(60):
            held.append(sum(array() is not None for array in arrays))
            ids = np.full(LENGTH, at, np.int32)
            arrays.append(weakref.ref(ids))
            yield {"ids": ids}

    assert write_parquet(tmp_path / "rows.parquet", rows(), {"ids": "list<int32>"}) == 60
    file = ParquetFile(tmp_path / "rows.parquet")
    assert max(held) < file.metadata.row_group(0).num_rows
    found = file.read()["ids"].combine_chunks()
    assert found.flatten().to_numpy()[::LENGTH].tolist() == list(range(60))


def test_a_row_group_of_many_columns_is_larger(tmp_path: Path) -> None:
    """Arrow keeps something of each column of each group until the file's end."""
    columns = {f"c{at}": "int64" for at in range(39)} | {"ids": "list<int32>"}
    rows = [{"ids": np.zeros(LENGTH, np.int32)} for _ in range(120)]
    counts = []
    for schema in ({"ids": "list<int32>"}, columns):
        write_parquet(tmp_path / "rows.parquet", rows, schema)
        counts.append(ParquetFile(tmp_path / "rows.parquet").num_row_groups)
    assert counts[1] * 2 <= counts[0]


def test_types_are_inferred_from_the_first_thousand_rows(tmp_path: Path) -> None:
    """Although fewer are made into arrays at a time."""
    rows = [{"name": None}] * 999 + [{"name": "text"}]
    assert write_parquet(tmp_path / "rows.parquet", rows) == 1000
    assert ParquetFile(tmp_path / "rows.parquet").schema_arrow.field("name").type == pyarrow.string()


@pytest.mark.parametrize("schema", [{"text": "string"}, None])
def test_a_row_group_has_at_most_a_thousand_rows(tmp_path: Path, schema: dict[str, str] | None) -> None:
    """Also where long texts have made a batch shorter."""
    rows = [{"text": "a" * (30_000 if at < 150 else 1)} for at in range(2500)]
    assert write_parquet(tmp_path / "rows.parquet", rows, schema) == 2500
    file = ParquetFile(tmp_path / "rows.parquet")
    counts = [file.metadata.row_group(at).num_rows for at in range(file.num_row_groups)]
    assert max(counts) <= 1000
    assert len(counts) <= 4
    assert file.read()["text"].to_pylist() == [row["text"] for row in rows]
