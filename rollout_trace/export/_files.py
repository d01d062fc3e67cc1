"""Files of rows: JSON lines, plain or compressed, and parquet. A file appears whole or not at all."""

from __future__ import annotations

import gzip
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import orjson

from rollout_trace.export._arrow import batches, import_pyarrow, require_finite
from rollout_trace.file.compression import import_zstandard
from rollout_trace.file.plain import dumps

if TYPE_CHECKING:
    from rollout_trace.export._arrow import Row, Schema

JSONL_SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
PARQUET_SUFFIXES = (".parquet",)


def write_rows(path: str | os.PathLike[str], rows: Iterable[Row], schema: Schema) -> int:
    """Writes rows to a file of the kind that its name says. See ``write_jsonl`` and ``write_parquet``."""
    if _suffix(path, JSONL_SUFFIXES + PARQUET_SUFFIXES) in PARQUET_SUFFIXES:
        return write_parquet(path, rows, schema)
    return write_jsonl(path, rows)


def write_jsonl(path: str | os.PathLike[str], rows: Iterable[Row]) -> int:
    """Writes rows as JSON, one a line, and gives their number. Memory stays flat: a row is written as it comes.

    The name ends with ``.jsonl``, ``.jsonl.gz`` or ``.jsonl.zst`` (needs the package zstandard). Folders that are
    missing are made. An existing file is replaced when the last row is written; if anything is raised it stays as it
    was. Arrays are written as lists; a float32 is written with all digits of its value as a double.

    Raises:
        ImportError: the name ends with ``.zst`` and zstandard is not installed.
        OSError: the file cannot be written.
        ValueError: the name ends with something else, or a row holds a number that is not finite.
    """
    suffix = _suffix(path, JSONL_SUFFIXES)
    with replacing(path) as file, _compressed(file, suffix, path) as lines:
        count = 0
        for row in rows:
            require_finite(row, count)
            lines.write(dumps({name: _doubles(value) for name, value in row.items()}, orjson.OPT_APPEND_NEWLINE))
            count += 1
    return count


def write_parquet(path: str | os.PathLike[str], rows: Iterable[Row], schema: Schema | None = None) -> int:
    """Writes rows as parquet (zstd inside), and gives their number. Memory stays flat: a row group at a time.

    The name ends with ``.parquet``. Folders and existing files: as ``write_jsonl``.

    Args:
        path: of the file.
        rows: mappings; a key that a row lacks is null.
        schema: types by the name of their column (see ``rollout_trace.export.arrow``), or a ``pyarrow.Schema``. None:
            that of the exporter, otherwise what the first rows look like, which all others must fit.

    Raises:
        ImportError: pyarrow is not installed.
        OSError: the file cannot be written.
        ValueError: the name ends with something else, or a row does not fit the schema or holds a number that is not
            finite.
    """
    _suffix(path, PARQUET_SUFFIXES)
    import_pyarrow()
    from pyarrow.parquet import ParquetWriter

    parts = batches(rows, schema)
    with replacing(path) as file:
        first = next(parts)
        with ParquetWriter(file, first.schema, compression="zstd") as writer:
            parts = chain((first,), parts)
            # No batch stays while the rows of the next one are collected.
            del first
            return sum(map(partial(_write_group, writer), parts))


def _write_group(writer: Any, part: Any) -> int:
    # datasets cannot read a group without rows, not even among other files.
    if part.num_rows:
        writer.write_batch(part)
    return int(part.num_rows)


def _suffix(path: str | os.PathLike[str], known: tuple[str, ...]) -> str:
    name = os.fspath(path)
    found = next((suffix for suffix in known if name.endswith(suffix)), None)
    if found is None:
        raise ValueError(f"{name}: expected a name that ends with {' or '.join(known)}.")
    return found


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A new file that takes the place of ``path`` when the block ends; if it raises, nothing changes."""
    # The file that a link names, and not the link, is replaced.
    place = Path(os.path.realpath(path))
    place.parent.mkdir(parents=True, exist_ok=True)
    new = place.with_name(f".{place.name[:100]}.{secrets.token_hex(8)}")
    try:
        with open(new, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, place)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


@contextmanager
def _compressed(file: BinaryIO, suffix: str, path: str | os.PathLike[str]) -> Iterator[Any]:
    if suffix.endswith(".gz"):
        # No name and no time in its head: the same rows give the same bytes.
        with gzip.GzipFile("", "wb", 6, file, 0) as packed:
            yield packed
    elif suffix.endswith(".zst"):
        compressor = import_zstandard(path).ZstdCompressor(write_checksum=True)
        with compressor.stream_writer(file, closefd=False) as packed:
            yield packed
    else:
        yield file


def _doubles(value: Any) -> Any:
    """An array of float32 as doubles of the same values: their shortest text as float32 would be another double."""
    return value.astype("float64") if getattr(value, "dtype", None) == "float32" else value
