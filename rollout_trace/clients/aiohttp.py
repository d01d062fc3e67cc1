"""Recording for sessions of aiohttp, which send what no known SDK sends.

The package is not imported. The only method replaced is ``ClientSession._request``, which every request passes through.
While a body is read, ``response.content`` has a subclass of its own class. Every way to read it (``read``,
``readline``, ``iter_any``, ``iter_chunks``, ...) ends in one method, ``_read_nowait_chunk``. An object in its place
instead would not be one of aiohttp's class, and have none of the attributes that other libraries use.
"""

from __future__ import annotations

import asyncio
import functools
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rollout_trace import credentials, guard
from rollout_trace.clients import recorder
from rollout_trace.clients.detect import POOL_PATIENCE, Inquiry, PoolTimeout, Reply
from rollout_trace.clients.http_exchange import HTTPExchange, asking, may_be_call
from rollout_trace.clients.recorder import HTTPStatusError, ResponseHead
from rollout_trace.clients.swap import ClassSwap
from rollout_trace.clients.tee import added_chunks
from rollout_trace.record.call import Call, end

if TYPE_CHECKING:
    from rollout_trace.record.settings import Settings


def recorded_request(base: Any, settings: Settings) -> Any:
    """Makes what takes the place of ``ClientSession._request``."""
    original = base._request

    @functools.wraps(original)
    async def _request(self: Any, method: Any, str_or_url: Any, *args: Any, **kwargs: Any) -> Any:
        exchange = _begin(self, method, str_or_url, kwargs, settings)
        if exchange is None:
            try:
                return await original(self, method, str_or_url, *args, **kwargs)
            except BaseException as error:
                guard.hide_frame(error)
                raise
        with exchange:
            if exchange.wants_ids:
                await exchange.send_ids_async(asking(exchange.ask_async, original, self, args, {}))
            response = await original(self, method, str_or_url, *args, **exchange.next_attempt())
            while await exchange.was_refused_async(response):
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


class _Exchange(HTTPExchange):
    """One request of a session, as its arguments: their names and values are what is sent."""

    __slots__ = ("_data", "_is_json", "_session")
    _reads_ahead = False

    def __init__(self, session: Any, method: str, url: str, options: dict[str, Any]) -> None:
        self._session = session
        self._data = _data_of(session, options)
        self._is_json = options.get("json") is not None
        if self._data is not options.get("data"):
            options = {**options, "json": None, "data": self._data}
        # Those of the session, and the caller's over them.
        own: Any = options.get("headers")
        pairs = [*session.headers.items(), *(own.items() if hasattr(own, "items") else own or ())]
        headers = {str(name).lower(): value for name, value in pairs}
        super().__init__(options, method, url, headers, _content_of(self._data))

    def _failed(self, error: BaseException) -> None:
        self._remember_sent(error)
        # A session raises for an error response, where it is told to.
        status, headers = getattr(error, "status", None), getattr(error, "headers", None)
        if isinstance(status, int) and status >= 400 and isinstance(headers, Mapping):
            recorder.attempt_failed(self.call, HTTPStatusError(ResponseHead(status, headers)))
        super()._failed(error)

    def _head(self, response: Any, content: bytes | None = None) -> Any:
        return ResponseHead(response.status, response.headers, content)

    def _remember_sent(self, response: Any) -> None:
        if (request := getattr(response, "request_info", None)) is not None:
            credentials.remember_request(request.headers, request.url.raw_query_string)

    async def _read_async(self, response: Any) -> bytes | None:
        content = response.content
        try:
            body: bytes = await content.read()
            # A new stream, as the caller may read it in any way, for which it must not be at its end.
            again = type(content)(content._protocol, max(len(body), 2**16), loop=response._loop)
            again.feed_data(body)
            again.feed_eof()
            response.content = again
            return body
        except Exception:
            # Its caller meets the same where it is read.
            return None
        except BaseException:
            # Cancelled: the caller gets no response that could be closed, and its connection would stay taken.
            response.close()
            raise

    def _record_body(self, call: Call, response: Any) -> None:
        """Records the body as it is read. The caller may get it without its content encoding."""
        is_wished = self._request.get("auto_decompress")
        if is_wished is None:
            is_wished = self._session.auto_decompress
        known = {"", "gzip", "deflate", "br"}
        if hasattr(sys.modules.get("aiohttp.http_parser"), "HAS_ZSTD"):
            known.add("zstd")
        encoding = response.headers.get("content-encoding", "").lower()
        call.is_decompressed = bool(is_wished) and encoding in known
        tee(response, call)

    def _caller_body(self) -> Mapping[str, Any] | None:
        # Of a payload that the caller made, the rest (its headers, its type) is not at hand.
        is_plain = self._is_json or isinstance(self._data, (bytes, bytearray, str))
        return super()._caller_body() if is_plain else None

    async def ask_async(self, send: Any, client: Any, inquiry: Inquiry, args: Any, kwargs: Any) -> Reply:
        options = self._with_body(self._request, inquiry.content or b"")
        left = max(0.0, inquiry.deadline - time.monotonic())
        # To have a connection: of the pool, or a new one.
        timeout = sys.modules["aiohttp"].ClientTimeout(connect=min(left, POOL_PATIENCE))
        options = {**options, "allow_redirects": False, "timeout": timeout}

        async def answer() -> Reply:
            try:
                response = await send(client, self.method, inquiry.url, *args, **options)
            except asyncio.TimeoutError as error:
                raise PoolTimeout from error
            return Reply(response.status, await response.read())

        return await asyncio.wait_for(answer(), left)

    def _with_body(self, request: dict[str, Any], content: bytes) -> dict[str, Any]:
        options = {**request, "json": None}
        headers = options.get("headers")
        if headers is not None:
            pairs = headers.items() if hasattr(headers, "items") else headers
            # That is the length of the caller's own body.
            options["headers"] = [(name, value) for name, value in pairs if str(name).lower() != "content-length"]
        if self._is_json:
            options["data"] = _payloads().BytesPayload(content, content_type="application/json")
        else:
            options["data"] = content.decode() if isinstance(self._data, str) else content
        return options


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


