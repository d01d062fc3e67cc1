"""Pages of the documentation whose programs train: they run as pasted, in one folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from page_programs import ROOT, run_page

SKIPPED = {"start.md": ("Look",)}
"""Sections that do not train: tests/pages runs them."""
OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONWARNINGS": "default"}


@pytest.mark.parametrize("name", ["start.md"])
def test_the_page_trains_as_pasted(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "page"
    folder.mkdir()
    (folder / "tests").symlink_to(ROOT / "tests")
    run_page(ROOT / "docs" / name, folder, {**OFFLINE, "HF_HOME": str(tmp_path / "cache")}, skip=SKIPPED.get(name, ()))
