"""The seam: a subclass of the client's own class, swapped in on the client's own object.

It overrides five methods that every release of the SDKs has (openai 1.66 to 3.52, anthropic 0.60 to 2.11): `request`
is around the whole call; in `_prepare_request` each attempt's bytes are complete; `_should_retry` sees an answer with
an error status; `_calculate_retry_timeout` runs while the failure of an attempt is being handled; `_process_response`
gets the answer. All else is untouched: no HTTP client, no transport, no other client's class. A bound client's class
also overrides `copy` and `with_options`: its settings are its own, and go with its copies.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from rollout_trace import guard
from rollout_trace.clients.ask import asking as _asking
from rollout_trace.clients.ask import learn, without_refused
from rollout_trace.clients.attempts import HTTPStatusError, OneAttempt, cause_of
from rollout_trace.clients.tee import tee
from rollout_trace.engines.profiles import AUTO
from rollout_trace.record.call import Call, Failure, drain
from rollout_trace.record.place import place
from rollout_trace.record.settings import Settings

_MARK = "_rollout_trace_settings"
_BOUND = "_rollout_trace_bound"
_call: ContextVar[Call | None] = ContextVar("rollout_trace_call", default=None)
_busy: dict[Call, Any] = {}
"""The clients whose ``request`` goes on, by call."""
_SILENT = Settings(lambda method, url: None)
"""Of a client that was unwrapped during a call."""

if hasattr(os, "register_at_fork"):
    # Calls of other threads go on in the other process.
    os.register_at_fork(after_in_child=_busy.clear)


def swap(client: Any, settings: Settings, *, is_async: bool) -> None:
    """Gives the client a recording subclass of its own class, in the place of one it may already have.

    A user's own subclass of a recording class records already, and stays as it is. Settings with a trajectory are the
    client's alone, and its copies': a class for each would stay until somebody collects garbage.
    """
    shared, is_users = replace(settings, trajectory=None), _is_users_own(client)
    kind = plain_class(client) if is_users else _recording_class(plain_class(client), shared, is_async)
    client.__class__ = kind if settings.trajectory is None else _bound_class(kind)
    if settings.trajectory is not None:
        vars(client)[_MARK] = settings


def plain_class(client: Any) -> type:
    """The client's class as it was before it was wrapped."""
    kind = type(client)
    for mark in (_BOUND, _MARK):
        kind = kind.__mro__[1] if mark in kind.__dict__ else kind
    return kind


def _is_users_own(client: Any) -> bool:
    """A class of the user's that comes from a recording class."""
    return hasattr(plain_class(client), _MARK)


def settings_of(client: Any) -> Settings | None:
    """How the client was told to record; None where it was not, or no longer is, itself."""
    kind = type(client).__dict__
    settings = vars(client).get(_MARK) if _BOUND in kind else kind.get(_MARK)
    return None if settings is _SILENT else settings


def inherited_settings(client: Any) -> Settings | None:
    """The same, also where a client's class is the user's own subclass of a recording one."""
    settings = getattr(client, _MARK, None)
    return None if settings is _SILENT else settings


def restore(client: Any) -> None:
    """Undoes ``swap``. A call that is under way is recorded to its end, and the class changes when it has ended."""
    plain, is_async = plain_class(client), inspect.iscoroutinefunction(type(client).request)
    if not _is_users_own(client):
        # Before anybody asks whether a call is under way: one that begins now is not to be recorded.
        client.__class__ = _recording_class(plain, _SILENT, is_async)
    vars(client).pop(_MARK, None)
    if _is_users_own(client) or not _is_busy(client):
        client.__class__ = plain


def _is_busy(client: Any) -> bool:
    return any(one is client for one in list(_busy.values()))


def _done(call: Call) -> None:
    """The call needs the recording class no more."""
    client = _busy.pop(call, None)
    if client is not None and type(client).__dict__.get(_MARK) is _SILENT and not _is_busy(client):
        client.__class__ = plain_class(client)


@functools.cache
def _recording_class(base: type, settings: Settings, is_async: bool) -> type:
    return _make_class(base, settings, is_async)


