"""Settings of a collection from a TOML file and from ``key=value`` texts, as the arguments of ``rt.collect``."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any

from rollout_trace.collection.objects import absolute_spec
from rollout_trace.data.user_values import brief

TABLE = "collect"
"""The table of the file that has the settings."""

Check = Callable[[Any], "Any | None"]
"""Returns the argument for a value of the file; None where the value does not fit."""


class SettingsError(ValueError):
    """A setting is unknown or of the wrong type. The text has its place and what was expected."""


class Settings:
    """Settings by name, each with its place. What is set later wins."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._places: dict[str, str] = {}

    def read(self, path: str) -> None:
        """Takes the settings of a TOML file: those in its table ``[collect]``.

        Raises:
            SettingsError: it is no TOML, or has other tables or names.
            OSError: it cannot be read.
            ImportError: before Python 3.11, the package tomli is not installed.
        """
        with open(path, "rb") as file:
            data = file.read()
        try:
            tables = _toml(data.decode())
        except ValueError as error:
            raise SettingsError(f"{path}: this is no TOML: {error}.") from None
        for name in tables:
            if name != TABLE:
                known = f"expected the table [{TABLE}] alone, with the settings in it"
                raise SettingsError(f"{path}: unknown key {name!r}; {known}.")
        table = tables.get(TABLE, {})
        if not isinstance(table, dict):
            raise SettingsError(f"{path}: {TABLE} is {brief(table)}; expected a table, [{TABLE}].")
        for name, value in table.items():
            self._put(name, value, f"{path}, [{TABLE}] {name}")

    def override(self, text: str) -> None:
        """Takes one setting from ``key=value``. The key may have dots; the value is TOML where it is TOML, else text.

        Raises:
            SettingsError: it has no ``=``, or its key is unknown or inside something that is no table.
        """
        dotted, equals, value = text.partition("=")
        names = dotted.strip().removeprefix(f"{TABLE}.").split(".")
        if not equals or not all(names):
            raise SettingsError(f"--set {text}: expected key=value, such as --set samples=4.")
        try:
            parsed = _toml(f"value = {value}")["value"]
        except (ValueError, KeyError):
            parsed = value
        place = f"--set {dotted.strip()}"
        first, *inner = names
        for at in range(len(inner), 0, -1):
            parsed = {inner[at - 1]: parsed}
        if inner:
            first = _known(first, place)
            parsed = _merged(_as_table(first, self._values.get(first, {})), parsed, place)
        self._put(first, parsed, place)

    def set(self, values: Mapping[str, Any], place: Callable[[str], str]) -> None:
        """Takes the settings that are not None; ``place`` gives the place of each for messages."""
        for name, value in values.items():
            if value is not None:
                self._put(name, value, place(name))

    def arguments(self) -> dict[str, Any]:
        """The arguments of ``rt.collect``.

        Raises:
            SettingsError: a value does not fit.
        """
        found = {}
        for name, value in self._values.items():
            check, expected = SETTINGS[name]
            try:
                fit = check(value)
            except (TypeError, ValueError, ImportError) as error:
                raise SettingsError(f"{self._places[name]}: {error}") from None
            if fit is None:
                raise SettingsError(f"{self._places[name]}: expected {expected}, got {brief(value)}.")
            found[name] = fit
        return found

    def _put(self, name: str, value: Any, place: str) -> None:
        name = _known(name, place)
        before = self._values.get(name)
        if name in _MAIN_KEYS and isinstance(before, dict) and isinstance(value, str):
            key = _MAIN_KEYS[name]
            # Options are those of any engine; those of an executor are its own.
            if name == "engine" or before.get(key, value) == value:
                value = {**before, key: value}
        self._values[name], self._places[name] = value, place


_MAIN_KEYS = {"engine": "name", "executor": "kind"}
"""Settings that are a text, or a table with that text under this key."""


def _as_table(name: str, value: Any) -> Any:
    return {_MAIN_KEYS[name]: value} if name in _MAIN_KEYS and isinstance(value, str) else value


def _toml(text: str) -> dict[str, Any]:
    try:
        toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    except ImportError:
        raise ImportError(
            "Settings in TOML need, before Python 3.11, the package tomli. Install it with: pip install tomli"
        ) from None
    values: dict[str, Any] = toml.loads(text)
    return values


def _known(name: str, place: str) -> str:
    """The name with underscores.

    Raises:
        SettingsError: there is no such setting.
    """
    known = name.replace("-", "_")
    if known in SETTINGS:
        return known
    close = get_close_matches(known, SETTINGS, 2)
    advice = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(sorted(SETTINGS))}."
    raise SettingsError(f"{place}: there is no setting {brief(name)}; {advice}")


def _merged(before: Any, after: Any, place: str) -> Any:
    if not isinstance(after, dict):
        return after
    if not isinstance(before, dict):
        raise SettingsError(f"{place}: {brief(before)} is no table, and has no keys in it.")
    merged = dict(before)
    for name, value in after.items():
        merged[name] = _merged(before[name], value, place) if name in before else value
    return merged


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
    from rollout_trace.engines.engine import Engine

    return Engine(**value) if isinstance(value, dict) and "name" in value else _text(value)


def _executor(value: Any) -> Any | None:
    """``local``, ``process`` or ``ray``; of the last two also with the arguments of their classes."""
    if value in ("local", "process", "ray"):
        return value
    if not isinstance(value, dict) or value.get("kind") not in ("process", "ray"):
        return None
    arguments = {name.replace("-", "_"): one for name, one in value.items() if name != "kind"}
    if value["kind"] == "process":
        from rollout_trace.collection.processes import ProcessExecutor

        return ProcessExecutor(**arguments)
    from rollout_trace.collection.ray_executor import RayExecutor

    return RayExecutor(**arguments)


_SECONDS = "a number of seconds, 0 or more"
_FLAG = "true or false"

SETTINGS: dict[str, tuple[Check, str]] = {
    "agent": (_text, 'the name of an agent, "module:name" or "file.py:name"'),
    "tasks": (_text, "the path of a file, or the name of an object, as text"),
    "output": (_text, "a path or an address, as text"),
    "samples": (_whole(1), "a whole number of 1 or more"),
    "concurrency": (_whole(1), "a whole number of 1 or more"),
    "timeout": (_seconds, _SECONDS),
    "retries": (_whole(0), "a whole number of 0 or more"),
    "retry_on": (_texts, "names of exception classes, in a list"),
    "retry_wait": (_seconds, _SECONDS),
    "retry_wait_max": (_seconds, _SECONDS),
    "retry_failed": (_flag, _FLAG),
    "reward": (_rewards, '"[name=]module:function[*weight]", a list of such, or a table {name = {function, weight}}'),
    "reward_timeout": (_seconds, _SECONDS),
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
