"""What `help()`, `dir()`, `repr()` and a type checker show of the public names."""

from __future__ import annotations

import inspect
import pydoc
import re
import subprocess
import sys
from dataclasses import fields, is_dataclass
from types import ModuleType
from typing import Any, get_args

import numpy as np
import pytest

import rollout_trace as rt
from rollout_trace import export
from rollout_trace.train.selection import SequenceOptions
from rollout_trace.wire import profiles as engines
from rollout_trace.wire.profiles import EngineName

CLASSES: dict[str, Any] = {name: getattr(rt, name) for name in rt.__all__ if inspect.isclass(getattr(rt, name))}
RECORDS = {name: kind for name, kind in CLASSES.items() if is_dataclass(kind)}


@pytest.mark.parametrize("name", RECORDS)
def test_help_shows_every_field_of_a_record(name: str) -> None:
    kind = RECORDS[name]
    head, _, listed = (inspect.getdoc(kind) or "").partition("\n\nAttributes:\n")
    assert head
    assert re.findall(r"^    (\w+) \(", listed, re.M) == [one.name for one in fields(kind) if one.name[0] != "_"]
    assert all(line.startswith(("    ", "")) for line in listed.splitlines())
    assert re.findall(r"^    (\w+) \(.*\)$", listed, re.M) == [], "fields without a text"
    assert "Attributes:" in pydoc.plain(pydoc.render_doc(kind))


def test_a_field_has_the_text_that_stands_below_it() -> None:
    said = inspect.getdoc(rt.Step) or ""
    assert "    logprobs (FloatArray | None): float32 [completion length], natural logarithm, finite and <= 0." in said
    assert "    index (int): Position within the trajectory, in the order in which calls began.\n" in said
    assert "    response_id (str | None): The provider's id of the answer.\n" in said
    lines = (inspect.getdoc(rt.Sequence) or "").splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("    token_source (TokenSource | None): "))
    assert lines[at + 1 : at + 3] == ["", "        Retokenised ids are never in the same row as others."]
    assert "    linear (bool): True: extend only the last sequence" in (inspect.getdoc(SequenceOptions) or "")


def test_without_its_source_a_class_still_has_its_docstring() -> None:
    """As in a program that is frozen to one file."""
    program = """
import linecache, rollout_trace.data.model as model
model.__file__ = "/nowhere/model.py"
linecache.clearcache()
linecache.getlines = lambda *_: []
assert model.Usage.__doc__.startswith("Token counts of one call"), model.Usage.__doc__
assert "Attributes" not in model.Usage.__doc__
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize("package", [rt, export])
def test_dir_shows_public_names_alone(package: ModuleType) -> None:
    public = set(package.__all__)
    assert public <= set(dir(package))
    others = {name: getattr(package, name) for name in dir(package) if name not in public}
    assert all(isinstance(value, ModuleType) for value in others.values())
    assert all(value.__doc__ and not name.startswith("_") for name, value in others.items())


def test_the_engines_of_the_type_are_those_of_the_table() -> None:
    assert set(get_args(EngineName)) == set(engines._PROFILES)
    assert inspect.signature(rt.wrap_openai).parameters["engine"].annotation == "EngineName | Engine | None"


def step(prompt: Any, completion: Any, **facts: Any) -> rt.Step:
    return rt.Step(id="s", call_id="c", prompt_token_ids=prompt, completion_token_ids=completion, **facts)


def test_reprs_are_short() -> None:
    long = step(np.arange(600), np.arange(600, 1100), logprobs=np.full(500, -1.0), messages=["long"] * 100)
    run = rt.Trajectory(id="t", task=rt.Task(id="gsm8k/17", data="long" * 1000), steps=[long], reward=1.0)
    assert repr(run) == "Trajectory('t', name='agent', task='gsm8k/17', completed, 1 steps, reward=1.0)"
    assert repr(run.sequences()) == "[Sequence(1100 ids, 500 sampled, 1 steps, reward=1.0)]"
    (cut,) = rt.Trajectory(steps=[step([1], [2, 3])]).sequences(max_length=2)
    assert repr(cut) == "Sequence(2 ids, 1 sampled, 1 steps, no logprobs, truncated, reward=None)"
    assert "task" not in repr(rt.Trajectory())


def test_every_public_record_says_what_its_fields_hold() -> None:
    """No field is `Any` where the values are known."""
    vague = {
        f"{name}.{one.name}"
        for name, kind in RECORDS.items()
        for one in fields(kind)
        if one.type == "Any" and one.name[0] != "_"
    }
    assert vague == {"Task.data", "ToolRun.arguments"}
