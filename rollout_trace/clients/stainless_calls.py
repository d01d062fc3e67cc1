"""What the overridden methods of a Stainless SDK's client do for the call that they are in.

The call is in a context variable while ``request`` runs: the other methods are called inside, and have no argument that
would name it.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rollout_trace import guard
from rollout_trace.clients import recorder
from rollout_trace.clients.ask import fields_to_add, learn, without_refused
from rollout_trace.clients.attempts import HTTPStatusError, OneAttempt, cause_of
from rollout_trace.clients.find_engine import find, find_async
from rollout_trace.clients.tee import tee
from rollout_trace.engines.profiles import AUTO

if TYPE_CHECKING:
    from collections.abc import Callable

    from rollout_trace.record.call import Call
    from rollout_trace.record.settings import Settings

_current: ContextVar[Call | None] = ContextVar("rollout_trace_call", default=None)


class Request:
    """One run of a client's ``request``: the options that it is made with, and the call that is recorded of it.

    A context manager around the SDK's own ``request``: an exception that leaves it is what the caller gets.
    """

    __slots__ = ("_added", "_client", "_done", "_outer", "call", "given", "options")

    def __init__(self, client: Any, settings: Settings, options: Any, done: Callable[[Call], None]) -> None:
        self.given = self.options = options
        """The caller's options, and those that the call is made with: the same object where nothing is added."""
        self.call: Call | None = None
        self._client = client
        self._added: dict[str, Any] = {}
        self._done = done
        self._outer: Call | None = None
        try:
            self.call = recorder.begin(settings, settings.protocol_of(options.method, options.url))
            self._ask()
        except Exception as error:
            guard.failed("begin", self.call, error)

    def __enter__(self) -> Request:
        self._outer = _current.get()
        _current.set(self.call)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and self.call is not None:
            self._done(self.call)
            # The SDK's exception hides the HTTP library's, which is what earlier attempts have.
            recorder.failed(self.call, error, cause=error.__cause__, content=_content_of_error(self.call, error))
        _current.set(self._outer)

    @property
    def must_find_engine(self) -> bool:
        """Whether nobody knows yet which engine to ask."""
        return self.call is not None and self.call.profile is AUTO

    def find_engine(self) -> None:
        """Finds out which engine answers, and asks it."""
        try:
            self._found(find(self._client, self.given))
        except Exception as error:
            guard.failed("auto", self.call, error)

    async def find_engine_async(self) -> None:
        """The same of an async client."""
        try:
            self._found(await find_async(self._client, self.given))
        except Exception as error:
            guard.failed("auto", self.call, error)

    def ask_less(self, error: Exception) -> bool:
        """Takes the added fields out of the options that a server refuses; False where that is not what failed."""
        call = self.call
        try:
            if call is None or not self._added:
                return False
            content = _content(getattr(error, "response", None))
            if content is None:
                return False
            left = without_refused(call, self._added, getattr(error, "status_code", None), content)
            if left is None:
                return False
            self._added = left
            self.options = _with(self.given, left)
            call.attempt_failed(error)
            return True
        except Exception as failure:
            guard.failed("refused", call, failure)
            return False

    def returned(self) -> None:
        """The caller gets a result, whose body may still be read."""
        call = self.call
        if call is None:
            return
        self._done(call)
        try:
            learn(call, self._address, self._sent)
        except Exception as error:
            guard.failed("learn", call, error)
        # Without an attempt, a middleware has answered: nothing more will come.
        call.eof = call.eof or not call.attempts
        if call.eof:
            recorder.ended(call)

    def _found(self, profile: Any) -> None:
        if self.call is not None:
            self.call.profile = profile
            self._ask()

    def _ask(self) -> None:
        if self.call is None or self.call.profile is None or not isinstance(self.given.json_data, Mapping):
            return
        self._added = fields_to_add(self.call, self._address, _body(self.given))
        if self._added:
            self.options = _with(self.given, self._added)

    def _address(self) -> object:
        return self._client.base_url

    def _sent(self) -> Mapping[str, Any]:
        return _body(self.options) if isinstance(self.options.json_data, Mapping) else {}


def attempt(request: Any) -> None:
    """An attempt of this context's call: ``request`` is the HTTP library's own, complete object."""
    call = _current.get()
    if call is None:
        return
    try:
        content: bytes | None = request.content
    except Exception:
        # A body that is a stream (an upload) cannot be looked at without using it up.
        content = None
    recorder.attempt(call, content)


def attempt_failed() -> None:
    """The exception that is being handled ended an attempt, and another one will be made."""
    call = _current.get()
    if call is not None:
        recorder.attempt_failed(call, cause_of(sys.exc_info()[1]))


def may_be_retried(response: Any) -> None:
    """Records an answer that may be tried again, unless an exception that is being handled stands for it."""
    call = _current.get()
    if call is not None and getattr(sys.exc_info()[1], "response", None) is not response:
        recorder.attempt_failed(call, HTTPStatusError(response))


def answered(client: Any, response: Any) -> None:
    """The HTTP library's response, before the SDK makes its own objects of it."""
    call = _current.get()
    if call is None:
        return
    try:
        redirects = [(one.status_code, one.headers) for one in response.history]
        recorder.answered(call, response.status_code, response.headers, redirects)
        if response.status_code >= 400:
            # Only a middleware chain brings these here: it may try again, or give its caller something else.
            call.eof = True
            return
        content = _content(response)
        if content is None:
            listener: Any = OneAttempt(call, _current) if getattr(client, "_middleware", None) else call
            response.stream = tee(response.stream, listener)
        else:
            recorder.body(call, content)
    except Exception as error:
        guard.failed("answered", call, error)


def _content_of_error(call: Call, error: BaseException) -> bytes | None:
    try:
        return None if call.chunks else _content(getattr(error, "response", None))
    except Exception:
        # A property of somebody's own exception.
        return None


def _content(response: Any) -> bytes | None:
    """The body, where it has been read."""
    if response is None:
        return None
    try:
        content: bytes = response.content
        return content
    except Exception:
        # ResponseNotRead, of whichever HTTP library is in use.
        return None


def _with(options: Any, added: dict[str, Any]) -> Any:
    if not added:
        return options
    # A copy: the options, and the body in them, may be the caller's own.
    extra = options.extra_json
    options = copy.copy(options)
    options.json_data = {**options.json_data, **added}
    if extra and not added.keys().isdisjoint(extra):
        options.extra_json = {name: value for name, value in extra.items() if name not in added}
    return options


def _body(options: Any) -> Mapping[str, Any]:
    """The body of a request, with what its caller gave as ``extra_body``."""
    body, extra = options.json_data, options.extra_json
    return {**body, **extra} if extra and isinstance(extra, Mapping) else body
