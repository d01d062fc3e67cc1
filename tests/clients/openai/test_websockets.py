"""WebSocket surfaces are not recorded: one warning says so, and the caller sees what it saw."""

from __future__ import annotations

import importlib.util
import logging
import sys
import types
from collections.abc import Callable
from typing import Any

import openai
import pytest

import rollout_trace as rt
from tests.clients.either import Kind, drive, entered, kind_of

from .harness import since

SURFACES: dict[str, Callable[[Any], Any]] = {
    "realtime": lambda client: client.realtime.connect(model="m"),
    "beta.realtime": lambda client: client.beta.realtime.connect(model="m"),
    "responses": lambda client: client.responses.connect(),
    "beta.responses": lambda client: client.beta.responses.connect(),
    "live": lambda client: client.live.connect(),
}


class Refused(ConnectionError):
    """What a closed port gives."""


def connect_sync(*_: Any, **__: Any) -> Any:
    raise Refused("closed port")


async def connect_async(*_: Any, **__: Any) -> Any:
    raise Refused("closed port")


@pytest.fixture
def websockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A `websockets` package whose connections are refused."""
    names = ("", ".sync", ".sync.client", ".asyncio", ".asyncio.client", ".typing", ".exceptions")
    modules = {name: types.ModuleType(f"websockets{name}") for name in names}
    for name, module in modules.items():
        module.__path__ = []
        parent, _, last = name.rpartition(".")
        if name:
            setattr(modules[parent], last, module)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    modules[".sync.client"].connect = connect_sync  # type: ignore[attr-defined]
    modules[".asyncio.client"].connect = connect_async  # type: ignore[attr-defined]
    modules[".typing"].Subprotocol = str  # type: ignore[attr-defined]
    # From 3.0 on, the SDK has subclasses of the async `connect`.
    for name, connect in (("_websocket", "_WebSocketConnect"), ("_azure_websocket", "_AzureWebSocketConnect")):
        if importlib.util.find_spec(f"openai.lib.{name}") is not None:
            module = types.ModuleType(f"openai.lib.{name}")
            setattr(module, connect, connect_async)
            monkeypatch.setitem(sys.modules, module.__name__, module)
    for error in ("ConnectionClosed", "ConnectionClosedOK", "ConnectionClosedError", "InvalidStatus"):
        setattr(modules[".exceptions"], error, type(error, (Exception,), {}))


def client_of(kind: Kind) -> Any:
    made = openai.OpenAI if kind == "sync" else openai.AsyncOpenAI
    return made(api_key="none", base_url="http://127.0.0.1:9/v1")


def offered(client: Any, surface: str) -> bool:
    found = client
    for name in surface.split("."):
        found = getattr(found, name, None)
    return hasattr(found, "connect")


def opened(kind: Kind, surface: str, *, wrap: bool) -> list[str]:
    """What opening the surface raises."""
    client = client_of(kind)
    if not offered(client, surface):
        pytest.skip(f"openai {openai.__version__} has no {surface}.connect")
    if wrap:
        rt.wrap_openai(client)
    try:
        enter(kind, SURFACES[surface](client))
    except Exception as error:
        return [kind_of(error), str(error), kind_of(error.__cause__)]
    raise AssertionError("the connection was not refused")


def enter(kind: Kind, manager: Any) -> None:
    async def opening() -> None:
        async with entered(manager):
            pass

    drive(kind, opening())


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "rollout_trace"]


@pytest.mark.usefixtures("websockets")
@pytest.mark.parametrize("surface", SURFACES)
def test_one_warning(kind: Kind, surface: str, caplog: pytest.LogCaptureFixture) -> None:
    """Opening a WebSocket warns once, whatever becomes of it; what it raises is the same; nothing is recorded."""
    before = rt.stats()
    plain = opened(kind, surface, wrap=False)
    assert warnings_in(caplog) == []
    with caplog.at_level(logging.WARNING, "rollout_trace"), rt.trajectory() as trajectory:
        assert opened(kind, surface, wrap=True) == plain
        assert opened(kind, surface, wrap=True) == plain
    assert plain[:2] == [f"{__name__}.Refused", "closed port"]
    (line,) = warnings_in(caplog)
    assert "WebSocket" in line
    assert "not recorded" in line
    assert trajectory.steps == []
    assert since(before) == rt.Stats()


@pytest.mark.skipif(importlib.util.find_spec("websockets") is not None, reason="the websockets package is installed")
@pytest.mark.parametrize("surface", SURFACES)
def test_without_the_package(kind: Kind, surface: str) -> None:
    """Without the websockets package the SDK's own error is what it was."""
    plain = opened(kind, surface, wrap=False)
    assert plain[0] == "openai.OpenAIError"
    assert opened(kind, surface, wrap=True) == plain


@pytest.mark.usefixtures("websockets")
def test_azure(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    """An Azure client's WebSocket is warned of too."""
    made = openai.AzureOpenAI if kind == "sync" else openai.AsyncAzureOpenAI
    client = made(api_key="none", api_version="2024-10-01-preview", azure_endpoint="http://127.0.0.1:9")
    surface = "realtime" if offered(client, "realtime") else "beta.realtime"
    rt.wrap_openai(client)
    with pytest.raises(Refused):
        enter(kind, SURFACES[surface](client))
    assert len(warnings_in(caplog)) == 1


def test_asking_for_the_headers_is_no_websocket(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    """A user who reads `auth_headers` is not warned."""
    client = rt.wrap_openai(client_of(kind))
    assert client.auth_headers
    assert warnings_in(caplog) == []
