"""One request of an HTTP library's client: what the libraries have in common."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

from rollout_trace import credentials, guard
from rollout_trace.clients import recorder
from rollout_trace.clients.ask import without_alternatives
from rollout_trace.clients.exchange import Exchange
from rollout_trace.clients.outermost import current, is_inside
from rollout_trace.wire.protocols import has_keys, protocol_of_path

if TYPE_CHECKING:
    from rollout_trace.record.call import Call, Settings

E = TypeVar("E", bound="HTTPExchange")

_DIGESTS = (
    "content-md5",
    "digest",
    "content-digest",
    "repr-digest",
    "x-amz-content-sha256",
    "signature",
    "signature-input",
)
"""Headers with a number made from the body."""
_SIGNATURES = re.compile(r"\s*(?:AWS4|AWS3|Signature|OCI|Hawk|SharedKey|(?:\w+-)?HMAC|bce-auth)", re.IGNORECASE)
"""Schemes of ``authorization`` whose signature may be of the body too."""


class HTTPExchange(Exchange):
    """One request of the caller, and the attempts that are sent for it.

    A context manager around the HTTP library's own function: an exception that leaves it is recorded as the caller's,
    and a library below records nothing meanwhile.

    Args:
        method: of the request.
        url: its whole address.
        headers: with case-insensitive names, as far as they are known.
        content: the body; None where it is unknown (a stream).
    """

    __slots__ = ("_body", "_outer", "content", "headers", "method", "url")

    def __init__(self, method: str, url: str, headers: Mapping[str, str], content: bytes | None) -> None:
        super().__init__()
        self.method = method
        self.url = url
        self.headers = headers
        self.content = content
        self._body: dict[str, Any] | None = None
        """The caller's; read only where fields are to be added."""
        self._outer: Call | None = None

    def begin(self, settings: Settings) -> None:
        """Begins the call, if this request is one. Never raises, save under pytest."""
        super().begin(settings)
        if self.call is not None:
            parts = urlsplit(self.url)
            self.call.endpoint = f"{parts.netloc.rpartition('@')[2]}{parts.path}"

    def __enter__(self) -> HTTPExchange:
        self._outer = current.get()
        current.set(self.call)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        current.set(self._outer)
        if error is not None:
            # The exceptions of some libraries have no request, and the address in their text.
            self._remember_keys()
            credentials.remember_sent(error)
            recorder.failed(self.call, error)
            guard.hide_frame(error)

    def _remember_keys(self) -> None:
        try:
            parts = urlsplit(self.url)
            credentials.remember_request(self.headers, parts.query)
            if parts.password:
                credentials.remember(unquote(parts.password))
        except ValueError:
            # No address: nothing was sent.
            return

    def content_to_send(self) -> bytes | None:
        """The body with the added fields; None where the caller's own is to be sent."""
        if not self._added:
            return None
        try:
            return with_fields(self.content or b"", self._body or {}, self._body_fields(self._body or {}))
        except Exception as error:
            self.ask_nothing(error)
            return None

    def begin_attempt(self, request: Any, with_body: Callable[[Any, bytes], Any]) -> Any:
        """Begins an attempt and returns the request to send: the caller's own if no field is added.

        Args:
            request: the caller's, in the library's own type.
            with_body: makes the same request with another body.
        """
        content = self.content_to_send()
        try:
            request = request if content is None else with_body(request, content)
        except Exception as error:
            content = None
            self.ask_nothing(error)
        recorder.attempt(self.call, self.content if content is None else content)
        return request

    def ask_nothing(self, error: Exception) -> None:
        """Adds no field after all, because of a failure: the caller's own request is sent."""
        self._added = {}
        guard.failed("ask", self.call, error)

    def learn(self, status: int) -> None:
        """Remembers what an answer with this status shows of its server."""
        if self.call is not None and self._body is not None and status < 400:
            self._learn(self.call)

    def _protocol(self, settings: Settings, method: str, path: str) -> str | None:
        protocol = super()._protocol(settings, method, path)
        is_known = protocol is not None and (not settings.is_guess or has_keys(protocol, self.content))
        return protocol if is_known else None

    def _endpoint(self) -> tuple[str, str]:
        return self.method, urlsplit(self.url).path

    def _address(self) -> object:
        return self.url

    def _caller_body(self) -> Mapping[str, Any] | None:
        if self._body is None and not is_signed(self.headers):
            self._body = json_object(self.content)
        return self._body

    def _sent_body(self) -> Mapping[str, Any]:
        body = self._body or {}
        return {**body, **self._body_fields(body)}


class UnpeekedExchange(HTTPExchange):
    """That of a library whose streams are not read before their caller gets them."""

    __slots__ = ()

    def _set_added(self, added: dict[str, Any]) -> None:
        super()._set_added(added)
        if self.call is not None and self.call.peeks is not None:
            # A refusal in the stream would reach the caller: see `peek`.
            super()._set_added(without_alternatives(self.call, added))
            self.call.peeks = None


def may_be_call(settings: Settings, method: str, url: str) -> bool:
    """Whether a request may be a call, by method and path, and no library above records it already."""
    if settings.is_guess and (method.upper() != "POST" or protocol_of_path(method, url) is None):
        return False
    return not is_inside()


def begun(make: Callable[[Any], E], request: Any, url_of: Callable[[Any], str], settings: Settings) -> E | None:
    """The exchange of a request that is a call; None for others, and inside a call that is recorded already.

    Args:
        make: makes the exchange of a request.
        request: the library's, with a ``method``.
        url_of: gives its address, or path. Only called where the method is that of a call.
        settings: how it is recorded.
    """
    try:
        # First what nearly every other request is told by.
        if settings.is_guess and request.method.upper() != "POST":
            return None
        if not may_be_call(settings, request.method, url_of(request)):
            return None
        exchange = make(request)
    except Exception as error:
        guard.failed("begin", None, error)
        return None
    exchange.begin(settings)
    return None if exchange.call is None else exchange


def is_signed(headers: Mapping[str, str]) -> bool:
    """Whether a request has a header that is wrong once its body is changed."""
    scheme = headers.get("authorization")
    return any(headers.get(name) is not None for name in _DIGESTS) or (
        isinstance(scheme, str) and _SIGNATURES.match(scheme) is not None
    )


def json_object(content: bytes | None) -> dict[str, Any] | None:
    """The body of a request; None if it is no JSON object, to which no field can be added."""
    try:
        value = json.loads(content or b"null")
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def with_fields(content: bytes, body: Mapping[str, Any], fields: Mapping[str, Any]) -> bytes:
    """A JSON object as bytes, with further fields.

    Where the caller has none of them, they are put before the last brace, and every other byte stays as it is: written
    anew, ``1e-1`` would become ``0.1``.

    Args:
        content: the object.
        body: the same, read.
        fields: by name; one that the object has already is replaced.
    """
    end = content.rstrip()
    if not any(name in body for name in fields) and end.lstrip().startswith(b"{") and end.endswith(b"}"):
        added = _dumped(fields)[1:-1]
        separator = b"," if body else b""
        return end[:-1] + separator + added + b"}" + content[len(end) :]
    return _dumped({**body, **fields})


def _dumped(body: Mapping[str, Any]) -> bytes:
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        # Half a character (a lone surrogate) has a form in JSON, and none in UTF-8.
        return json.dumps(body, separators=(",", ":")).encode()
