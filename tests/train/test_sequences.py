"""Sequences, against the rule written out, and the tree of segments under them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import rollout_trace as rt
from rollout_trace.data.model import Step
from rollout_trace.data.tokens import TokenStore
from tests.amount import amount, examples

IDS = st.lists(st.integers(0, 2), max_size=5)
Trace = list[tuple[list[int], list[int], bool]]

EXAMPLES = amount(100, 300, 10_000)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """The calls of a run: agents that take turns, each going on from what it has said, answered again (n > 1, retries),
    branching off, or drifting by one id; some answers are empty, some steps unusable."""
    talks: list[tuple[list[int], list[int]]] = [([], [])] * draw(st.integers(1, 3))
    made: Trace = []
    for _ in range(draw(st.integers(0, 9))):
        agent = draw(st.integers(0, len(talks) - 1))
        asked, said = talks[agent]
        whole = [*asked, *said]
        kind = draw(st.sampled_from(["on", "on", "on", "again", "branch", "drift", "anew"]))
        cut = draw(st.integers(0, len(whole))) if kind in ("branch", "drift") else len(whole)
        if kind == "again":
            prompt = asked
        elif kind == "anew":
            prompt = draw(IDS)
        elif kind == "drift" and cut < len(whole):
            prompt = [*whole[:cut], whole[cut] ^ 1, *whole[cut + 1 :], *draw(IDS)]
        else:
            prompt = [*whole[:cut], *draw(IDS)]
        completion = draw(IDS)
        talks[agent] = (prompt, completion)
        made.append((prompt, completion, draw(st.integers(0, 6)) > 0))
    return made


def by_the_rule(trace: Trace, *, linear: bool = False) -> list[tuple[list[int], list[int], list[float]]]:
    """The rule in ten lines: the longest exact prefix of the prompt, new ids masked 0, the completion 1."""
    rows: list[tuple[list[int], list[int], list[float]]] = []
    for number, (prompt, completion, usable) in enumerate(trace):
        if not (usable and completion):
            continue
        fits = [row for row in (rows[-1:] if linear else rows) if prompt[: len(row[0])] == row[0]]
        row = max(fits, key=lambda row: len(row[0])) if fits else ([], [], [])
        rows += [] if fits else [row]
        new = prompt[len(row[0]) :]
        row[0].extend([*new, *completion])
        row[1].extend([0] * len(new) + [1] * len(completion))
        row[2].extend([0.0] * len(new) + [-1.0 - number] * len(completion))
    return rows


def step(number: int, prompt: Any, completion: Any, length: int, usable: bool) -> Step:
    logprobs: Any = [-1.0 - number] * length
    return Step(
        id=str(number), call_id=str(number), prompt_token_ids=prompt, completion_token_ids=completion,
        logprobs=logprobs, trainable=usable,
    )  # fmt: skip


def found(trajectory: rt.Trajectory, *, linear: bool = False) -> list[tuple[list[int], list[int], list[float]]]:
    rows = []
    for row in trajectory.sequences(linear=linear):
        assert row.logprobs is not None
        rows.append((row.token_ids.tolist(), row.loss_mask.tolist(), row.logprobs.tolist()))
    return rows


@settings(max_examples=EXAMPLES)
@given(traces())
def test_rows_are_those_of_the_rule(trace: Trace) -> None:
    """For steps that share a tree, for steps with arrays of their own, and read back from a file."""
    store = TokenStore()
    shared, plain = [], []
    for number, (prompt, completion, usable) in enumerate(trace):
        asked, said = store.add(np.array(prompt, np.int32), np.array(completion, np.int32))
        shared.append(step(number, asked, said, len(completion), usable))
        plain.append(step(number, prompt, completion, len(completion), usable))
    expected = by_the_rule(trace)
    assert found(rt.Trajectory(steps=shared)) == expected
    assert found(rt.Trajectory(steps=plain)) == expected
    assert found(rt.Trajectory(steps=[*shared[:2], *plain[2:]])) == expected
    assert found(rt.Trajectory(steps=shared), linear=True) == by_the_rule(trace, linear=True)


@settings(max_examples=EXAMPLES // 5)
@given(traces(), st.booleans())
def test_every_sampled_token_is_trained_on_once(trace: Trace, linear: bool) -> None:
    """And the row of a step holds the very ids of the engine: up to its completion's end for its last step."""
    steps = [step(n, p, c, len(c), usable) for n, (p, c, usable) in enumerate(trace)]
    rows = rt.Trajectory(steps=steps).sequences(linear=linear)
    taken = {str(n): c for n, (_, c, usable) in enumerate(trace) if usable and c}
    assert sorted(name for row in rows for name in row.step_ids) == sorted(taken)
    assert (
        rows.report.trainable_tokens == sum(map(len, taken.values())) == sum(int(row.loss_mask.sum()) for row in rows)
    )
    for row in rows:
        for name, (start, end) in zip(row.step_ids, row.spans, strict=True):
            assert row.token_ids[start:end].tolist() == taken[name]
            assert row.token_ids[:start].tolist() == trace[int(name)][0]
        assert row.spans[-1][1] == len(row.token_ids)
    left = {name for ids in rows.report.left_out.values() for name in ids}
    assert left == {str(n) for n in range(len(trace))} - set(taken)


