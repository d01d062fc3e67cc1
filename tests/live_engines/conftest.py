"""Tests against live engines. They run where ROLLOUT_TRACE_ENGINES is set, as `make test-engines` does."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.live_engines.servers import NotInstalled, Server, started

pytest.register_assert_rewrite("tests.live_engines.compare")
collect_ignore_glob = [] if os.environ.get("ROLLOUT_TRACE_ENGINES") else ["test_*.py"]


@pytest.fixture(scope="session", params=["vllm", "llama-server"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A live engine; one at a time."""
    try:
        with started(request.param, tmp_path_factory.mktemp("engine")) as running:
            yield running
    except NotInstalled as error:
        pytest.skip(str(error))
