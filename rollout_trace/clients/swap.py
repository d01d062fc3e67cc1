"""Recording subclasses of an object's own class, swapped in on the object itself.

Nothing else is touched: other objects of the class keep theirs, and the class itself is unchanged. Replacing methods on
the object instead would not work for those that Python looks up on the class (``__call__``), and a copy of the object
would call the methods of the original.
"""

from __future__ import annotations

import copyreg
import functools
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, Generic, TypeAlias, TypeVar
from weakref import ref

S = TypeVar("S", bound=Hashable)

Methods: TypeAlias = Callable[[Any, Any], dict[str, Any]]
"""Maps a class and the settings to the methods and attributes of its recording subclass. A method calls the one that it
replaces: ``base.generate(self, ...)``. It must be a module-level function, so that pickle can name it."""


class ClassSwap(Generic[S]):
    """Switches objects to recording subclasses of their own classes, and back.

    The recording class is a subclass of the object's class and has the same name. It is made once for each combination
    of class, settings and methods, and is kept until the process ends: settings must be few, and must not refer to the
    objects.

    Args:
        mark: name of the class attribute that holds the settings and identifies recording classes. Each user of
            ``ClassSwap`` has its own.
        is_pickled: pickled and copied objects record too, with equal settings.
        is_tracked: keep track of the objects while they exist, for ``take_off_all``.
    """

    def __init__(self, mark: str, *, is_pickled: bool = False, is_tracked: bool = False) -> None:
        self._mark = mark
        self._is_pickled = is_pickled
        # By their ids: they may have an `__eq__`, and no `__hash__`.
        self._known: dict[int, ref[Any]] | None = {} if is_tracked else None

    def put_on(self, thing: Any, settings: S, methods: Methods, *, is_kept: bool = True) -> None:
        """Switches an object to a recording subclass of its own class, replacing an earlier one.

        Args:
            thing: the object.
            settings: the settings to record with.
            methods: makes the methods of the recording class.
            is_kept: False makes a class for this object alone, freed with it. Use it if settings are many, or refer to
                the object.

        Raises:
            TypeError: the object's class cannot be changed, for example because it is written in C.
        """
        make = _class_for if is_kept else _class_for.__wrapped__
        thing.__class__ = make(self.plain(type(thing)), self._mark, settings, methods, self._is_pickled)
        if (known := self._known) is not None:
            key = id(thing)
            with suppress(TypeError):  # an object without a weak reference
                known[key] = ref(thing, lambda gone: known.pop(key, None) if known.get(key) is gone else None)

    def take_off(self, thing: Any) -> None:
        """Restores an object's own class. An object without a recording class is left unchanged."""
        if self._mark in type(thing).__dict__:
            thing.__class__ = self.plain(type(thing))

    def take_off_all(self, is_meant: Callable[[Any], bool]) -> None:
        """Restores the own class of every object for which the function returns True."""
        for found in list((self._known or {}).values()):
            if (thing := found()) is not None and self._mark in type(thing).__dict__ and is_meant(thing):
                self.take_off(thing)

    def settings_of(self, thing: Any) -> S | None:
        """Returns the settings that an object records with; None if it does not record."""
        # `__dict__`, not getattr: a user's subclass of a recording class is not one that this family made.
        settings: S | None = type(thing).__dict__.get(self._mark)
        return settings

    def plain(self, kind: type) -> type:
        """Returns the class that a recording class was derived from; any other class is returned as it is."""
        return kind.__mro__[1] if self._mark in kind.__dict__ else kind

    def class_for(self, base: type, settings: S, methods: Methods) -> type:
        """Returns the recording subclass of a class; the same one for the same settings and methods."""
        return _class_for(base, self._mark, settings, methods, self._is_pickled)


@functools.cache
def _class_for(base: Any, mark: str, settings: Any, methods: Methods, is_pickled: bool) -> type:
    identity = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
    # Empty slots: Python changes an object's class only to one of the same layout, and a base may have no `__dict__`.
    attributes = {**identity, "__slots__": (), mark: settings, **methods(base, settings)}

    def reduced(thing: Any, protocol: Any) -> Any:
        # A recording class cannot be imported by name: unpickling derives it again, from the base class.
        make, arguments, *rest = base.__reduce_ex__(thing, protocol)
        if make is not copyreg.__newobj__:  # type: ignore[attr-defined]
            return make, arguments, *rest
        return _new, (base, mark, settings, methods, *arguments[1:]), *rest

    if is_pickled:
        attributes["__reduce_ex__"] = reduced
    # By the base's metaclass, which may be ABCMeta.
    kind: Any = type(base)(base.__name__, (base,), attributes)
    # Made, the class needs the name no more; `dir` of a client would show it.
    del kind.__slots__
    made: type = kind
    return made


def _new(base: Any, mark: str, settings: Any, methods: Methods, *arguments: Any) -> Any:
    kind: Any = _class_for(base, mark, settings, methods, True)
    return kind.__new__(kind, *arguments)
