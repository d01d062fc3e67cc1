"""The response headers that steps are made from, in the objects of each HTTP library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import httpx2
import pytest
from multidict import CIMultiDict
from requests.structures import CaseInsensitiveDict

from rollout_trace.record.call import NAMES, known_headers

Pairs = list[tuple[str, str]]
MAPPINGS: dict[str, Callable[[Pairs], Any]] = {
    "httpx": httpx.Headers,
    "httpx2": httpx2.Headers,
    "aiohttp": CIMultiDict,
    "requests": lambda pairs: CaseInsensitiveDict(pairs),
    "dict": lambda pairs: {name.lower(): value for name, value in pairs},
}
ANSWERS: dict[str, Pairs] = {
    "usual": [("Date", "today"), ("Content-Type", "application/json"), ("X-Request-Id", "req_1")],
    "encoded": [("content-encoding", "gzip"), ("REQUEST-ID", "req_2"), ("content-type", "text/event-stream")],
    "none of them": [("server", "uvicorn")],
    "empty": [],
    "no value": [("Content-Type", "")],
}
TWICE: Pairs = [("Content-Encoding", "gzip"), ("Content-Type", "application/json"), ("Content-Encoding", "br")]


@pytest.mark.parametrize("library", MAPPINGS)
@pytest.mark.parametrize("answer", ANSWERS)
def test_as_a_look_up_by_name(library: str, answer: str) -> None:
    headers = MAPPINGS[library](ANSWERS[answer])
    assert known_headers(headers) == {name: headers.get(name) for name in NAMES if headers.get(name) is not None}


@pytest.mark.parametrize("library", ["httpx", "httpx2"])
def test_a_header_that_came_twice_has_both_values(library: str) -> None:
    """A body may have two content encodings, each in a line of its own."""
    assert known_headers(MAPPINGS[library](TWICE))["content-encoding"] == "gzip, br"


@pytest.mark.parametrize("library", ["httpx", "httpx2"])
def test_a_value_that_is_not_ascii_is_read_as_the_library_reads_it(library: str) -> None:
    headers = {"httpx": httpx, "httpx2": httpx2}[library].Headers([(b"x-request-id", "né".encode())])
    assert known_headers(headers) == {"x-request-id": headers["x-request-id"]}
    assert headers["x-request-id"] == "né"
