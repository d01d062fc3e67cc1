"""A recorder that fails inside never reaches the caller; it is counted, and shown on the step."""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
from collections.abc import Callable
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace.record.call import Call
from rollout_trace.testing import Fault
from tests.amount import some
from tests.clients.either import Kind, done, each, entered, shown

from .harness import CHAT, Run, World, bare, run, since, traffic, wrapped


class Injected(RuntimeError):
    """The recorder's own failure."""


def fail(*_: Any, **__: Any) -> Any:
    raise Injected("injected")


def break_in_production(monkeypatch: pytest.MonkeyPatch, *hooks: str, by: Callable[..., Any] = fail) -> None:
    """Lets parts of the recorder raise, and hides from it that this is a test (pytest says so anew in each phase)."""
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    for hook in hooks:
        monkeypatch.setattr(f"rollout_trace.{hook}", by)


async def create(world: World, name: str, **options: Any) -> Any:
    asked = {"logprobs": True, "extra_body": {"return_token_ids": True}, "user": name, **options}
    return await done(world.client.chat.completions.create(**CHAT, **asked))


async def stream(world: World, name: str) -> Any:
    seen: list[Any] = []
    try:
        async for chunk in each(await create(world, name, stream=True)):
            seen.append(shown(chunk))
    except Exception as error:
        seen.append(shown(error))
    return seen


async def early_close(world: World, name: str) -> Any:
    answer = await create(world, name, stream=True)
    first = await anext(answer) if world.kind == "async" else next(answer)
    await done(answer.close())
    return first


async def raw_lines(world: World, name: str) -> Any:
    options = {**CHAT, "user": name, "stream": True}
    async with entered(world.client.chat.completions.with_streaming_response.create(**options)) as response:
        return [line async for line in each(response.iter_lines())]


class Speechless(Exception):
    def __str__(self) -> str:
        raise AttributeError("no words")


