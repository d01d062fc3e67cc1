"""Decoding the bytes of a call into steps, beside json.loads of the same bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from statistics import median

from benchmarks import payloads
from benchmarks.payloads import Exchange
from benchmarks.report import Effort, Row, at_most, ratios, spread
from benchmarks.timing import interleave
from rollout_trace import wire


def run(effort: Effort) -> Iterator[Row]:
    """Rows of this section."""
    for exchange in (payloads.small(), payloads.large(), payloads.stream()):
        yield _decoding(exchange, effort)


def _decoding(exchange: Exchange, effort: Effort) -> Row:
    request, body, content_type = exchange.request, exchange.body, exchange.content_type
    found = interleave(
        {
            "decode": lambda: wire.decode("openai.chat", request, body, content_type=content_type),
            "loads": lambda: _loads(exchange, request, body),
        },
        rounds=effort.repeat(12),
        times=effort.times(200),
    )
    seconds = spread(found["decode"].cpu)
    speed = len(request + body) / seconds.middle / 1e6
    more = f"{seconds.middle * 1e6:,.0f} µs, {speed:,.0f} MB/s; json.loads {median(found['loads'].cpu) * 1e6:,.0f} µs"
    value = ratios(found["decode"].cpu, found["loads"].cpu)
    return at_most(f"{exchange.name}, decoded, beside json.loads", value, None, form=".2f", unit="×", more=more)


def _loads(exchange: Exchange, request: bytes, body: bytes) -> None:
    json.loads(request)
    if not exchange.streamed:
        json.loads(body)
        return
    for event in body.split(b"\n\n"):
        if event.startswith(b"data: {"):
            json.loads(event[6:])
