"""The table ``exchanges`` of a line: HTTP requests and answers, byte for byte.

A request repeats nearly all of an earlier one of its conversation: of it, what is new is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from rollout_trace import credentials, guard
from rollout_trace.data.exchange import Exchange, Outcome
from rollout_trace.file.difference import Difference, difference
from rollout_trace.file.line_format import BadLine, body_bytes
from rollout_trace.file.plain import body_record, dumps, from_milliseconds, milliseconds, time_text
from rollout_trace.wire.body import unpack

if TYPE_CHECKING:
    from rollout_trace.file.records import ExchangeRecord

MOST = 8
"""Earlier requests with which one is compared: as many conversations may take turns, and each still finds its own."""
_REFERENCE = 64
"""Bytes that a reference takes at most; a request that shares less is written whole."""
_UNPACKED = 64 * 1024 * 1024
"""Most bytes of a compressed response that are searched for keys."""


# Writing


def encode_exchanges(exchanges: Iterable[Exchange]) -> bytes:
    """The table as JSON. Keys of this process's clients are cut out of it.

    An exchange of which a key cannot be cut is left out, with a warning.

    Raises:
        ValueError: the chunk sizes of an exchange do not add up to its response, or its chunk times are not as many.
    """
    exchanges = list(exchanges)
    for exchange in exchanges:
        _check_chunks(exchange)
    kept = [clean for exchange in exchanges if (clean := without_keys(exchange)) is not None]
    bases = _Bases()
    return b"[%s]" % b",".join([dumps(_record(exchange, at, bases)) for at, exchange in enumerate(kept)])


def _record(exchange: Exchange, at: int, bases: _Bases) -> dict[str, Any]:
    times = [round(seconds * 1e3, 3) for seconds in exchange.chunk_times if math.isfinite(seconds)]
    values = {
        "name": exchange.name,
        "method": exchange.method,
        "path": exchange.path,
        "protocol": exchange.protocol,
        "call_id": exchange.call_id,
        "started_at": None if exchange.started_at is None else time_text(exchange.started_at),
        "duration_ms": None if exchange.duration is None else milliseconds(exchange.duration),
        "request_content_type": exchange.request_content_type,
        "request": bases.record(exchange.request, at),
        "status": exchange.status,
        "headers": [list(header) for header in exchange.headers] or None,
        "response": body_record(exchange.response),
        "chunk_sizes": list(exchange.chunk_sizes),
        "chunk_times_ms": times if times and len(times) == len(exchange.chunk_times) else None,
        "outcome": None if exchange.outcome == "complete" else exchange.outcome,
    }
    return {name: value for name, value in values.items() if value is not None}


def _check_chunks(exchange: Exchange) -> None:
    total, times = sum(exchange.chunk_sizes), len(exchange.chunk_times)
    if total != len(exchange.response):
        raise ValueError(
            f"exchange {exchange.name!r} has chunk_sizes that add up to {total}, and a response of "
            f"{len(exchange.response)} bytes. Without pieces, give (len(response),)."
        )
    if times and times != len(exchange.chunk_sizes):
        raise ValueError(
            f"exchange {exchange.name!r} has {len(exchange.chunk_sizes)} chunk_sizes and {times} chunk_times. Give one "
            "time for each piece, or none."
        )


class _Base(NamedTuple):
    number: int
    request: bytes


class _Bases:
    """The earlier requests of a line, of which later ones are written as differences. Newest first."""

    def __init__(self) -> None:
        self._kept: list[_Base] = []

    def record(self, request: bytes, at: int) -> dict[str, Any]:
        """The record of the next request, which is a base of those behind it."""
        record: dict[str, Any] = body_record(request)
        best = self._nearest(request)
        if best is not None:
            found, base = best
            record = {"from": [base.number, found.prefix, found.suffix], **body_record(found.middle)}
            if found.prefix + found.suffix == len(base.request):
                # All of it is in the new one, which takes its place: each conversation has one base.
                self._kept.remove(base)
        self._kept = [_Base(at, request), *self._kept[: MOST - 1]]
        return record

    def _nearest(self, request: bytes) -> tuple[Difference, _Base] | None:
        found = [(_at_characters(difference(request, base.request), request), base) for base in self._kept]
        best = min(found, key=lambda one: len(one[0].middle), default=None)
        return best if best is not None and len(best[0].middle) + _REFERENCE <= len(request) else None


def _at_characters(found: Difference, text: bytes) -> Difference:
    """The difference with both of its ends between characters, so that what is between them can be text."""
    begin, end = found.prefix, len(text) - found.suffix
    while found.prefix - begin < 3 and 0 < begin < end and _is_inside(text, begin):
        begin -= 1
    while end - (len(text) - found.suffix) < 3 and begin < end < len(text) and _is_inside(text, end):
        end += 1
    return Difference(begin, len(text) - end, text[begin:end])


def _is_inside(text: bytes, at: int) -> bool:
    """Returns whether a byte continues the character of the byte before it."""
    return text[at] & 0xC0 == 0x80


# Keys


def without_keys(exchange: Exchange) -> Exchange | None:
    """The exchange without the keys of this process's clients; None where they cannot be cut out of its bytes.

    Token ids would spell what was cut out of the text beside them, and a stream may have a key in pieces.
    """
    if not credentials.any_known():
        return exchange
    had, content_type = credentials.spoils(exchange.request, _unpacked(exchange)), exchange.request_content_type
    response, sizes = credentials.cut_pieces(exchange.response, exchange.chunk_sizes)
    clean = replace(
        exchange,
        name=credentials.cut(exchange.name),
        path=credentials.cut(exchange.path),
        request=credentials.cut_bytes(exchange.request),
        request_content_type=None if content_type is None else credentials.cut(content_type),
        headers=tuple((credentials.cut(name), credentials.cut(value)) for name, value in exchange.headers),
        response=response,
        chunk_sizes=sizes,
    )
    has_tokens = had and credentials.has_tokens(_unpacked(exchange))
    # The last look is at the bytes as they are written, as at the rest of the line.
    if (
        has_tokens
        or credentials.spoils(clean.request, _unpacked(clean))
        or credentials.found_in(dumps(_record(clean, 0, _Bases())))
    ):
        guard.warn_once(
            "exchange-with-key",
            f"the exchange {clean.name} ({clean.method} {clean.path}) is not written to the file: a key of a client "
            "is in its bytes in a form that cannot be cut out (as token ids, in pieces of a stream, or compressed). A "
            "replay will lack it. Keep the key out of the prompt.",
        )
        return None
    return clean


def _unpacked(exchange: Exchange) -> bytes:
    """The response as far as it can be unpacked; as it is where it is not compressed, or in another way."""
    coding = next((value for name, value in exchange.headers if name == "content-encoding"), None)
    try:
        return unpack(exchange.response, coding, _UNPACKED)[0] if coding else exchange.response
    except ValueError:
        return exchange.response


# Reading


class _Read(NamedTuple):
    """An exchange of a line, before its request is put together."""

    exchange: Exchange
    """Its request is the bytes between those of the base."""
    base: tuple[int, int, int] | None


def read_exchanges(records: Sequence[ExchangeRecord]) -> Callable[[], tuple[Exchange, ...]]:
    """Checks the table; what it returns makes the exchanges, which take more memory than the line.

    Raises:
        BadLine: the first thing that does not fit.
    """
    read: list[_Read] = []
    for problem in _read(records, read):
        raise problem
    return lambda: _exchanges(read)


def exchange_problems(records: Sequence[ExchangeRecord]) -> Iterator[BadLine]:
    """Yields what ``read_exchanges`` would raise, for each place."""
    return _read(records, [])


def _read(records: Sequence[ExchangeRecord], read: list[_Read]) -> Iterator[BadLine]:
    """Appends what is read of each record; yields what is wrong."""
    lengths: list[int | None] = []
    for at, record in enumerate(records):
        path = f"$.exchanges[{at}]"
        try:
            middle, length = _request(record, lengths, f"{path}.request")
        except BadLine as error:
            yield error
            middle, length = b"", None
        lengths.append(length)
        try:
            response = body_bytes(record.response, f"{path}.response")
            yield from _chunk_problems(record, len(response), path)
        except BadLine as error:
            yield error
            response = b""
        base = record.request.base
        read.append(_Read(_exchange(record, middle, response), None if base is None else (base[0], base[1], base[2])))


def _request(record: ExchangeRecord, lengths: list[int | None], path: str) -> tuple[bytes, int | None]:
    """The own bytes of a request, and its length; None where that of its base is not known."""
    middle = body_bytes(record.request, path)
    if record.request.base is None:
        return middle, len(middle)
    base, prefix, suffix = record.request.base
    if not 0 <= base < len(lengths):
        raise BadLine(f"{path}.from", f"expected an earlier exchange, got exchange {base}", "exchange-base")
    length = lengths[base]
    if min(prefix, suffix) < 0 or (length is not None and prefix + suffix > length):
        known = "what its request has" if length is None else f"{length} bytes, which the request of it has"
        raise BadLine(
            f"{path}.from", f"expected at most {known} (exchange {base}), got {prefix} and {suffix}", "exchange-base"
        )
    return middle, None if length is None else prefix + len(middle) + suffix


def _chunk_problems(record: ExchangeRecord, length: int, path: str) -> Iterator[BadLine]:
    total, times = sum(record.chunk_sizes), len(record.chunk_times_ms)
    if total != length:
        problem = f"expected sizes that add up to {length}, the bytes of the response, got {total}"
        yield BadLine(f"{path}.chunk_sizes", problem, "chunk-sizes")
    if times and times != len(record.chunk_sizes):
        problem = f"expected {len(record.chunk_sizes)} times, as many as chunk_sizes, got {times}"
        yield BadLine(f"{path}.chunk_times_ms", problem, "chunk-times")


def _exchanges(read: Iterable[_Read]) -> tuple[Exchange, ...]:
    found: list[Exchange] = []
    for exchange, base in read:
        if base is not None:
            number, prefix, suffix = base
            request = Difference(prefix, suffix, exchange.request).apply(found[number].request)
            exchange = replace(exchange, request=request)
        found.append(exchange)
    return tuple(found)


def _exchange(record: ExchangeRecord, request: bytes, response: bytes) -> Exchange:
    return Exchange(
        name=record.name,
        method=record.method,
        path=record.path,
        request=request,
        status=record.status,
        headers=tuple((name, value) for name, value in record.headers),
        response=response,
        chunk_sizes=tuple(record.chunk_sizes),
        request_content_type=record.request_content_type,
        protocol=record.protocol,
        call_id=record.call_id,
        chunk_times=tuple(round(value / 1e3, 6) for value in record.chunk_times_ms),
        # Any text is accepted: a later version may have more of them.
        outcome=cast("Outcome", record.outcome),
        started_at=record.started_at,
        duration=from_milliseconds(record.duration_ms),
    )
