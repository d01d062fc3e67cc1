"""The history of an output: what its runs of ``collect`` were, and what has changed since the last one.

Beside a file ``runs/x.jsonl`` it is ``runs/x.history.jsonl``, in a folder ``history.jsonl``; at an address each run has
an object of its own, ``history-<run id>.jsonl``. A header line has the hashes of agent, tasks and settings, and is
written when one of them changes; each run that called a model adds one line at its end.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollout_trace import credentials, guard
from rollout_trace.data.model import new_id
from rollout_trace.data.redact import change_value
from rollout_trace.data.user_values import brief
from rollout_trace.file.addresses import HISTORY_SCHEMA, file_system, is_address, shown
from rollout_trace.file.append import AppendedFile, AppendError
from rollout_trace.record.provenance import provenance

if TYPE_CHECKING:
    from rollout_trace.collection.agents import Agent
    from rollout_trace.collection.items import TaskItem
    from rollout_trace.collection.summary import CollectSummary

MOST_TASKS = 20_000
"""With more tasks their digests are not kept one by one: a header would have megabytes."""
_LOCK_TIMEOUT = 10.0
"""Seconds to wait for another run that writes its line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hashes:
    """Hashes of a run's inputs: the first 16 hexadecimal digits of each SHA-256.

    The agent's is of its file, its qualified name and the arguments of a ``functools.partial``; None without a file.
    What the file imports is not in it: the run's git commit has that.
    """

    agent: str | None
    agent_name: str
    tasks: str
    digests: Mapping[str, str] | None
    """Of the content of each task, by its id; None for more than 20,000 tasks."""
    n_tasks: int
    settings_hash: str
    settings: Mapping[str, Any]

    def short(self) -> dict[str, Any]:
        """The hashes alone."""
        return {"agent": self.agent, "tasks": self.tasks, "settings": self.settings_hash}

    def as_json(self) -> dict[str, Any]:
        """What a header has."""
        return {
            **self.short(),
            "agent_name": self.agent_name,
            "n_tasks": self.n_tasks,
            "task_digests": None if self.digests is None else dict(self.digests),
            "values": dict(self.settings),
        }


def hashes_of(agent: Agent, tasks: Sequence[TaskItem], settings: Mapping[str, Any]) -> Hashes:
    """The hashes of a run, with settings that JSON can hold; reads the file of the agent."""
    content = _file_hash(agent.source_file)
    digests = {task.id: task.digest for task in tasks}
    values = json.loads(json.dumps(dict(settings), default=str))
    return Hashes(
        agent=None if content is None else _hash([content, agent.qualified_name, agent.arguments_digest]),
        agent_name=f"{agent.module or ''}:{agent.qualified_name or agent.name}",
        # Sorted: the order of the tasks changes no rollout.
        tasks=_hash(sorted(digests.items())),
        digests=digests if len(digests) <= MOST_TASKS else None,
        n_tasks=len(digests),
        settings_hash=_hash(values),
        settings=values,
    )


def _file_hash(path: str | None) -> str | None:
    try:
        return None if path is None else hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:  # A package in an archive, a file that is gone.
        return None


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


class History:
    """The history of runs at a path, or in a folder at an address. What fails is logged once, and the run goes on."""

    def __init__(self, place: str | os.PathLike[str]) -> None:
        self._place = os.fspath(place)
        self._started = _now()
        self._hashes: Hashes | None = None
        self._header = b""
        """To be written into the object of this run, at an address."""
        self._taken = b""
        """Lines of groups that wait to be written, at an address."""
        self._run_id = ""

    def begin(self, hashes: Hashes, *, run_id: str | None = None) -> list[str]:
        """Notes that a run begins; returns sentences about what has changed since the last one."""
        self._started, self._hashes, self._run_id = _now(), hashes, run_id or new_id()
        last = _last(self._place)
        if last.hashes == hashes.as_json():
            return []
        self._write({"kind": "header", "at": self._started, "hashes": hashes.as_json()})
        return sentences(last, hashes)

    def taken(self, group: str) -> None:
        """Notes that a group of ``rt.rollouts`` was handed over: at once, but at an address at the next ``flush``."""
        self._taken += _line({"kind": "group", "group": group, "at": _now()})
        if not is_address(self._place):
            self.flush()

    def flush(self) -> None:
        """Writes the lines of groups that wait."""
        if self._taken:
            self._write(None)

    def given(self) -> frozenset[str]:
        """The ids of the groups that were handed over."""
        try:
            lines = _lines(self._place)
        except (OSError, ValueError, ImportError):  # None yet; or `begin` says what is wrong.
            return frozenset()
        found = set()
        for line in lines:
            if b'"group"' in line:
                try:
                    record = json.loads(line)
                    found.add(str(record["group"]))
                except (ValueError, KeyError, TypeError):  # Cut by a kill.
                    continue
        return frozenset(found)

    def end(self, summary: CollectSummary) -> None:
        """Adds the line of a run that has ended, with the settings that were hashed; none where no model was called."""
        if not summary.usage.calls + summary.reward_usage.calls:
            return
        hashes = self._hashes
        self._run_id = self._run_id or summary.run_id
        self._write(
            {
                "kind": "run",
                "run_id": summary.run_id,
                "started_at": self._started,
                "ended_at": _now(),
                "config": None if hashes is None else dict(hashes.settings),
                "hashes": None if hashes is None else hashes.short(),
                "environment": provenance(),
                "totals": summary.as_json(),
            }
        )

    def _write(self, record: dict[str, Any] | None) -> None:
        """Adds a record, if one is given, behind the lines of groups."""
        try:
            line = self._taken + (b"" if record is None else _line(record))
            self._taken = b""
            if not is_address(self._place):
                _append(Path(self._place), line)
                return
            # An object has no end that a line could be added to.
            self._header += line
            with _stores():
                system, folder = file_system(self._place)
                system.makedirs(folder, exist_ok=True)
                system.pipe_file(f"{folder.rstrip('/')}/history-{self._run_id}.jsonl", self._header)
        except (OSError, ValueError, ImportError, AppendError) as error:
            cause = error.cause if isinstance(error, AppendError) else error
            guard.warn_once(
                f"history-written:{self._place}",
                f"the history {shown(self._place)} could not be written: {guard.describe(cause)}; the run goes on.",
            )


