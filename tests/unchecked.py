"""Values that an assignment would refuse, as a program that goes around it could leave them."""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


def unchecked(item: T, **values: Any) -> T:
    """The step or the trajectory, with these values in its fields."""
    for name, value in values.items():
        object.__setattr__(item, name, value)
    return item
