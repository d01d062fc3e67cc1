"""The options of the exporters, as ``name=value`` texts."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from rollout_trace.data.user_values import brief

_GIVEN = frozenset({"trajectories", "path", "folder", "strict", "report", "options", "arrays"})
"""Parameters that are no options: ``convert`` gives them."""
_CODE = ("Callable", "Include")
"""Annotations of options that take Python functions and objects."""


class BadOption(ValueError):
    """An option that an exporter does not have, or whose value has another type."""


def options_of(name: str) -> dict[str, str]:
    """The options of an exporter that can be given as text: their names and annotations."""
    from rollout_trace import export
    from rollout_trace.export import ChatOptions

    function = getattr(export, name)
    found = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            found[parameter.name] = str(parameter.annotation)
        elif "ChatOptions" in str(parameter.annotation):
            found |= _annotations(ChatOptions)
        else:
            from rollout_trace.train.selection import SequenceOptions

            found |= {**_annotations(SequenceOptions), "drop_constant_groups": "bool"}
    return {
        name: kind
        for name, kind in found.items()
        if name not in _GIVEN and (kind.startswith("Collection[") or not any(code in kind for code in _CODE))
    }


def required_of(name: str) -> list[str]:
    """The options that an exporter cannot do without."""
    from rollout_trace import export

    parameters = inspect.signature(getattr(export, name)).parameters.values()
    return [
        one.name
        for one in parameters
        if one.name not in _GIVEN and one.default is one.empty and one.kind is not one.VAR_KEYWORD
    ]


def _annotations(kind: type) -> dict[str, str]:
    """Of a TypedDict, with those that it inherits."""
    return {name: str(getattr(value, "__forward_arg__", value)) for name, value in kind.__annotations__.items()}


def parse_options(name: str, texts: Iterable[str]) -> Mapping[str, Any]:
    """The values of options that are given as ``name=value``.

    Raises:
        BadOption: there is no such option, its value has another type, or one that is needed is missing.
    """
    known, found = options_of(name), {}
    for text in texts:
        option, equals, value = text.partition("=")
        option = option.strip().replace("-", "_")
        if not equals:
            raise BadOption(f"{text!r} is no option; give name=value, such as {next(iter(known), 'name')}=...")
        if option not in known:
            raise BadOption(f"{name} has no option {option!r}; it has {', '.join(known) or 'none'}.")
        found[option] = _value(option, known[option], value.strip())
    missing = [option for option in required_of(name) if option not in found]
    if missing:
        raise BadOption(f"{name} needs {' and '.join(f'--option {one}=...' for one in missing)}.")
    return found


def _value(option: str, kind: str, text: str) -> Any:
    if kind.startswith("Collection["):
        return [one.strip() for one in text.split(",") if one.strip()]
    if text.lower() in ("none", "null") and "None" in kind:
        return None
    plain = kind.replace("| None", "").strip()
    if plain == "bool":
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if text.lower() not in words:
            raise BadOption(f"{option}={brief(text)}: expected true or false.")
        return words[text.lower()]
    if plain in ("int", "float"):
        try:
            return int(text) if plain == "int" else float(text)
        except ValueError:
            raise BadOption(f"{option}={brief(text)}: expected a {'whole ' * (plain == 'int')}number.") from None
    return text
