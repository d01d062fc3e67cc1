"""Recorded HTTP exchanges: in a cassette, in a folder of files, or packed into one compressed file.

A cassette is a file of rollouts whose lines have exchanges, as `pytest --replay=record` writes it.

A folder holds `NAME.meta.json` (method, path, status, headers, chunk sizes), `NAME.request.json` and
`NAME.response.*` (the exact bytes), and may hold `NAME.report.json`. A packed file is JSON lines, one for each exchange
or report; the suffix chooses the compression: `.jsonl`, `.jsonl.gz` or `.jsonl.xz`.
"""

from __future__ import annotations

import base64
import gzip
import json
import lzma
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from datetime import datetime
from itertools import chain, count
from pathlib import Path
from typing import Any

from rollout_trace.data.exchange import Exchange

_SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.xz")
_NEEDED = ("method", "path", "status", "headers", "chunk_sizes", "request", "response")
_ALWAYS = ("name", "method", "path", "request_content_type", *_NEEDED[2:])
"""Fields of an exchange that each line has, in their order."""
_DEFAULTS = {
    one.name: one.default
    for one in fields(Exchange)
    if one.name in ("protocol", "call_id", "chunk_times", "outcome", "started_at", "duration")
}
"""Those that a line has where they are not the default."""


def load_exchanges(path: str | Path, *, complete: bool = True) -> list[Exchange]:
    """Loads the exchanges of a cassette or packed file, in file order, or of a folder, sorted by name.

    With ``complete=False``, a folder's exchanges without a request or response file are left out. If an exchange's
    chunk sizes do not add up to its body, because the body was redacted, the body is one chunk. Names that occur
    several times in a cassette are numbered: ``1``, ``1 (2)``.

    Raises:
        ValueError: the file has another format, a line is not an exchange, a file of an exchange is missing, or a
            rollout file has no exchanges.
    """
    path = Path(path)
    if path.is_dir():
        metas = sorted(path.glob("*.meta.json"))
        return [found for meta in metas if (found := _read_files(path, meta, complete=complete)) is not None]
    if path.name.endswith(".zst") or _holds_rollouts(path):
        return _of_cassette(path)
    return [_unpack(line, place) for place, line in _read_lines(path) if "report" not in line]


def load_reports(path: str | Path) -> dict[str, Any]:
    """Loads the reports of a folder or packed file, as a dict from name to JSON value."""
    path = Path(path)
    if path.is_dir():
        files = sorted(path.glob("*.report.json"))
        return {file.name.removesuffix(".report.json"): json.loads(file.read_bytes()) for file in files}
    return {line["name"]: line["report"] for _, line in _read_lines(path) if "report" in line}


def pack_exchanges(exchanges: Iterable[Exchange], path: str | Path, reports: Mapping[str, Any] | None = None) -> None:
    """Writes a packed file. Equal exchanges give equal bytes.

    Raises:
        ValueError: the name does not end with a suffix of packed files.
    """
    path = Path(path)
    if not path.name.endswith(_SUFFIXES):
        raise ValueError(f"{path}: the name of a file of exchanges should end with one of {', '.join(_SUFFIXES)}")
    lines: list[Any] = [_pack(exchange) for exchange in exchanges]
    lines += [{"name": name, "report": report} for name, report in (reports or {}).items()]
    data = "".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines).encode()
    if path.suffix == ".xz":
        data = lzma.compress(data, preset=9)
    elif path.suffix == ".gz":
        data = gzip.compress(data, 9, mtime=0)
    path.write_bytes(data)


def _open(path: Path) -> Any:
    """A file of lines to read. Raises ValueError for a name that is of no such file."""
    if not path.name.endswith(_SUFFIXES):
        raise ValueError(f"{path} is not a file of exchanges: its name should end with one of {', '.join(_SUFFIXES)}")
    openers: dict[str, Any] = {".xz": lzma.open, ".gz": gzip.open}
    return openers.get(path.suffix, open)(path, "rb")


def _holds_rollouts(path: Path) -> bool:
    """Whether the first line of a file is a trajectory."""
    with _open(path) as file:
        line = next((line for line in file if not line.isspace()), b"{}")
    try:
        return _schema_of(json.loads(line)) is not None
    except ValueError:
        return False


