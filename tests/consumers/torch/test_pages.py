"""Pages of the documentation whose programs train: they run as pasted, on what the page Start records."""

from __future__ import annotations

import warnings
from pathlib import Path
from unittest.mock import patch

import pytest
import typing_extensions
from page_programs import ROOT, exec_page, run_page

pytestmark = [  # of the trainers themselves
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("ignore:You are using 'rollout_func':UserWarning"),
]
NOT_RUN = ("In an agent loop", "In a generator")
"""They need the trainers' servers."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The reader's folder, which is the current one, without a network."""
    made = tmp_path / "page"
    made.mkdir()
    (made / "tests").symlink_to(ROOT / "tests")
    monkeypatch.chdir(made)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    return made


def test_start_trains_as_pasted(folder: Path) -> None:
    run_page(ROOT / "docs" / "start.md", folder, {"PYTHONWARNINGS": "default"}, skip=("Look",))


@pytest.mark.parametrize("name", ["train-trl.md", "train-verl.md", "train-skyrl.md"])
def test_the_page_trains_on_what_start_records(name: str, folder: Path) -> None:
    run_page(ROOT / "docs" / "start.md", folder, {}, only=("Record",))
    # SkyRL hands a TypedDict to pydantic, which before Python 3.12 takes that of typing_extensions alone.
    with warnings.catch_warnings(), patch("typing.TypedDict", typing_extensions.TypedDict):
        warnings.simplefilter("ignore")
        exec_page(ROOT / "docs" / name, skip=NOT_RUN)
