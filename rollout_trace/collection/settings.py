"""Settings of a collection from a TOML file and from ``key=value`` texts, as the arguments of ``rt.collect``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any

from rollout_trace.collection.setting_values import SETTINGS
from rollout_trace.data.user_values import brief

TABLE = "collect"
"""The table of the file that has the settings."""


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
