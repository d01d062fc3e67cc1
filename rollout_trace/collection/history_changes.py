"""What has changed since the last run of a history, in sentences for a person."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rollout_trace.data.user_values import brief

if TYPE_CHECKING:
    from rollout_trace.collection.hashes import Hashes

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