def test_a_failure_that_cannot_be_told_stays_inside_too(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of an HTTP client's own response may be."""

    def speechless(*_: Any) -> Any:
        raise Speechless

    break_in_production(monkeypatch, "record.call.Call.answered", by=speechless)
    ours = run(kind, "fine", functools.partial(create, name="x"), wrap=wrapped)
    assert ours.outcome[0] == "returned", ours.outcome
    (step,) = ours.steps
    assert step.token_issue is not None
    assert "Speechless (its __str__ raised AttributeError)" in step.token_issue.message


RETRIED = [Fault(status=429, headers={"retry-after-ms": "1"}), "fine"]
SCENARIOS: dict[str, tuple[Any, Callable[[World, str], Any]]] = {
    "unary": ("fine", create),
    "stream": ("fine", stream),
    "early close": (Fault("a longer answer", hold_after=1), early_close),
    "lines": ("fine", raw_lines),
    "refused": (Fault(status=400), create),
    "refused stream": (Fault(status=400), stream),
    "retried": (RETRIED, create),
    "cut": (Fault("fine", cut_after=2), stream),
    "error event": (Fault("fine", error_event_after=2), stream),
    "bad json": (Fault("fine", bad_json=True), create),
}
STREAMS = {"stream", "early close", "lines", "cut", "error event"}
WHOLE = {"unary", "retried", "bad json"}
FAILED = {"refused", "refused stream", "retried"}
ALL = set(SCENARIOS)

# Each hook, and the scenarios that surely pass it.
HOOKS: dict[str, set[str]] = {
    "record.call.Call.__init__": ALL,
    "record.call.Call.attempt": ALL,
    "record.call.Call.answered": STREAMS | WHOLE,
    "record.call.Call.receive": STREAMS,
    "record.call.Call.body": WHOLE,
    "record.call.Call.end": ALL,
    "record.call.Call.attempt_failed": FAILED,
    "record.call.Call.size": ALL,
    "clients.recorder.place": ALL,
    "clients.stainless.tee": STREAMS,
    "clients.stainless.Request._add_capture_fields": ALL,
    "clients.sdks.protocol_of": ALL,
    "record.call_steps.exchange_of": ALL,
    "record.call_steps.unpack": ALL,
    "record.log.StepLog.add": ALL,
    "record.log.StepLog.close": ALL,
    "record.lifecycle._close": ALL,
    "record.lifecycle.write_closed": ALL,
}
# Those that belong to one call, whose step says so.
ON_THE_STEP = {name for name in HOOKS if name.startswith("record.call.Call.") and name != "record.call.Call.__init__"}
ON_THE_STEP |= {"clients.stainless.tee", "record.call_steps.exchange_of", "record.call_steps.unpack"}


class Observed:
    """What the scenarios recorded, by name."""

    def __init__(self) -> None:
        self.counted: dict[str, int] = {}
        self.trajectories: dict[str, rt.Trajectory] = {}

    async def __call__(self, world: World) -> Any:
        seen = {}
        for name, (_, scenario) in SCENARIOS.items():
            before = rt.stats()
            with rt.trajectory(name) as trajectory:
                try:
                    seen[name] = shown(await scenario(world, name))
                except Exception as error:
                    seen[name] = shown(error)
            # A stream that broke off is closed by older SDKs only when it is collected, over several turns of the loop.
            gc.collect()
            for _ in range(100 if world.kind == "async" else 0):
                await asyncio.sleep(0)
            list(trajectory.steps)  # Decoded here, not when the recording of `run` ends.
            self.counted[name] = since(before).recorder_errors
            self.trajectories[name] = trajectory
        return seen


def all_scenarios(kind: Kind, observed: Observed, wrap: Callable[[Any], Any] = wrapped) -> Run:
    return run(kind, lambda request: SCENARIOS[request["user"]][0], observed, wrap=wrap, max_retries=1)


@functools.lru_cache
def plain_run(kind: Kind) -> Run:
    return all_scenarios(kind, Observed(), wrap=bare)


def assert_unseen(kind: Kind, observed: Observed) -> None:
    found, plain = all_scenarios(kind, observed), plain_run(kind)
    assert found.outcome == plain.outcome
    assert traffic(found.server) == traffic(plain.server)
    assert [r.connection for r in found.server.requests] == [r.connection for r in plain.server.requests]


@pytest.mark.parametrize("hook", some(HOOKS, *list(HOOKS)[::3]))
def test_the_caller_sees_nothing(kind: Kind, hook: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the recorder raises, caller and server see what they see without it, and the failure is counted."""
    break_in_production(monkeypatch, hook)
    observed = Observed()
    assert_unseen(kind, observed)
    assert {name for name, errors in observed.counted.items() if errors} >= HOOKS[hook]


@pytest.mark.parametrize("hook", some(sorted(ON_THE_STEP), *sorted(ON_THE_STEP)[::2]))
def test_the_step_says_so(kind: Kind, hook: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step whose recording failed says that, and holds no ids or logprobs."""
    break_in_production(monkeypatch, hook)
    observed = Observed()
    all_scenarios(kind, observed)
    for name in HOOKS[hook]:
        trajectory = observed.trajectories[name]
        assert not trajectory.is_open, name
        (step,) = trajectory.steps
        assert step.token_issue is not None, name
        assert step.token_issue.code == "recorder_failed", name
        assert "Injected: injected" in step.token_issue.message
        assert (step.prompt_token_ids, step.completion_token_ids, step.logprobs) == (None, None, None)


def test_what_could_not_be_decoded_is_no_success(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller got an answer; the step that stands for it has none, and does not count as one that has."""
    break_in_production(monkeypatch, "record.call_steps.exchange_of")
    observed = Observed()
    all_scenarios(kind, observed)
    steps = [step for trajectory in observed.trajectories.values() for step in trajectory.steps]
    assert {(step.status, step.completion) for step in steps} == {("error", None)}


def test_a_failure_in_the_failure(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that can be made in no way is lost, counted, and seen by nobody."""
    break_in_production(monkeypatch, "record.call_steps.exchange_of", "record.call_steps._undecodable_step")
    observed = Observed()
    assert_unseen(kind, observed)
    assert all(observed.counted.values())


def test_a_lost_chunk(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """When one chunk in the middle is lost, the step does not pass for whole."""
    receive, count = Call.receive, 0

    def lose_one(call: Call, chunk: bytes) -> None:
        nonlocal count
        count += 1
        if count == 2:
            fail()
        receive(call, chunk)

    break_in_production(monkeypatch, "record.call.Call.receive", by=lose_one)

    async def scenario(world: World) -> Any:
        return await stream(world, "")

    found = run(kind, Fault("a longer answer", hold_after=3, no_done=True), reading_on(scenario))
    assert count > 2
    assert found.stats.recorder_errors == 1
    assert found.step.token_issue is not None
    assert found.step.token_issue.code == "recorder_failed"
    assert found.step.completion_token_ids is None


def reading_on(scenario: Callable[[World], Any]) -> Callable[[World], Any]:
    """Lets the server send its chunks in pieces: one, and the rest when the caller has come to wait for it."""

    async def whole(world: World) -> Any:
        world.server.release()
        return await scenario(world)

    return whole


class BadWriter:
    """A place to write to that fails."""

    def write(self, trajectory: rt.Trajectory) -> None:
        fail()


def test_writing_fails(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trajectory that cannot be written stops no call: the recording says so when it ends."""
    break_in_production(monkeypatch)
    observed = Observed()
    with pytest.raises(rt.WriteError, match="injected"):
        with rt.recording(BadWriter()):
            assert_unseen(kind, observed)
    assert not any(trajectory.is_open for trajectory in observed.trajectories.values())


def test_it_is_logged_once(kind: Kind, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Many failures of one kind are one line in the log, with their place in the code."""
    break_in_production(monkeypatch, "record.call.Call.attempt")
    with caplog.at_level(logging.WARNING, "rollout_trace"):
        found = all_scenarios(kind, Observed())
    assert found.stats.recorder_errors >= len(SCENARIOS)
    (line,) = (message for message in caplog.messages if "Injected: injected" in message)
    assert line.startswith("recording failed in attempt (test_recorder_faults.py, line ")
    assert line.endswith("; the call itself goes on, its step says so")


@pytest.mark.parametrize("hook", ["attempt", "answered", "body"])
def test_under_pytest_it_is_raised(kind: Kind, hook: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a test the recorder's failure is the test's."""
    monkeypatch.setattr(Call, hook, fail)

    async def scenario(world: World) -> Any:
        return await create(world, "unary")

    found = run(kind, "fine", scenario)
    assert found.outcome[0] == "raised"
    assert found.outcome[1][1] == "injected"
