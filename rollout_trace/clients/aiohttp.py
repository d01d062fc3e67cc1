"""Recording for sessions of aiohttp, which send what no known SDK sends.

The package is not imported. The only method replaced is ``ClientSession._request``, which every request passes through.
The body is recorded by ``aiohttp_stream.py`` as its caller reads it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rollout_trace import credentials, guard
from rollout_trace.clients import recorder
from rollout_trace.clients.aiohttp_stream import take_error_body, tee
from rollout_trace.clients.attempts import HTTPStatusError, ResponseHead
from rollout_trace.clients.http_exchange import UnpeekedExchange, may_be_call

if TYPE_CHECKING:
    from types import TracebackType

    from rollout_trace.record.call import Settings


def recorded_request(original: Any, settings: Settings) -> Any:
    """What takes the place of ``ClientSession._request``, in a class or a subclass of it."""

    @functools.wraps(original)
    async def _request(self: Any, method: Any, str_or_url: Any, *args: Any, **kwargs: Any) -> Any:
        exchange = _begin(self, method, str_or_url, kwargs, settings)
        if exchange is None:
            with guard.hidden_frame:
                return await original(self, method, str_or_url, *args, **kwargs)
        with exchange:
            response = await original(self, method, str_or_url, *args, **exchange.next_attempt())
            while await exchange.was_refused(response):
                response = await original(self, method, str_or_url, *args, **exchange.next_attempt())
        exchange.answered(response)
        return response

    return _request


def _begin(session: Any, method: Any, str_or_url: Any, options: dict[str, Any], settings: Settings) -> _Exchange | None:
    """The exchange of a request that is a call; None for others, and inside a call that is recorded already."""
    try:
        # First what nearly every other request is told by: an address is slow to build.
        if settings.is_guess and method.upper() != "POST":
            return None
        url = str(str_or_url)
        if not url.startswith(("http://", "https://")):
            url = str(session._build_url(str_or_url))
        if not may_be_call(settings, method, url):
            return None
        urlsplit(url)
    except Exception:
        # An address that is none: its caller gets the same exception from the session.
        return None
    try:
        exchange = _Exchange(session, method, url, options)
    except Exception as error:
        guard.failed("begin", None, error)
        return None
    exchange.begin(settings)
    return None if exchange.call is None else exchange


class _Exchange(UnpeekedExchange):
    """One request of the caller, and the attempts that are sent for it."""

    __slots__ = ("_data", "_options", "_session")

    def __init__(self, session: Any, method: str, url: str, options: dict[str, Any]) -> None:
        self._session = session
        self._options = options
        self._data = _data_of(session, options)
        super().__init__(method, url, _headers_of(session, options.get("headers")), _content_of(self._data))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            _remember_keys(error)
            self._set_status_of(error)
        super().__exit__(kind, error, traceback)

    def next_attempt(self) -> dict[str, Any]:
        """Begins an attempt and returns the arguments to send it with."""
        content = self.content_to_send()
        try:
            options = self._options_for(content)
        except Exception as error:
            content = None
            self.ask_nothing(error)
            options = self._options
        recorder.attempt(self.call, self.content if content is None else content)
        return options

    async def was_refused(self, response: Any) -> bool:
        """Whether a response refuses added fields, which are then removed. Reads an error response to its end."""
        if not self._added or response.status < 400:
            return False
        content = await take_error_body(response)
        head = ResponseHead(response.status, response.headers, content)
        return self._drop_refused(response.status, content, HTTPStatusError(head))

    def answered(self, response: Any) -> None:
        """Records the response that the caller gets. Its body is still to be read."""
        call = self.call
        if call is None:
            return
        try:
            _remember_keys(response)
            redirects = [(one.status, one.headers) for one in response.history]
            recorder.answered(call, response.status, response.headers, redirects)
            self.learn(response.status)
            if response.status >= 400:
                # The attempt has failed for its caller too, who may still read why.
                recorder.attempt_failed(call, HTTPStatusError(ResponseHead(response.status, response.headers)))
            call.is_decompressed = self._is_unpacked(response)
            tee(response, call)
        except Exception as error:
            guard.failed("answered", call, error)
            # Nothing of the body will be seen.
            recorder.ended(call)

    def _caller_body(self) -> Mapping[str, Any] | None:
        # Of a payload that the caller made, the rest (its headers, its type) is not at hand.
        is_plain = self._options.get("json") is not None or isinstance(self._data, (bytes, bytearray, str))
        return super()._caller_body() if is_plain else None

    def _options_for(self, content: bytes | None) -> dict[str, Any]:
        """The caller's arguments, with another body unless it is None."""
        if content is None and self._data is self._options.get("data"):
            return self._options
        options = {**self._options, "json": None, "data": self._data}
        if content is None:
            return options
        headers = options.get("headers")
        if headers is not None:
            pairs = headers.items() if hasattr(headers, "items") else headers
            # That is the length of the caller's own body.
            options["headers"] = [(name, value) for name, value in pairs if str(name).lower() != "content-length"]
        if self._options.get("json") is not None:
            options["data"] = _payloads().BytesPayload(content, content_type="application/json")
        else:
            options["data"] = content.decode() if isinstance(self._data, str) else content
        return options

    def _is_unpacked(self, response: Any) -> bool:
        """Whether the caller gets the body without its content encoding."""
        is_wished = self._options.get("auto_decompress")
        if is_wished is None:
            is_wished = self._session.auto_decompress
        known = {"", "gzip", "deflate", "br"}
        if hasattr(sys.modules.get("aiohttp.http_parser"), "HAS_ZSTD"):
            known.add("zstd")
        return bool(is_wished) and response.headers.get("content-encoding", "").lower() in known

    def _set_status_of(self, error: BaseException) -> None:
        """Records the status of an exception that a session raises for an error response."""
        status, headers = getattr(error, "status", None), getattr(error, "headers", None)
        if isinstance(status, int) and status >= 400 and isinstance(headers, Mapping):
            recorder.attempt_failed(self.call, HTTPStatusError(ResponseHead(status, headers)))


