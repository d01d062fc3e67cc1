"""One request of an HTTP library's client: what the libraries have in common."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import unquote, urlsplit

from rollout_trace import credentials, guard
from rollout_trace.clients import recorder
from rollout_trace.clients.ask import without_alternatives
from rollout_trace.clients.detect import Inquiry, Reply
from rollout_trace.clients.recorder import Exchange, HTTPStatusError, content_of, is_inside, with_member
from rollout_trace.wire.protocols import has_keys, protocol_of_path

if TYPE_CHECKING:
    from typing_extensions import Self

    from rollout_trace.record.call import Call
    from rollout_trace.record.settings import Settings

_DIGESTS = (
    "content-md5", "digest", "content-digest", "repr-digest", "x-amz-content-sha256", "signature", "signature-input",
)  # fmt: skip
"""Headers with a number made from the body."""
_SIGNATURES = re.compile(r"\s*(?:AWS4|AWS3|Signature|OCI|Hawk|SharedKey|(?:\w+-)?HMAC|bce-auth)", re.IGNORECASE)
"""Schemes of ``authorization`` whose signature may be of the body too."""


class HTTPExchange(Exchange):
    """One request of the caller, and the attempts that are sent for it. A subclass knows the library's objects.

    ``url`` is the whole address; names of ``headers`` are case-insensitive; ``content`` is None where it is a stream.
    """

    __slots__ = ("_body", "_request", "content", "headers", "method", "url")
    _url_of: ClassVar[Any] = attrgetter("url")
    """Gives the address, or path, of a request."""
    _reads_ahead: ClassVar[bool] = True
    """Whether the beginning of a stream is read before its caller gets it: ``tee.read_ahead``."""

    def __init__(self, request: Any, method: str, url: str, headers: Mapping[str, str], content: bytes | None) -> None:
        super().__init__()
        self._request = request
        self.method = method
        self.url = url
        self.headers = headers
        self.content = content
        self._body: dict[str, Any] | None = None
        """The caller's; read only where fields are to be added."""

    @classmethod
    def of(cls, request: Any) -> Self:
        """The exchange of a request of the library's own type."""
        return cls(request, request.method, str(request.url), request.headers, cls._content_of(request))

    @classmethod
    def begun(cls, request: Any, settings: Settings) -> Self | None:
        """The exchange of a request that is a call; None for others, and inside a call that is recorded already."""
        try:
            # First what nearly every other request is told by.
            if settings.is_guess and request.method.upper() != "POST":
                return None
            if not may_be_call(settings, request.method, cls._url_of(request)):
                return None
            exchange = cls.of(request)
        except Exception as error:
            guard.failed("begin", None, error)
            return None
        exchange.begin(settings)
        return None if exchange.call is None else exchange

    def begin(self, settings: Settings) -> None:
        """Begins the call, if this request is one. Never raises, save under pytest."""
        super().begin(settings)
        if self.call is not None:
            parts = urlsplit(self.url)
            self.call.endpoint = f"{parts.netloc.rpartition('@')[2]}{parts.path}"

    def _failed(self, error: BaseException) -> None:
        # The exceptions of some libraries have no request, and the address in their text.
        with suppress(ValueError):  # No address: nothing was sent.
            parts = urlsplit(self.url)
            credentials.remember_request(self.headers, parts.query)
            if parts.password:
                credentials.remember(unquote(parts.password))
        credentials.remember_sent(error)
        super()._failed(error)

    def next_attempt(self) -> Any:
        """Begins an attempt and returns the request to send: the caller's own if no field is added."""
        request, content = self._request, self.content
        if self._added:
            try:
                content = self._with_added(content or b"")
                request = self._with_body(request, content)
            except Exception as error:
                content, self._added = self.content, {}
                if self.call is not None and self.call.ids_field is not None:
                    from rollout_trace.clients.exact_turns import has_failed

                    has_failed(self.call, error)
                guard.failed("ask", self.call, error)
        recorder.attempt(self.call, content)
        return request

    def _with_added(self, content: bytes) -> bytes:
        """A body with the added fields."""
        fields = self._fields()
        content = with_fields(content, self._body or {}, fields) if fields else content
        ids = None if self.call is None else self.call.ids_field
        return content if ids is None else with_member(content, ids)

    def was_refused(self, response: Any) -> bool:
        """Whether a response refuses added fields, which are then removed. Reads an error response to its end."""
        return self._may_be_refused(response) and self._is_refused(response, self._read(response))

    async def was_refused_async(self, response: Any) -> bool:
        """``was_refused`` for an async client."""
        return self._may_be_refused(response) and self._is_refused(response, await self._read_async(response))

    def _may_be_refused(self, response: Any) -> bool:
        return bool(self._added) and self._head(response).status_code >= 400

    def _is_refused(self, response: Any, content: bytes | None) -> bool:
        head = self._head(response, content)
        return self._drop_refused(head.status_code, content, HTTPStatusError(head))

    def ask(self, send: Any, client: Any, inquiry: Inquiry, args: Any, kwargs: Any) -> Reply:
        """Makes a request of our own as the caller's is made: with its client, headers and options."""
        response = send(client, self._of_our_own(inquiry), *args, **{**kwargs, **self._options_of_our_own(inquiry)})
        return Reply(self._head(response).status_code, self._read(response) or b"")

    async def ask_async(self, send: Any, client: Any, inquiry: Inquiry, args: Any, kwargs: Any) -> Reply:
        """``ask`` for an async client."""
        options = {**kwargs, **self._options_of_our_own(inquiry)}
        response = await send(client, self._of_our_own(inquiry), *args, **options)
        return Reply(self._head(response).status_code, await self._read_async(response) or b"")

    def _of_our_own(self, inquiry: Inquiry) -> Any:
        request = self._with_body(self._request, inquiry.content or b"")
        request.url = type(request.url)(inquiry.url)
        for name in ("idempotency-key", "x-idempotency-key"):
            request.headers.pop(name, None)
        return request

    def _options_of_our_own(self, inquiry: Inquiry) -> dict[str, Any]:
        """Options for the method that sends: no redirects, as the credentials must not go to another server."""
        raise NotImplementedError

    def answered(self, response: Any) -> None:
        """Records the response that the caller gets. Its body may be a stream that is still to be read."""
        call = self.call
        if call is None:
            return
        try:
            self._remember_sent(response)
            head = self._head(response)
            redirects = [(one.status_code, one.headers) for one in map(self._head, getattr(response, "history", ()))]
            recorder.answered(call, head.status_code, head.headers, redirects)
            if self._body is not None and head.status_code < 400:
                self._learn(call)
            if head.status_code >= 400:
                # The attempt has failed for its caller too, who may still read why.
                recorder.attempt_failed(call, HTTPStatusError(head))
            self._record_body(call, response)
        except Exception as error:
            guard.failed("answered", call, error)
            # Nothing of the body will be seen.
            recorder.ended(call)

    @staticmethod
    def _content_of(request: Any) -> bytes | None:
        """The body of a request; None where it is a stream."""
        return content_of(request)

    def _with_body(self, request: Any, content: bytes) -> Any:
        """The same request with another body."""
        raise NotImplementedError

    def _head(self, response: Any, content: bytes | None = None) -> Any:
        """The response, or its head, in the names of httpx. ``content``: its body, where it has been read."""
        return response

    def _remember_sent(self, response: Any) -> None:
        """Remembers the keys in the request of a response."""
        credentials.remember_sent(response)

    def _read(self, response: Any) -> bytes | None:
        """The body of an error response, which its caller can read again; None where reading it fails."""
        raise NotImplementedError

    async def _read_async(self, response: Any) -> bytes | None:
        """``_read`` for an async client."""
        raise NotImplementedError

    def _record_body(self, call: Call, response: Any) -> None:
        """Records the body, or has it recorded as its caller reads it."""
        raise NotImplementedError

    def _protocol(self, settings: Settings, method: str, path: str) -> str | None:
        protocol = super()._protocol(settings, method, path)
        is_known = protocol is not None and (not settings.is_guess or has_keys(protocol, self.content))
        return protocol if is_known else None

    def _endpoint(self) -> tuple[str, str]:
        return self.method, urlsplit(self.url).path

    def _address(self) -> object:
        return self.url

    def _caller_body(self) -> Mapping[str, Any] | None:
        """The body, if it is a JSON object, and no header is wrong once it is changed."""
        if self._body is None and not is_signed(self.headers):
            with suppress(ValueError, RecursionError):
                value = json.loads(self.content or b"null")
                self._body = value if isinstance(value, dict) else None
        return self._body

    def _set_added(self, added: dict[str, Any]) -> None:
        super()._set_added(added)
        if not self._reads_ahead and self.call is not None and self.call.peeks is not None:
            # A refusal in the stream would reach the caller.
            super()._set_added(without_alternatives(self.call, added))
            self.call.peeks = None


