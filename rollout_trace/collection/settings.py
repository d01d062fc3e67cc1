"""The settings of a collection by name: each is an argument of ``rt.collect``, a key of TOML and an option.

``SETTINGS`` says of each how it is checked as an argument, and how it is read from TOML and from the command line.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

from rollout_trace.collection import checks
from rollout_trace.collection.objects import absolute_spec
from rollout_trace.data.user_values import brief

TABLE = "collect"
"""The table of a file that has the settings."""


class Setting(NamedTuple):
    """One setting."""

    expected: str
    """What a file or the command line may give, for messages."""
    check: Callable[[Any, str], Any] | None = None
    """Returns the argument for a value; raises where it does not fit. None: its own function does, in ``prepare``."""
    read: Callable[[Any], Any] | None = None
    """Makes the argument of a value of TOML; returns None where it does not fit. Without it ``check`` says whether."""


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
        try:
            with open(path, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            raise FileNotFoundError(f"there is no file of settings {path}.") from None
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
        for name in reversed(inner):
            parsed = {name: parsed}
        if inner:
            first = _known(first, place)
            before = self._values.get(first, {})
            if first in _MAIN_KEYS and isinstance(before, str):
                before = {_MAIN_KEYS[first]: before}
            parsed = _merged(before, parsed, place)
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
        return {name: self._argument(name, value) for name, value in self._values.items()}

    def _argument(self, name: str, value: Any) -> Any:
        setting = SETTINGS[name]
        try:
            fit = setting.read(value) if setting.read is not None else _checked(setting, value, name)
        except (TypeError, ValueError, ImportError) as error:
            raise SettingsError(f"{self._places[name]}: {error}") from None
        if fit is None:
            raise SettingsError(f"{self._places[name]}: expected {setting.expected}, got {brief(value)}.")
        return fit

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


def _checked(setting: Setting, value: Any, name: str) -> Any:
    """The value, where it may be an argument; else None."""
    assert setting.check is not None
    try:
        setting.check(value, name)
    except (TypeError, ValueError):
        return None
    return value


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
    """The name with underscores. Raises SettingsError where there is no such setting."""
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
    checks.check_names(arguments, kind, title)
    return kind(**arguments)


def _number(least: int, expected: str = "", *, optional: bool = False) -> Setting:
    check = partial(checks.whole, least=least)
    return Setting(
        expected or f"a whole number of {least} or more",
        (lambda value, name: None if value is None else check(value, name)) if optional else check,
    )


_FLAG = Setting("true or false", checks.flag)
_LIMIT = Setting("a number of seconds above 0", checks.limit)
_WAIT = Setting("a number of seconds, 0 or more", checks.wait)

SETTINGS = {
    "agent": Setting('the name of an agent, "module:name" or "file.py:name"', read=_text),
    "tasks": Setting("the path of a file, or the name of an object, as text", read=_text),
    "output": Setting("a path or an address, as text", read=_text),
    "samples": _number(1),
    "concurrency": _number(1),
    "timeout": _LIMIT,
    "retries": _number(0),
    "retry_on": Setting("names of exception classes, in a list", checks.exceptions, _texts),
    "retry_wait": _WAIT,
    "retry_wait_max": _WAIT,
    "retry_failed": _FLAG,
    "reward": Setting(
        '"[name=]module:function[*weight]", a list of such, or a table {name = {function, weight}}', read=_rewards
    ),
    "reward_timeout": _LIMIT,
    "max_consecutive_failures": _number(0, "a whole number, 0 for no limit", optional=True),
    "instrument": _FLAG,
    "engine": Setting("the name of an engine, or a table of its name and options", checks.engine, _engine),
    "seed": _number(0, optional=True),
    "name": Setting("text", checks.name_of_agent),
    "executor": Setting(
        'one of "local", "process" and "ray", or a table of its kind and its arguments', read=_executor
    ),
    "recording": Setting("a table of arguments of rt.recording", checks.recording_options, _table),
    "logs": Setting("true, false, or the path of a folder", checks.log_folder),
    "resume": _FLAG,
    "limit": _number(1, optional=True),
    "task_ids": Setting("ids of tasks, in a list", read=_texts),
}
"""The settings, by name."""