def _line(record: dict[str, Any]) -> bytes:
    clean = change_value({"schema": HISTORY_SCHEMA, **record}, "history", credentials.change)
    return json.dumps(clean, separators=(",", ":")).encode() + b"\n"


@dataclass(slots=True)
class Last:
    """The last run of a history."""

    hashes: dict[str, Any] | None = None
    name: str = ""
    """The last run with these hashes and when it began; where none has ended, that of the header."""

    def add(self, record: Mapping[str, Any]) -> None:
        """Takes in one line, of a kind that is known. Raises KeyError or TypeError where it is none of a history."""
        if record["kind"] == "header":
            self.hashes, self.name = dict(record["hashes"]), f"the run of {_day(str(record['at']))}"
        elif record["kind"] == "run":
            self.name = f"run {record['run_id']} of {_day(str(record['started_at']))}"


def _last(place: str) -> Last:
    """What the history says of the last run."""
    last, damaged = Last(), 0
    try:
        lines = _lines(place)
    except FileNotFoundError:
        return last
    except (OSError, ValueError, ImportError) as error:
        guard.warn_once(
            f"history-read:{place}",
            f"the history {shown(place)} could not be read: {guard.describe(error)}. What has changed since the last "
            "run is not known.",
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
            f"lines of {shown(place)} are not lines of a history ({damaged}). They are skipped, and stay in the file.",
        )
    return last


def _lines(place: str) -> list[bytes]:
    if not is_address(place):
        return Path(place).read_bytes().split(b"\n")
    with _stores():
        system, folder = file_system(place)
        system.invalidate_cache()
        found = [system.cat_file(path) for path in system.glob(f"{folder.rstrip('/')}/history-*.jsonl")]
    # Names have no order: runs are, by the time of their first lines.
    return [line for data in sorted(found, key=_time_of) for line in data.split(b"\n")]


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


@contextmanager
def _stores() -> Iterator[None]:
    """Raises what stores raise in this block, each its own exceptions, as OSError."""
    try:
        yield
    except (ImportError, OSError):
        raise
    except Exception as error:
        raise OSError(guard.describe(error)) from error


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")


def _day(time: str) -> str:
    return time.replace("T", " ").removesuffix("Z") + " UTC" if time.endswith("Z") else time


def sentences(last: Last, hashes: Hashes) -> list[str]:
    """Describes what differs from the last run; empty without an earlier run."""
    before = last.hashes
    if before is None:
        return []
    found = []
    if before.get("agent_name") != hashes.agent_name:
        found.append(f"the agent is {hashes.agent_name}; in {last.name} it was {before.get('agent_name')}")
    elif before.get("agent") != hashes.agent:
        if before.get("agent") is None or hashes.agent is None:
            found.append(
                f"it is not known whether the agent has changed since {last.name}: one of the two has no source file"
            )
        else:
            found.append(f"the source of the agent {hashes.agent_name} differs from that of {last.name}")
    if before.get("settings") != hashes.settings_hash:
        earlier, now = before.get("values"), hashes.settings
        earlier = earlier if isinstance(earlier, dict) else {}
        # What the number of tasks was is told of the tasks.
        for name in sorted((earlier.keys() | now.keys()) - {"tasks"}):
            texts = [brief(values[name]) if name in values else "not set" for values in (now, earlier)]
            if name not in now or name not in earlier or now[name] != earlier[name]:
                found.append(f"{name} is {texts[0]}; in {last.name} it was {texts[1]}")
    if before.get("tasks") != hashes.tasks:
        found.append(_tasks(before, hashes, last.name))
    return found


def _tasks(before: Mapping[str, Any], hashes: Hashes, last: str) -> str:
    earlier, now = before.get("task_digests"), hashes.digests
    if not isinstance(earlier, dict) or now is None:
        return f"the tasks ({hashes.n_tasks}) differ from those of {last} ({before.get('n_tasks')})"
    counts = {
        "added": len(now.keys() - earlier.keys()),
        "removed": len(earlier.keys() - now.keys()),
        "changed": sum(earlier[one] != now[one] for one in now.keys() & earlier.keys()),
    }
    told = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    return f"the tasks are not those of {last}: {told}"
