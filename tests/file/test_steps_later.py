"""The steps of a trajectory that was read are made when they are looked at; all else is as if they were there."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rollout_trace as rt
from rollout_trace.data.lists import ListStore
from rollout_trace.data.model import Step, new_step
from rollout_trace.data.tokens import TokenStore
from rollout_trace.data.trajectory import complete_later
from rollout_trace.file import parallel
from rollout_trace.file.decode import decode
from rollout_trace.file.encode import encode
from rollout_trace.file.line_format import BadLine
from tests.file.test_round_trip import assert_same

TURNS = 5


def agent() -> rt.Trajectory:
    """Some turns, each with the ids and messages of those before it; more ids than are read with the line."""
    store, messages = TokenStore(), ListStore()
    said: list[Any] = []
    whole = np.empty(0, np.int32)
    steps = []
    for turn in range(TURNS):
        said.append({"role": "user", "content": f"turn {turn}"})
        prompt = np.concatenate([whole, np.arange(turn, turn + 200, dtype=np.int32)])
        answer = np.arange(50, dtype=np.int32)
        whole = np.concatenate([prompt, answer])
        asked, answered = store.add(prompt, answer)
        logprobs = np.full(50, -0.5, np.float32)
        logprobs.flags.writeable = False
        facts = {"id": f"s{turn}", "call_id": f"s{turn}", "index": turn, "logprobs": logprobs}
        ids = {"prompt_token_ids": asked, "completion_token_ids": answered}
        steps.append(new_step({**facts, **ids, "messages": messages.add_items(list(said))}))
    store.finish()
    return rt.Trajectory(id="run", steps=steps, reward=0.5, metadata={"a": 1})


LINE = encode(agent())


def count() -> int:
    """The steps that there are in this process."""
    gc.collect()
    return sum(type(one) is Step for one in gc.get_objects())


@pytest.mark.parametrize("workers", [1, 2])
def test_they_are_made_when_they_are_looked_at(workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "PAYS_OFF_BYTES", 0)
    (tmp_path / "a.jsonl").write_bytes(LINE * 3)
    before = count()
    found = list(rt.read(tmp_path / "a.jsonl", workers=workers))
    assert [(one.id, one.reward, one.metadata) for one in found] == [("run", 0.5, {"a": 1})] * 3
    assert count() == before
    assert len(found[0].steps) == TURNS
    assert count() == before + TURNS
    for one in found:
        assert_same(agent(), one)


def test_they_stay_what_they_were_made() -> None:
    trajectory = decode(LINE)
    trajectory.steps[1].reward = 1.0
    trajectory.steps.append(trajectory.steps[0])
    assert [step.reward for step in trajectory.steps] == [None, 1.0, *[None] * (TURNS - 1)]
    trajectory.steps = trajectory.steps[:2]
    assert [step.id for step in trajectory.steps] == ["s0", "s1"]


def test_others_are_set_in_their_place() -> None:
    trajectory = decode(LINE)
    trajectory.steps = []
    assert trajectory.steps == []
    assert len(decode(LINE).steps) == TURNS


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one)), lambda one: decode(encode(one))]
)
def test_copies_have_them(copied: Callable[[rt.Trajectory], rt.Trajectory]) -> None:
    assert_same(agent(), copied(decode(LINE)))


def test_a_trajectory_is_shown_and_compared_with_them() -> None:
    assert repr(decode(LINE)) == repr(agent())
    assert decode(LINE) == agent()


def test_several_threads_get_the_same_ones() -> None:
    trajectory = rt.Trajectory()
    inside = threading.Barrier(2, timeout=60)

    def made() -> list[str]:
        inside.wait()
        return ["a step"]

    complete_later(trajectory, steps=made)
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(trajectory.steps)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] is found[1] is trajectory.steps


def test_what_is_set_while_they_are_made_stays() -> None:
    trajectory = rt.Trajectory()

    def made() -> list[Step]:
        trajectory.steps = []
        return decode(LINE).steps

    complete_later(trajectory, steps=made)
    assert trajectory.steps == []


def test_the_line_is_not_kept() -> None:
    """A part that is not decoded may be a view of the line, which would stay in memory with it."""
    line = LINE.replace(b'"logprobs":', b'"top_logprobs":[],"logprobs":')
    before = sys.getrefcount(line)
    trajectory = decode(line)
    assert sys.getrefcount(line) == before
    assert trajectory.steps[0].top_logprobs == []


@pytest.mark.parametrize(
    ("there", "instead", "path"),
    [
        (b'"end":250', b'"end":9999', "$.steps[0].tokens.logprobs"),
        (b'"messages":[0]', b'"messages":[9]', "$.steps[0].messages"),
        (b'"segment":0', b'"segment":7', "$.steps[0].tokens.segment"),
        (b'"ids":[0,', b'"ids":[-1,', "$.segments[0].ids[0]"),
        (b'"ids":[0,', b'"ids":[', "$.steps[4].tokens"),
        (b"-0.5,", b"1e39,", "$.steps[0].tokens.logprobs"),
        (b"-0.5,", b"", "$.steps[0].tokens.logprobs"),
    ],
)
def test_a_line_is_refused_when_it_is_read(there: bytes, instead: bytes, path: str) -> None:
    line = LINE.replace(there, instead, 1)
    assert line != LINE
    with pytest.raises(BadLine) as caught:
        decode(line)
    assert caught.value.path == path