_tees: dict[int, _Tee] = {}
"""By the ``id`` of the stream, which has no place for attributes. An entry is removed before its stream is."""
_teed: ClassSwap[bool] = ClassSwap("_rollout_trace_teed")
"""The setting is whether not all that arrives is handed on."""


def tee(response: Any, call: Call) -> None:
    """Passes the body of a response to a call as it is read, with its end and its error."""
    content, body = response.content, getattr(response, "_body", None)
    if body is not None or content.at_eof():
        # Read before its caller gets it, as by a function given as `raise_for_status`; or empty.
        recorder.receive(call, body or b"")
        recorder.finished(call)
        recorder.ended(call)
        return
    one = _tees[id(content)] = _Tee(call)
    _teed.put_on(content, one.added is not None, _methods)
    if one.added is not None:
        # What has arrived already goes through the stream's own `feed_data`.
        arrived, is_whole = [*content._buffer], content._eof
        content._buffer.clear()
        content._size, content._eof = 0, False
        content.total_bytes -= sum(map(len, arrived))
        for data in arrived:
            content.feed_data(data)
        if is_whole:
            content.feed_eof()


class _Tee:
    """What one stream passes to its call."""

    __slots__ = ("added", "call", "interruption")

    def __init__(self, call: Call) -> None:
        self.call = call
        self.added = added_chunks(call)
        """Takes out what is not handed on. Then what arrives is recorded, not what is read."""
        self.interruption: BaseException | None = None
        """What ended the latest reading, which may be tried again: a timeout, or a cancellation."""


def _end(stream: Any, cut: BaseException | None = None, *, is_whole: bool = False) -> None:
    """Ends the call of a stream and gives the stream its own class again."""
    one = _tees.pop(id(stream), None)
    if one is not None:
        if is_whole:
            recorder.finished(one.call)
        end(one.call, None if is_whole else cut or one.interruption)
        _teed.take_off(stream)


def _methods(base: Any, hides: bool) -> dict[str, Any]:
    """The methods of a stream that record what is read. It has them until its end."""

    def _read_nowait_chunk(self: Any, n: int) -> bytes:
        data: bytes = base._read_nowait_chunk(self, n)
        one = _tees.get(id(self))
        if one is not None:
            try:
                one.interruption = None
                if one.added is None:
                    recorder.receive(one.call, data)
                if self.at_eof():
                    _end(self, is_whole=True)
            except Exception as error:
                guard.failed("receive", one.call, error)
        return data

    async def _wait(self: Any, func_name: str) -> None:
        try:
            await base._wait(self, func_name)
        except (asyncio.CancelledError, asyncio.TimeoutError) as error:
            one = _tees.get(id(self))
            if one is not None:
                # Without its traceback, in whose frames the stream is: it would never be freed.
                one.interruption = type(error)(*error.args)
            raise

    def feed_data(self: Any, data: bytes, *args: Any, **kwargs: Any) -> Any:
        if (one := _tees.get(id(self))) is not None:
            recorder.receive(one.call, bytes(data))
            data = one.added.shown(bytes(data))  # type: ignore[union-attr]
        return base.feed_data(self, data, *args, **kwargs)

    def feed_eof(self: Any) -> None:
        one = _tees.get(id(self))
        if one is not None and one.added is not None and (rest := one.added.rest()):
            base.feed_data(self, rest)
        base.feed_eof(self)
        if self.at_eof():
            _end(self, is_whole=True)

    def set_exception(self: Any, exc: BaseException, *args: Any, **kwargs: Any) -> None:
        base.set_exception(self, exc, *args, **kwargs)
        # What has arrived and was not read cannot be read any more. The first is what `close` or `release` puts there.
        is_closing = type(exc).__name__ == "ClientConnectionError" and exc.args == ("Connection closed",)
        _end(self, None if is_closing else exc)

    def __del__(self: Any) -> None:
        # A stream that nobody closed. It only marks the call as ended: a finalizer must take no lock.
        one = _tees.pop(id(self), None)
        if one is not None:
            end(one.call, one.interruption or GeneratorExit())

    reading = {"_read_nowait_chunk": _read_nowait_chunk, "_wait": _wait}
    ends = {"feed_eof": feed_eof, "set_exception": set_exception, "__del__": __del__}
    return reading | ends | ({"feed_data": feed_data} if hides else {})
