"""Fixtures of the LangChain tests."""

from __future__ import annotations

import warnings

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    # langchain-tests brings pytest-asyncio, which warns while it is configured, before pytest's own filters are asked.
    warnings.filterwarnings("ignore", message="The configuration option .asyncio_default_fixture_loop_scope")
    # LangChain announces its v3 streams as beta; ignoring it is what its users do, too.
    config.addinivalue_line("filterwarnings", "ignore:The v3 streaming protocol:Warning")
    # langchain-openai before 1.2 dumps what the SDK parsed, which pydantic does not like.
    config.addinivalue_line("filterwarnings", "ignore:Pydantic serializer warnings:UserWarning")


@pytest.fixture(autouse=True)
def _nothing_is_sent_to_langsmith(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANGSMITH_TRACING", "false")
