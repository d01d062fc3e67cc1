from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from oracle import Recorded


def pytest_configure(config: pytest.Config) -> None:
    # Else litellm fetches its list of prices when it is imported.
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    # litellm declares its message types in a way that today's pydantic warns of.
    config.addinivalue_line(
        "filterwarnings", "ignore:Items? '.*' on TypedDict class '.*' (is|are) using the `ReadOnly`"
    )


@pytest.fixture(autouse=True)
def no_traces_are_sent() -> None:
    """The SDK sends its traces to OpenAI by default. Tracing stays on: tests that switch it off say so."""
    from agents import set_trace_processors

    set_trace_processors([])


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Recorded]:
    """Everything recorded in the test; afterwards the file says the same."""
    with Recorded(tmp_path / "rollouts.jsonl") as everything:
        yield everything
