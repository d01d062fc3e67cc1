"""Recording for clients of the SDKs that Stainless generates (openai, anthropic): a recording subclass, swapped in.

It overrides five methods that every release has (openai 1.66 to 3.52, anthropic 0.60 to 2.11): `request` spans the
whole call; in `_prepare_request` each attempt's bytes are complete; `_should_retry` gets responses with an error
status; `_calculate_retry_timeout` runs while the failure of an attempt is being handled; `_process_response` gets the
response. All else is untouched: no HTTP client, no transport, no other client's class. A bound client's class also
overrides `copy` and `with_options`: its settings are on the object, and its copies must have them too.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from dataclasses import replace
from typing import Any

from rollout_trace import credentials, guard
from rollout_trace.clients import stainless_calls as calls
from rollout_trace.clients.recorder import current
from rollout_trace.clients.swap import ClassSwap
from rollout_trace.clients.tee import read_ahead, read_ahead_async
from rollout_trace.record.call import Settings

_MARK = "_rollout_trace_settings"
_recording: ClassSwap[Settings] = ClassSwap(_MARK)
_bound: ClassSwap[bool] = ClassSwap("_rollout_trace_bound")
"""Derived from a recording class, for clients whose settings are on the object itself."""

_busy: dict[calls.Request, Any] = {}
"""Clients whose ``request`` is running."""
_SILENT = Settings(lambda method, url: None)
"""Settings of a client that was unwrapped during a call: it records no further one."""

if hasattr(os, "register_at_fork"):
    # Calls of other threads go on in the original process only.
    os.register_at_fork(after_in_child=_busy.clear)


def swap(client: Any, settings: Settings, *, is_async: bool) -> None:
    """Changes the client's class to a recording subclass of it, in place of one that it may have already.

    A user's subclass of a recording class records already and stays as it is. Settings with a trajectory are stored on
    the client: a class for each binding would live until the garbage collector runs.
    """
    credentials.remember_client(client)
    kind = plain_class(client)
    if not _is_users_own(client):
        methods = _async_methods if is_async else _sync_methods
        kind = _recording.class_for(kind, replace(settings, trajectory=None), methods)
    client.__class__ = kind if settings.trajectory is None else _bound.class_for(kind, True, _copying_methods)
    if settings.trajectory is not None:
        vars(client)[_MARK] = settings


def plain_class(client: Any) -> type:
    """The client's class as it was before it was wrapped."""
    return _recording.plain(_bound.plain(type(client)))


def _is_users_own(client: Any) -> bool:
    """Whether the client's class is a user's subclass of a recording class."""
    return hasattr(plain_class(client), _MARK)


def settings_of(client: Any) -> Settings | None:
    """The settings that the client was wrapped with; None if it is not wrapped, or no longer."""
    is_bound = _bound.settings_of(client) is not None
    settings: Settings | None = vars(client).get(_MARK) if is_bound else _recording.settings_of(client)
    return None if settings is _SILENT else settings


def inherited_settings(client: Any) -> Settings | None:
    """As ``settings_of``, also for a client whose class is a user's subclass of a recording class."""
    settings = getattr(client, _MARK, None)
    return None if settings is _SILENT else settings


def restore(client: Any) -> None:
    """Undoes ``swap``. A running call is recorded to its end, and the class changes when it has ended."""
    plain, is_async = plain_class(client), inspect.iscoroutinefunction(type(client).request)
    if not _is_users_own(client):
        # Before `_is_busy` is read: a call that begins in between must not be recorded.
        client.__class__ = _recording.class_for(plain, _SILENT, _async_methods if is_async else _sync_methods)
    vars(client).pop(_MARK, None)
    if _is_users_own(client) or not _is_busy(client):
        client.__class__ = plain


def _is_busy(client: Any) -> bool:
    return any(one is client for one in list(_busy.values()))


def _done(request: calls.Request) -> None:
    """Removes a request that needs the recording class no more, and completes a ``restore`` that waited for it."""
    client = _busy.pop(request, None)
    # As `_recording.settings_of`, without a function call: this is on the path of every call.
    if client is not None and type(client).__dict__.get(_MARK) is _SILENT and not _is_busy(client):
        client.__class__ = plain_class(client)


def _begin(client: Any, options: Any) -> calls.Request:
    request = calls.Request(client, options, _done)
    # Before anything is recorded: a thread that unwraps the client now leaves it its class until the call has ended.
    _busy[request] = client
    # A method that was looked up before its client was unwrapped may be called after it: there are no settings then.
    request.begin(getattr(client, _MARK, _SILENT))
    if request.call is None:
        _done(request)
    return request


def _copying_methods(base: Any, _: bool) -> dict[str, Any]:
    """``copy`` and ``with_options`` that give the copy the settings of the client."""

    def with_settings(copy: Any) -> Any:
        @functools.wraps(copy)
        def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
            copied = copy(self, *args, **kwargs)
            try:
                vars(copied)[_MARK] = vars(self)[_MARK]
            except Exception as error:
                guard.failed("copy", None, error)
            return copied

        return wrapper

    return {name: with_settings(getattr(base, name)) for name in ("copy", "with_options") if hasattr(base, name)}


