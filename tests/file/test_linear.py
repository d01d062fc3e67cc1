"""Nothing grows with the square of a line: not what reading it takes, nor what it becomes when it is written again."""

from __future__ import annotations

import copy
import gc
import json
import multiprocessing
import pickle
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rollout_trace as rt
from rollout_trace import read
from rollout_trace.data.lists import ListStore
from rollout_trace.data.model import Step, shared
from rollout_trace.data.tokens import TokenStore
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.file.decode import decode
from rollout_trace.file.encode import encode

Rows = list[Any]


def line(**fields: Any) -> bytes:
    return json.dumps({"schema": "rollout-trace/1", "id": "t", **fields}, separators=(",", ":")).encode()


def of_rows(count: int, rows: list[Rows]) -> bytes:
    """A line whose steps refer to these rows of ``count`` messages."""
    messages = [{"role": "user", "content": f"message {n}"} for n in range(count)]
    return line(messages=messages, steps=[{"id": str(at), "messages": one} for at, one in enumerate(rows)])


MESSAGES: dict[str, Callable[[int], bytes]] = {
    "sliding-window": lambda n: of_rows(n + 50, [[[at, at + 50]] for at in range(n)]),
    "window-behind-a-system-prompt": lambda n: of_rows(n + 500, [[0, [at + 1, at + 500]] for at in range(n)]),
    "repeated-ranges": lambda n: of_rows(100, [[[0, 100]] * 20 for _ in range(n)]),
    "overlapping-tails": lambda n: of_rows(n, [[[n - at - 1, n]] for at in range(n)]),
    "overlapping-middles": lambda n: of_rows(2 * n, [[[n - at - 1, n + at]] for at in range(1, n)]),
    "every-other-row": lambda n: of_rows(2 * n, [[[2 * at, 2 * at + 1]] for at in range(n)]),
}


def peak(function: Callable[[], Any]) -> int:
    """Bytes that a call takes at most, what it gives back included."""
    function()
    gc.collect()
    tracemalloc.start()
    try:
        found = function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        del found


@pytest.mark.parametrize("make", MESSAGES.values(), ids=MESSAGES)
def test_rows_are_read_in_memory_that_grows_with_the_line(make: Callable[[int], bytes]) -> None:
    small, large = make(400), make(1600)
    growth = peak(lambda: decode(large)) / peak(lambda: decode(small))
    assert growth < 1.3 * len(large) / len(small)


@pytest.mark.parametrize("make", MESSAGES.values(), ids=MESSAGES)
def test_rows_are_written_again_as_short_as_they_were(make: Callable[[int], bytes]) -> None:
    held = json.loads(make(300))
    again = encode(decode(make(300)))
    found = json.loads(again)
    rows = [len(json.dumps([step["messages"] for step in one["steps"]])) for one in (held, found)]
    assert rows[1] <= rows[0]
    assert len(found["messages"]) <= len(held["messages"])
    assert encode(decode(again)) == again
    for step, one in zip(decode(again).steps, decode(make(300)).steps, strict=True):
        assert step.messages == one.messages


def test_rows_that_no_step_uses_are_not_written() -> None:
    trajectory = decode(of_rows(100, [[[40, 50]], [[5, 9], 45, 46, 47, [90, 95]]]))
    again = encode(trajectory)
    assert [message["content"] for message in json.loads(again)["messages"]] == [
        f"message {n}" for n in (*range(5, 9), *range(40, 50), *range(90, 95))
    ]
    assert [step.messages for step in decode(again).steps] == [step.messages for step in trajectory.steps]
    assert json.loads(encode(Trajectory(steps=trajectory.steps[:1])))["messages"] == trajectory.steps[0].messages


def test_rows_of_two_lines_and_a_list_of_the_users_own_are_written_to_one() -> None:
    one, other = decode(of_rows(9, [[[2, 8]]])), decode(of_rows(7, [[0, 3], [[0, 7]]]))
    own = Step(id="own", call_id="own", messages=[*(one.steps[0].messages or ()), {"role": "user", "content": "new"}])
    steps = [*one.steps, *other.steps, own]
    assert [step.messages for step in decode(encode(Trajectory(steps=steps))).steps] == [
        step.messages for step in steps
    ]


