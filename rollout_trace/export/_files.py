"""Files of rows: JSON lines, plain or compressed, and parquet. A file appears whole or not at all."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO

import orjson

from rollout_trace.data.trajectory import Trajectory
from rollout_trace.export._arrow import batches, import_package, require_finite
from rollout_trace.export._exporter import Exporter, RowIterator
from rollout_trace.export._values import number
from rollout_trace.file.addresses import replacing
from rollout_trace.file.compression import import_zstandard
from rollout_trace.file.plain import dumps

if TYPE_CHECKING:
    from rollout_trace.export._arrow import Row, Schema

JSONL_SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
PARQUET_SUFFIXES = (".parquet",)

_GROUP_ROWS = 1000
_GROUP_BYTES = 8_000_000
_COLUMN_BYTES = 500_000
"""A row group has at least so many bytes, and so many for each of its columns: until the end of the file Arrow keeps
2 kB of each column of each row group, empty or not."""
_BATCH_ROWS = 100
_BATCH_SIZE = 1 << 20
"""Maximum rows of a batch, and maximum total length of their lists and texts. Batches of a row group wait as Arrow
arrays: its rows as Python objects would take more, and leave holes in the memory."""


def write(path: str | os.PathLike[str], rows: Iterable[Row], schema: Schema | None = None) -> int:
    """Writes rows to JSON lines or parquet (zstd inside), by the file's ending, and returns their number.

    Pass an exporter's rows as ``export.NAME.rows(...)``: they are written as they are made, so memory stays flat (in
    parquet: one row group at a time). Missing folders are created. An existing file is replaced after the last row; on
    an error it is left unchanged.

    Arrays are written as lists; in JSON a float32 has all digits of its value as a double. Every line of an exporter's
    rows has every column, null if it has no value; see ``features`` for the types with which to load the file. In
    parquet, columns such as ``messages`` have Arrow's JSON type: ``datasets`` returns their values, other readers text.

    Args:
        path: must end with ``.jsonl``, ``.jsonl.gz``, ``.jsonl.zst`` (needs the package zstandard) or ``.parquet``
            (needs pyarrow).
        rows: an exporter's rows, or any mappings; a missing key is null in parquet.
        schema: types by column name (see ``rollout_trace.export.arrow``), or a ``pyarrow.Schema``. None: the
            exporter's; otherwise parquet's are inferred from the first rows, which all others must fit.

    Raises:
        ExportError: the rows come from an exporter with ``strict``, and something would be left out.
        ImportError: zstandard or pyarrow is not installed.
        OSError: the file cannot be written.
        TypeError: trajectories or an exporter were passed instead of rows.
        ValueError: the name has another ending, or a row does not fit the schema or holds a number that is not finite.
    """
    suffix = _suffix(path, JSONL_SUFFIXES + PARQUET_SUFFIXES)
    if schema is None:
        schema = getattr(rows, "columns", None)
    fills, checked = getattr(rows, "fills", True), getattr(rows, "checked", False)
    rows = rows.for_file() if isinstance(rows, RowIterator) else _checked(rows)
    if suffix in PARQUET_SUFFIXES:
        return _write_parquet(path, rows, schema)
    return _write_jsonl(path, suffix, _uniform(rows, schema) if fills else rows, checked)


def _checked(rows: Any) -> Iterable[Row]:
    """The rows, where they are not an exporter or trajectories."""
    if isinstance(rows, Trajectory | Exporter) or (isinstance(rows, list) and rows and isinstance(rows[0], Trajectory)):
        name = rows.__name__ if isinstance(rows, Exporter) else "NAME"
        what = f"the exporter {name}" if isinstance(rows, Exporter) else "trajectories, not rows"
        raise TypeError(f"rows is {what}: give export.{name}.rows(trajectories).")
    checked: Iterable[Row] = rows
    return checked


def write_jsonl(path: str | os.PathLike[str], rows: Iterable[Row]) -> int:
    """Writes rows as JSON lines, as ``write`` does; another ending raises ValueError."""
    _suffix(path, JSONL_SUFFIXES)
    return write(path, rows)


def write_parquet(path: str | os.PathLike[str], rows: Iterable[Row], schema: Schema | None = None) -> int:
    """Writes rows as parquet, as ``write`` does; another ending raises ValueError."""
    _suffix(path, PARQUET_SUFFIXES)
    return write(path, rows, schema)


def _uniform(rows: Iterable[Row], schema: Schema | None) -> Iterator[Row]:
    """The rows with every column of the schema, and with floats where it says ``float64``.

    Readers of JSON lines take a column's type from the first values they see: a key that comes later, or a reward that
    is first 1 and then 0.5, would be refused. A schema of Arrow changes nothing.
    """
    columns = schema if isinstance(schema, Mapping) else {}
    missing = dict.fromkeys(columns)
    floats = [name for name, word in columns.items() if word == "float64"]
    for row in rows:
        yield {**missing, **row, **{name: number(row.get(name)) for name in floats}}


def _write_jsonl(path: str | os.PathLike[str], suffix: str, rows: Iterable[Row], checked: bool) -> int:
    with replacing(path) as file, _compressed(file, suffix, path) as lines:
        count = 0
        for row in rows:
            if not checked:
                require_finite(row, count)
            lines.write(dumps({name: _doubles(value) for name, value in row.items()}, orjson.OPT_APPEND_NEWLINE))
            count += 1
    return count


def _write_parquet(path: str | os.PathLike[str], rows: Iterable[Row], schema: Schema | None) -> int:
    import_package("pyarrow")
    from pyarrow.parquet import ParquetWriter

    parts = batches(rows, schema, max_rows=_BATCH_ROWS, max_size=_BATCH_SIZE)
    count, group = 0, [next(parts)]
    with replacing(path) as file, ParquetWriter(file, group[0].schema, compression="zstd") as writer:
        while group:
            rest = _fill(group, parts)
            count += _write_group(writer, group)
            group.clear()
            group += rest or islice(parts, 1)
    return count


def _fill(group: list[Any], parts: Iterator[Any]) -> list[Any]:
    """Adds batches until they are enough for a row group, or there are no more. Returns one that has too many rows."""
    while not _is_full(group):
        part = next(parts, None)
        if part is None:
            break
        if _total(group, "num_rows") + part.num_rows > _GROUP_ROWS:
            return [part]
        group.append(part)
    return []


def _is_full(group: list[Any]) -> bool:
    """Whether batches are enough for a row group."""
    size = max(_GROUP_BYTES, _COLUMN_BYTES * group[0].num_columns)
    return _total(group, "num_rows") >= _GROUP_ROWS or _total(group, "nbytes") >= size


def _total(group: list[Any], name: str) -> int:
    return sum(getattr(part, name) for part in group)


def _write_group(writer: Any, group: list[Any]) -> int:
    """Writes batches as one row group; returns the number of its rows."""
    from pyarrow import Table

    table = Table.from_batches(group)
    # datasets cannot read a row group without rows, not even among other files.
    if table.num_rows:
        writer.write_table(table)
    return int(table.num_rows)


def _suffix(path: str | os.PathLike[str], known: tuple[str, ...]) -> str:
    name = os.fspath(path)
    match = next((suffix for suffix in known if name.endswith(suffix)), None)
    if match is None:
        raise ValueError(f"{name}: expected a name that ends with {' or '.join(known)}.")
    return match


@contextmanager
def _compressed(file: BinaryIO, suffix: str, path: str | os.PathLike[str]) -> Iterator[Any]:
    if suffix.endswith(".gz"):
        # No file name and no time in the header: the same rows give the same bytes.
        with gzip.GzipFile("", "wb", 6, file, 0) as packed:
            yield packed
    elif suffix.endswith(".zst"):
        compressor = import_zstandard(path).ZstdCompressor(write_checksum=True)
        with compressor.stream_writer(file, closefd=False) as packed:
            yield packed
    else:
        yield file


def _doubles(value: Any) -> Any:
    """A float32 array as doubles of the same values: the shortest text of a float32 is read back as another double."""
    return value.astype("float64") if getattr(value, "dtype", None) == "float32" else value