def is_recording(kind: type) -> bool:
    """Whether a class is a recording one, or a user's subclass of one."""
    return hasattr(kind, _MARK)


def recorded_request(base: Any) -> Any:
    """What takes the place of a client's ``request``. It calls that of ``base``, as that is then.

    Another tool may replace it there, and put it back.
    """

    @functools.wraps(base.request)
    def request(self: Any, cast_to: Any, options: Any, *args: Any, **kwargs: Any) -> Any:
        with _begin(self, options) as run:
            if run.must_find_engine:
                run.find_engine()
            if run.wants_ids:
                run.send_ids(run.ask)
            while True:
                try:
                    result = base.request(self, cast_to, run.options, *args, **kwargs)
                    break
                except Exception as error:
                    if not run.drop_refused_fields(error):
                        raise
        run.returned()
        return result

    return request


def recorded_request_async(base: Any) -> Any:
    """``recorded_request`` for an async client."""

    @functools.wraps(base.request)
    async def request(self: Any, cast_to: Any, options: Any, *args: Any, **kwargs: Any) -> Any:
        with _begin(self, options) as run:
            if run.must_find_engine:
                await run.find_engine_async()
            if run.wants_ids:
                await run.send_ids_async(run.ask_async)
            while True:
                try:
                    result = await base.request(self, cast_to, run.options, *args, **kwargs)
                    break
                except Exception as error:
                    if not run.drop_refused_fields(error):
                        raise
        run.returned()
        return result

    return request


def _sync_methods(base: Any, settings: Settings) -> dict[str, Any]:
    @functools.wraps(base._prepare_request)
    def _prepare_request(self: Any, request: Any) -> None:
        calls.add_ids(request)
        base._prepare_request(self, request)
        calls.attempt(request)

    @functools.wraps(base._process_response)
    def _process_response(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = current.get()
        if call is not None:
            response = kwargs.get("response")
            if call.peeks is not None:
                read_ahead(call, response)
            calls.answered(call, self, response)
        return base._process_response(self, *args, **kwargs)

    return _methods(base, recorded_request(base), _prepare_request, _process_response)


def _async_methods(base: Any, settings: Settings) -> dict[str, Any]:
    @functools.wraps(base._prepare_request)
    async def _prepare_request(self: Any, request: Any) -> None:
        calls.add_ids(request)
        await base._prepare_request(self, request)
        calls.attempt(request)

    @functools.wraps(base._process_response)
    async def _process_response(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = current.get()
        if call is not None:
            response = kwargs.get("response")
            if call.peeks is not None:
                await read_ahead_async(call, response)
            calls.answered(call, self, response)
        return await base._process_response(self, *args, **kwargs)

    return _methods(base, recorded_request_async(base), _prepare_request, _process_response)


def _methods(base: Any, *methods: Any) -> dict[str, Any]:
    """These methods, and those that are the same in sync and async clients."""

    @functools.wraps(base._should_retry)
    def _should_retry(self: Any, response: Any) -> Any:
        calls.may_be_retried(response)
        return base._should_retry(self, response)

    @functools.wraps(base._calculate_retry_timeout)
    def _calculate_retry_timeout(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.attempt_failed()
        return base._calculate_retry_timeout(self, *args, **kwargs)

    found = {one.__name__: one for one in (*methods, _should_retry, _calculate_retry_timeout)}
    return found | _websocket_hooks(base)


def _websocket_hooks(base: Any) -> dict[str, Any]:
    """Overrides of members that only WebSocket surfaces use, not HTTP resources: they warn that nothing is recorded."""
    hooks: dict[str, Any] = {}
    if isinstance(inspect.getattr_static(base, "auth_headers", None), property):

        def auth_headers(self: Any) -> Any:
            # The SDK's own client reads it for each HTTP request too: only the reader's module tells the two apart.
            reader = sys._getframe(1).f_globals.get("__name__", "")
            if ".resources." in reader or reader.endswith("_websocket_connection"):
                _warn_of_websocket(reader)
            return base.auth_headers.fget(self)

        hooks["auth_headers"] = property(auth_headers, doc=base.auth_headers.__doc__)
    if hasattr(base, "_configure_realtime"):

        @functools.wraps(base._configure_realtime)
        def _configure_realtime(self: Any, *args: Any, **kwargs: Any) -> Any:
            _warn_of_websocket("realtime of an Azure client")
            return base._configure_realtime(self, *args, **kwargs)

        hooks["_configure_realtime"] = _configure_realtime
    return hooks


def _warn_of_websocket(opener: str) -> None:
    guard.warn_once(
        "websocket",
        f"{opener} opens a WebSocket: what goes over it (realtime, live, responses.connect) is not recorded.",
    )
