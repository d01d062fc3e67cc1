"""`ClassSwap`: one object records, others of its class do not."""

from __future__ import annotations

import copy
import pickle
from abc import ABC, abstractmethod
from typing import Any

import pytest

from rollout_trace.integration import ClassSwap


class Speaker(ABC):
    """An abstract base, as models have."""

    @abstractmethod
    def speak(self) -> str: ...


class Loud(Speaker):
    def __init__(self, word: str) -> None:
        self.word = word

    def speak(self) -> str:
        return self.word.upper()


class Slotted:
    __slots__ = ("word",)

    def speak(self) -> str:
        return "slots"


def methods(base: Any, mark: str) -> dict[str, Any]:
    """Marks what is spoken."""

    def speak(self: Any) -> str:
        return f"{mark} {base.speak(self)}"

    return {"speak": speak}


swap: ClassSwap[str] = ClassSwap("_swapped_in_a_test")
pickled: ClassSwap[str] = ClassSwap("_swapped_in_a_test_too", is_pickled=True)


def test_one_object_gets_another_class() -> None:
    one, other = Loud("a"), Loud("b")
    swap.put_on(one, "heard:", methods)
    assert (one.speak(), other.speak(), type(other)) == ("heard: A", "B", Loud)
    assert isinstance(one, Loud)
    assert (type(one).__name__, type(one).__module__, swap.plain(type(one))) == ("Loud", __name__, Loud)
    assert (swap.settings_of(one), swap.settings_of(other)) == ("heard:", None)


def test_settings_take_the_place_of_earlier_ones() -> None:
    one, same = Loud("a"), Loud("b")
    for mark in ("first", "second"):
        swap.put_on(one, mark, methods)
    swap.put_on(same, "second", methods)
    assert (one.speak(), type(one) is type(same)) == ("second A", True)
    swap.take_off(one)
    assert (one.speak(), type(one)) == ("A", Loud)


@pytest.mark.parametrize("thing", [None, 3, "text", Loud("a"), object()], ids=lambda one: type(one).__name__)
def test_what_has_no_such_class_stays_as_it_is(thing: Any) -> None:
    kind = type(thing)
    swap.take_off(thing)
    assert (type(thing), swap.settings_of(thing)) == (kind, None)


def test_an_object_without_a_dict() -> None:
    one = Slotted()
    swap.put_on(one, "heard:", methods)
    assert one.speak() == "heard: slots"
    with pytest.raises(TypeError):
        swap.put_on(3, "heard:", methods)


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_what_is_pickled_records_where_it_comes_out(again: Any) -> None:
    one = Loud("a")
    pickled.put_on(one, "heard:", methods)
    back = again(one)
    assert (back.speak(), back.word, type(back) is type(one)) == ("heard: A", "a", True)
    pickled.take_off(back)
    assert type(back) is Loud
