"""Episodes for verifiers, without it. What it reads from them is tested with verifiers itself, in tests/consumers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

import rollout_trace as rt
from rollout_trace.data.model import Completion, Step, Usage
from rollout_trace.export import verifiers, write_verifiers
from rollout_trace.report import ExportReport
from tests.consumers import recorded
from tests.consumers.traces import Trace, traces, trajectory_of
from tests.strategies import PROFILE

Row = tuple[list[int], list[bool], list[float]]


def branches(trace: dict[str, Any]) -> list[Row]:
    """The rule that verifiers reads by: from each node that is nobody's parent up to its root, joined."""
    nodes = trace["nodes"]
    parents = {node["parent"] for node in nodes}
    found: list[Row] = []
    for leaf in range(len(nodes)):
        if leaf in parents:
            continue
        path, at = [], leaf
        while at is not None:
            path.append(nodes[at])
            at = nodes[at]["parent"]
        ids: list[int] = []
        mask: list[bool] = []
        logprobs: list[float] = []
        for node in reversed(path):
            compact = iter(node["logprobs"])
            ids += node["token_ids"]
            mask += node["mask"]
            logprobs += [next(compact) if sampled else 0.0 for sampled in node["mask"]]
            assert next(compact, None) is None
        found.append((ids, mask, logprobs))
    return sorted(found)


def rows(trajectory: rt.Trajectory) -> list[Row]:
    return sorted(
        (row.token_ids.tolist(), row.loss_mask.astype(bool).tolist(), row.logprobs.tolist())
        for row in trajectory.sequences()
        if row.logprobs is not None
    )


@given(traces())
@PROFILE
def test_branches_are_the_sequences(trace: Trace) -> None:
    trajectory = trajectory_of(trace)
    (episode,) = verifiers(trajectory)
    assert branches(episode["traces"][0]) == rows(trajectory)


def test_ids_are_stored_once() -> None:
    """A conversation that goes on costs the tokens that are new in each turn."""
    (trajectory, *_) = recorded.tool_agent()
    (episode,) = verifiers(trajectory)
    held = sum(len(node["token_ids"]) for node in episode["traces"][0]["nodes"])
    (row,) = trajectory.sequences()
    assert held == len(row.token_ids)


def test_branches_share_what_they_read_and_nothing_they_sampled() -> None:
    (trajectory,) = recorded.forked()
    (episode,) = verifiers(trajectory)
    nodes = episode["traces"][0]["nodes"]
    texts = [node["message"]["content"] for node in nodes]
    assert [texts.count(text) for text in ("Find it.", "Find it. So far: two ways were tried.")] == [1, 1]
    first = [node for node in nodes if node["message"]["content"] == "answer 1"]
    assert [(node["sampled"], bool(node["token_ids"])) for node in first] == [(True, True), (False, False)]
    assert len([node for node in nodes if node["sampled"]]) == len(trajectory.steps)


def test_an_answer_that_the_client_wrote_anew_is_not_a_second_message() -> None:
    """The ids go on although the message is another: the answer as it was sampled stands there once."""
    ids = [np.array(ids, np.int32) for ids in ([1], [2], [1, 2, 3], [4])]
    logprobs = np.array([-1.0], np.float32)
    before = [{"role": "user", "content": "a"}]
    after = [*before, {"role": "assistant", "content": "B", "name": "me"}, {"role": "user", "content": "c"}]
    steps = [
        Step(
            id=f"s{at}",
            call_id=f"c{at}",
            protocol="openai.chat",
            messages=messages,
            completion=Completion(content="b" if at == 0 else "d"),
            prompt_token_ids=ids[2 * at],
            completion_token_ids=ids[2 * at + 1],
            logprobs=logprobs,
            usage=Usage(input=1, output=1, cache_read=1),
        )
        for at, messages in enumerate((before, after))
    ]
    (episode,) = verifiers(rt.Trajectory(steps=steps))
    (trace,) = episode["traces"]
    assert [node["message"]["content"] for node in trace["nodes"]] == ["a", "b", "c", "d"]
    assert trace["calls"][0]["usage"] == {
        "prompt_tokens": 0,
        "completion_tokens": 1,
        "cached_input_tokens": 1,
        "reasoning_tokens": None,
        "cost": None,
    }


def test_what_became_text_is_not_trainable() -> None:
    """A sequence without logprobs is given as text: its trace has nothing to train on."""
    trajectory = trajectory_of([([1, 2], [3, 4], [-0.5, -0.25]), ([1, 2, 9], [6], [-1.0])])
    assert verifiers(trajectory)[0]["traces"][0]["agent"]["trainable"]
    trajectory.steps = [replace(step, logprobs=None) for step in trajectory.steps[:1]] + trajectory.steps[1:]
    assert verifiers(trajectory)[0]["traces"][0]["agent"]["trainable"]
    trajectory.steps = [replace(step, logprobs=None) for step in trajectory.steps]
    assert not verifiers(trajectory)[0]["traces"][0]["agent"]["trainable"]


def test_options_choose_the_sequences() -> None:
    (trajectory,) = recorded.failed_steps()
    report = ExportReport()
    (episode,) = verifiers(trajectory, report=report, allow={"not_trainable"})
    assert len(branches(episode["traces"][0])) == len(trajectory.sequences(allow={"not_trainable"})) == 4
    assert report.dropped == {
        f"steps left out: {reason}": 1 for reason in ("error", "abandoned", "superseded", "cached")
    }


def test_one_line_for_each_episode(tmp_path: Path) -> None:
    """The file holds what the function gives, to the last digit of a logprob; another name is refused."""
    made = recorded.tool_agent()
    path = tmp_path / "traces.jsonl"
    assert write_verifiers(path, made) == len(made)
    assert [json.loads(line) for line in path.read_bytes().splitlines()] == verifiers(made)
    with pytest.raises(ValueError, match=r"\.jsonl"):
        write_verifiers(tmp_path / "traces.txt", made)


def test_a_stream_is_not_held(tmp_path: Path) -> None:
    """Trajectories are let go before the last has come, however many there are."""
    import gc
    import weakref

    alive: list[weakref.ref[rt.Trajectory]] = []
    most = 0

    def stream() -> Iterator[rt.Trajectory]:
        nonlocal most
        for at in range(1000):
            trajectory = trajectory_of([([1, at], [2], [-1.0])])
            trajectory.id = trajectory.episode_id = f"t{at}"
            alive.append(weakref.ref(trajectory))
            yield trajectory
            del trajectory
            if at % 100 == 99:
                gc.collect()
                most = max(most, sum(one() is not None for one in alive))

    assert write_verifiers(tmp_path / "traces.jsonl", stream()) == 1000
    assert most < 300
