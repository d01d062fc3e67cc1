"""Makes the clients inside Inspect's models record: those of each model that a recorded sample calls."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from inspect_ai.model import Model, ModelAPI

from rollout_trace.integration import ClassSwap, guarded, is_recorded, record_client, unwrap
from rollout_trace_inspect import settings
from rollout_trace_inspect.events import watch_here
from rollout_trace_inspect.samples import current_sample
from rollout_trace_inspect.settings import Settings

_recording: ClassSwap[Settings] = ClassSwap("_rollout_trace_inspect")
"""Recording subclasses of providers: a provider makes its client anew when its key changes or its server restarts."""

_prepared: list[tuple[ModelAPI, Any, type | None]] = []
"""Providers that record because of an open block; their client, and the class that it recorded with before, if any."""

_ours: WeakKeyDictionary[Any, type] = WeakKeyDictionary()
"""Clients that recorded for no one before, and the class that they were given here."""


@guarded
def prepare(api: ModelAPI, chosen: Settings) -> None:
    """Makes a provider's client record, and those that it makes later. May be called before each model call."""
    if _recording.settings_of(api) == chosen:
        return
    client = getattr(api, "client", None)
    if settings.blocks and api not in settings.models:
        _prepared.append((api, client, type(client) if is_recorded(client) else None))
    _recording.put_on(api, chosen, _methods)
    _record_client(client, chosen)


@contextmanager
def undo_since() -> Iterator[None]:
    """Undoes at its end what ``prepare`` does inside: Inspect keeps model objects, and evaluates with them again."""
    before = len(_prepared)
    try:
        yield
    finally:
        for api, client, kind in reversed(_prepared[before:]):
            _undo(api, client, kind)
        del _prepared[before:]


@guarded
def _undo(api: ModelAPI, before: Any, kind: type | None) -> None:
    if api in settings.models:
        return
    _recording.take_off(api)
    # The one that it has now: it may have been made in the block.
    client = getattr(api, "client", None)
    if kind is not None and client is before:
        client.__class__ = kind
    elif client is not None:
        unwrap(client)


@guarded
def _record_client(client: Any, chosen: Settings) -> None:
    is_users_own = is_recorded(client)
    # Settings of its user's own stay unless an engine is given; those from here do not.
    if is_users_own and type(client) is _ours.get(client):
        unwrap(client)
        is_users_own = False
    record_client(client, engine=chosen.engine, keep_bytes=chosen.keep_bytes)
    if not is_users_own and is_recorded(client):
        _ours[client] = type(client)


def _methods(base: Any, chosen: Settings) -> dict[str, Any]:
    """Overrides of the methods by which providers make clients."""

    def initialize(self: Any) -> None:
        base.initialize(self)
        _record_client(getattr(self, "client", None), chosen)

    def model_client(self: Any, *args: Any, **kwargs: Any) -> Any:
        client = base.model_client(self, *args, **kwargs)
        _record_client(client, chosen)
        return client

    made = {"initialize": initialize}
    # Google's provider makes a client for each call.
    return {**made, "model_client": model_client} if hasattr(base, "model_client") else made


@guarded
def _before_generate(model: Model) -> None:
    sample = current_sample()
    own = settings.models.get(model.api)
    if own is not None:
        prepare(model.api, own)
    elif sample is not None:
        chosen = sample.settings
        prepare(model.api, chosen if model.api is sample.api else chosen.for_other_models())
    if sample is None and own is not None:
        # Outside of every recorded sample: its events are in no transcript that a hook was told of.
        watch_here()


def install() -> None:
    """Wraps ``Model.generate``, once in a process: solvers get models by name, and no hook is given the object."""
    base = Model.generate
    if hasattr(base, "_rollout_trace"):
        return

    @functools.wraps(base)
    async def generate(self: Model, *args: Any, **kwargs: Any) -> Any:
        _before_generate(self)
        return await base(self, *args, **kwargs)

    generate._rollout_trace = True  # type: ignore[attr-defined]
    Model.generate = generate  # type: ignore[method-assign]
