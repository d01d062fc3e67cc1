"""``rollout-trace query "SQL" PATH...``."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import shutil
import sys
from collections.abc import Iterator
from decimal import Decimal
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import click

from rollout_trace.cli.common import Test, json_option, show_problems, where_option
from rollout_trace.cli.reading import Trajectories
from rollout_trace.guard import printable

if TYPE_CHECKING:
    from rollout_trace.view.sql import Result

_SUFFIXES = (".parquet", ".csv", ".jsonl")
_FIRST = 1000
"""Rows by which the widths of columns are chosen."""
_WIDE = 100_000
"""Cells of a line that is not for a terminal."""


def _show_columns(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from rollout_trace.view.sql_tables import TABLES

    for name, table in TABLES.items():
        click.echo(name)
        for column, kind in table.columns.items():
            click.echo(f"  {column:20}  {kind}")
    ctx.exit()


@click.command()
@click.argument("sql", metavar="SQL")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("-o", "--output", metavar="OUT", help="Write the rows to a .parquet, .csv or .jsonl file.")
@click.option("--overwrite", is_flag=True, help="Replace OUT if it exists.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@click.option("--columns", is_flag=True, is_eager=True, expose_value=False, callback=_show_columns, help="List them.")
@where_option
@json_option
def query(
    sql: str,
    paths: tuple[str, ...],
    output: str | None,
    overwrite: bool,
    as_csv: bool,
    where: Test | None,
    as_json: bool,
) -> int:
    """Ask trajectories in SQL (DuckDB's; needs the package duckdb).

    The tables are trajectories, steps, tool_runs and findings; --columns lists their columns. SQL can read nothing
    else, and changes no file.

    \b
    rollout-trace query "SELECT avg(reward) FROM trajectories" rollouts.jsonl
    rollout-trace query "SELECT name, count(*) FROM tool_runs GROUP BY 1" runs/

    PATH is a file, a pattern, a folder, an address, or - for stdin.

    Exit code 1: there are lines that could not be read, which are left out.
    """
    from rollout_trace.view.sql import Database, QueryError

    if os.path.exists(sql):
        raise click.UsageError(f'first the SQL, then files: rollout-trace query "SELECT ..." {sql}')
    _check_output(output, overwrite, as_csv=as_csv, as_json=as_json)
    found = Trajectories(paths, where, progress=True)
    try:
        with Database(sql) as database:
            for one in found:
                database.add(one.trajectory, one.path, one.number)
            result = database.run()
            _give(result, found, output, as_csv=as_csv, as_json=as_json)
    except QueryError as error:
        raise click.ClickException(str(error)) from error
    finally:
        found.close()
    show_problems(found.problems, as_json=as_json and output is None)
    return int(bool(found.problems))


def _check_output(output: str | None, overwrite: bool, *, as_csv: bool, as_json: bool) -> None:
    if as_csv and as_json:
        raise click.UsageError("give one of --csv and --json.")
    if output is None:
        return
    if as_csv:
        raise click.UsageError("--csv prints: with -o the suffix of OUT says what is written.")
    if not output.endswith(_SUFFIXES):
        raise click.UsageError(f"{output}: expected a name that ends with {', '.join(_SUFFIXES)}.")
    if os.path.exists(output) and not overwrite:
        raise click.UsageError(f"{output} exists already: give a new name, or --overwrite to replace it.")


def _give(result: Result, found: Trajectories, output: str | None, *, as_csv: bool, as_json: bool) -> None:
    if output is not None:
        count = _write(result, output)
        account = {"output": output, "rows": count, "unreadable": [str(error) for error in found.problems]}
        click.echo(json.dumps(account) if as_json else f"{count} rows in {output}")
    elif as_json:
        _print_json(result, found)
    elif as_csv:
        is_terminal = sys.stdout.isatty()
        for line in _csv(result, escape=is_terminal):
            sys.stdout.write(line)
    else:
        _print_table(result)


def _write(result: Result, output: str) -> int:
    if output.endswith(".parquet"):
        return _write_parquet(result, output)
    from rollout_trace.file.addresses import replacing

    count = 0
    with replacing(output) as file:
        if output.endswith(".csv"):
            for count, line in enumerate(_csv(result, escape=False)):  # noqa: B007 - the first line is the head
                file.write(line.encode("utf-8", "replace"))
            return count
        for row in result.rows():
            file.write(json.dumps(_named(result, row)).encode() + b"\n")
            count += 1
    return count


def _write_parquet(result: Result, output: str) -> int:
    try:
        from pyarrow.parquet import ParquetWriter
    except ImportError:
        raise ImportError(
            "parquet needs the package pyarrow. Install it in a checkout with: pip install '.[parquet]'"
        ) from None
    from rollout_trace.file.addresses import replacing

    count, reader = 0, result.arrow()
    with replacing(output) as file, ParquetWriter(file, reader.schema, compression="zstd") as writer:
        for batch in reader:
            writer.write_batch(batch)
            count += batch.num_rows
    return count


def _print_json(result: Result, found: Trajectories) -> None:
    """One object, written row by row."""
    sys.stdout.write(f'{{"columns": {json.dumps(result.columns)}, "rows": [')
    for at, row in enumerate(result.rows()):
        sys.stdout.write((", " if at else "") + json.dumps(_named(result, row)))
    sys.stdout.write(f'], "unreadable": {json.dumps([str(error) for error in found.problems])}}}\n')


def _named(result: Result, row: tuple[Any, ...]) -> dict[str, Any]:
    return {name: _plain(value) for name, value in zip(result.columns, row, strict=True)}


def _plain(value: Any) -> Any:
    """A value of DuckDB as JSON has it: times and the like as text, numbers that are not finite as null."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, (float, Decimal)):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value.hex() if isinstance(value, bytes) else str(value)


def _text(value: Any) -> str:
    if isinstance(value, (dict, list, tuple)):
        return json.dumps(_plain(value), ensure_ascii=False)
    return f"{value:.6g}" if isinstance(value, float) else str(_plain(value))


def _csv(result: Result, *, escape: bool) -> Iterator[str]:
    def line(cells: list[str]) -> str:
        text = io.StringIO()
        csv.writer(text).writerow([printable(cell, sys.maxsize) for cell in cells] if escape else cells)
        return text.getvalue()

    yield line(result.columns)
    for row in result.rows():
        cells = ("" if value is None else repr(value) if isinstance(value, float) else _text(value) for value in row)
        yield line(list(cells))


def _print_table(result: Result) -> None:
    from rollout_trace.view.table import Column, Layout, escape

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _WIDE
    most = width if width < _WIDE else 1000
    columns = [
        Column(title=escape(name), is_right=is_number, least=0 if is_number else 8, most=most)
        for name, is_number in zip(result.columns, result.is_number, strict=True)
    ]
    lines = (["-" if value is None else escape(_text(value)) for value in row] for row in result.rows())
    first = list(islice(lines, _FIRST))
    layout = Layout(columns, first, width)
    click.echo(layout.head())
    for line in chain(first, lines):
        click.echo(layout.line(line))