def interleaved(turns: int, said: str) -> Trajectory:
    """Two agents that take turns in one trajectory, each with a conversation of its own."""
    store: ListStore = ListStore()
    talks: list[list[Any]] = [[], []]
    steps = []
    for turn in range(turns):
        talk = talks[turn % 2]
        talk += [{"role": "user", "content": f"agent {turn % 2}, turn {turn}"}, {"role": "assistant", "content": said}]
        steps.append(Step(id=str(turn), call_id=str(turn), index=turn, messages=store.add_items(list(talk))))  # type: ignore[arg-type]
    return Trajectory(id="t", steps=steps)


@pytest.mark.parametrize("said", ["ok", "x" * 1200], ids=["short", "long"])
def test_a_line_grows_with_what_is_new_in_each_step(said: str) -> None:
    """Of agents that take turns, and of answers that are always the same: neither breaks the others' runs."""
    sizes = [len(encode(interleaved(turns, said))) for turns in (400, 800, 1600)]
    assert sizes[2] - sizes[1] < 2.2 * (sizes[1] - sizes[0])
    assert decode(encode(interleaved(90, said))) == interleaved(90, said)


# Token ids


def grown(turns: int, new: int = 4) -> list[tuple[list[int], list[int]]]:
    """Prompt and completion of each turn of a conversation of distinct ids."""
    whole = list(range(turns * new))
    return [(whole[: at * new + 1], whole[at * new + 1 : (at + 1) * new]) for at in range(turns)]


def plain(row: list[int], **more: Any) -> dict[str, Any]:
    return {"ids": row, **more}


def chained(turns: int) -> bytes:
    """Every turn a segment that continues the end of the one before."""
    new = 4
    segments = [plain(list(range(new)))]
    segments += [plain(list(range(at * new, (at + 1) * new)), **{"from": [at - 1, at * new]}) for at in range(1, turns)]
    return _steps(turns, segments, list(range(turns)))


def of_the_last(turns: int) -> bytes:
    """The same chain, and every step a part of its last segment."""
    return _steps(turns, json.loads(chained(turns))["segments"], [turns - 1] * turns)


def going_on(turns: int) -> bytes:
    """Every turn begins anew inside a segment that goes on with the same ids."""
    new = 4
    segments = [plain(list(range(turns * new)))]
    segments += [plain(list(range(at * new, (at + 1) * new)), **{"from": [0, at * new]}) for at in range(1, turns)]
    return _steps(turns, segments, list(range(turns)))


def _steps(turns: int, segments: list[dict[str, Any]], of: list[int]) -> bytes:
    tokens = [{"segment": of[at], "prompt": at * 4 + 1, "end": at * 4 + 4} for at in range(turns)]
    return line(segments=segments, steps=[{"id": str(at), "tokens": one} for at, one in enumerate(tokens)])


SEGMENTS = {"chained": chained, "of-the-last": of_the_last, "going-on": going_on}


@pytest.mark.parametrize("make", SEGMENTS.values(), ids=SEGMENTS)
def test_segments_of_other_writers_become_ours(make: Callable[[int], bytes]) -> None:
    trajectory = decode(make(50))
    for step, (prompt, completion) in zip(trajectory.steps, grown(50), strict=True):
        assert step.prompt_token_ids is not None
        assert step.prompt_token_ids.tolist() == prompt
        assert step.completion_token_ids is not None
        assert step.completion_token_ids.tolist() == completion
    (row,) = trajectory.sequences()
    assert row.token_ids.tolist() == list(range(200))
    assert json.loads(encode(trajectory))["segments"] == [{"ids": list(range(200))}]


@pytest.mark.parametrize("make", SEGMENTS.values(), ids=SEGMENTS)
def test_sequences_of_other_writers_segments_take_no_more_than_of_ours(make: Callable[[int], bytes]) -> None:
    foreign = decode(make(800))
    ours = decode(encode(foreign))
    assert peak(lambda: foreign.sequences()) < 1.1 * peak(lambda: ours.sequences())


