"""Pages of the documentation that are read from top to bottom: their files and programs run as pasted, in one folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from page_programs import ROOT, run_page

SKIPPED = {"start.md": ("Train",)}
"""Sections whose programs need another environment: tests/consumers."""


@pytest.mark.parametrize("name", ["start.md"])
def test_the_page_runs_as_pasted(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "page"
    folder.mkdir()
    (folder / "tests").symlink_to(ROOT / "tests")
    run_page(ROOT / "docs" / name, folder, {}, skip=SKIPPED.get(name, ()))
