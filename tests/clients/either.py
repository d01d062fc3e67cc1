"""One test for both kinds of client: what the sync one gives becomes what can be awaited.

The scenario of a sync client runs without an event loop.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine, Mapping
from typing import Any, Literal, TypeAlias

Kind: TypeAlias = Literal["sync", "async"]


async def done(value: Any) -> Any:
    """What a call of either client gives."""
    return await value if inspect.isawaitable(value) else value


class each:
    """Iterates what either client gives, holding nothing but its iterator: as a plain loop does."""

    def __init__(self, values: Any) -> None:
        self._iterator = values.__aiter__() if hasattr(values, "__aiter__") else iter(values)

    def __aiter__(self) -> each:
        return self

    async def __anext__(self) -> Any:
        if hasattr(self._iterator, "__anext__"):
            return await self._iterator.__anext__()
        try:
            return next(self._iterator)
        except StopIteration:
            raise StopAsyncIteration from None


class entered:
    """Enters and leaves the context manager of either client."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager

    async def __aenter__(self) -> Any:
        if hasattr(self._manager, "__aenter__"):
            return await self._manager.__aenter__()
        return self._manager.__enter__()

    async def __aexit__(self, *error: Any) -> Any:
        if hasattr(self._manager, "__aexit__"):
            return await self._manager.__aexit__(*error)
        return self._manager.__exit__(*error)


def drive(kind: Kind, coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Runs a coroutine: that of a sync client to its end without a loop."""
    if kind == "async":
        return asyncio.run(coroutine)
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("the scenario of a sync client has waited for something")


def shown(value: Any) -> Any:
    """A value as something that can be compared: types by name, models as JSON, exceptions with all they say."""
    if isinstance(value, BaseException):
        facts = {name: getattr(value, name, None) for name in ("status_code", "body", "code", "request_id", "param")}
        return [kind_of(value), str(value), shown(facts), kind_of(value.__cause__), value.__suppress_context__]
    if hasattr(value, "model_dump_json"):
        return [kind_of(value), value.model_dump_json(warnings=False), getattr(value, "_request_id", None)]
    if isinstance(value, Mapping):
        return {key: shown(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [shown(item) for item in value]
    return value if isinstance(value, (str, bytes, int, float, type(None))) else kind_of(value)


def kind_of(value: object) -> str:
    """The name of its type."""
    return f"{type(value).__module__}.{type(value).__qualname__}"
