"""Programs that train: of docs/start.md, and docs/train-trl.md and so on, which go on with what that records."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from page_blocks import Block

from tests.documentation.reader import read_page, record_start
from tests.documentation.stage import Stage, programs
from tests.documentation.table import place

pytestmark = [  # of the trainers themselves
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("ignore:You are using 'rollout_func':UserWarning"),
]


@pytest.fixture(autouse=True)
def _without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))


def is_run_here(block: Block) -> bool:
    """Whether the tables name this file for a block."""
    return place(block) == "tests/consumers/torch/test_pages.py"


def with_warnings(stage: Stage) -> Iterator[None]:
    """Programs whose own warnings are no errors."""
    stage.variables["PYTHONWARNINGS"] = "default"
    yield


def with_model(stage: Stage) -> Iterator[None]:
    """The server that the agent of the page calls."""
    stage.variables["MODEL_ADDRESS"] = stage.server.base_url
    yield


def test_start_trains_as_pasted(tmp_path: Path) -> None:
    def wanted(block: Block) -> bool:
        return block.headings[-1] in ("Record", "Export", "Train")

    read_page("docs/start.md", tmp_path / "page", programs, with_warnings, wanted=wanted)


@pytest.mark.parametrize("page", ["docs/train-trl.md", "docs/train-verl.md"])
def test_the_page_trains_on_what_start_records(page: str, tmp_path: Path) -> None:
    folder = tmp_path / "page"
    record_start(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        read_page(page, folder, programs, with_model, wanted=is_run_here)