def test_ids_that_segments_repeat_are_held_once() -> None:
    """A file may hold each prompt whole, which is long; in memory they share what they share."""
    whole = list(range(20_000))
    ends = range(1000, 20_001, 1000)
    segments = [plain(whole[:end]) for end in ends]
    steps = [{"id": str(end), "tokens": {"segment": at, "prompt": end - 5, "end": end}} for at, end in enumerate(ends)]
    trajectory = decode(line(segments=segments, steps=steps))
    (segment,) = {shared(step, "prompt_token_ids").segment for step in trajectory.steps}
    assert segment.own_ids.tolist() == whole
    assert len(encode(trajectory)) < 1.1 * len(json.dumps(whole, separators=(",", ":"))) + 100 * len(steps)


def test_a_segment_may_continue_another_before_its_own_ids() -> None:
    """Ours continue one inside its own; here 70 follows 5, which is an id of the first segment."""
    segments = [plain([5, 6, 7]), plain([99, 98], **{"from": [0, 2]}), plain([70, 71], **{"from": [1, 1]})]
    segments.append(plain([6, 99, 98, 97], **{"from": [2, 1]}))
    ends = [(0, 3), (1, 4), (2, 3), (3, 5)]
    steps = [{"id": str(at), "tokens": {"segment": at, "prompt": end - 1, "end": end}} for at, end in ends]
    trajectory = decode(line(segments=segments, steps=steps))
    assert [row.token_ids.tolist() for row in trajectory.sequences()] == [[5, 6, 7], [5, 6, 99, 98, 97], [5, 70, 71]]
    assert json.loads(encode(trajectory))["segments"] == [
        {"ids": [5, 6, 7]},
        {"from": [0, 2], "ids": [99, 98, 97]},
        {"from": [0, 1], "ids": [70, 71]},
    ]


def drifting(turns: int) -> bytes:
    """Every turn parts one id before the end of the turn before: each segment continues the last one's middle."""
    segments = [plain([0, 1, 2])]
    segments += [plain([100 + at, 1, 2], **{"from": [at - 1, 2 * at]}) for at in range(1, turns)]
    tokens = [{"segment": at, "prompt": 2 * at + 1, "end": 2 * at + 3} for at in range(turns)]
    return line(segments=segments, steps=[{"id": str(at), "tokens": one} for at, one in enumerate(tokens)])


def test_a_tree_of_any_depth_is_read_pickled_and_copied() -> None:
    trajectory = decode(drifting(2000))
    assert json.loads(encode(trajectory))["segments"] == json.loads(drifting(2000))["segments"]
    last = trajectory.steps[-1]
    assert pickle.loads(pickle.dumps(last)) == last
    assert copy.deepcopy(trajectory).steps[-1] == last
    assert pickle.loads(pickle.dumps(trajectory)).steps[-1] == last


# Pickles


def turns(count: int) -> Trajectory:
    """A recorded conversation of so many turns."""
    generator, tokens, messages = np.random.default_rng(count), TokenStore(), ListStore()
    row, steps, said = np.empty(0, np.int32), [], []
    for turn in range(count):
        row = np.append(row, generator.integers(0, 150_000, 90).astype(np.int32))
        said.append({"role": "user", "content": f"question {turn} " + "x" * 300})
        prompt, completion = tokens.add(row, generator.integers(0, 150_000, 30).astype(np.int32))
        assert completion is not None
        steps.append(
            Step(
                id=f"c{turn}.0",
                call_id=f"c{turn}",
                index=turn,
                messages=messages.add_items(list(said)),  # type: ignore[arg-type]
                prompt_token_ids=prompt,  # type: ignore[arg-type]
                completion_token_ids=completion,  # type: ignore[arg-type]
                logprobs=-generator.random(30).astype(np.float32),
                metadata={"turn": turn},
            )
        )
        said.append({"role": "assistant", "content": f"answer {turn} " + "y" * 300})
        row = np.append(row, completion.get())
    tokens.finish()
    return Trajectory(id="t", steps=steps, reward=1.0)


