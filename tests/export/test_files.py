"""Files of rows: what was written is read back with other readers, and a file is there whole or not at all."""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import re
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from rollout_trace.export import arrow, write, write_jsonl, write_parquet
from tests.amount import some
from tests.strategies import PROFILE, json_values, texts

ROWS: list[dict[str, Any]] = [
    {"ids": [1, 2, 3], "text": "naïve 数 🐍", "reward": 0.1},
    {"ids": [], "text": None, "reward": -0.0},
    {},
]


def read(path: Path) -> list[Any]:
    """The rows of a file, by readers of others."""
    data = path.read_bytes()
    if path.suffix == ".gz":
        data = gzip.decompress(data)
    if path.suffix == ".zst":
        data = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data)).read()
    assert data.endswith(b"\n") or not data
    return [json.loads(line) for line in data.split(b"\n")[:-1]]


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz", "rows.jsonl.zst"])
def test_rows_come_back(tmp_path: Path, name: str) -> None:
    """Plain and compressed, into folders that are made; the same rows give the same bytes."""
    first, second = tmp_path / "new" / "folder" / name, tmp_path / "other" / name
    assert write_jsonl(first, iter(ROWS)) == 3
    assert read(first) == ROWS
    assert write(os.fspath(second), ROWS, {}) == 3
    assert first.read_bytes() == second.read_bytes()
    assert write_jsonl(first, []) == 0
    assert read(first) == []


@PROFILE
@given(st.lists(st.dictionaries(texts, json_values, max_size=3), max_size=4))
def test_any_json_comes_back(tmp_path_factory: pytest.TempPathFactory, rows: list[Any]) -> None:
    """Half characters, numbers of any size and control characters among it."""
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    write_jsonl(path, rows)
    assert read(path) == rows


def test_arrays_are_written_as_their_lists(tmp_path: Path) -> None:
    """A float32 with all digits: the same double that ``tolist`` gives, also where its short text would be another."""
    hard = np.array([0x15AE43FD, 0x3DCCCCCD], np.int32).view(np.float32)
    row: dict[str, Any] = {
        "ids": np.array([7, 2**31 - 1], np.int32),
        "logprobs": -hard,
        "mask": np.array([0, 1], np.int8),
    }
    write_jsonl(tmp_path / "rows.jsonl", [row])
    assert read(tmp_path / "rows.jsonl") == [{name: array.tolist() for name, array in row.items()}]


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (math.nan, "$.x: nan"),
        ([0.5, -math.inf], "$.x[1]: -inf"),
        ({"task": [{"score": math.inf}]}, "$.x.task[0].score: inf"),
        ([1e308, 1e308, math.nan], "$.x[2]: nan"),
        (np.array([0.5, math.nan], np.float32), "$.x[1]: nan"),
        (np.float32(math.inf), "$.x: inf"),
    ],
)
def test_numbers_that_are_not_finite_are_refused(tmp_path: Path, value: Any, place: str) -> None:
    """With the row and the place in it; what the file held before stays."""
    path = tmp_path / "rows.jsonl"
    write_jsonl(path, ROWS)
    with pytest.raises(ValueError, match=re.escape(f"row 1, {place} is not a finite number")):
        write_jsonl(path, [{"x": [1e308, 1e308]}, {"x": value}])
    assert read(path) == ROWS
    assert os.listdir(tmp_path) == ["rows.jsonl"]


def test_a_file_is_replaced_at_the_end_or_not_at_all(tmp_path: Path) -> None:
    """While rows still come the old file is what readers see; an exception of theirs leaves it as it was."""
    path = tmp_path / "rows.jsonl"
    path.write_text("old\n")

    def rows(fails: bool) -> Iterator[dict[str, Any]]:
        yield {"at": 0}
        assert path.read_text() == "old\n"
        if fails:
            raise KeyError("the rows")
        yield {"at": 1}

    with pytest.raises(KeyError):
        write_jsonl(path, rows(True))
    assert path.read_text() == "old\n"
    assert os.listdir(tmp_path) == ["rows.jsonl"]
    assert write_jsonl(path, rows(False)) == 2
    assert read(path) == [{"at": 0}, {"at": 1}]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    """The file that it names is replaced."""
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "data.jsonl", tmp_path / "link.jsonl"
    link.symlink_to(target)
    write_jsonl(link, ROWS)
    assert link.is_symlink()
    assert read(target) == ROWS


def test_other_names_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    """The message names the path and what it may end with."""

    def rows() -> Iterator[dict[str, Any]]:
        raise AssertionError("a row was asked for")
        yield {}

    path = tmp_path / "rows.json"
    with pytest.raises(ValueError, match=re.escape(f"{path}: expected a name that ends with .jsonl or .jsonl.gz or ")):
        write_jsonl(path, rows())
    with pytest.raises(ValueError, match=r"expected a name that ends with \.parquet\."):
        write_parquet(path, rows(), {})
    with pytest.raises(ValueError, match=r"\.jsonl or \.jsonl\.gz or \.jsonl\.zst or \.parquet\."):
        write(path, rows(), {})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", some(["rows.jsonl", "rows.jsonl.gz", "rows.jsonl.zst"], "rows.jsonl.gz"))
def test_memory_does_not_grow_with_the_rows(tmp_path: Path, name: str) -> None:
    """Of 200 rows of 80 kB, 16 MB in all, never more than a few are held."""
    ids = np.arange(20_000, dtype=np.int32)
    write_jsonl(tmp_path / name, [{"ids": ids}])
    tracemalloc.start()
    try:
        write_jsonl(tmp_path / name, ({"ids": ids + at} for at in range(200)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4_000_000


def test_without_pyarrow_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For tables and for files, and the file is not touched."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    install = re.escape("pip install 'pyarrow>=19'")
    with pytest.raises(ImportError, match=install):
        write_parquet(tmp_path / "rows.parquet", ROWS, {"text": "string"})
    with pytest.raises(ImportError, match=install):
        arrow(ROWS)
    assert os.listdir(tmp_path) == []
