"""Messages and tools of a step are lists in everything but one: what would be lost when it is added is refused."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from openai import OpenAI

import rollout_trace as rt
from rollout_trace.data.lists import ListSpan
from rollout_trace.testing import ScriptedServer

ASKED: list[Any] = [{"role": "user", "content": "hi"}]
TOOLS: list[Any] = [{"type": "function", "function": {"name": "add", "parameters": {}}}]


@pytest.fixture(scope="module")
def recorded() -> rt.Step:
    with ScriptedServer(["one"]) as server:
        client = rt.wrap_openai(OpenAI(base_url=server.base_url, api_key="none"))
        with rt.trajectory() as trajectory:
            client.chat.completions.create(model="m", messages=ASKED, tools=TOOLS)
        client.close()
    return trajectory.steps[0]


@pytest.fixture(params=["recorded", "read", "made"])
def step(request: pytest.FixtureRequest, recorded: rt.Step, tmp_path: Path) -> rt.Step:
    """From a client, from a file, and made by a user."""
    if request.param == "made":
        return rt.Step(id="a", call_id="a", messages=list(ASKED), tools=list(TOOLS))
    if request.param == "recorded":
        return recorded
    with rt.JSONLWriter(tmp_path / "a.jsonl") as out:
        out.write(rt.Trajectory(steps=[recorded]))
    (trajectory,) = rt.read(tmp_path / "a.jsonl")
    return trajectory.steps[0]


CHANGES: dict[str, Callable[[Any], Any]] = {
    "append": lambda items: items.append(1),
    "extend": lambda items: items.extend([1]),
    "insert": lambda items: items.insert(0, 1),
    "pop": lambda items: items.pop(),
    "remove": lambda items: items.remove(items[0]),
    "clear": lambda items: items.clear(),
    "sort": lambda items: items.sort(key=str),
    "reverse": lambda items: items.reverse(),
    "set": lambda items: items.__setitem__(0, 1),
    "slice": lambda items: items.__setitem__(slice(None), []),
    "delete": lambda items: items.__delitem__(0),
    "add": lambda items: items.__iadd__([1]),
    "repeat": lambda items: items.__imul__(2),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_is_refused(step: rt.Step, change: Callable[[Any], Any]) -> None:
    for items in (step.messages, step.tools):
        with pytest.raises(TypeError, match=r"cannot be changed: .* Change a copy, made with list\(\.\.\.\)\."):
            change(items)
    assert (step.messages, step.tools) == (ASKED, TOOLS)


def test_it_is_a_list_in_everything_else(step: rt.Step) -> None:
    items: Any = step.messages
    assert isinstance(items, list)
    assert items == ASKED == items
    assert repr(items) == repr(ASKED)
    assert json.dumps(items) == json.dumps(ASKED)
    assert orjson.dumps(items) == orjson.dumps(ASKED)
    assert items[:1] == ASKED
    sent = pickle.loads(pickle.dumps(items))
    assert sent == ASKED
    with pytest.raises(TypeError):
        sent.append(1)


@pytest.mark.parametrize("copied", [list, copy.copy, copy.deepcopy, lambda items: items.copy(), lambda items: items[:]])
def test_a_copy_is_a_plain_list(step: rt.Step, copied: Callable[[Any], Any]) -> None:
    own = copied(step.messages)
    own.append("more")
    assert (own, step.messages) == ([*ASKED, "more"], ASKED)


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda step: pickle.loads(pickle.dumps(step))])
def test_a_copied_step_keeps_them(step: rt.Step, again: Callable[[rt.Step], rt.Step]) -> None:
    other = again(step)
    assert other == step
    with pytest.raises(TypeError):
        other.messages.append(1)  # type: ignore[union-attr]


def test_a_list_that_grows_while_it_is_read_gives_what_was_asked_for() -> None:
    """Another thread decodes the next turn at that moment, and its messages go behind."""

    class Growing(list[Any]):
        def __len__(self) -> int:
            length = super().__len__()
            self.append("of the next turn")
            return length

    assert ListSpan(Growing(["first"]), 1).get() == ["first"]
