"""The history of an output: what its runs of ``collect`` were, and what has changed since the last one.

Beside a file ``runs/x.jsonl`` it is ``runs/x.history.jsonl``, in a folder ``history.jsonl``; at an address each run has
an object of its own, ``history-<run id>.jsonl``. A header line has the hashes of agent, tasks and settings, and is
written when one of them changes; each run that called a model adds one line at its end.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollout_trace import credentials, guard
from rollout_trace.collection.hashes import Hashes, hashes_of
from rollout_trace.data.model import new_id
from rollout_trace.data.redact import change_value
from rollout_trace.data.user_values import brief
from rollout_trace.file.addresses import HISTORY_SCHEMA, file_system, is_address, shown
from rollout_trace.file.append import AppendedFile, AppendError
from rollout_trace.record.provenance import provenance

if TYPE_CHECKING:
    from rollout_trace.collection.account import CollectSummary
    from rollout_trace.collection.hashes import Hashes


__all__ = ["Hashes", "History", "changes", "hashes_of"]

_LOCK_TIMEOUT = 10.0
"""Seconds to wait for another run that writes its line."""


class History:
    """The history at a place. Where it cannot be read or written, a warning is logged, and the run goes on.

    Args:
        place: path of the history file; or the address of a folder, such as ``s3://bucket/runs``.
    """

    def __init__(self, place: str | os.PathLike[str]) -> None:
        self._place = os.fspath(place)
        self._started = _now()
        self._hashes: Hashes | None = None
        self._header: dict[str, Any] | None = None
        """The header to write into an object of this run."""
        self._run_id = ""

    def begin(self, hashes: Hashes, *, run_id: str | None = None) -> list[str]:
        """Notes that a run begins; returns sentences about what has changed since the last one.

        Args:
            hashes: of this run.
            run_id: of this run; names its object at an address.
        """
        self._started, self._hashes, self._run_id = _now(), hashes, run_id or new_id()
        last = _last(self._place)
        if last.hashes is not None and last.hashes == hashes.as_json():
            return []
        self._header = {"schema": HISTORY_SCHEMA, "kind": "header", "at": self._started, "hashes": hashes.as_json()}
        self._write(self._header)
        return sentences(last, hashes)

    def end(self, summary: CollectSummary, *, config: Mapping[str, Any] | None = None) -> None:
        """Adds the line of a run that has ended; none where no model was called.

        Args:
            summary: of the run.
            config: its settings; by default those that were hashed.
        """
        if not summary.usage.calls + summary.reward_usage.calls:
            return
        hashes = self._hashes
        self._run_id = summary.run_id if self._header is None else self._run_id
        settings = config if config is not None else None if hashes is None else hashes.settings
        self._write(
            {
                "schema": HISTORY_SCHEMA,
                "kind": "run",
                "run_id": summary.run_id,
                "started_at": self._started,
                "ended_at": _now(),
                "config": None if settings is None else dict(settings),
                "hashes": None if hashes is None else hashes.short(),
                "environment": provenance(),
                "totals": summary.as_json(),
            }
        )

    def _write(self, record: dict[str, Any]) -> None:
        try:
            line = _encoded(record)
            if is_address(self._place):
                header = b"" if self._header is None or record is self._header else _encoded(self._header)
                _store(_object(self._place, self._run_id), header + line)
            else:
                _append(Path(self._place), line)
        except (OSError, ValueError, ImportError, AppendError) as error:
            cause = error.cause if isinstance(error, AppendError) else error
            guard.warn_once(
                f"history-written:{self._place}",
                f"the history {shown(self._place)} could not be written: {guard.describe(cause)}; the run goes on.",
            )


def changes(place: str | os.PathLike[str], hashes: Hashes) -> list[str]:
    """Sentences about what differs from the last run at a place; none where there was no run. Writes nothing."""
    return sentences(_last(os.fspath(place)), hashes)


def _last(place: str) -> Last:
    """What the history says of the last run."""
    last, damaged = Last(), 0
    try:
        lines = list(_lines(place))
    except FileNotFoundError:
        return last
    except (OSError, ValueError, ImportError) as error:
        guard.warn_once(
            f"history-read:{place}",
            f"the history {shown(place)} could not be read: {guard.describe(error)}; what has changed is not known.",
        )
        return last
    for line in lines:
        try:
            record = json.loads(line)
            is_ours = str(record["schema"]).startswith(HISTORY_SCHEMA.partition("/")[0] + "/")
            last.add(record if is_ours else {})
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            damaged += bool(line.strip())
    if damaged:
        guard.warn_once(
            f"history-damaged:{place}",
            f"lines of {shown(place)} are no line of a history ({damaged}), and are not looked at; they stay where "
            "they are.",
        )
    return last


def _lines(place: str) -> Iterable[bytes]:
    if not is_address(place):
        return Path(place).read_bytes().split(b"\n")
    try:
        system, folder = file_system(place)
        system.invalidate_cache()
        found = [system.cat_file(path) for path in system.glob(f"{folder.rstrip('/')}/history-*.jsonl")]
    except (ImportError, OSError):
        raise
    except Exception as error:
        raise OSError(guard.describe(error)) from error
    # Names have no order: runs are, by the time of their first lines.
    return (line for data in sorted(found, key=_time_of) for line in data.split(b"\n"))


def _time_of(data: bytes) -> str:
    try:
        record = json.loads(data.partition(b"\n")[0])
        return str(record.get("at") or record.get("started_at") or "")
    except (ValueError, AttributeError):
        return ""


def _append(path: Path, line: bytes) -> None:
    file = AppendedFile(path.absolute(), path, ends_lines=True, fsync=False, mode=None)
    try:
        file.append(line, _LOCK_TIMEOUT)
    finally:
        file.close()


def _object(place: str, run_id: str) -> str:
    return f"{place.rstrip('/')}/history-{run_id}.jsonl"


def _store(address: str, data: bytes) -> None:
    try:
        system, path = file_system(address)
        system.makedirs(path.rpartition("/")[0], exist_ok=True)
        system.pipe_file(path, data)
    except (ImportError, OSError):
        raise
    except Exception as error:  # Each store has exceptions of its own.
        raise OSError(guard.describe(error)) from error


def _encoded(record: Mapping[str, Any]) -> bytes:
    clean = change_value(record, "history", credentials.change)
    return json.dumps(clean, separators=(",", ":")).encode() + b"\n"


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")


_ABSENT = object()


@dataclass(slots=True)
class Last:
    """The last run of a history."""

    hashes: dict[str, Any] | None = None
    """Of the last header."""
    began: str = ""
    """When the first run with these hashes began."""
    run: str | None = None
    """The last run with these hashes and when it began; None where none has ended."""

    def add(self, record: Mapping[str, Any]) -> None:
        """Takes in one line. Lines of kinds that a later version writes are not looked at.

        Raises:
            KeyError, TypeError: it is none of a history.
        """
        if record["kind"] == "header":
            hashes = dict(record["hashes"])
            self.hashes, self.began, self.run = hashes, str(record["at"]), None
        elif record["kind"] == "run":
            self.run = f"run {record['run_id']} of {_day(str(record['started_at']))}"

    def __str__(self) -> str:
        return self.run or f"the run of {_day(self.began)}"


def _day(time: str) -> str:
    return time.replace("T", " ").removesuffix("Z") + " UTC" if time.endswith("Z") else time


def sentences(last: Last, hashes: Hashes) -> list[str]:
    """What differs from the last run; empty where there was none."""
    before = last.hashes
    if before is None:
        return []
    parts = (_agent(before, hashes, last), _settings(before, hashes, last), _tasks(before, hashes, last))
    return [text for part in parts for text in part]


def _agent(before: Mapping[str, Any], hashes: Hashes, last: Last) -> list[str]:
    if before.get("agent_name") != hashes.agent_name:
        return [f"the agent is {hashes.agent_name}; that of {last} was {before.get('agent_name')}"]
    if before.get("agent") == hashes.agent:
        return []
    if before.get("agent") is None or hashes.agent is None:
        return [f"whether the agent is that of {last} is not known: one of the two has no source file"]
    return [f"the source of the agent {hashes.agent_name} differs from that of {last}"]


def _settings(before: Mapping[str, Any], hashes: Hashes, last: Last) -> list[str]:
    if before.get("settings") == hashes.settings_hash:
        return []
    values = before.get("values")
    earlier: Mapping[str, Any] = values if isinstance(values, dict) else {}
    found = []
    # What the number of tasks was is told of the tasks.
    for name in sorted((earlier.keys() | hashes.settings.keys()) - {"tasks"}):
        then, now = earlier.get(name, _ABSENT), hashes.settings.get(name, _ABSENT)
        if then != now:
            found.append(f"{name} is {_shown(now)}; in {last} it was {_shown(then)}")
    return found


def _shown(value: Any) -> str:
    return "not set" if value is _ABSENT else brief(value)


def _tasks(before: Mapping[str, Any], hashes: Hashes, last: Last) -> list[str]:
    if before.get("tasks") == hashes.tasks:
        return []
    earlier, now = before.get("task_digests"), hashes.digests
    if not isinstance(earlier, dict) or now is None:
        return [f"the tasks ({hashes.n_tasks}) differ from those of {last} ({before.get('n_tasks')})"]
    counts = {
        "added": len(now.keys() - earlier.keys()),
        "removed": len(earlier.keys() - now.keys()),
        "changed": sum(earlier[one] != now[one] for one in now.keys() & earlier.keys()),
    }
    told = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    return [f"the tasks are not those of {last}: {told}"]
