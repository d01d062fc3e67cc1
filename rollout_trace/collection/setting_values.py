"""The settings that a TOML file or the command line may have, each with its check."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from rollout_trace.collection.objects import absolute_spec
from rollout_trace.collection.options import check_names

Check = Callable[[Any], "Any | None"]
"""Returns the argument for a value of the file; None where the value does not fit."""


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _whole(least: int) -> Check:
    def check(value: Any) -> int | None:
        return value if isinstance(value, int) and not isinstance(value, bool) and value >= least else None

    return check


def _seconds(value: Any) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if is_number and math.isfinite(value) and value >= 0 else None


def _limit(value: Any) -> float | None:
    return _seconds(value) or None


def _texts(value: Any) -> list[str] | None:
    """Several texts: a list, or one text with commas."""
    every = value.split(",") if isinstance(value, str) else value
    if not isinstance(every, (list, tuple)) or not every:
        return None
    texts = [str(one).strip() for one in every if isinstance(one, (str, int)) and not isinstance(one, bool)]
    return texts if len(texts) == len(every) and all(texts) else None


def _table(value: Any) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None


def _flag_or_text(value: Any) -> bool | str | None:
    return value if isinstance(value, bool) else _text(value)


_REWARD = re.compile(
    r"(?:(?P<name>[^\W\d][\w.-]*)=)?(?P<place>[^=*]*[^=*:]:[\w.]+|.+\.py:[\w.]+)(?:\*(?P<weight>[^*]+))?"
)


def _rewards(value: Any) -> Any | None:
    """``reward=`` of ``rt.collect``, from ``[name=]module:function[*weight]``, a list of such, or a table by name."""
    if isinstance(value, dict):
        parts = [_reward_of_table(name, one) for name, one in value.items()]
    else:
        every = value if isinstance(value, (list, tuple)) else [value]
        parts = [_reward(one) for one in every]
    known = [part for part in parts if part is not None]
    if not known or len(known) != len(parts):
        return None
    if len(known) == 1 and known[0][0] is None and known[0][2] == 1.0:
        return known[0][1]
    names = [name or place.rpartition(":")[2] for name, place, _ in known]
    if len(set(names)) < len(names):
        # `rt.collect` names the two, and says what to do.
        return [(place, weight) for _, place, weight in known]
    return {name: (place, weight) for name, (_, place, weight) in zip(names, known, strict=True)}


def _reward(text: Any) -> tuple[str | None, str, float] | None:
    found = _REWARD.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is None:
        return None
    weight = _weight(found["weight"] or "1")
    return None if weight is None else (found["name"], absolute_spec(found["place"]), weight)


def _reward_of_table(name: str, value: Any) -> tuple[str | None, str, float] | None:
    if isinstance(value, dict):
        if not set(value) <= {"function", "weight"} or not isinstance(value.get("function"), str):
            return None
        weight = _weight(value.get("weight", 1.0))
        return None if weight is None else (name, absolute_spec(value["function"]), weight)
    found = _reward(value)
    return None if found is None or found[0] is not None else (name, found[1], found[2])


def _weight(value: Any) -> float | None:
    try:
        number = None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None
    return number if number is not None and math.isfinite(number) else None


def _engine(value: Any) -> Any | None:
    """The name of an engine, or its options with its name."""
    from rollout_trace.wire.engine import Engine

    return _made(Engine, "engine", value) if isinstance(value, dict) and "name" in value else _text(value)


def _executor(value: Any) -> Any | None:
    """``local``, ``process`` or ``ray``; of the last two also with the arguments of their classes."""
    if value in ("local", "process", "ray"):
        return value
    if not isinstance(value, dict) or value.get("kind") not in ("process", "ray"):
        return None
    arguments = {name.replace("-", "_"): one for name, one in value.items() if name != "kind"}
    if value["kind"] == "process":
        from rollout_trace.collection.processes import ProcessExecutor

        return _made(ProcessExecutor, "executor", arguments)
    from rollout_trace.collection.ray_executor import RayExecutor

    return _made(RayExecutor, "executor", arguments)


def _made(kind: type, title: str, arguments: Mapping[str, Any]) -> Any:
    check_names(arguments, kind, title)
    return kind(**arguments)


_SECONDS = "a number of seconds, 0 or more"
_LIMIT = "a number of seconds above 0"
_FLAG = "true or false"

SETTINGS: dict[str, tuple[Check, str]] = {
    "agent": (_text, 'the name of an agent, "module:name" or "file.py:name"'),
    "tasks": (_text, "the path of a file, or the name of an object, as text"),
    "output": (_text, "a path or an address, as text"),
    "samples": (_whole(1), "a whole number of 1 or more"),
    "concurrency": (_whole(1), "a whole number of 1 or more"),
    "timeout": (_limit, _LIMIT),
    "retries": (_whole(0), "a whole number of 0 or more"),
    "retry_on": (_texts, "names of exception classes, in a list"),
    "retry_wait": (_seconds, _SECONDS),
    "retry_wait_max": (_seconds, _SECONDS),
    "retry_failed": (_flag, _FLAG),
    "reward": (_rewards, '"[name=]module:function[*weight]", a list of such, or a table {name = {function, weight}}'),
    "reward_timeout": (_limit, _LIMIT),
    "max_consecutive_failures": (_whole(0), "a whole number, 0 for no limit"),
    "instrument": (_flag, _FLAG),
    "engine": (_engine, "the name of an engine, or a table of its name and options"),
    "seed": (_whole(0), "a whole number of 0 or more"),
    "name": (_text, "text"),
    "executor": (_executor, 'one of "local", "process" and "ray", or a table of its kind and its arguments'),
    "recording": (_table, "a table of arguments of rt.recording"),
    "logs": (_flag_or_text, "true, false, or the path of a folder"),
    "resume": (_flag, _FLAG),
    "limit": (_whole(1), "a whole number of 1 or more"),
    "task_ids": (_texts, "ids of tasks, in a list"),
}
"""The settings, each with its check and what it expects."""
