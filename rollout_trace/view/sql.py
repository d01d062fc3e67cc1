"""SQL on trajectories: their tables in a temporary database of DuckDB, which can read and write nothing else."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from importlib import import_module
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO

from rollout_trace.errors import RolloutTraceError
from rollout_trace.file.plain import dumps
from rollout_trace.view.sql_tables import TABLES, Row

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory

MEMORY = "1GB"
"""Memory of the database; what needs more is kept in the temporary folder."""
_LINE = 16 << 20
_BATCH = 1000
_NUMBER = re.compile(r"U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|DOUBLE|FLOAT|DECIMAL\(.*\)|NUMBER", re.IGNORECASE)
"""Types of numbers."""


class QueryError(RolloutTraceError, ValueError):
    """SQL that DuckDB refuses, or cannot carry out."""


def import_duckdb() -> Any:
    """The optional module duckdb.

    Raises:
        ImportError: it is not installed; the message has the command.
    """
    try:
        return import_module("duckdb")
    except ImportError:
        raise ImportError(
            "query needs the package duckdb. Install it in a checkout with: pip install '.[duckdb]'"
        ) from None


class Database:
    """The tables of trajectories, of which those are filled that the SQL names.

    Args:
        sql: that is going to be run.
    """

    def __init__(self, sql: str) -> None:
        self._duckdb = import_duckdb()
        self._sql = sql
        self._filled = [name for name in TABLES if re.search(rf"\b{name}\b", sql, re.IGNORECASE)]
        self._longest = 0
        """Bytes of the longest row."""
        self._stack = ExitStack()

    def __enter__(self) -> Database:
        self._folder = self._stack.enter_context(TemporaryDirectory(prefix="rollout-trace-"))
        self._files: dict[str, BinaryIO] = {
            name: self._stack.enter_context(open(self._path(name), "wb"))  # noqa: SIM115 - it is entered
            for name in self._filled
        }
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, f"{name}.jsonl")

    def add(self, trajectory: Trajectory, path: str, line: int) -> None:
        """Adds the rows of a trajectory."""
        for name, file in self._files.items():
            for row in TABLES[name].rows(trajectory, path, line):
                data = _json(row)
                self._longest = max(self._longest, len(data))
                file.write(data + b"\n")

    def run(self) -> Result:
        """Runs the SQL on what was added.

        Raises:
            QueryError: DuckDB refuses it.
        """
        for file in self._files.values():
            file.close()
        settings = {"python_enable_replacements": False, "autoinstall_known_extensions": False}
        connection = self._duckdb.connect(os.path.join(self._folder, "data.duckdb"), config=settings)
        self._stack.callback(connection.close)
        connection.execute(f"SET temp_directory = {_quoted(os.path.join(self._folder, 'spill'))}")
        connection.execute(f"SET memory_limit = '{MEMORY}'")
        connection.execute("SET enable_progress_bar = false")
        # A row is read whole, by each thread.
        if self._longest >= _LINE:
            connection.execute("SET threads = 1")
        for name in TABLES:
            self._fill(connection, name)
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        try:
            found = connection.execute(self._sql)
            if found is None or found.description is None:
                raise QueryError(
                    "the SQL is empty; write such as: SELECT status, count(*) FROM trajectories GROUP BY ALL"
                )
            return Result(self._duckdb, found)
        except self._duckdb.Error as error:
            raise QueryError(_sentence(error)) from None

    def _fill(self, connection: Any, name: str) -> None:
        columns = TABLES[name].columns
        described = ", ".join(f'"{column}" {kind}' for column, kind in columns.items())
        connection.execute(f"CREATE TABLE {name} ({described})")
        if name not in self._files or not os.path.getsize(self._path(name)):
            return
        kinds = ", ".join(f"{_quoted(column)}: {_quoted(kind)}" for column, kind in columns.items())
        size = max(_LINE, self._longest + 1024)
        connection.execute(
            f"INSERT INTO {name} SELECT * FROM read_json({_quoted(self._path(name))}, "
            f"format = 'newline_delimited', columns = {{{kinds}}}, maximum_object_size = {size})"
        )
        os.unlink(self._path(name))


class Result:
    """What SQL gave: rows, read in batches."""

    def __init__(self, duckdb: Any, found: Any) -> None:
        self._duckdb = duckdb
        self._found = found
        self.columns = _unique([str(one[0]) for one in found.description])
        """Names, each once: a second ``n`` is ``n_2``."""
        self.is_number = [_NUMBER.fullmatch(str(one[1])) is not None for one in found.description]

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """The rows.

        Raises:
            QueryError: the SQL could not be carried out to its end.
        """
        while True:
            try:
                batch = self._found.fetchmany(_BATCH)
            except self._duckdb.Error as error:
                raise QueryError(_sentence(error)) from None
            if not batch:
                return
            yield from batch

    def arrow(self) -> Any:
        """The rows as a ``pyarrow.RecordBatchReader``."""
        # `fetch_record_batch` is the older name.
        read = getattr(self._found, "to_arrow_reader", None) or self._found.fetch_record_batch
        with warnings.catch_warnings():
            # That rows are copied: a batch of them.
            warnings.simplefilter("ignore")
            return read(_BATCH * 10)


def _unique(names: list[str]) -> list[str]:
    found: list[str] = []
    for name in names:
        wanted, number = name, 1
        while wanted in found:
            number += 1
            wanted = f"{name}_{number}"
        found.append(wanted)
    return found


def _json(row: Row) -> bytes:
    data = dumps(row)
    # Half a surrogate pair: DuckDB's texts are UTF-8.
    return dumps(_whole(row)) if b"\\ud" in data else data


def _whole(value: Any) -> Any:
    """The value with U+FFFD for halves of surrogate pairs."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_whole(name): _whole(one) for name, one in value.items()}
    return [_whole(one) for one in value] if isinstance(value, (list, tuple)) else value


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _sentence(error: Exception) -> str:
    """What DuckDB says, on one line, with the tables that there are."""
    text = str(error).partition("\n\nLINE")[0]
    found = " ".join(text.split())
    if "file system operations are disabled" in found:
        return f"{found}: SQL here reads the tables {', '.join(TABLES)} alone."
    if found.startswith("Catalog Error"):
        return f"{found.partition(' Did you mean')[0]} The tables are {', '.join(TABLES)}."
    return found
