"""Recording subclasses of an object's own class, swapped in on the object itself.

Nothing else is touched: other objects of the class keep it, and so do those who import it. An attribute on the object
would do for most methods, but not for those that Python looks up on the class (``__call__``), and a copy of the object
would go on to call the original's.
"""

from __future__ import annotations

import copyreg
import functools
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeAlias, TypeVar

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
    """

    def __init__(self, mark: str, *, is_pickled: bool = False) -> None:
        self._mark = mark
        self._is_pickled = is_pickled

    def put_on(self, thing: Any, settings: S, methods: Methods) -> None:
        """Gives an object a recording subclass of its own class, in the place of one it may already have.

        Raises:
            TypeError: the object cannot get another class, such as those of classes written in C.
        """
        thing.__class__ = self.class_for(self.plain(type(thing)), settings, methods)

    def take_off(self, thing: Any) -> None:
        """Gives an object its own class again. Any other object stays as it is."""
        if self._mark in type(thing).__dict__:
            thing.__class__ = self.plain(type(thing))

    def settings_of(self, thing: Any) -> S | None:
        """How an object records; None where it does not."""
        settings: S | None = type(thing).__dict__.get(self._mark)
        return settings

    def plain(self, kind: type) -> type:
        """The class that a recording class was made of; any other class itself."""
        return kind.__mro__[1] if self._mark in kind.__dict__ else kind

    def class_for(self, base: type, settings: S, methods: Methods) -> type:
        """The recording subclass of a class; the same one for the same settings and methods."""
        return _class_for(base, self._mark, settings, methods, self._is_pickled)


@functools.cache
def _class_for(base: Any, mark: str, settings: Any, methods: Methods, is_pickled: bool) -> type:
    looks = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
    # Without slots of its own it would have another layout than a base that has no `__dict__`.
    own = {**looks, "__slots__": (), mark: settings, **methods(base, settings)}
    if is_pickled:
        own["__reduce_ex__"] = _reducer(base, (base, mark, settings, methods))
    # Of the base's metaclass: it may be an abstract base class.
    kind: type = type(base)(base.__name__, (base,), own)
    return kind


def _reducer(base: Any, made_of: tuple[Any, ...]) -> Any:
    def reduced(thing: Any, protocol: Any) -> Any:
        # The class is this process's own; where the object comes out of the pickle it is made anew.
        make, arguments, *rest = base.__reduce_ex__(thing, protocol)
        if make is not copyreg.__newobj__:  # type: ignore[attr-defined]
            return make, arguments, *rest
        return _new, (*made_of, *arguments[1:]), *rest

    return reduced


def _new(base: Any, mark: str, settings: Any, methods: Methods, *arguments: Any) -> Any:
    kind: Any = _class_for(base, mark, settings, methods, True)
    return kind.__new__(kind, *arguments)