def recorded(kind: type[HTTPExchange], name: str, base: Any, settings: Settings) -> Any:
    """Makes what takes the place of the method that sends a request. It calls that of ``base``, as that is then."""

    @functools.wraps(getattr(base, name))
    def send(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        original = getattr(base, name)
        exchange = kind.begun(request, settings)
        if exchange is None:
            try:
                return original(self, request, *args, **kwargs)
            except BaseException as error:
                guard.hide_frame(error)
                raise
        with exchange:
            if exchange.wants_ids:
                exchange.send_ids(asking(exchange.ask, original, self, args, kwargs))
            response = original(self, exchange.next_attempt(), *args, **kwargs)
            while exchange.was_refused(response):
                response = original(self, exchange.next_attempt(), *args, **kwargs)
        exchange.answered(response)
        return response

    return send


def recorded_async(kind: type[HTTPExchange], name: str, base: Any, settings: Settings) -> Any:
    """``recorded`` for an async client."""

    @functools.wraps(getattr(base, name))
    async def send(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        original = getattr(base, name)
        exchange = kind.begun(request, settings)
        if exchange is None:
            try:
                return await original(self, request, *args, **kwargs)
            except BaseException as error:
                guard.hide_frame(error)
                raise
        with exchange:
            if exchange.wants_ids:
                await exchange.send_ids_async(asking(exchange.ask_async, original, self, args, kwargs))
            response = await original(self, exchange.next_attempt(), *args, **kwargs)
            while await exchange.was_refused_async(response):
                response = await original(self, exchange.next_attempt(), *args, **kwargs)
        exchange.answered(response)
        return response

    return send


def asking(ask: Any, send: Any, client: Any, args: Any, kwargs: Any) -> Any:
    """Makes what asks the server, by ``HTTPExchange.ask`` or ``ask_async``.

    Not a function inside ``send``, whose variables would then be slower for every request of the program.
    """
    return lambda inquiry: ask(send, client, inquiry, args, kwargs)


def may_be_call(settings: Settings, method: str, url: str) -> bool:
    """Whether a request may be a call, by its path, and no library above records it already."""
    return not (settings.is_guess and protocol_of_path(method, url) is None) and not is_inside()


def is_signed(headers: Mapping[str, str]) -> bool:
    """Whether a request has a header that is wrong once its body is changed."""
    scheme = headers.get("authorization")
    return any(headers.get(name) is not None for name in _DIGESTS) or (
        isinstance(scheme, str) and _SIGNATURES.match(scheme) is not None
    )


def with_fields(content: bytes, body: Mapping[str, Any], fields: Mapping[str, Any]) -> bytes:
    """A JSON object as bytes, with further fields.

    Where the caller has none of them, they are put before the last brace, and every other byte stays as it is: written
    anew, ``1e-1`` would become ``0.1``. ``body`` is the same object, read. A field that it has already is replaced.
    """
    end = content.rstrip()
    if not any(name in body for name in fields) and end.lstrip().startswith(b"{") and end.endswith(b"}"):
        return with_member(content, [_dumped(fields)[1:-1]])
    return _dumped({**body, **fields})


def _dumped(body: Mapping[str, Any]) -> bytes:
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        # Half a character (a lone surrogate) has a form in JSON, and none in UTF-8.
        return json.dumps(body, separators=(",", ":")).encode()
