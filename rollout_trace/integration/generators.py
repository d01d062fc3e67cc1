"""Runs generators inside frames: streams of models, and agent loops that yield their steps.

The body of a generator runs in its consumer's context. A frame entered once would stay the current one between two
items: calls that the consumer makes there, and agents that it runs, would be recorded as the generator's. So the frame
is entered each time the body resumes, and left when it yields.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from typing import Any, TypeVar

from rollout_trace import guard
from rollout_trace.record.scope import Frame, current_frame, enter

Y = TypeVar("Y")
R = TypeVar("R")


def report_failure(where: str, error: Exception) -> None:
    """Logs a failure of the integration's own code and counts it in ``rt.stats().recorder_errors``.

    Use it in code that cannot be decorated with ``guarded``, such as part of a coroutine. Failures of the same class in
    the same place are logged once.

    Args:
        where: the place, in a word or two: ``"close"``.
        error: the failure.

    Raises:
        Exception: ``error`` itself, under pytest only.
    """
    guard.failed(where, None, error)


def run_generator(
    frame: Frame,
    inner: Generator[Y, Any, R],
    *,
    on_item: Callable[[Y], object] | None = None,
    on_end: Callable[[BaseException | None], object] | None = None,
) -> Generator[Y, Any, R]:
    """Runs a generator inside a frame, and ends the frame with it. For the consumer it acts like ``yield from inner``.

    Args:
        frame: the frame that is current while the generator runs, but not while its consumer runs.
        inner: the generator. Values that the consumer sends, exceptions that it throws, and its ``close()`` are passed
            on; the return value is returned.
        on_item: called with each item before the consumer gets it.
        on_end: called once in place of ``frame.end``, which it must call itself: with None if the generator ran to its
            end, else with the exception that ended it (``GeneratorExit`` if the consumer closed it).

    An exception raised by ``on_item`` or ``on_end`` is a failure of the integration: it is logged and counted, and does
    not reach the consumer, except under pytest.
    """
    entered, set_entered = current_frame.get, current_frame.set
    inside: Frame | None = frame
    sent: Any = None
    thrown: BaseException | None = None
    try:
        while True:
            # As `enter` does, without a call: this runs for every piece of an answer.
            outside = entered()
            set_entered(inside)
            try:
                item = inner.send(sent) if thrown is None else inner.throw(thrown)
            finally:
                # Not `frame`: hooks may have entered others inside, which are current again when the body resumes.
                inside = entered()
                set_entered(outside)
            if on_item is not None:
                try:
                    on_item(item)
                except Exception as failure:
                    report_failure("on_item", failure)
            sent = thrown = None
            try:
                sent = yield item
            except GeneratorExit as error:
                # `yield from` closes the inner generator rather than throwing GeneratorExit into it.
                closed = error
                break
            except BaseException as error:
                thrown = error
    except StopIteration as stop:
        _end(frame, on_end, None)
        result: R = stop.value
        return result
    except BaseException as error:
        _end(frame, on_end, error)
        raise
    outside = enter(inside)
    try:
        inner.close()
    finally:
        enter(outside)
        _end(frame, on_end, closed)
    raise closed


def _end(frame: Frame, on_end: Callable[[BaseException | None], object] | None, error: BaseException | None) -> None:
    if on_end is None:
        frame.end(error)
        return
    try:
        on_end(error)
    except Exception as failure:
        report_failure("on_end", failure)


async def run_async_generator(
    frame: Frame,
    inner: AsyncIterator[Y],
    *,
    on_item: Callable[[Y], object] | None = None,
    on_end: Callable[[BaseException | None], Awaitable[object]] | None = None,
) -> AsyncGenerator[Y, None]:
    """Runs an async generator inside a frame, and ends the frame with it.

    For the consumer it acts like ``async for item in inner: yield item``: closing it does not close the inner
    generator. If the framework does not close the inner generator either, ``on_end`` can.

    Args:
        frame: the frame that is current while the generator runs, but not while its consumer runs.
        inner: the generator, or any other async iterator.
        on_item: called with each item before the consumer gets it.
        on_end: awaited once, outside the frame, in place of ``frame.end``, which it must call itself: with None if the
            generator ran to its end, else with the exception that ended it (``GeneratorExit`` if the consumer closed
            it, ``CancelledError`` if its task was cancelled).

    Exceptions raised by ``on_item`` and ``on_end`` are handled as in ``run_generator``.
    """
    next_item, entered, set_entered = inner.__anext__, current_frame.get, current_frame.set
    inside: Frame | None = frame
    try:
        while True:
            # As `enter` does, without a call: this runs for every piece of an answer.
            outside = entered()
            set_entered(inside)
            try:
                item = await next_item()
            except StopAsyncIteration:
                break
            finally:
                # Not `frame`: hooks may have entered others inside, which are current again when the body resumes.
                inside = entered()
                set_entered(outside)
            if on_item is not None:
                try:
                    on_item(item)
                except Exception as failure:
                    report_failure("on_item", failure)
            yield item
    except BaseException as error:
        await _end_async(frame, on_end, error)
        raise
    await _end_async(frame, on_end, None)


async def _end_async(
    frame: Frame, on_end: Callable[[BaseException | None], Awaitable[object]] | None, error: BaseException | None
) -> None:
    if on_end is None:
        frame.end(error)
        return
    try:
        await on_end(error)
    except Exception as failure:
        report_failure("on_end", failure)
