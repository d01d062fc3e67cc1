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
