"""Every block of the documentation is run: here, by the test that the table names, or not, with a reason."""

from __future__ import annotations

import ast
import re

import pytest
from page_blocks import ROOT, Block, blocks_of, pages

from .reader import SHELL
from .stages import PROGRAMS, STAGES, part_of
from .table import ELSEWHERE, NOT_RUN, is_read_here, matches, parts_read_here, place

BLOCKS = [block for page in pages() for block in blocks_of(page)]
LANGUAGES = {"python", "json", "toml", "yaml", "text", "diff", *SHELL}


def test_every_block_has_a_place() -> None:
    """That a block is read here, `test_pages` shows: it reads every one that has no other place."""
    assert len(BLOCKS) > 200
    here = parts_read_here()
    assert all(place(block) or part_of(block) in here for block in BLOCKS)
    assert sum(map(is_read_here, BLOCKS)) > len(BLOCKS) / 2


def test_every_block_names_its_language() -> None:
    """A site colours it by that, and a reader knows what to do with it."""
    assert [str(block) for block in BLOCKS if block.kind not in LANGUAGES] == []


@pytest.mark.parametrize("key", [*ELSEWHERE, *NOT_RUN], ids=str)
def test_the_tables_name_blocks_that_there_are(key: tuple[str, str]) -> None:
    assert any(matches(key, block) for block in BLOCKS)


@pytest.mark.parametrize("key", ELSEWHERE, ids=str)
def test_the_test_elsewhere_reads_the_page(key: tuple[str, str]) -> None:
    """It has its name and, where the table names a part of the page, that or a heading above."""
    page, text = key
    source = (ROOT / ELSEWHERE[key]).read_text(encoding="utf-8")
    assert page in source or page.removeprefix("docs/") in source
    headings = {one for block in BLOCKS if matches(key, block) for one in block.headings[1:]}
    assert not text or text in source or any(re.split(r"[:,`]", one)[0].strip() in source for one in headings)


def test_few_blocks_are_not_run() -> None:
    assert sum(place(block) in NOT_RUN.values() for block in BLOCKS) <= 14


@pytest.mark.parametrize("block", [one for one in BLOCKS if one.kind == "python"], ids=str)
def test_python_that_is_run_elsewhere_can_be_compiled(block: Block) -> None:
    compile(block.text, block.page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_stages_are_of_pages_that_there_are() -> None:
    assert set(STAGES) | PROGRAMS <= {part_of(block) for block in BLOCKS}
