"""Recording for clients of the SDKs that Stainless generates (openai, anthropic): a recording subclass, swapped in.

It overrides five methods that every release has (openai 1.66 to 3.52, anthropic 0.60 to 2.11): `request` spans the
whole call; in `_prepare_request` each attempt's bytes are complete; `_should_retry` gets responses with an error
status; `_calculate_retry_timeout` runs while the failure of an attempt is being handled; `_process_response` gets the
response. The SDK calls the other four inside `request`, with no argument that identifies the call: a context variable
(``recorder.current``) holds it. All else is untouched: no HTTP client, no transport, no other client's class. A bound
client's class also overrides `copy` and `with_options`: its settings are on the object, and its copies must have them
too.
"""

from __future__ import annotations

import copy
import functools
import inspect
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rollout_trace import credentials, guard
from rollout_trace.clients import recorder
from rollout_trace.clients.detect import find, find_async, reply_to, reply_to_async
from rollout_trace.clients.recorder import Exchange, HTTPStatusError, content_of, current, record_head, with_member
from rollout_trace.clients.swap import ClassSwap
from rollout_trace.clients.tee import added_chunks, hide_added, read_ahead, read_ahead_async, tee
from rollout_trace.record.call import Call
from rollout_trace.record.settings import Settings
from rollout_trace.wire.profiles import AUTO

_MARK = "_rollout_trace_settings"
_recording: ClassSwap[Settings] = ClassSwap(_MARK)
_bound: ClassSwap[bool] = ClassSwap("_rollout_trace_bound")
"""Derived from a recording class, for clients whose settings are on the object itself."""

_busy: dict[Request, Any] = {}
"""Clients whose ``request`` is running."""
_SILENT = Settings(lambda method, url: None)
"""Settings of a client that was unwrapped during a call: it records no further one."""

if hasattr(os, "register_at_fork"):
    # Calls of other threads go on in the original process only.
    os.register_at_fork(after_in_child=_busy.clear)


def swap(client: Any, settings: Settings) -> None:
    """Changes the client's class to a recording subclass of it, in place of one that it may have already.

    A user's subclass of a recording class records already and stays as it is. Settings with a trajectory are stored on
    the client: a class for each binding would live until the garbage collector runs.
    """
    credentials.remember_client(client)
    kind = plain_class(client)
    if not _is_users_own(client):
        kind = _recording.class_for(kind, replace(settings, trajectory=None), _methods)
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
    plain = plain_class(client)
    if not _is_users_own(client):
        # Before `_is_busy` is read: a call that begins in between must not be recorded.
        client.__class__ = _recording.class_for(plain, _SILENT, _methods)
    vars(client).pop(_MARK, None)
    if _is_users_own(client) or not _is_busy(client):
        client.__class__ = plain


def _is_busy(client: Any) -> bool:
    return any(one is client for one in list(_busy.values()))