def _of_cassette(path: Path) -> list[Exchange]:
    # It imports what reads files, which a server of other recordings need not.
    from rollout_trace.file.reader import read

    found = [exchange for trajectory in read(path) for exchange in trajectory.exchanges]
    if not found:
        raise ValueError(
            f"{path}: the trajectories of this file have no exchanges, so there is nothing to answer with "
            "(rollout_trace.read() reads them). Record a file that has them with pytest --replay=record; see "
            "docs/test-agents.md."
        )
    named: dict[str, Exchange] = {}
    for one in found:
        free = chain([one.name], (f"{one.name} ({number})" for number in count(2)))
        name = next(name for name in free if name not in named)
        named[name] = one if name == one.name else replace(one, name=name)
    return list(named.values())


def _read_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the place of each line, for error messages, and its JSON object."""
    with _open(path) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                place = f"{path}, line {number}"
                yield place, _checked(json.loads(line), place)


def _checked(line: Any, place: str) -> dict[str, Any]:
    schema = _schema_of(line)
    if schema is not None:
        raise ValueError(
            f"{place}: this is a trajectory ({schema}) in a file of exchanges. Keep them in files of their own: "
            "rollout_trace.read() reads trajectories, and load_exchanges() the exchanges that they have."
        )
    if not isinstance(line, dict) or "name" not in line:
        raise ValueError(f"{place}: expected an exchange or a report as pack_exchanges() writes it, found {line!r:.80}")
    return line


def _schema_of(line: Any) -> str | None:
    """The schema of a trajectory; None for another line."""
    schema = line.get("schema") if isinstance(line, dict) else None
    return schema if isinstance(schema, str) and schema.startswith("rollout-trace/") else None


def _read_files(folder: Path, meta_file: Path, *, complete: bool) -> Exchange | None:
    name = meta_file.name.removesuffix(".meta.json")
    meta = json.loads(meta_file.read_bytes())
    response_files = sorted(folder.glob(f"{name}.response.*"))
    if not complete and not (response_files and (folder / f"{name}.request.json").exists()):
        return None
    if len(response_files) != 1:
        raise ValueError(f"{folder}: {name} should have one response file, found {len(response_files)}")
    response = response_files[0].read_bytes()
    request_headers = {key.lower(): value for key, value in meta.get("request_headers", ())}
    return Exchange(
        name,
        meta["method"],
        meta["path"],
        (folder / f"{name}.request.json").read_bytes(),
        meta["status"],
        tuple((key.lower(), value) for key, value in meta["response_headers"]),
        response,
        _sizes(meta.get("chunk_sizes", ()), len(response)),
        request_headers.get("content-type"),
    )


def _sizes(sizes: Iterable[int], length: int) -> tuple[int, ...]:
    kept = tuple(size for size in sizes if size)
    if sum(kept) == length:
        return kept
    return (length,) if length else ()


def _pack(exchange: Exchange) -> dict[str, Any]:
    values = {name: getattr(exchange, name) for name in (*_ALWAYS, *_DEFAULTS)}
    values["request"], values["response"] = _pack_bytes(exchange.request), _pack_bytes(exchange.response)
    if exchange.started_at is not None:
        values["started_at"] = exchange.started_at.isoformat()
    return {name: value for name, value in values.items() if name in _ALWAYS or value != _DEFAULTS[name]}


def _unpack(line: Mapping[str, Any], place: str) -> Exchange:
    missing = [name for name in _NEEDED if name not in line]
    if missing:
        raise ValueError(f"{place}: the exchange {line['name']!r} lacks {', '.join(missing)}")
    values = {name: line[name] for name in (*_ALWAYS, *_DEFAULTS) if line.get(name) is not None}
    values["request"], values["response"] = _unpack_bytes(line["request"]), _unpack_bytes(line["response"])
    values["headers"] = tuple((key, value) for key, value in line["headers"])
    for name in ("chunk_sizes", "chunk_times"):
        values[name] = tuple(line.get(name) or ())
    if "started_at" in values:
        values["started_at"] = datetime.fromisoformat(values["started_at"])
    return Exchange(**{"status": None, **values})


def _pack_bytes(data: bytes) -> str | dict[str, str]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _unpack_bytes(value: str | Mapping[str, str]) -> bytes:
    return value.encode() if isinstance(value, str) else base64.b64decode(value["base64"])
