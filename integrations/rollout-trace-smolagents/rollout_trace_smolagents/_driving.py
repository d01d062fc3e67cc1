"""Generators inside frames: what one does belongs to its frame, what its consumer does between two items does not."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from rollout_trace.record.scope import Frame, enter


def drive(
    frame: Frame,
    inner: Generator[Any, Any, Any],
    *,
    saw: Callable[[Any], None] | None = None,
    finished: Callable[[], None] | None = None,
) -> Generator[Any, Any, Any]:
    """Runs a generator in a frame, and ends the frame with it. Its consumer cannot tell the difference.

    Args:
        frame: is this context's while the generator runs, and only then: the body of a generator runs in its
            consumer's context, and the consumer may run other agents between two items.
        inner: the generator.
        saw: told of each item before the consumer is.
        finished: told that the generator ran to its end, before the frame ends.
    """
    sent: Any = None
    thrown: BaseException | None = None
    closed: BaseException | None = None
    try:
        while True:
            before = enter(frame)
            try:
                item = inner.send(sent) if thrown is None else inner.throw(thrown)
            finally:
                enter(before)
            if saw is not None:
                saw(item)
            sent = thrown = None
            try:
                sent = yield item
            except GeneratorExit as error:
                closed = error
                break
            except BaseException as error:
                thrown = error
        _close(frame, inner)
        frame.end(closed)
        raise closed
    except StopIteration as stop:
        if finished is not None:
            finished()
        frame.end()
        return stop.value
    except BaseException as error:
        frame.end(closed or error)
        raise


def _close(frame: Frame, inner: Generator[Any, Any, Any]) -> None:
    before = enter(frame)
    try:
        inner.close()
    finally:
        enter(before)
