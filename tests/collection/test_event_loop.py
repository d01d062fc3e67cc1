"""Running a coroutine from code without an event loop."""

from __future__ import annotations

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