@functools.cache
def _bound_class(base: Any) -> type:
    """A subclass for clients with settings of their own, which go with their copies."""

    def carrying(copy: Any) -> Any:
        @functools.wraps(copy)
        def copied(self: Any, *args: Any, **kwargs: Any) -> Any:
            made = copy(self, *args, **kwargs)
            try:
                vars(made)[_MARK] = vars(self)[_MARK]
            except Exception as error:
                guard.failed("copy", None, error)
            return made

        return copied

    copies = {name: carrying(getattr(base, name)) for name in ("copy", "with_options") if hasattr(base, name)}
    return type(base.__name__, (base,), {**_names(base), _BOUND: True, **copies})


def _names(base: type) -> dict[str, Any]:
    return {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__, "__slots__": ()}


def _make_class(base: type, settings: Settings, is_async: bool) -> type:
    methods = _async_methods(base) if is_async else _sync_methods(base)
    methods |= _retry_methods(base)
    return type(base.__name__, (base,), {**_names(base), _MARK: settings, **methods, **_websocket_hooks(base)})


def _sync_methods(base: Any) -> dict[str, Any]:
    @functools.wraps(base.request)
    def request(self: Any, cast_to: Any, options: Any, *args: Any, **kwargs: Any) -> Any:
        call, asked = _begin(self, options)
        outer = _call.get()
        _call.set(call)
        try:
            if call is not None and call.profile is AUTO:
                asked = _asking_found(self, call, options)
            while True:
                try:
                    result = base.request(self, cast_to, asked, *args, **kwargs)
                    break
                except Exception as error:
                    fewer = None if asked is options else _asking_less(call, asked, options, error)
                    if fewer is None:
                        raise
                asked = fewer
        except BaseException as error:
            _failed(call, error)
            raise
        finally:
            _call.set(outer)
        _returned(self, call, asked)
        return result

    @functools.wraps(base._prepare_request)
    def _prepare_request(self: Any, request: Any) -> None:
        base._prepare_request(self, request)
        _attempt(request)

    @functools.wraps(base._process_response)
    def _process_response(self: Any, *args: Any, **kwargs: Any) -> Any:
        _answered(self, kwargs.get("response"))
        return base._process_response(self, *args, **kwargs)

    return {"request": request, "_prepare_request": _prepare_request, "_process_response": _process_response}


def _async_methods(base: Any) -> dict[str, Any]:
    @functools.wraps(base.request)
    async def request(self: Any, cast_to: Any, options: Any, *args: Any, **kwargs: Any) -> Any:
        call, asked = _begin(self, options)
        outer = _call.get()
        _call.set(call)
        try:
            if call is not None and call.profile is AUTO:
                asked = await _asking_found_async(self, call, options)
            while True:
                try:
                    result = await base.request(self, cast_to, asked, *args, **kwargs)
                    break
                except Exception as error:
                    fewer = None if asked is options else _asking_less(call, asked, options, error)
                    if fewer is None:
                        raise
                asked = fewer
        except BaseException as error:
            _failed(call, error)
            raise
        finally:
            _call.set(outer)
        _returned(self, call, asked)
        return result

    @functools.wraps(base._prepare_request)
    async def _prepare_request(self: Any, request: Any) -> None:
        await base._prepare_request(self, request)
        _attempt(request)

    @functools.wraps(base._process_response)
    async def _process_response(self: Any, *args: Any, **kwargs: Any) -> Any:
        _answered(self, kwargs.get("response"))
        return await base._process_response(self, *args, **kwargs)

    return {"request": request, "_prepare_request": _prepare_request, "_process_response": _process_response}


def _retry_methods(base: Any) -> dict[str, Any]:
    @functools.wraps(base._should_retry)
    def _should_retry(self: Any, response: Any) -> Any:
        _may_be_retried(response)
        return base._should_retry(self, response)

    @functools.wraps(base._calculate_retry_timeout)
    def _calculate_retry_timeout(self: Any, *args: Any, **kwargs: Any) -> Any:
        _attempt_failed(sys.exc_info()[1])
        return base._calculate_retry_timeout(self, *args, **kwargs)

    return {"_should_retry": _should_retry, "_calculate_retry_timeout": _calculate_retry_timeout}


def _websocket_hooks(base: Any) -> dict[str, Any]:
    """What the WebSocket surfaces ask their client for, and no HTTP resource does: there they can be warned of."""
    hooks: dict[str, Any] = {}
    if isinstance(inspect.getattr_static(base, "auth_headers", None), property):

        def auth_headers(self: Any) -> Any:
            asker = sys._getframe(1).f_globals.get("__name__", "")
            if ".resources." in asker or asker.endswith("_websocket_connection"):
                _warn_of_websocket(asker)
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


