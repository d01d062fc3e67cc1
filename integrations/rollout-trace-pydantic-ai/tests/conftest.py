from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from oracle import Recorded


def pytest_configure(config: pytest.Config) -> None:
    os.environ["PYDANTIC_AI_NO_BANNER"] = "1"


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Recorded]:
    """Everything recorded in the test; afterwards the file says the same."""
    with Recorded(tmp_path / "rollouts.jsonl") as everything:
        yield everything