class Request(Exchange):
    """One call of a client's ``request``: its options, and the call that is recorded."""

    __slots__ = ("_client", "caller_options", "must_find_engine", "options")

    def __init__(self, client: Any, options: Any) -> None:
        super().__init__()
        self.caller_options = self.options = options
        """The caller's options, and those that are sent: the same object if no field is added."""
        self._client = client
        # Before anything is recorded: a thread that unwraps the client now leaves it its class until the call ends.
        _busy[self] = client
        # A method that was looked up before its client was unwrapped may be called after it: then there are none.
        self.begin(getattr(client, _MARK, _SILENT))
        # By the call's settings, which may be those of the process.
        self.must_find_engine = self.call is not None and self.call.profile is AUTO
        """Whether the engine is still to be detected (``auto``)."""
        if self.call is None:
            self._done()

    def _done(self) -> None:
        """Needs the recording class no more: completes a ``restore`` that waited for it."""
        client = _busy.pop(self, None)
        # As `_recording.settings_of`, without a function call: this is on the path of every call.
        if client is not None and type(client).__dict__.get(_MARK) is _SILENT and not _is_busy(client):
            client.__class__ = plain_class(client)

    def _failed(self, error: BaseException) -> None:
        if self.call is not None:
            self._done()
            credentials.remember_sent(error)
            try:
                content = content_of(getattr(error, "response", None))
            except Exception:
                # `response` may be a property of a user's exception class, and raise anything.
                content = None
            # The last attempt gets the HTTP library's exception, as earlier ones do, not the SDK's own.
            recorder.failed(self.call, error, cause=error.__cause__, content=content)

    def find_engine(self) -> None:
        """Detects the engine and adds its capture fields. Never raises, save under pytest."""
        try:
            self._use_profile(find(self._client, self.caller_options))
        except Exception as error:
            guard.failed("auto", self.call, error)

    async def find_engine_async(self) -> None:
        """``find_engine`` for an async client."""
        try:
            self._use_profile(await find_async(self._client, self.caller_options))
        except Exception as error:
            guard.failed("auto", self.call, error)

    def _use_profile(self, profile: Any) -> None:
        if self.call is not None:
            self.call.profile = profile
            self._add_capture_fields()

    def drop_refused_fields(self, error: Exception) -> bool:
        """Removes added fields that the server refused from the options; False if the error is about something else."""
        if not self._added:
            return False
        try:
            response, status = getattr(error, "response", None), getattr(error, "status_code", None)
        except Exception as failure:
            guard.failed("refused", self.call, failure)
            return False
        return self._drop_refused(status, content_of(response), error)

    def returned(self) -> None:
        """Records that ``request`` returned a result. Its body may be a stream that is still to be read."""
        call = self.call
        if call is None:
            return
        self._done()
        if call.profile is not None:
            self._learn(call)
        # Without an attempt, a middleware has answered itself: there is no stream whose end would end the call.
        call.eof = call.eof or not call.attempts
        if call.eof:
            recorder.ended(call)

    def _set_added(self, added: dict[str, Any]) -> None:
        super()._set_added(added)
        fields = self._fields()
        self.options = options = self.caller_options
        if fields:
            # Copies: the options and the body in them may be the caller's own objects.
            self.options = options = copy.copy(options)
            options.json_data = {**options.json_data, **fields}
            extra = options.extra_json
            # The SDK merges `extra_json` over the body: it would replace an added list with the caller's items.
            if extra and not fields.keys().isdisjoint(extra):
                options.extra_json = {name: value for name, value in extra.items() if name not in fields}

    def _endpoint(self) -> tuple[str, str]:
        return self.caller_options.method, self.caller_options.url

    def _address(self) -> object:
        return self._client.base_url

    def _caller_body(self) -> Mapping[str, Any] | None:
        """The body of the request, the caller's ``extra_body`` included; None if it is no object."""
        body, extra = self.caller_options.json_data, self.caller_options.extra_json
        if not isinstance(body, Mapping):
            return None
        return {**body, **extra} if extra and isinstance(extra, Mapping) else body


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
        with Request(self, options) as run:
            if run.must_find_engine:
                run.find_engine()
            if run.wants_ids:
                run.send_ids(functools.partial(reply_to, self, options))
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
        with Request(self, options) as run:
            if run.must_find_engine:
                await run.find_engine_async()
            if run.wants_ids:
                await run.send_ids_async(functools.partial(reply_to_async, self, options))
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


def _add_ids(request: Any) -> None:
    """Puts the ids of the current call's prompt into the body of a request, before anything signs it.

    As bytes: the SDK's JSON takes a millisecond for 10,000 ids.
    """
    call = current.get()
    if call is None or call.ids_field is None:
        return
    try:
        content = with_member(request.content, call.ids_field)
        stream = type(request.stream)(content)
        if "Content-Length" in request.headers:
            request.headers["Content-Length"] = str(len(content))
        request.stream, request._content = stream, content
    except Exception as error:
        from rollout_trace.clients.exact_turns import has_failed

        has_failed(call, error)


def _sync_methods(base: Any) -> tuple[Any, ...]:
    @functools.wraps(base._prepare_request)
    def _prepare_request(self: Any, request: Any) -> None:
        _add_ids(request)
        base._prepare_request(self, request)
        if (call := current.get()) is not None:
            recorder.attempt(call, content_of(request))

    @functools.wraps(base._process_response)
    def _process_response(self: Any, *args: Any, **kwargs: Any) -> Any:
        if (call := current.get()) is not None:
            response = kwargs.get("response")
            if call.peeks is not None:
                read_ahead(call, response)
            _answered(call, self, response)
        return base._process_response(self, *args, **kwargs)

    return recorded_request(base), _prepare_request, _process_response


