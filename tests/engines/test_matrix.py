"""Every protocol of a live engine, called with real wrapped clients: what is recorded is what was served."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import openai
import pytest

import rollout_trace as rt
from tests.engines.calls import CASES, Case, make
from tests.engines.capture import Capture
from tests.engines.compare import assert_recorded
from tests.engines.servers import TINY_MODEL, Server
from tests.model.qwen2 import Qwen2


@contextmanager
def wrapped(server: Server, protocol: str, engine: str | None) -> Iterator[tuple[Any, Capture]]:
    """A client of the SDK that speaks the protocol, and what goes over its connection."""
    capture = Capture()
    usual: dict[str, Any] = {"api_key": "none", "max_retries": 0, "timeout": 120}
    if protocol == "anthropic.messages":
        anthropic = pytest.importorskip("anthropic", reason="needs the anthropic SDK")
        http = anthropic.DefaultHttpxClient(transport=capture)
        with anthropic.Anthropic(base_url=server.url, http_client=http, **usual) as client:
            yield rt.wrap_anthropic(client, keep_bytes=True), capture
    else:
        http = openai.DefaultHttpxClient(transport=capture)
        with openai.OpenAI(base_url=server.base_url, http_client=http, **usual) as client:
            yield rt.wrap_openai(client, engine=engine, keep_bytes=True), capture


def recorded(server: Server, case: Case, engine: str | None) -> tuple[list[rt.Step], Capture]:
    with wrapped(server, case.protocol, engine) as (client, capture), rt.trajectory() as trajectory:
        make(client, case)
    return list(trajectory.steps), capture


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_recorded_is_served(server: Server, case: Case) -> None:
    steps, capture = recorded(server, case, server.engine)
    (exchange,) = capture.exchanges
    assert_recorded(steps, [exchange])
    assert {step.protocol for step in steps} == {case.protocol}
    assert {(step.request_bytes, step.response_bytes) for step in steps} == {(exchange.request, exchange.response)}
