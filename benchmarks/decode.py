"""Decoding the bytes of a call into steps, beside json.loads of the same bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from statistics import median

from benchmarks import payloads
from benchmarks.report import Effort, Row, at_most, ratios, spread
from benchmarks.timing import interleave
from rollout_trace import wire
from tests.fuzz.run import corpus

_EVENTS = "text/event-stream"
_UNARY, _STREAM = 0.6, 1.0


def run(effort: Effort) -> Iterator[Row]:
    """Rows of this section."""
    for made, budget in ((payloads.small(), None), (payloads.large(), _UNARY), (payloads.stream(), _STREAM)):
        yield _decoding(made.name, "openai.chat", made.request, made.body, made.content_type, budget, effort)
    yield from _recorded(effort)


def _recorded(effort: Effort) -> Iterator[Row]:
    """The largest recorded answer of each other protocol, unstreamed and streamed."""
    answers = [(protocol, one) for protocol, one in corpus() if protocol != "openai.chat" and one.status == 200]
    for protocol in sorted({protocol for protocol, _ in answers}):
        for streamed in (False, True):
            own = [o for name, o in answers if name == protocol and _is_stream(o.content_type, o.response) == streamed]
            if own:
                one = max(own, key=lambda exchange: len(exchange.response))
                name = f"{protocol}, {len(one.response) / 1e3:.0f} kB{' streamed' if streamed else ''}"
                yield _decoding(name, protocol, one.request, one.response, str(one.content_type), None, effort)


def _decoding(
    name: str, protocol: str, request: bytes, body: bytes, content_type: str, budget: float | None, effort: Effort
) -> Row:
    is_stream = _is_stream(content_type, body)
    found = interleave(
        {
            "decode": lambda: wire.decode(protocol, request, body, content_type=content_type),
            "loads": lambda: _loads(request, body, streamed=is_stream),
        },
        rounds=effort.repeat(12),
        times=effort.times(200),
    )
    seconds = spread(found["decode"].cpu)
    speed = len(request + body) / seconds.middle / 1e6
    more = f"{seconds.middle * 1e6:,.0f} µs, {speed:,.0f} MB/s; json.loads {median(found['loads'].cpu) * 1e6:,.0f} µs"
    value = ratios(found["decode"].cpu, found["loads"].cpu)
    return at_most(f"{name}, decoded, beside json.loads", value, budget, form=".2f", unit="×", more=more)


def _loads(request: bytes, body: bytes, *, streamed: bool) -> None:
    json.loads(request)
    if not streamed:
        json.loads(body)
        return
    for line in body.split(b"\n"):
        # Ollama's streams are lines of JSON, without a name before them.
        data = line.removeprefix(b"data: ")
        if data.startswith(b"{"):
            json.loads(data)


def _is_stream(content_type: str | None, body: bytes) -> bool:
    return _EVENTS in (content_type or "") or b"}\n{" in body
