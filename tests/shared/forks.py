"""An agent of a framework, recorded over twenty steps, goes on from the first, the seventh and the nineteenth.

For the tests of the integrations, each in an environment of its own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace.testing import Reply, ScriptedServer, ToolCall

CALLS = 20
STEPS = (1, 7, 19)


def adding(end: Callable[[], Reply]) -> Callable[[Mapping[str, Any]], Reply]:
    """A model that calls ``add`` until it has been asked often enough, and then ends as the framework wants it."""

    def script(request: Mapping[str, Any]) -> Reply:
        done = sum(message["role"] == "assistant" for message in request["messages"])
        if done + 1 == CALLS:
            return end()
        return Reply(f"Step {done}.", tool_calls=[ToolCall("add", json.dumps({"a": done, "b": 2}))])

    return script


@contextmanager
def _reading(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """The bytes of each answer, as the HTTP library reads them."""
    found: list[bytes] = []
    with monkeypatch.context() as patched:
        for module in filter(None, map(sys.modules.get, ("httpx", "httpx2"))):
            _watch(vars(module)["Response"], found, patched)
        yield found


def _watch(response: Any, found: list[bytes], patched: pytest.MonkeyPatch) -> None:
    sync, parts = response.iter_raw, response.aiter_raw

    def iter_raw(self: Any, *args: Any, **named: Any) -> Iterator[bytes]:
        at = len(found)
        found.append(b"")
        for piece in sync(self, *args, **named):
            found[at] += piece
            yield piece

    async def aiter_raw(self: Any, *args: Any, **named: Any) -> AsyncIterator[bytes]:
        at = len(found)
        found.append(b"")
        async for piece in parts(self, *args, **named):
            found[at] += piece
            yield piece

    patched.setattr(response, "iter_raw", iter_raw)
    patched.setattr(response, "aiter_raw", aiter_raw)


def assert_forks(
    run: Callable[[str], object], server: ScriptedServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers before the step are those that were recorded, byte for byte, and cost no request.

    Args:
        run: runs the agent, which is recorded with ``keep_bytes``, on what a user asks.
        server: that it asks.
        folder: for the file.
        monkeypatch: pytest's.
    """
    path = folder / "rollouts.jsonl"
    with rt.recording(path), rt.trajectory("adder", group="g"), _reading(monkeypatch) as first:
        run("Add.")
    (origin,) = rt.read(path)
    assert [len(origin.steps), len(first), len(server.requests)] == [CALLS] * 3
    for step in STEPS:
        before = len(server.requests)
        with rt.recording(path), rt.fork(origin, step) as branch, _reading(monkeypatch) as again:
            run("Add.")
        assert len(server.requests) - before == CALLS - step
        assert again[:step] == first[:step]
        (*_, written) = rt.read(path)
        assert [one.status for one in written.steps] == ["cached"] * step + ["ok"] * (CALLS - step)
        assert written.forked_from == branch.forked_from
        assert written.forked_from is not None
        assert (written.forked_from.id, written.forked_from.step) == (origin.id, step)
        # Each token is trained on once.
        trained = {name for row in written.sequences() for name in row.step_ids}
        assert trained == {one.id for one in written.steps[step:]}
    before = len(server.requests)
    with pytest.raises(rt.ForkDifference) as raised, rt.fork(origin, STEPS[-1]):
        run("Subtract.")
    assert len(server.requests) == before
    assert "call 1 of" in str(raised.value)
    assert "Subtract." in str(raised.value)