def _payloads() -> Any:
    return sys.modules["aiohttp.payload"]


def _data_of(session: Any, options: dict[str, Any]) -> Any:
    """The caller's body, as ``data=``: of ``json=`` what the session makes of it.

    It is made once, as making it may take a millisecond, and the bytes are needed.
    """
    data, value = options.get("data"), options.get("json")
    if value is None or data is not None:
        return data
    try:
        in_bytes = getattr(session, "_json_serialize_bytes", None)
        if in_bytes is not None:
            return _payloads().JsonBytesPayload(value, dumps=in_bytes)
        return _payloads().JsonPayload(value, dumps=session.json_serialize)
    except Exception:
        # Its caller gets the same exception from the session.
        return None


def _content_of(data: Any) -> bytes | None:
    """The body as it is sent; None where it is a form, a file, or an iterator."""
    if isinstance(data, _payloads().BytesPayload):
        # What it is made of; `as_bytes` is of newer releases, and asynchronous.
        data = data._value
    if isinstance(data, str):
        return data.encode("utf-8", "surrogatepass")
    return bytes(data) if isinstance(data, (bytes, bytearray, memoryview)) else None


def _headers_of(session: Any, headers: Any) -> dict[str, str]:
    """The headers of a request by lower-case names: those of the session, and the caller's over them."""
    pairs = [*session.headers.items()]
    if headers is not None:
        pairs += headers.items() if hasattr(headers, "items") else headers
    return {str(name).lower(): value for name, value in pairs}


def _remember_keys(message: Any) -> None:
    """Remembers the keys in the request of a response, or of an exception."""
    request = getattr(message, "request_info", None)
    if request is not None:
        credentials.remember_request(request.headers, request.url.raw_query_string)


__all__ = ["recorded_request"]