@settings(max_examples=examples(300))
@given(trace=traces())
def test_rows_survive_a_file(trace: Trace, tmp_path_factory: Any) -> None:
    """Also where the file's segments are a tree that another program made: equal ids in two segments."""
    path: Path = tmp_path_factory.mktemp("rows") / "rollouts.jsonl"
    steps = [step(n, p, c, len(c), usable) for n, (p, c, usable) in enumerate(trace)]
    with rt.JSONLWriter(path) as writer:
        writer.write(rt.Trajectory(steps=steps))
    (back,) = rt.read(path)
    assert found(back) == by_the_rule(trace)


def test_segments_that_are_no_tree_are_not_trusted(tmp_path: Path) -> None:
    """Two segments hold the same ids: the second turn still extends the first."""
    line = (
        '{"schema":"rollout-trace/1","id":"t","segments":[{"ids":[1,2,3]},{"ids":[1,2,3,4,5]}],"steps":['
        '{"id":"a","status":"ok","tokens":{"segment":0,"prompt":2,"end":3,"logprobs":[-1.0]}},'
        '{"id":"b","status":"ok","tokens":{"segment":1,"prompt":4,"end":5,"logprobs":[-2.0]}}]}\n'
    )
    (tmp_path / "other.jsonl").write_text(line)
    (trajectory,) = rt.read(tmp_path / "other.jsonl")
    assert found(trajectory) == [([1, 2, 3, 4, 5], [0, 0, 1, 0, 1], [0.0, 0.0, -1.0, 0.0, -2.0])]


def test_what_cannot_be_trained_on_is_left_out() -> None:
    """Failed, untrainable and distrusted steps, and steps without prompt ids."""
    good = step(0, [1], [2], 1, True)
    others = [
        replace(good, id="1", status="error"),
        replace(good, id="2", trainable=False),
        replace(good, id="3", token_issue=rt.TokenIssue(code="x", message="y")),
        replace(good, id="4", prompt_token_ids=None),
        replace(good, id="5", completion_token_ids=None, logprobs=None),
    ]
    rows = rt.Trajectory(steps=[*others, good], reward=0.5).sequences()
    assert [row.step_ids for row in rows] == [("0",)]
    assert rows[0].reward == 0.5


def test_a_row_whose_logprobs_are_not_all_there_has_none() -> None:
    """A zero in the place of a missing logprob would be a lie."""
    one = step(0, [1], [2], 1, True)
    other = step(1, [1, 2, 3], [2], 1, True)
    (row,) = rt.Trajectory(steps=[one, replace(other, logprobs=None)]).sequences()
    assert row.logprobs is None
    assert row.loss_mask.tolist() == [0, 1, 0, 1]