def _async_methods(base: Any) -> tuple[Any, ...]:
    @functools.wraps(base._prepare_request)
    async def _prepare_request(self: Any, request: Any) -> None:
        _add_ids(request)
        await base._prepare_request(self, request)
        if (call := current.get()) is not None:
            recorder.attempt(call, content_of(request))

    @functools.wraps(base._process_response)
    async def _process_response(self: Any, *args: Any, **kwargs: Any) -> Any:
        if (call := current.get()) is not None:
            response = kwargs.get("response")
            if call.peeks is not None:
                await read_ahead_async(call, response)
            _answered(call, self, response)
        return await base._process_response(self, *args, **kwargs)

    return recorded_request_async(base), _prepare_request, _process_response


def _methods(base: Any, settings: Settings) -> dict[str, Any]:
    is_async = any(one.__name__ == "AsyncAPIClient" for one in base.__mro__)

    @functools.wraps(base._should_retry)
    def _should_retry(self: Any, response: Any) -> Any:
        call = current.get()
        # Inside a handler `_calculate_retry_timeout` records it, with the exception.
        if call is not None and getattr(sys.exc_info()[1], "response", None) is not response:
            credentials.remember_sent(response)
            recorder.attempt_failed(call, HTTPStatusError(response))
        return base._should_retry(self, response)

    @functools.wraps(base._calculate_retry_timeout)
    def _calculate_retry_timeout(self: Any, *args: Any, **kwargs: Any) -> Any:
        if (call := current.get()) is not None:
            error = sys.exc_info()[1]
            # The HTTP library's exception, where the SDK has wrapped it.
            if type(error).__module__.partition(".")[0] in ("openai", "anthropic"):
                error = getattr(error, "__cause__", None) or error
            credentials.remember_sent(error)
            recorder.attempt_failed(call, error)
        return base._calculate_retry_timeout(self, *args, **kwargs)

    methods = _async_methods(base) if is_async else _sync_methods(base)
    found = {one.__name__: one for one in (*methods, _should_retry, _calculate_retry_timeout)}
    return found | _websocket_hooks(base)


def _answered(call: Call, client: Any, response: Any) -> None:
    """Records the HTTP library's response and tees its body, before the SDK parses it."""
    try:
        record_head(call, response)
        if response.status_code >= 400:
            # Only with middleware do error responses arrive here: it may retry, or return something else instead.
            call.eof = True
            return
        content = content_of(response)
        if content is None:
            listener: Any = _AttemptListener(call) if getattr(client, "_middleware", None) else call
            response.stream = tee(response.stream, listener, added_chunks(call))
        else:
            recorder.body(call, content)
            if call.hides:
                hide_added(call, response)
    except Exception as error:
        guard.failed("answered", call, error)
        # Nothing of the body will be seen.
        recorder.ended(call)


class _AttemptListener:
    """Receives the bytes of one attempt for its call, where middleware may read a response and then retry.

    It ignores everything once a later attempt has begun. A stream that ends inside the middleware is marked complete;
    the call itself ends when the client's ``request`` returns.
    """

    __slots__ = ("_call", "_number")

    def __init__(self, call: Call) -> None:
        self._call = call
        self._number = len(call.attempts)

    @property
    def faults(self) -> list[str]:
        """Those of the call."""
        return self._call.faults

    @property
    def eof(self) -> bool:
        """That of the call."""
        return self._call.eof

    @eof.setter
    def eof(self, value: bool) -> None:
        if self._is_last:
            self._call.eof = value

    def receive(self, chunk: bytes) -> None:
        """As ``Call.receive``."""
        if self._is_last:
            self._call.receive(chunk)

    def end(self, cut: BaseException | None = None) -> None:
        """As ``Call.end``."""
        if self._is_last and current.get() is self._call:
            # Inside the middleware: it may make another attempt, so the call goes on.
            self._call.eof = True
        elif self._is_last:
            self._call.end(cut)

    @property
    def _is_last(self) -> bool:
        return len(self._call.attempts) == self._number


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
        f"{opener} opens a WebSocket. Calls over WebSockets (realtime, live, responses.connect) are not recorded.",
    )
