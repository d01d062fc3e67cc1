"""The table of docs/import.md. Its blocks are run by tests/documentation."""

from __future__ import annotations

from pathlib import Path

from rollout_trace import importing

PAGE = (Path(__file__).parents[2] / "docs" / "import.md").read_text(encoding="utf-8")


def test_the_table_has_every_source() -> None:
    for one in importing.SOURCES.values():
        assert f"| `{one.name}` | {one.what} | {one.lacks} |" in PAGE
