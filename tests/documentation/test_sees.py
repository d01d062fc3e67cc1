"""The table of what integrations see is the one that the marks of their tests give."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sees import BEGIN, END, NAMES, PAGE, ROOT, marks, page_with, seen_by, table


def test_the_page_has_the_table_that_the_tests_give() -> None:
    page = PAGE.read_text()
    assert page == page_with(table(), page), "run: python -m tests.sees --write"


def test_every_integration_has_a_column() -> None:
    folders = {path.parent.name for path in ROOT.glob("integrations/*/pyproject.toml")}
    assert folders <= set(NAMES)
    for name in folders:
        assert seen_by(ROOT / "integrations" / name), f"no test of {name} is marked with `sees`"


def test_marks_are_read_from_sources() -> None:
    source = '@pytest.mark.sees("ids")\n@pytest.mark.sees("cached", "by a callback")\ndef test_it(): ...\n'
    assert list(marks(source)) == [("ids", "yes"), ("cached", "by a callback")]


def test_a_mark_of_no_row_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text('@pytest.mark.sees("smell")\ndef test_it(): ...\n')
    with pytest.raises(ValueError, match="sees\\('smell'\\) is no row"):
        seen_by(tmp_path)


def test_a_page_without_the_marks_is_refused() -> None:
    assert page_with("| |", f"a\n{BEGIN}\nold\n{END}\nb") == f"a\n{BEGIN}\n\n| |\n\n{END}\nb"
    with pytest.raises(ValueError, match="are missing"):
        page_with("| |", "a")
