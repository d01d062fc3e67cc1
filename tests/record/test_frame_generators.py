"""Generators inside frames: what their bodies do is the frame's, what their consumers do is not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace.integration import AgentFrame, Frame, active, run_async_generator, run_generator


class Part(Frame):
    """A frame that keeps how it ended."""

    ended_by: list[BaseException | None]

    def __init__(self) -> None:
        super().__init__(None, "part")
        self.ended_by = []

    def _ended(self, error: BaseException | None) -> None:
        self.ended_by.append(error)


def talk(seen: list[Any]) -> Generator[Any, Any, str]:
    """Yields what it is sent and what is thrown into it, and keeps the frame that it runs in."""
    given: Any = "begun"
    try:
        while given != "stop":
            seen.append(active())
            try:
                given = yield given
            except ValueError as error:
                given = error
    finally:
        seen.append(active())
    return "stopped"


def test_the_consumer_sees_no_difference() -> None:
    seen: list[Any] = []
    with rt.trajectory():
        frame = Part()
        outer = run_generator(frame, talk(seen))
        assert next(outer) == "begun"
        assert active() is None
        assert outer.send("more") == "more"
        error = ValueError("x")
        assert outer.throw(error) is error
        with pytest.raises(StopIteration) as stop:
            outer.send("stop")
    assert stop.value.value == "stopped"
    assert seen == [frame] * 4
    assert frame.ended_by == [None]


def test_a_generator_that_is_closed_is_closed_inside_the_frame() -> None:
    seen: list[Any] = []
    with rt.trajectory():
        frame = Part()
        outer = run_generator(frame, talk(seen))
        next(outer)
        outer.close()
        assert (active(), seen, frame.is_open) == (None, [frame] * 2, False)
    assert [type(error) for error in frame.ended_by] == [GeneratorExit]


def test_a_generator_that_fails_ends_the_frame_with_its_error() -> None:
    def fails() -> Generator[int, None, None]:
        yield 1
        raise LookupError("mine")

    with rt.trajectory():
        frame = Part()
        with pytest.raises(LookupError, match="mine"):
            list(run_generator(frame, fails()))
        assert active() is None
    assert [type(error) for error in frame.ended_by] == [LookupError]


def test_items_and_the_end_are_told() -> None:
    told: list[Any] = []

    def over(error: BaseException | None) -> None:
        told.append((error, frame.is_open))
        frame.end(error)

    with rt.trajectory():
        frame = Part()
        items = run_generator(frame, iter_of(2), on_item=told.append, on_end=over)
        for item in items:
            assert told[-1] == item
    assert told == [0, 1, (None, True)]
    assert frame.ended_by == [None]


def iter_of(count: int) -> Generator[int, None, None]:
    yield from range(count)


def test_frames_entered_inside_are_there_again() -> None:
    """A hook enters a frame before one item, and ends it after another."""
    seen: list[Any] = []

    def hooked() -> Generator[int, None, None]:
        inner = AgentFrame("inner").enter()
        yield 1
        seen.append(active())
        inner.end()
        yield 2
        seen.append(active())

    with rt.trajectory():
        frame = Part()
        for _ in run_generator(frame, hooked()):
            assert active() is None
    assert [one.agent for one in seen] == ["inner", "part"]


async def count_async(seen: list[Any], until: int, error: Exception | None = None) -> AsyncGenerator[int, None]:
    try:
        for number in range(until):
            seen.append(active())
            await asyncio.sleep(0)
            yield number
        if error is not None:
            raise error
    finally:
        seen.append("closed")


def test_an_async_generator_runs_inside_its_frame() -> None:
    seen: list[Any] = []
    told: list[Any] = []

    async def main() -> None:
        with rt.trajectory():
            frame = Part()
            async for item in run_async_generator(frame, count_async(seen, 2), on_item=told.append):
                assert (active(), told[-1]) == (None, item)
            assert active() is None
            assert (seen, told, frame.ended_by) == ([frame, frame, "closed"], [0, 1], [None])

    asyncio.run(main())


def test_an_async_generator_that_fails_ends_the_frame_with_its_error() -> None:
    async def main() -> None:
        with rt.trajectory():
            frame = Part()
            error = LookupError("mine")
            with pytest.raises(LookupError, match="mine"):
                async for _ in run_async_generator(frame, count_async([], 1, error)):
                    pass
            assert frame.ended_by == [error]

    asyncio.run(main())


def test_an_async_generator_that_is_left_can_be_closed_at_the_end() -> None:
    seen: list[Any] = []

    async def main() -> None:
        with rt.trajectory():
            frame = Part()
            inner = count_async(seen, 3)

            async def over(error: BaseException | None) -> None:
                assert seen == [frame]
                await inner.aclose()
                frame.end(error)

            outer = run_async_generator(frame, inner, on_end=over)
            assert await outer.__anext__() == 0
            await outer.aclose()
            assert seen == [frame, "closed"]
            assert [type(error) for error in frame.ended_by] == [GeneratorExit]

    asyncio.run(main())


def broken(*_: Any) -> Any:
    raise RuntimeError("injected")


async def broken_end(_: BaseException | None) -> None:
    broken()


@pytest.mark.parametrize("hook", ["on_item", "on_end"])
def test_a_hook_that_fails_is_not_the_consumers_failure(hook: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    before = rt.stats().recorder_errors

    async def numbers() -> AsyncGenerator[int, None]:
        for number in (1, 2):
            yield number

    async def consumed() -> list[int]:
        hooks: dict[str, Any] = {hook: broken if hook == "on_item" else broken_end}
        return [number async for number in run_async_generator(Part(), numbers(), **hooks)]

    with rt.trajectory():
        hooks: dict[str, Any] = {hook: broken}
        assert list(run_generator(Part(), (number for number in (1, 2)), **hooks)) == [1, 2]
        assert asyncio.run(consumed()) == [1, 2]
    failures = 2 if hook == "on_item" else 1
    assert rt.stats().recorder_errors - before == 2 * failures
