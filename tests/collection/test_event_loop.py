"""Running a coroutine from code without an event loop."""

from __future__ import annotations

import asyncio
import threading

import pytest

from rollout_trace import _event_loop


@pytest.mark.parametrize("waits", [True, False])
def test_an_exception_has_no_context_of_ours(waits: bool) -> None:
    """Tracebacks of an agent's exceptions do not begin with one about event loops."""

    async def main() -> None:
        raise ValueError("the agent's")

    with pytest.raises(ValueError, match="the agent's") as raised:
        _event_loop.run(main, "test", waits=waits)
    assert raised.value.__context__ is None


def test_an_interruption_when_the_thread_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C is Ctrl-C, also where there is nothing left to cancel."""

    def interrupted(thread: threading.Thread) -> None:
        thread.join()
        raise KeyboardInterrupt

    monkeypatch.setattr(_event_loop, "_join", interrupted)

    async def inner() -> None:
        pass

    async def main() -> None:
        with pytest.raises(KeyboardInterrupt):
            _event_loop.run(inner, "test", waits=False)

    asyncio.run(main())


def test_calls_share_a_loop() -> None:
    """Connections that a client keeps open belong to a loop: the next call may use them."""

    async def here() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    first, second = (_event_loop.run(here, "test", waits=False) for _ in range(2))
    assert first is second

    async def nested() -> asyncio.AbstractEventLoop:
        # As in a notebook: the shared one is in use.
        return _event_loop.run(here, "test", waits=False)

    assert _event_loop.run(nested, "test", waits=False) is not first

    async def stubborn() -> None:
        async def endless() -> None:
            while True:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    pass

        task = asyncio.ensure_future(endless())
        await asyncio.sleep(0)
        assert not task.done()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_event_loop, "PATIENCE", 0.01)
        _event_loop.run(stubborn, "test", waits=False)
    assert _event_loop.run(here, "test", waits=False) is not first
