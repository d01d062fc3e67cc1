"""The settings of a collection by name: each is an argument of ``rt.collect``, a key of TOML and an option.

``SETTINGS`` says of each how it is checked as an argument, and how it is read from TOML and from the command line.
``GROUPS`` are arguments that are a mapping of several.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

from rollout_trace._wrong_use import did_you_mean, import_extra
from rollout_trace.collection import checks
from rollout_trace.collection.objects import absolute_spec
from rollout_trace.data.user_values import brief

TABLE = "collect"


class Setting(NamedTuple):
    """One setting."""

    expected: str
    """What a file or the command line may give, for messages."""
    check: Callable[[Any, str], Any] | None = None
    """Returns the argument for a value; raises where it does not fit. None: its own function does, in ``prepare``."""
    read: Callable[[Any], Any] | None = None
    """Makes the argument of a value of TOML; returns None where it does not fit. Without it ``check`` says whether."""
    default: Any = None


class SettingsError(ValueError):
    """A setting is unknown or of the wrong type. The text has its place and what was expected."""


class Settings:
    """Settings by name, each with its place. What is set later wins."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._places: dict[str, str] = {}

    def read(self, path: str) -> None:
        """Takes the table ``[collect]`` of a TOML file. Raises SettingsError, OSError or ImportError."""
        try:
            with open(path, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            raise FileNotFoundError(f"there is no settings file {path}.") from None
        try:
            tables = _toml(data.decode())
        except ValueError as error:
            raise SettingsError(f"{path}: not valid TOML: {error}.") from None
        for name in tables:
            if name != TABLE:
                known = f"expected the table [{TABLE}] and nothing else, with the settings in it"
                raise SettingsError(f"{path}: unknown key {name!r}; {known}.")
        table = tables.get(TABLE, {})
        if not isinstance(table, dict):
            raise SettingsError(f"{path}: {TABLE} is {brief(table)}; expected a table, [{TABLE}].")
        for name, value in table.items():
            self._put(name, value, f"{path}, [{TABLE}] {name}")

    def override(self, text: str) -> None:
        """Takes one setting from ``key=value``: a key with dots, and TOML, else text. Raises SettingsError."""
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
        for name in reversed(inner):
            parsed = {name: parsed}
        if inner and first not in GROUPS:
            first = _known(first, place)
            before = self._values.get(first, {})
            if first in _MAIN_KEYS and isinstance(before, str):
                before = {_MAIN_KEYS[first]: before}
            parsed = _merged(before, parsed, place)
        # A group names its keys itself.
        self._put(first, parsed, f"--set {first}" if inner and first in GROUPS else place)

    def set(self, values: Mapping[str, Any], place: Callable[[str], str]) -> None:
        """Takes the settings that are not None; ``place`` gives the place of each for messages."""
        for name, value in values.items():
            if value is not None:
                self._put(name, value, place(name))

    def arguments(self) -> dict[str, Any]:
        """The arguments of ``rt.collect``. Raises SettingsError where a value does not fit."""
        return {name: self._argument(name, value) for name, value in self._values.items()}

    def _argument(self, name: str, value: Any) -> Any:
        setting = SETTINGS.get(name) or Setting(f"a table with any of {', '.join(GROUPS[name])}", read=_table)
        try:
            fit = setting.read(value) if setting.read is not None else value
            if setting.read is None and setting.check is not None:
                setting.check(value, name)
        except (TypeError, ValueError, ImportError) as error:
            if setting.read is not None:
                raise SettingsError(f"{self._places[name]}: {error}") from None
            fit = None
        if fit is None:
            raise SettingsError(f"{self._places[name]}: expected {setting.expected}, got {brief(value)}.")
        return fit

    def _put(self, name: str, value: Any, place: str) -> None:
        name = _known(name, place)
        if name in GROUPS and isinstance(value, dict):
            for part, one in value.items():
                try:
                    self._put(_part(name, part.replace("-", "_")), one, f"{place}.{part}")
                except TypeError as error:
                    raise SettingsError(f"{place}: {error}") from None
            return
        before = self._values.get(name)
        if name in _MAIN_KEYS and isinstance(before, dict) and isinstance(value, str):
            key = _MAIN_KEYS[name]
            # Options are those of any engine; those of an executor are its own.
            if name == "engine" or before.get(key, value) == value:
                value = {**before, key: value}
        self._values[name], self._places[name] = value, place


_MAIN_KEYS = {"engine": "name", "executor": "kind"}
"""Settings that are a text, or a table with that text under this key."""


def _toml(text: str) -> dict[str, Any]:
    try:
        toml = import_module("tomllib")
    except ImportError:
        toml = import_extra("tomli", "Before Python 3.11, settings in TOML need", "tomli")
    values: dict[str, Any] = toml.loads(text)
    return values


def _known(name: str, place: str) -> str:
    """Returns the name with underscores. Raises SettingsError if there is no such setting."""
    known = name.replace("-", "_")
    if known in SETTINGS or known in GROUPS:
        return known
    raise SettingsError(f"{place}: there is no setting {brief(name)}. {did_you_mean(known, sorted(SETTINGS))}")


def _merged(before: Any, after: Any, place: str) -> Any:
    if not isinstance(after, dict):
        return after
    if not isinstance(before, dict):
        raise SettingsError(f"{place}: {brief(before)} is not a table, so it has no keys.")
    return before | {name: _merged(before.get(name, {}), value, place) for name, value in after.items()}


# What TOML and the command line give, as arguments


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _texts(value: Any) -> list[str] | None:
    """Several texts: a list, or one text with commas."""
    every = value.split(",") if isinstance(value, str) else value
    if not isinstance(every, (list, tuple)) or not every:
        return None
    texts = [str(one).strip() for one in every if isinstance(one, (str, int)) and not isinstance(one, bool)]
    return texts if len(texts) == len(every) and all(texts) else None


def _table(value: Any) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None


_REWARD = re.compile(
    r"(?:(?P<name>[^\W\d][\w.-]*)=)?(?P<place>[^=*]*[^=*:]:[\w.]+|.+\.py:[\w.]+)(?:\*(?P<weight>[^*]+))?"
)


def _rewards(value: Any) -> Any | None:
    """``reward=`` of ``rt.collect``, from ``[name=]module:function[*weight]``, a list of such, or a table by name."""
    if isinstance(value, dict):
        parts = [_reward(one, name) for name, one in value.items()]
    else:
        parts = [_reward(one) for one in (value if isinstance(value, (list, tuple)) else [value])]
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


def _reward(value: Any, name: str | None = None) -> tuple[str | None, str, float] | None:
    """Name, place and weight of one function; ``name``: its key in a table, in which it has no other."""
    if name is not None and isinstance(value, dict):
        place, weight = value.get("function"), value.get("weight", 1.0)
        if not set(value) <= {"function", "weight"} or not isinstance(place, str) or isinstance(weight, bool):
            return None
    else:
        found = _REWARD.fullmatch(value.strip()) if isinstance(value, str) else None
        if found is None or (name is not None and found["name"] is not None):
            return None
        name, place, weight = name or found["name"], found["place"], found["weight"] or "1"
    try:
        weight = float(weight)
    except (TypeError, ValueError):
        return None
    return (name, absolute_spec(place), weight) if math.isfinite(weight) else None


def _engine(value: Any) -> Any | None:
    """The name of an engine, or its options with its name."""
    from rollout_trace.wire.engine import Engine

    return _made(Engine, "engine", value) if isinstance(value, dict) and "name" in value else _text(value)


def executor_of(value: Any) -> Any | None:
    """``local``, ``process`` or ``ray``; of the last two also with the arguments of their classes."""
    if value in ("local", "process", "ray"):
        return value
    if value == {"kind": "local"}:
        return "local"
    if not isinstance(value, dict) or value.get("kind") not in ("process", "ray"):
        return None
    arguments = {name.replace("-", "_"): one for name, one in value.items() if name != "kind"}
    if value["kind"] == "process":
        from rollout_trace.collection.processes import ProcessExecutor

        return _made(ProcessExecutor, "executor", arguments)
    from rollout_trace.collection.ray_executor import RayExecutor

    return _made(RayExecutor, "executor", arguments)


def _made(kind: type, title: str, arguments: Mapping[str, Any]) -> Any:
    checks.check_names(arguments, kind, title)
    return kind(**arguments)


def _optional(check: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    return lambda value, name: None if value is None else check(value, name)


_FROM_0, _FROM_1 = partial(checks.whole, least=0), partial(checks.whole, least=1)
_0_OR_MORE, _1_OR_MORE = "a whole number of 0 or more", "a whole number of 1 or more"
_TRUE_OR_FALSE = "true or false"
_LIMIT = Setting("a number of seconds above 0", checks.limit)
_WAIT = "a number of seconds, 0 or more"

SETTINGS = {
    "agent": Setting('the name of an agent, "module:name" or "file.py:name"', read=_text),
    "tasks": Setting("the path of a file, or the name of an object, as text", read=_text),
    "output": Setting("a path or an address, as text", read=_text),
    "samples": Setting(_1_OR_MORE, _FROM_1, default=1),
    "concurrency": Setting(_1_OR_MORE, _FROM_1, default=8),
    "timeout": _LIMIT,
    "retries": Setting(_0_OR_MORE, _FROM_0, default=0),
    "retry_on": Setting("names of exception classes, in a list", checks.exceptions, _texts),
    "retry_wait": Setting(_WAIT, checks.wait, default=1.0),
    "retry_wait_max": Setting(_WAIT, checks.wait, default=60.0),
    "retry_failed": Setting(_TRUE_OR_FALSE, checks.flag, default=False),
    "reward": Setting(
        '"[name=]module:function[*weight]", a list of such, or a table {name = {function, weight}}', read=_rewards
    ),
    "reward_timeout": _LIMIT,
    "max_consecutive_failures": Setting("a whole number, 0 for no limit", _optional(_FROM_0)),
    "instrument": Setting(_TRUE_OR_FALSE, checks.flag, default=True),
    "engine": Setting("the name of an engine, or a table of its name and options", checks.engine, _engine),
    "seed": Setting(_0_OR_MORE, _optional(_FROM_0)),
    "name": Setting("text", checks.name_of_agent),
    "executor": Setting(
        'one of "local", "process" and "ray", or a table of its kind and its arguments', read=executor_of
    ),
    "recording": Setting("a table of arguments of rt.recording", checks.recording_options, _table),
    "logs": Setting("true, false, or the path of a folder", checks.log_folder, default=False),
    "resume": Setting(_TRUE_OR_FALSE, checks.flag, default=True),
    "limit": Setting(_1_OR_MORE, _optional(_FROM_1)),
    "task_ids": Setting("ids of tasks, in a list", read=_texts),
}

GROUPS = {
    "retries": {
        "times": "retries",
        "on": "retry_on",
        "wait": "retry_wait",
        "wait_max": "retry_wait_max",
        "failed": "retry_failed",
    },
    "timeout": {"rollout": "timeout", "reward": "reward_timeout"},
    "limits": {"tasks": "limit", "task_ids": "task_ids", "failures": "max_consecutive_failures"},
}
"""Arguments that may be mappings, by name: the setting that each of their keys stands for."""


def _part(group: str, key: Any) -> str:
    """Returns the setting that a group's key stands for. Raises TypeError if there is none."""
    if key not in GROUPS[group]:
        raise TypeError(f"{group} has the key {brief(key)}. {did_you_mean(key, GROUPS[group])}")
    return GROUPS[group][key]


def ungrouped(given: Mapping[str, Any], function: str = "collect") -> dict[str, Any]:
    """All settings, and ``progress``, for a function's arguments: what groups hold, and defaults. Raises TypeError."""
    found = {"progress": None, **{name: setting.default for name, setting in SETTINGS.items()}}
    for name, value in given.items():
        if name in GROUPS and isinstance(value, Mapping):
            for key, one in value.items():
                part = _part(name, key)
                if part != name and part in given:
                    raise TypeError(f"{part} is given twice, also as {key!r} of {name}; give one of them.")
                found[part] = one
        elif name in found:
            found[name] = value
        elif name != "limits":
            raise TypeError(f"{function}() has no argument {name!r}. {did_you_mean(name, {**found, **GROUPS})}")
        elif value is not None:
            raise checks.refused(value, name, f"a mapping with any of {', '.join(GROUPS[name])}")
    return found
