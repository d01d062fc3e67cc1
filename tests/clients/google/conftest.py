"""Fixtures of the client tests."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

collect_ignore_glob = [] if find_spec("google") is not None and find_spec("google.genai") is not None else ["test_*.py"]
"""Where the SDK is not installed: these tests have environments of their own (``make test-google-3.4``)."""


@pytest.fixture(params=["default", "httpx"])
def library(request: pytest.FixtureRequest) -> str:
    """The HTTP library of the async client: by default aiohttp, where it is installed."""
    name: str = request.param
    return name


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables that the SDK reads."""
    for name in ("GOOGLE_API_KEY", "GEMINI_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_HTTP_CLIENT"):
        monkeypatch.delenv(name, raising=False)


def pytest_itemcollected(item: pytest.Item) -> None:
    """aiohttp warns of the session class that the SDK derives."""
    if item.path.is_relative_to(Path(__file__).parent):
        item.add_marker(pytest.mark.filterwarnings("ignore:Inheritance class Aiohttp:DeprecationWarning"))
