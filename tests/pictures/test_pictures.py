"""The drawings of docs/pictures: those that the script draws, and nothing else."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from tests.pictures import draw

DRAWN = draw.pictures()


def test_the_folder_has_these_pictures() -> None:
    assert sorted(path.name for path in draw.FOLDER.iterdir()) == sorted(DRAWN)


@pytest.mark.parametrize("name", sorted(DRAWN))
def test_the_committed_file_is_drawn_from_the_recordings(name: str) -> None:
    """After a change: ``python -m tests.pictures.draw``."""
    assert (draw.FOLDER / name).read_text(encoding="utf-8") == DRAWN[name]
    ElementTree.fromstring(DRAWN[name])


@pytest.mark.parametrize("name", sorted(DRAWN))
def test_a_page_shows_it(name: str) -> None:
    pages = [path.read_text(encoding="utf-8") for path in draw.FOLDER.parent.glob("*.md")]
    assert any(re.search(rf"!\[[^\]]+\]\(pictures/{re.escape(name)}\)", page) for page in pages)
