"""Each page of the documentation, read from its top to its end in a folder of its own."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from page_blocks import Block

from .reader import read_page
from .stages import part_of, settings_of
from .table import is_read_here, parts_read_here


@pytest.mark.parametrize("part", parts_read_here())
def test_its_blocks_run_and_show_what_comes(part: str) -> None:
    def wanted(block: Block) -> bool:
        return is_read_here(block) and part_of(block) == part

    # A short path: pages show lines that hold it, and long ones are folded.
    with tempfile.TemporaryDirectory() as folder:
        page = part.partition("#")[0]
        read_page(page, Path(folder, "page"), *settings_of(part), wanted=wanted)
