"""Real clients of the SDKs, wrapped, and what goes over their connections."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest

import rollout_trace as rt
from rollout_trace.wire.profiles import EngineName
from tests.live_engines.calls import Case, make
from tests.live_engines.capture import Capture
from tests.live_engines.servers import Server

_USUAL: dict[str, Any] = {"api_key": "none", "max_retries": 0, "timeout": 120}


@contextmanager
def openai_client(server: Server) -> Iterator[tuple[openai.OpenAI, Capture]]:
    """A client of the openai SDK, not wrapped."""
    capture = Capture()
    http = openai.DefaultHttpxClient(transport=capture)
    with openai.OpenAI(base_url=server.base_url, http_client=http, **_USUAL) as client:
        yield client, capture


@contextmanager
def anthropic_client(server: Server) -> Iterator[tuple[Any, Capture]]:
    """A client of the anthropic SDK, not wrapped."""
    anthropic = pytest.importorskip("anthropic", reason="the anthropic SDK is not installed")
    capture = Capture()
    http = anthropic.DefaultHttpxClient(transport=capture)
    with anthropic.Anthropic(base_url=server.url, http_client=http, **_USUAL) as client:
        yield client, capture


def recorded(server: Server, case: Case, engine: EngineName | None) -> tuple[list[rt.Step], Capture]:
    """Makes one call with a wrapped client, in a trajectory of its own."""
    with openai_client(server) as (client, capture):
        rt.wrap_openai(client, engine=engine, keep_bytes=True)
        return _steps(client, case), capture


def recorded_messages(server: Server, case: Case) -> tuple[list[rt.Step], Capture]:
    """The same with a client of the anthropic SDK."""
    with anthropic_client(server) as (client, capture):
        return _steps(rt.wrap_anthropic(client, keep_bytes=True), case), capture


def _steps(client: Any, case: Case) -> list[rt.Step]:
    with rt.trajectory() as trajectory:
        make(client, case)
    return list(trajectory.steps)
