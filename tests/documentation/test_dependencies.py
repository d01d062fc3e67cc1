"""docs/security.md has every package that pyproject.toml names, with its extra, and no other."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

tomllib = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ALL = Requirement(PROJECT["optional-dependencies"]["all"][0]).extras


def rows(heading: str) -> list[list[str]]:
    """The cells of a section's table, without its head."""
    section = PAGE.partition(f"### {heading}\n")[2].partition("\n### ")[0]
    lines = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line] for line in lines[2:]]


def named(text: str) -> list[str]:
    return re.findall(r"`([\w.-]+)`", text)


def test_every_package_that_is_always_installed_has_its_row() -> None:
    wanted = sorted(Requirement(one).name for one in PROJECT["dependencies"])
    assert sorted(name for row in rows("Always installed") for name in named(row[0])) == wanted


def test_every_extra_has_its_packages() -> None:
    wanted = {
        (extra, Requirement(one).name)
        for extra, packages in PROJECT["optional-dependencies"].items()
        if extra != "all"
        for one in packages
    }
    found = {(extra, package) for row in rows("Extras") for extra in named(row[0]) for package in named(row[1])}
    assert found == wanted


def test_the_star_marks_the_extras_of_all() -> None:
    assert {extra for row in rows("Extras") for extra in re.findall(r"`(\w+)`\*", row[0])} == ALL


def test_every_row_has_its_reason_its_licence_and_who_keeps_it() -> None:
    for row in [*rows("Always installed"), *(row[1:] for row in rows("Extras"))]:
        assert len(row) == 5, row
        reason, _, licence, keeper = row[1:]
        assert reason, row
        assert re.search(r"BSD|MIT|Apache|MPL", licence), row
        assert keeper, row
