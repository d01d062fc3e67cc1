"""Whatever a file holds: importers raise FormatError or nothing, and what they give is sound and can be written."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rollout_trace as rt
from rollout_trace.file.encode import encode
from rollout_trace.file.reader import TrajectoryReader
from tests.amount import amount

from .files import DATA, NAMES, files_of, is_lines, load, text_of, values_of

EXAMPLES = amount(5, 12, 250)
HUGE = 10**400
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2**31, 2**63, 2**70, HUGE, -0.5, 0.5, 1e300, float("nan"), float("inf"), -1e39),
    *("", "x", "assistant", "tool", "$0", "token_id:9", "token_id:²", "2026-13-45T99:00:00Z", "\ud800", "\u0000"),
    *("attachment://h1", "https://x/y.png", "0001-01-01T00:00:00Z", "1" * 30),
    *([], {}, [None], [[]], [{}], [1, 2, 3], [-1], ["a"], {"a": 1}, {"id": []}, {"type": {}}, {"role": []}),
    *({"type": "text"}, {"type": "tool_use", "id": 3, "input": []}, [{"type": "tool_result", "tool_use_id": []}]),
    *([[0, 1]], [[1, 0]], [["a", "b", "c"]], {"content": [{"token": 1, "logprob": "x"}]}),
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each value inside a value."""
    if path:
        yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield from places(item, (*path, key))


def around(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path[:-1]:
        value = value[key]
    return value


def change(values: list[Any], data: st.DataObject) -> None:
    """Changes the values of a file in one place."""
    path = data.draw(st.sampled_from(list(places(values))), "path")
    holder, key = around(values, path), path[-1]
    kind = data.draw(st.sampled_from(["set", "set", "set", "delete", "double", "rename", "move"]), "change")
    if kind == "set":
        holder[key] = copy.deepcopy(data.draw(st.sampled_from(VALUES), "value"))
    elif kind == "delete":
        del holder[key]
    elif kind == "double" and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(holder[key]))
    elif kind == "rename" and isinstance(holder, dict):
        holder[data.draw(st.sampled_from(["", "type", "id", "content", "zzz"]), "name")] = holder.pop(key)
    else:
        other = data.draw(st.sampled_from(list(places(values))), "other")
        holder[key] = copy.deepcopy(around(values, (*other, None)) if other != path else None)


def check(trajectory: rt.Trajectory) -> None:
    """What is given is sound, can be written, and is read as it was."""
    for step in trajectory.steps:
        for name in ("logprobs",):
            array = getattr(step, name)
            assert array is None or (np.isfinite(array).all() and (array <= 0).all())
        count = step.completion_token_ids
        if count is not None and step.logprobs is not None:
            assert len(count) == len(step.logprobs)
    assert len({step.id for step in trajectory.steps}) == len(trajectory.steps)
    assert [step.index for step in trajectory.steps] == list(range(len(trajectory.steps)))
    assert trajectory.parent_id != trajectory.id
    encode(trajectory)
    trajectory.check()
    trajectory.sequences()


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), deadline=None)
@given(data=st.data())
def test_any_change_is_an_error_of_the_format_or_none(name: str, data: st.DataObject, tmp_path_factory: Any) -> None:
    path = data.draw(
        st.sampled_from([*files_of(name), *sorted((DATA.parent / "clis" / name).rglob("*.jsonl"))]), "file"
    )
    values = values_of(path)
    for _ in range(data.draw(st.integers(1, 4), "changes")):
        if values:
            change(values, data)
    folder = tmp_path_factory.mktemp("mutated")
    changed = Path(folder) / path.name
    text = text_of(path, values) if is_lines(path) or len(values) == 1 else text_of(path, [values])
    changed.write_text(text, encoding="utf-8")
    try:
        for trajectory in load(name, changed):
            check(trajectory)
    except rt.FormatError as error:
        problem = str(error)
    else:
        problem = str(changed)
    assert str(changed) in problem
    written = folder / "out.jsonl"
    skipping = load(name, changed, on_error="skip")
    with rt.JSONLWriter(written) as writer:
        for trajectory in skipping:
            check(trajectory)
            writer.write(trajectory)
    if skipping.report.trajectories:
        assert len(list(TrajectoryReader([str(written)], "raise"))) == skipping.report.trajectories
