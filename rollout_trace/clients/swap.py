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
"""From a class and the settings to the methods, and other attributes, of its recording subclass. A method calls the one
that it replaces on that class: ``base.generate(self, ...)``. A function of a module, so that pickles can name it."""


class ClassSwap(Generic[S]):
    """Gives objects recording subclasses of their own classes, and their own classes back.

    The class that an object gets has the name of its own one, and is a subclass of it. It is made once for each class,
    settings and methods, and stays as long as the process: settings are few, and not the objects'.

    Args:
        mark: name of the class attribute that holds the settings, and tells these classes from others. Each user of
            ``ClassSwap`` has one of its own.
        is_pickled: an object that is pickled, or copied, records where it comes out, with equal settings.
        is_tracked: the objects are known until they go, for ``take_off_all``.
    """

    def __init__(self, mark: str, *, is_pickled: bool = False, is_tracked: bool = False) -> None:
        self._mark = mark
        self._is_pickled = is_pickled
        # By their ids: they may have an `__eq__`, and no `__hash__`.
        self._known: dict[int, ref[Any]] | None = {} if is_tracked else None

    def put_on(self, thing: Any, settings: S, methods: Methods, *, is_kept: bool = True) -> None:
        """Gives an object a recording subclass of its own class, in the place of one it may already have.

        Args:
            thing: the object.
            settings: what it records with.
            methods: makes the methods of its class.
            is_kept: False for a class of its own, which goes with the object: settings that are many, or hold it.

        Raises:
            TypeError: the object cannot get another class, such as those of classes written in C.
        """
        make = _class_for if is_kept else _class_for.__wrapped__
        thing.__class__ = make(self.plain(type(thing)), self._mark, settings, methods, self._is_pickled)
        if (known := self._known) is not None:
            key = id(thing)
            with suppress(TypeError):  # an object without a weak reference
                known[key] = ref(thing, lambda gone: known.pop(key, None) if known.get(key) is gone else None)

    def take_off(self, thing: Any) -> None:
        """Gives an object its own class again. Any other object stays as it is."""
        if self._mark in type(thing).__dict__:
            thing.__class__ = self.plain(type(thing))

    def take_off_all(self, is_meant: Callable[[Any], bool]) -> None:
        """Gives all objects that this is true of their own classes again."""
        for found in list((self._known or {}).values()):
            if (thing := found()) is not None and self._mark in type(thing).__dict__ and is_meant(thing):
                self.take_off(thing)

    def settings_of(self, thing: Any) -> S | None:
        """The settings that an object records with; None if it does not record."""
        # `__dict__`, not getattr: a user's subclass of a recording class is not one that this family made.
        settings: S | None = type(thing).__dict__.get(self._mark)
        return settings

    def plain(self, kind: type) -> type:
        """The class that a recording class was derived from; any other class itself."""
        return kind.__mro__[1] if self._mark in kind.__dict__ else kind

    def class_for(self, base: type, settings: S, methods: Methods) -> type:
        """The recording subclass of a class; the same one for the same settings and methods."""
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
