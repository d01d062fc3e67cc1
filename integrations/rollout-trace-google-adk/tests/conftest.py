from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from oracle import Recorded


def pytest_configure(config: pytest.Config) -> None:
    # Else litellm fetches its list of prices when it is imported.
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    os.environ["GOOGLE_API_KEY"] = "none"
    # litellm declares and reads its message types in ways that today's pydantic warns of.
    config.addinivalue_line("filterwarnings", "ignore:Items? '.*' on TypedDict class '.*' .* using the `ReadOnly`")
    config.addinivalue_line("filterwarnings", "ignore:Accessing the 'model_.*' attribute on the instance")
    # google-genai derives a class from aiohttp's.
    config.addinivalue_line("filterwarnings", "ignore:Inheritance class AiohttpClientSession")
    # ADK's workflow agents are deprecated, and are what is tested; so is the argument that takes plugins.
    config.addinivalue_line("filterwarnings", "ignore:(Sequential|Parallel|Loop)Agent is deprecated")
    config.addinivalue_line("filterwarnings", "ignore:The `plugins` argument is deprecated")
    # ADK names features that may change, each once a process.
    config.addinivalue_line("filterwarnings", r"ignore:\[EXPERIMENTAL\]")


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Recorded]:
    """Everything recorded in the test; afterwards the file says the same."""
    with Recorded(tmp_path / "rollouts.jsonl") as everything:
        yield everything
