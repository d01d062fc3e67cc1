"""Recording subclasses of an object's own class, swapped in on the object itself.

Nothing of smolagents is patched: other agents, models and executors keep their classes. An attribute on the object
would do for most methods, but not for ``__call__``, and a copy of the object would go on to call the original.
"""

from __future__ import annotations

import copyreg
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

_MARK = "_rollout_trace_smolagents"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How an agent and what belongs to it are recorded."""

    engine: str | None = None
    """Of the models' servers, see ``rollout_trace.wrap_openai``."""
    scores: bool = False
    """Local models are asked for the scores of what they generate."""


Methods: TypeAlias = Callable[[Any, Settings], dict[str, Any]]
"""Gives the recording methods of a subclass, for its base class."""


def swap(thing: Any, settings: Settings, methods: Methods) -> None:
    """Gives an object a recording subclass of its own class, in the place of one it may already have."""
    thing.__class__ = _recording_class(plain_class(thing), settings, methods)


def unswap(thing: Any) -> None:
    """Gives an object its own class again."""
    if settings_of(thing) is not None:
        thing.__class__ = plain_class(thing)


def plain_class(thing: Any) -> type:
    """The object's class as it was before it was swapped."""
    kind: type = type(thing)
    return kind.__mro__[1] if _MARK in kind.__dict__ else kind


def settings_of(thing: Any) -> Settings | None:
    """How the object is recorded; None where it is not."""
    settings: Settings | None = type(thing).__dict__.get(_MARK)
    return settings


@functools.cache
def _recording_class(base: Any, settings: Settings, methods: Methods) -> type:
    names = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
    # Of the base's metaclass: agents are abstract base classes.

    def reduced(thing: Any, protocol: Any) -> Any:
        # The class is this process's own; where the object is pickled to it is made anew.
        make, arguments, *rest = base.__reduce_ex__(thing, protocol)
        if make is not copyreg.__newobj__:  # type: ignore[attr-defined]
            return make, arguments, *rest
        return _new, (base, settings, methods, *arguments[1:]), *rest

    own = {_MARK: settings, "__reduce_ex__": reduced, **methods(base, settings)}
    kind: type = type(base)(base.__name__, (base,), {**names, **own})
    return kind


def _new(base: Any, settings: Settings, methods: Methods, *arguments: Any) -> Any:
    kind = _recording_class(base, settings, methods)
    return kind.__new__(kind, *arguments)
