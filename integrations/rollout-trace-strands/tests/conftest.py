from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from .harness import Recorded


def pytest_configure(config: pytest.Config) -> None:
    # Else litellm fetches its list of prices when it is imported.
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    # litellm 1.106 declares and reads its message types in ways that today's pydantic warns of.
    config.addinivalue_line(
        "filterwarnings", "ignore:Items? '.*' on TypedDict class '.*' (is|are) using the `ReadOnly`"
    )
    config.addinivalue_line("filterwarnings", "ignore:Accessing the 'model_.*' attribute on the instance")
    # litellm 1.91 leaves its logging behind when the event loop of a call ends.
    config.addinivalue_line("filterwarnings", "ignore:coroutine 'Logging.async_success_handler' was never awaited")


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Recorded]:
    """Everything recorded in the test; afterwards the file says the same."""
    with Recorded(tmp_path / "rollouts.jsonl") as everything:
        yield everything
