"""Generators inside frames: streams of models, and the loops of agents that yield what they do.

The body of a generator runs in its consumer's context. A frame that it entered once would be the consumer's too,
between two items: calls that the consumer makes there, and agents that it runs, would count as the generator's. So the
frame is entered each time that the body runs on, and left when it yields.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from typing import Any, TypeVar

from rollout_trace.record.scope import Frame, enter

Y = TypeVar("Y")
R = TypeVar("R")


def run_generator(
    frame: Frame,
    inner: Generator[Y, Any, R],
    *,
    on_item: Callable[[Y], object] | None = None,
    on_end: Callable[[BaseException | None], object] | None = None,
) -> Generator[Y, Any, R]:
    """Runs a generator inside a frame, and ends the frame with it. The consumer sees no difference.

    Args:
        frame: the context's while the generator runs, not while its consumer does.
        inner: the generator; gets what the consumer sends and throws, and is closed when the consumer closes.
        on_item: called with each item before the consumer gets it.
        on_end: called once instead of ``frame.end``, which it then has to call: with None where the generator ran to
            its end, else with the exception that ended it (``GeneratorExit`` where its consumer closed it).
    """
    end = frame.end if on_end is None else on_end
    inside: Frame | None = frame
    sent: Any = None
    thrown: BaseException | None = None
    try:
        while True:
            outside = enter(inside)
            try:
                item = inner.send(sent) if thrown is None else inner.throw(thrown)
            finally:
                # Frames that were entered inside, by hooks, are there again when the generator runs on.
                inside = enter(outside)
            if on_item is not None:
                on_item(item)
            sent = thrown = None
            try:
                sent = yield item
            except GeneratorExit as error:
                closed = error
                break
            except BaseException as error:
                thrown = error
    except StopIteration as stop:
        end(None)
        result: R = stop.value
        return result
    except BaseException as error:
        end(error)
        raise
    try:
        _close(inside, inner)
    finally:
        end(closed)
    raise closed


def _close(inside: Frame | None, inner: Generator[Any, Any, Any]) -> None:
    outside = enter(inside)
    try:
        inner.close()
    finally:
        enter(outside)


async def run_async_generator(
    frame: Frame,
    inner: AsyncIterator[Y],
    *,
    on_item: Callable[[Y], object] | None = None,
    on_end: Callable[[BaseException | None], Awaitable[object]] | None = None,
) -> AsyncGenerator[Y, None]:
    """Runs an async generator inside a frame, and ends the frame with it.

    To its consumer it is what ``async for item in inner: yield item`` would be: the inner generator is not closed with
    this one. Where the framework does not close it, ``on_end`` can.

    Args:
        frame: the context's while the generator runs, not while its consumer does.
        inner: the generator, or any other async iterator.
        on_item: called with each item before the consumer gets it.
        on_end: awaited once, outside the frame, instead of calling ``frame.end``, which it then has to do: with None
            where the generator ran to its end, else with the exception that ended it (``GeneratorExit`` where its
            consumer closed it, ``CancelledError`` where its task was cancelled).
    """
    following = inner.__anext__
    inside: Frame | None = frame
    try:
        while True:
            outside = enter(inside)
            try:
                item = await following()
            except StopAsyncIteration:
                break
            finally:
                # Frames that were entered inside, by hooks, are there again when the generator runs on.
                inside = enter(outside)
            if on_item is not None:
                on_item(item)
            yield item
    except BaseException as error:
        if on_end is None:
            frame.end(error)
        else:
            await on_end(error)
        raise
    if on_end is None:
        frame.end()
    else:
        await on_end(None)
