"""The drawings of docs/pictures: those that the script draws, and nothing else."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from tests.pictures import draw

NAMES = sorted(path.name for path in draw.FOLDER.iterdir())


def test_the_committed_files_are_drawn_from_the_recordings() -> None:
    """After a change: ``python -m tests.pictures.draw``."""
    drawn = draw.pictures()
    assert sorted(drawn) == NAMES
    for name, text in drawn.items():
        assert (draw.FOLDER / name).read_text(encoding="utf-8") == text
        ElementTree.fromstring(text)


@pytest.mark.parametrize("name", NAMES)
def test_a_page_shows_it(name: str) -> None:
    pages = [path.read_text(encoding="utf-8") for path in draw.FOLDER.parent.glob("*.md")]
    assert any(re.search(rf"!\[[^\]]+\]\(pictures/{re.escape(name)}\)", page) for page in pages)
