"""Which earlier step a request continues: asked while a conversation grows, before the request has an answer."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from rollout_trace.data.conversations import Conversations
from rollout_trace.data.lists import ListStore
from rollout_trace.data.model import Completion, Step, new_step

SYSTEM = {"role": "system", "content": "Be brief."}


def said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def step_of(messages: Any, text: str | None = None, **facts: Any) -> Step:
    completion = None if text is None else Completion(content=text)
    return new_step({"id": "s", "call_id": "c", "messages": messages, "completion": completion, **facts})


def index_of(*steps: Step) -> Conversations:
    index = Conversations()
    for step in steps:
        index.add(step)
    return index


def test_a_request_without_an_answer_finds_what_it_continues_the_longest_first() -> None:
    first = [SYSTEM, said("user", "a")]
    second = [*first, said("assistant", "1"), said("user", "b")]
    request = [*second, said("assistant", "2"), said("user", "c")]
    index = index_of(step_of(first, "1"), step_of(first, "one"), step_of(second, "2"), step_of(request))
    assert list(index.continued(3)) == [2, 1, 0]
    assert list(index.continued(2)) == [1, 0]
    assert [index.twin(at) for at in range(4)] == [None, 0, None, None]


def test_equal_messages_of_other_objects_and_other_spellings_of_numbers_continue() -> None:
    before = [{"role": "user", "content": [{"type": "text", "text": "a", "weight": 1}]}]
    after = [{"content": [{"weight": 1.0, "text": "a", "type": "text"}], "role": "user"}, said("assistant", "b")]
    assert list(index_of(step_of(before, "b"), step_of(after)).continued(1)) == [0]


@pytest.mark.parametrize("change", [said("user", "A"), said("system", "a")])
def test_an_edited_history_continues_nothing_and_says_where_it_leaves(change: dict[str, Any]) -> None:
    before = [SYSTEM, said("user", "a"), said("assistant", "b"), said("user", "c")]
    index = index_of(step_of(before, "d"), step_of([SYSTEM, change, *before[2:], said("assistant", "d")]))
    assert list(index.continued(1)) == []
    assert (index.repeated(1).depth, index.repeated(1).place) == (1, 0)


def test_a_step_whose_answer_goes_on_from_its_last_message_is_continued_by_both_parts() -> None:
    begun = [said("user", "a"), said("assistant", "One")]
    going_on = step_of(begun, " two.", sampling={"continue_final_message": True})
    index = index_of(going_on, step_of([begun[0], said("assistant", "One two."), said("user", "b")]))
    assert index.request(0).depth == 1
    assert list(index.continued(1)) == [0]


def test_lists_that_grow_shrink_and_fork_stand_where_plain_ones_do() -> None:
    """A stored list is placed from where it had got to: also a part of it that is shorter."""
    store, messages = ListStore(), [said("user" if at % 2 else "assistant", str(at)) for at in range(8)]
    fork = [*messages[:3], said("user", "other")]
    parts = [messages[:4], messages[:8], messages[:2], fork, messages[:6], messages[:4]]
    stored, plain = Conversations(), Conversations()
    for part in parts:
        at = stored.add(step_of(store.add_items(list(part))))
        plain.add(step_of([dict(one) for one in part]))
        assert stored.request(at).depth == len(part)
        assert list(stored.continued(at)) == list(plain.continued(at))
        assert stored.twin(at) == plain.twin(at)


def operations(function: Callable[[], object]) -> int:
    called = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal called
        called += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(before)
    return called


def test_each_turn_costs_its_new_messages() -> None:
    store, history = ListStore(), [SYSTEM]
    index, costs = Conversations(), []
    for at in range(200):
        history += [said("user", f"question {at}"), said("assistant", f"answer {at}")]
        step = step_of(store.add_items(history[:-1]))
        costs.append(operations(lambda step=step: next(index.continued(index.add(step)), None)))  # type: ignore[misc]
    assert costs[-1] == costs[10]
