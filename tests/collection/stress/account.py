"""Whether a file's account of many rollouts is that of the plan, of the server and of the agents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

import rollout_trace as rt
from tests.collection.stress.agents import Seen
from tests.collection.stress.plan import Call, Kind, Try, is_streamed, reward, tries
from tests.collection.stress.served import Log, by_asked

Rollouts = dict[tuple[int, int], list[Try]]
STATUS: dict[Kind, int | None] = {"ok": 200, "cut": 200, "429": 429, "500": 500, "reset": None, "stall": None}
"""HTTP status of an exchange, as the server sent it."""
ERRORS = {"429": "RateLimitError", "500": "InternalServerError", "reset": "APIConnectionError"}
"""What the SDK raises after the last exchange."""


def planned(tasks: int, samples: int) -> Rollouts:
    """The attempts at each rollout."""
    return {(task, index): list(tries(task, index)) for task in range(tasks) for index in range(samples)}


def assert_same(read: Iterable[rt.Trajectory], plan: Rollouts, log: Log, seen: Seen, *, rewarded: bool = True) -> None:
    """Every request is an exchange of one call in one trajectory, as the plan has it, and nothing else is there."""
    served = by_asked(log)
    held = list(read)
    trajectories = {_place(one): one for one in held}
    assert len(trajectories) == len(held)
    assert len({one.id for one in held}) == len(held)
    meant = {(*key, one.attempt) for key, attempts in plan.items() for one in attempts}
    others = [(place, trajectories[place].status, trajectories[place].error) for place in trajectories.keys() - meant]
    assert trajectories.keys() == meant, f"missing: {sorted(meant - trajectories.keys())}; not meant: {others}"
    for (task, index), attempts in plan.items():
        for attempt in attempts:
            own = trajectories[task, index, attempt.attempt]
            last = _assert_attempt(own, attempt, served)
            if rewarded:
                expected = reward(task, index, last) if attempt.status == "completed" else None
                assert own.reward == expected, own.task
    assert not served, f"{len(served)} messages that were not to be asked: {list(served)[:3]}"
    _assert_seen(seen, held)


def _place(one: rt.Trajectory) -> tuple[int, int, int]:
    assert one.task is not None
    assert one.task.id is not None
    assert one.metadata is not None
    assert one.rollout_index is not None
    assert one.task.id == one.group_id
    return int(one.task.id.removeprefix("t")), one.rollout_index, one.metadata["collect"]["attempt"]


def _assert_attempt(own: rt.Trajectory, attempt: Try, served: dict[str, Log]) -> str:
    """The steps of one trajectory; the last text."""
    assert own.status == attempt.status, (own.task, own.error)
    assert (own.error is None) == (attempt.status == "completed")
    assert len(own.steps) == len(attempt.calls)
    text = ""
    for position, (step, (call, kinds)) in enumerate(zip(own.steps, attempt.calls, strict=True)):
        assert step.messages is not None
        assert len(step.messages) == 2 * position + 1
        asked = step.messages[-1]["content"]
        assert Call.of(asked) == call
        records = served.pop(asked)
        assert [record["status"] for record in records] == [STATUS[kind] for kind in kinds]
        assert [one.status for one in step.attempts] == [_recorded(kind, is_streamed(call)) for kind in kinds]
        if kinds[-1] != "stall":
            assert [one.error is None for one in step.attempts] == [kind == "ok" for kind in kinds]
        if kinds[-1] == "ok":
            assert step.status == ("superseded" if attempt.will_retry else "ok")
            assert_answered(step, records[-1])
            text = records[-1]["text"]
        else:
            _assert_failed(own, step, kinds[-1], is_streamed(call))
    return text


def _recorded(kind: Kind, streamed: bool) -> int | None:
    """The status that the recorder sees: of a body that is cut the SDK gets an exception, and no answer."""
    return None if kind == "cut" and not streamed else STATUS[kind]


def assert_answered(step: rt.Step, record: dict[str, object]) -> None:
    """The step is the server's answer, token for token."""
    assert record["completed"]
    assert step.response_id == record["id"]
    assert step.token_issue is None
    assert step.completion is not None
    assert step.prompt_token_ids is not None
    assert step.completion_token_ids is not None
    assert step.completion.content == record["text"]
    assert step.prompt_token_ids.tolist() == record["prompt"]
    assert step.completion_token_ids.tolist() == record["ids"]
    np.testing.assert_array_equal(step.logprobs, np.array(record["logprobs"], np.float32))


def _assert_failed(own: rt.Trajectory, step: rt.Step, kind: Kind, streamed: bool) -> None:
    assert step.status in ("error", "cancelled", "abandoned"), step.status
    assert own.error is not None
    if kind in ERRORS:
        assert (step.status, own.error.type) == ("error", f"{ERRORS[kind]}"), own.error
    elif kind == "stall":
        assert own.status == "timeout"
        assert step.completion_token_ids is None
    else:
        assert streamed
        assert step.status == "error"


def _assert_seen(seen: Seen, trajectories: Sequence[rt.Trajectory]) -> None:
    """What the agents have in their hands is what the steps hold; they saw each call end once."""
    steps = {step.messages[-1]["content"]: step for one in trajectories for step in one.steps if step.messages}
    times = Counter(asked for asked, _, _ in seen)
    assert set(times.values()) <= {1}
    left_behind = {asked for asked, step in steps.items() if asked not in times}
    assert all(steps[asked].completion_token_ids is None for asked in left_behind)
    for asked, answer_id, text in seen:
        step = steps[asked]
        if step.status in ("ok", "superseded"):
            assert step.completion is not None
            assert (step.response_id, step.completion.content) == (answer_id, text)
        else:
            assert text == ""