def _begin(client: Any, options: Any) -> tuple[Call | None, Any]:
    """The call, if this is one, and the options that it is made with: the same object where nothing is added."""
    call = None
    try:
        settings: Settings = getattr(client, _MARK)
        protocol = settings.protocol_of(options.method, options.url)
        if protocol is None:
            return None, options
        call = Call(settings, protocol)
        _busy[call] = client
        place(call)
        return call, _asking(client, call, options)
    except Exception as error:
        guard.failed("begin", call, error)
        return call, options


def _asking_found(client: Any, call: Call, options: Any) -> Any:
    """The options that a call is made with once its engine has been found."""
    from rollout_trace.engines.detect import find

    try:
        call.profile = find(client, options)
        return _asking(client, call, options)
    except Exception as error:
        guard.failed("auto", call, error)
        return options


async def _asking_found_async(client: Any, call: Call, options: Any) -> Any:
    from rollout_trace.engines.detect import find_async

    try:
        call.profile = await find_async(client, options)
        return _asking(client, call, options)
    except Exception as error:
        guard.failed("auto", call, error)
        return options


def _asking_less(call: Call | None, asked: Any, options: Any, error: Exception) -> Any | None:
    """The options without the added fields that the server refused, to make the call with again; None: it did not."""
    try:
        response = getattr(error, "response", None)
        content = None if call is None or response is None else _content(response)
        if call is None or content is None:
            return None
        fewer = without_refused(call, asked, options, getattr(error, "status_code", None), content)
        if fewer is not None:
            call.attempt_failed(error)
        return fewer
    except Exception as failure:
        guard.failed("refused", call, failure)
        return None


def _attempt(request: Any) -> None:
    call = _call.get()
    if call is not None:
        try:
            call.eof = False
            call.attempt(request)
        except Exception as error:
            guard.failed("attempt", call, error)


def _attempt_failed(cause: BaseException | None) -> None:
    call = _call.get()
    if call is not None:
        try:
            call.attempt_failed(cause_of(cause))
        except Exception as error:
            guard.failed("attempt_failed", call, error)


def _may_be_retried(response: Any) -> None:
    """Takes note of an answer that may be tried again, unless an exception that is being handled stands for it."""
    call = _call.get()
    if call is None or getattr(sys.exc_info()[1], "response", None) is response:
        return
    try:
        call.attempt_failed(HTTPStatusError(response))
    except Exception as error:
        guard.failed("attempt_failed", call, error)


def _answered(client: Any, response: Any) -> None:
    call = _call.get()
    if call is None:
        return
    try:
        call.answered(response)
        if response.status_code >= 400:
            # Only a middleware chain brings these here: it may try again, or give its caller something else.
            call.eof = True
            return
        content = _content(response)
        if content is None:
            listener: Any = OneAttempt(call, _call) if getattr(client, "_middleware", None) else call
            response.stream = tee(response.stream, listener)
        else:
            call.body(content)
    except Exception as error:
        guard.failed("answered", call, error)


def _content(response: Any) -> bytes | None:
    """The body, where it has been read."""
    try:
        content: bytes = response.content
        return content
    except Exception:
        # ResponseNotRead, of whichever HTTP library is in use.
        return None


def _returned(client: Any, call: Call | None, asked: Any) -> None:
    if call is None:
        return
    _done(call)
    try:
        learn(client, call, asked)
    except Exception as error:
        guard.failed("learn", call, error)
    # Without an attempt, a middleware has answered: nothing more will come.
    call.eof = call.eof or not call.attempts
    if call.eof:
        _end(call)


def _failed(call: Call | None, cause: BaseException) -> None:
    if call is None:
        return
    _done(call)
    try:
        # The SDK's exception hides the HTTP library's, which is what earlier attempts have.
        call.attempt_failed(cause.__cause__ or cause)
        response = getattr(cause, "response", None)
        content = None if response is None or call.chunks else _content(response)
        if content is not None:
            call.body(content)
        call.failure = Failure.of(cause)
    except Exception as error:
        guard.failed("failed", call, error)
    _end(call)


def _end(call: Call) -> None:
    try:
        call.end()
        drain()
    except Exception as error:
        guard.failed("end", call, error)