@pytest.mark.parametrize("count", [50, 100])
@pytest.mark.parametrize("read_back", [False, True])
def test_a_pickle_costs_what_the_line_costs(read_back: bool, count: int) -> None:
    trajectory = decode(encode(turns(count))) if read_back else turns(count)
    data = pickle.dumps(trajectory)
    assert len(data) < len(encode(trajectory))
    back = pickle.loads(data)
    assert back == trajectory
    assert encode(back) == encode(trajectory)
    assert peak(lambda: pickle.loads(data)) < 5 * len(data)


def test_what_was_one_object_is_one_after_a_pickle() -> None:
    trajectory = turns(3)
    back, step = pickle.loads(pickle.dumps((trajectory, trajectory.steps[1])))
    assert back.steps[1] is step
    assert back.steps[0].messages[0] is back.steps[2].messages[0]
    with pytest.raises(AttributeError, match="recorded fact"):
        step.finish_reason = "stop"
    for name in ("prompt_token_ids", "completion_token_ids", "logprobs"):
        assert not getattr(step, name).flags.writeable
    step.reward = 0.5
    assert back.steps[1].reward == 0.5


def test_a_deep_copy_is_the_users_own() -> None:
    trajectory = turns(3)
    copied = copy.deepcopy(trajectory)
    assert copied == trajectory
    copied.steps[0].reward = 1.0
    assert copied.steps[0].metadata is not None
    copied.steps[0].metadata["turn"] = "changed"
    assert trajectory.steps[0].reward is None
    assert trajectory.steps[0].metadata == {"turn": 0}
    assert copied.steps[0].messages is not None
    assert trajectory.steps[0].messages is not None
    assert copied.steps[0].messages[0] is not trajectory.steps[0].messages[0]
    assert not copied.steps[0].logprobs.flags.writeable  # type: ignore[union-attr]


def test_what_cannot_be_changed_cannot_be_changed_out_of_a_pickle() -> None:
    step = Step(id="a", call_id="a", advantage=np.zeros(2, np.float32), prompt_token_ids=[1, 2])  # type: ignore[arg-type]
    back = pickle.loads(pickle.dumps(step))
    assert back == step
    with pytest.raises(TypeError):
        back.advantage[0] = 1.0
    assert not back.prompt_token_ids.flags.writeable
    assert back.prompt_token_ids.tolist() == [1, 2]


def test_an_array_of_the_users_own_stays_as_it_was_in_a_pickle() -> None:
    step = Step(id="a", call_id="a", metadata={"own": np.zeros(2)}, prompt_token_ids=[1, 2])  # type: ignore[arg-type]
    back = pickle.loads(pickle.dumps(step))
    back.metadata["own"][0] = 1.0
    assert not back.prompt_token_ids.flags.writeable
    assert back.prompt_token_ids.tolist() == [1, 2]


def test_an_open_trajectory_is_not_pickled() -> None:
    with rt.trajectory() as trajectory, pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(trajectory)


def _rewarded(trajectory: Trajectory) -> Trajectory:
    trajectory.reward = float(len(trajectory.steps))
    return trajectory


def test_trajectories_go_through_a_pool_of_processes() -> None:
    given = [turns(2), turns(3)]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        back = pool.map(_rewarded, given)
    assert [trajectory.reward for trajectory in back] == [2.0, 3.0]
    assert [trajectory.steps for trajectory in back] == [trajectory.steps for trajectory in given]


# Blank lines


@pytest.mark.parametrize("blank", [b"\n", b" \r\n", b"\t\n\n"])
def test_blank_lines_are_counted_and_cost_no_memory(blank: bytes, tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_bytes(line() + b"\n" + blank * 1_000_000 + b"  " + line() + b"\n{\n" + line())
    reader = read(path, on_error="skip")
    assert peak(lambda: list(read(path, on_error="skip"))) < 2_000_000
    assert len(list(reader)) == 3
    (error,) = reader.skipped
    assert str(error).startswith(f"{path}, line {3 + 1_000_000 * blank.count(10)}")
