"""Operations on clients of any SDK: recognising, wrapping, unwrapping, binding to a trajectory."""

from __future__ import annotations

import functools
import weakref
from dataclasses import replace
from importlib import import_module
from typing import Any, Literal, TypeAlias, TypeVar

from rollout_trace.clients import google, httpx, stainless
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.record.call import Settings

C = TypeVar("C")
ClientKind: TypeAlias = Literal["sync", "async"]

_KINDS: dict[str, ClientKind] = {"SyncAPIClient": "sync", "AsyncAPIClient": "async"}
_SDKS = ("openai", "anthropic")
"""Those that Stainless generates."""


def client_kind(client: object, sdk: str) -> ClientKind | None:
    """Whether an object is a sync or async client of an SDK; None if it is neither. Does not import the SDK."""
    return _kind_of(type(client), sdk)  # type: ignore[arg-type]


@functools.cache
def _kind_of(kind: type, sdk: str) -> ClientKind | None:
    for base in kind.__mro__:
        if base.__module__ == f"{sdk}._base_client" and base.__name__ in _KINDS:
            return _KINDS[base.__name__]
    return None


def wrap(client: C, sdk: str, settings: Settings, *, example: str) -> C:
    """Makes a client record with these settings, which replace any it had. ``example``: the SDK's usual sync class.

    Raises:
        TypeError: not a client object of the SDK.
    """
    kind = client_kind(client, sdk)
    if kind is None:
        raise TypeError(
            f"wrap_{sdk}() needs a client object of the {sdk} SDK, such as {example}() or Async{example}(), "
            f"got {client!r:.80}."
        )
    old = stainless.settings_of(client)
    if old is not None and old.trajectory is not None:
        # A bound client stays bound when it is wrapped again.
        settings = replace(settings, trajectory=old.trajectory)
    stainless.swap(client, settings, is_async=kind == "async")
    return client


def unwrap(client: C) -> C:
    """Undoes ``wrap_openai`` and the other ``wrap_...`` functions, ``integration.wrap_httpx`` too.

    Gives the client its own class again and returns it. Running calls are recorded to their end; then the class changes
    when the last of them has ended. A client that is not wrapped stays as it is.
    """
    # Here: a client that is only wrapped does not load what samplers need.
    from rollout_trace.clients import sampler

    if stainless.settings_of(client) is not None:
        stainless.restore(client)
    elif google.is_recording(client):
        google.stop_recording(client)
    elif sampler.is_recording(client):
        sampler.take_off(client)
    else:
        httpx.stop_recording(client)
    return client


def bind(client: C, trajectory: Trajectory) -> C:
    """A copy of the client whose calls are recorded in the trajectory, in any thread or context.

    It shares the client's HTTP connections. The copy of a client that is not wrapped is wrapped with default settings.

    Raises:
        TypeError: not a client object of the openai or anthropic SDK, or not a trajectory.
    """
    sdk, kind = next(((sdk, kind) for sdk in _SDKS if (kind := client_kind(client, sdk)) is not None), (None, None))
    if sdk is None:
        raise TypeError(f"bind() needs a client object of the {' or '.join(_SDKS)} SDK, got {client!r:.80}.")
    if not isinstance(trajectory, Trajectory):
        raise TypeError(
            f"bind() needs a Trajectory, got {type(trajectory).__name__}: pass what `with rt.trajectory()` gives."
        )
    copied: Any = client.copy()  # type: ignore[attr-defined]
    # Inherited: also where the client's class is a user's subclass of a recording class.
    settings = stainless.inherited_settings(client) or Settings(
        import_module(f"rollout_trace.clients.{sdk}").protocol_of
    )
    # Weak: a client that outlives the run must not keep all its steps alive.
    stainless.swap(copied, replace(settings, trajectory=weakref.ref(trajectory)), is_async=kind == "async")
    bound: C = copied
    return bound
