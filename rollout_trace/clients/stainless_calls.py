"""Recording steps that the overridden methods of a Stainless SDK's client perform for their call.

While ``request`` runs, a context variable (``recorder.current``) holds the call: the SDK calls the other methods
inside ``request``, with no argument that identifies it.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rollout_trace import credentials, guard
from rollout_trace.clients import recorder
from rollout_trace.clients.exact_turns import has_failed
from rollout_trace.clients.exchange import Exchange, content_of, record_head, with_member
from rollout_trace.clients.recorder import HTTPStatusError, current
from rollout_trace.clients.tee import added_chunks, hide_added, tee
from rollout_trace.wire.profiles import AUTO

if TYPE_CHECKING:
    from collections.abc import Callable

    from rollout_trace.clients.detect import Inquiry, Reply
    from rollout_trace.record.call import Call, Settings


class Request(Exchange):
    """One call of a client's ``request``: its options, and the call that is recorded."""

    __slots__ = ("_client", "_done", "caller_options", "must_find_engine", "options")

    def __init__(self, client: Any, options: Any, done: Callable[[Request], None]) -> None:
        """``done`` is called when the SDK's ``request`` is over."""
        super().__init__()
        self.caller_options = self.options = options
        """The caller's options, and those that are sent: the same object if no field is added."""
        self._client = client
        self._done = done
        self.must_find_engine = False
        """Whether the engine is still to be detected (``auto``)."""

    def begin(self, settings: Settings) -> None:
        """Begins the call, if this request is one. Never raises, save under pytest."""
        super().begin(settings)
        self.must_find_engine = settings.engine is AUTO and self.call is not None

    def _failed(self, error: BaseException) -> None:
        if self.call is not None:
            self._done(self)
            credentials.remember_sent(error)
            # The last attempt gets the HTTP library's exception, as earlier ones do, not the SDK's own.
            recorder.failed(self.call, error, cause=error.__cause__, content=_content_of_error(error))

    def find_engine(self) -> None:
        """Detects the engine and adds its capture fields. Never raises, save under pytest."""
        # Imported on use: most clients name their engine.
        from rollout_trace.clients.detect import find

        try:
            self._use_profile(find(self._client, self.caller_options))
        except Exception as error:
            guard.failed("auto", self.call, error)

    async def find_engine_async(self) -> None:
        """``find_engine`` for an async client."""
        from rollout_trace.clients.detect import find_async

        try:
            self._use_profile(await find_async(self._client, self.caller_options))
        except Exception as error:
            guard.failed("auto", self.call, error)

    def ask(self, inquiry: Inquiry) -> Reply:
        """Makes a request of our own over the client's HTTP connections."""
        from rollout_trace.clients.detect import reply_to

        return reply_to(self._client, self.caller_options, inquiry)

    async def ask_async(self, inquiry: Inquiry) -> Reply:
        """``ask`` for an async client."""
        from rollout_trace.clients.detect import reply_to_async

        return await reply_to_async(self._client, self.caller_options, inquiry)

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
        self._done(self)
        if call.profile is not None:
            self._learn(call)
        # Without an attempt, a middleware has answered itself: there is no stream whose end would end the call.
        call.eof = call.eof or not call.attempts
        if call.eof:
            recorder.ended(call)

    def _use_profile(self, profile: Any) -> None:
        if self.call is not None:
            self.call.profile = profile
            self._add_capture_fields()

    def _set_added(self, added: dict[str, Any]) -> None:
        super()._set_added(added)
        self.options = _with_fields(self.caller_options, self._fields())

    def _endpoint(self) -> tuple[str, str]:
        return self.caller_options.method, self.caller_options.url

    def _address(self) -> object:
        return self._client.base_url

    def _caller_body(self) -> Mapping[str, Any] | None:
        return _body(self.caller_options)


def add_ids(request: Any) -> None:
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
        has_failed(call, error)


def attempt(request: Any) -> None:
    """Begins an attempt of the current call; ``request`` is the HTTP library's complete request object."""
    call = current.get()
    if call is None:
        return
    recorder.attempt(call, content_of(request))


def attempt_failed() -> None:
    """Ends an attempt of the current call with the exception being handled; the SDK will retry."""
    call = current.get()
    if call is not None:
        error = sys.exc_info()[1]
        # The HTTP library's exception, where the SDK has wrapped it.
        if type(error).__module__.partition(".")[0] in ("openai", "anthropic"):
            error = getattr(error, "__cause__", None) or error
        credentials.remember_sent(error)
        recorder.attempt_failed(call, error)


def may_be_retried(response: Any) -> None:
    """Ends an attempt whose error response may be retried, unless the exception being handled is about it."""
    call = current.get()
    # Inside a handler `attempt_failed` records it, with the exception.
    if call is not None and getattr(sys.exc_info()[1], "response", None) is not response:
        credentials.remember_sent(response)
        recorder.attempt_failed(call, HTTPStatusError(response))


def answered(call: Call, client: Any, response: Any) -> None:
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


def _content_of_error(error: BaseException) -> bytes | None:
    try:
        return content_of(getattr(error, "response", None))
    except Exception:
        # `response` may be a property of a user's exception class, and raise anything.
        return None


def _with_fields(options: Any, added: dict[str, Any]) -> Any:
    if not added:
        return options
    # Copies: the options and the body in them may be the caller's own objects.
    extra = options.extra_json
    options = copy.copy(options)
    options.json_data = {**options.json_data, **added}
    # The SDK merges `extra_json` over the body: it would replace an added list that includes the caller's items.
    if extra and not added.keys().isdisjoint(extra):
        options.extra_json = {name: value for name, value in extra.items() if name not in added}
    return options


def _body(options: Any) -> Mapping[str, Any] | None:
    """The body of a request, the caller's ``extra_body`` included; None if it is no object."""
    body, extra = options.json_data, options.extra_json
    if not isinstance(body, Mapping):
        return None
    return {**body, **extra} if extra and isinstance(extra, Mapping) else body
