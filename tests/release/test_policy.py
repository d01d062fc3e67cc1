"""What the files around the code state: versions, changelog, citation, licence, and the forms for issues."""

from __future__ import annotations

import re
import subprocess
from datetime import date
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

import rollout_trace as rt
from rollout_trace.cli.app import COMMANDS
from tests.release.distributions import ROOT, projects

INTEGRATIONS = projects()[1:]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
# "## 0.2.0 - 2026-12-24", or with the name of an integration that is released alone.
HEADING = re.compile(r"## (?:(?P<name>rollout-trace-[a-z-]+) )?(?P<version>\d+\.\d+\.\d+) - (?P<day>\d{4}-\d\d-\d\d)")
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def released(name: str | None) -> list[Version]:
    """The versions of an integration that the changelog has headings for, newest first; None: the core's."""
    return [Version(found["version"]) for found in HEADING.finditer(CHANGELOG) if found["name"] == name]


def version_of(project: Path) -> str:
    """What an integration states as its ``__version__``."""
    (about,) = project.glob("rollout_trace_*/_about.py")
    found = re.search(r'^__version__ = "([^"]+)"$', about.read_text(), re.MULTILINE)
    assert found is not None, about
    return found[1]


def test_the_changelog_has_the_versions() -> None:
    first, *others = re.findall(r"^## .*$", CHANGELOG, re.MULTILINE)
    wrong = [one for one in [first, *others] if not HEADING.fullmatch(one)]
    assert wrong in ([], ["## Unreleased"])
    assert "## Unreleased" not in others
    for name in (None, *(project.name for project in INTEGRATIONS)):
        assert released(name) == sorted(set(released(name)), reverse=True)
    days = [found["day"] for found in HEADING.finditer(CHANGELOG)]
    assert [date.fromisoformat(day).isoformat() for day in days] == sorted(days, reverse=True)
    # What is unreleased becomes the core's version, or a newer one.
    newest = max(released(None), default=Version("0"))
    assert Version(rt.__version__) == newest or (Version(rt.__version__) > newest and first == "## Unreleased")


@pytest.mark.parametrize("project", INTEGRATIONS, ids=lambda project: project.name)
def test_an_integration_has_a_version_and_needs_one_of_the_core(project: Path) -> None:
    core = {*released(None), Version(rt.__version__)}
    # Released alone, or with a release of the core, under whose heading it is.
    assert Version(version_of(project)) in {*released(project.name), *core}
    (needed,) = re.findall(r'"(rollout-trace[^-\w"][^"]*)"', (project / "pyproject.toml").read_text())
    (bound,) = Requirement(needed).specifier
    assert bound.operator == ">="
    assert Version(bound.version) in core


def test_the_citation_is_of_this_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (cited["version"], cited["license"]) == (rt.__version__, "Apache-2.0")
    days = [found["day"] for found in HEADING.finditer(CHANGELOG) if found["version"] == rt.__version__]
    assert str(cited.get("date-released")) in ([str(day) for day in days] or ["None"])


def test_no_file_has_a_copyright_line() -> None:
    """`LICENSE` covers all; code of others would need theirs."""
    line = re.compile(
        rb"copyright\s*(?:\(c\)|\xc2\xa9|[0-9]{4})|\xc2\xa9\s*[0-9]{4}|SPDX-" + rb"License", re.IGNORECASE
    )
    files = [path for path in everything() if path.name != "LICENSE"]
    assert len(files) > 1000
    assert [str(path) for path in files if line.search((ROOT / path).read_bytes())] == []


def everything() -> list[Path]:
    """All files that git has or would take; in a sdist, which is without git, all."""
    if (ROOT / ".git").exists():
        command = ("git", "ls-files", "--cached", "--others", "--exclude-standard")
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    else:
        listed = [path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*") if ".venv" not in str(path)]
    return [Path(name) for name in listed if (ROOT / name).is_file()]


@pytest.mark.parametrize("project", INTEGRATIONS, ids=lambda project: project.name)
def test_the_licence_is_the_same_everywhere(project: Path) -> None:
    assert (project / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_a_form_for_issues_can_be_filled_in(form: Path) -> None:
    content = yaml.safe_load(form.read_text())
    if form.name == "config.yml":
        assert content == {"blank_issues_enabled": True}
        return
    assert {"name", "description", "body"} <= set(content)
    fields = [part for part in content["body"] if part["type"] != "markdown"]
    assert len({part["id"] for part in fields}) == len(fields)
    assert all(part["attributes"]["label"] for part in fields)
    assert any(part.get("validations", {}).get("required") for part in fields)
    # What it asks for is there.
    text = form.read_text()
    assert set(re.findall(r"`rollout-trace ([a-z]+)", text)) <= set(COMMANDS)
    named = re.findall(r"\brt\.(\w+)\b(?!_?\.\.\.)", text)
    assert [name for name in named if not name.endswith("_") and not hasattr(rt, name)] == []


@pytest.mark.parametrize("name", ["SECURITY.md", "CODE_OF_CONDUCT.md", ".github/PULL_REQUEST_TEMPLATE.md"])
def test_what_these_pages_name_is_there(name: str) -> None:
    text = (ROOT / name).read_text()
    links = re.findall(r"\]\(([^)#]+)", text)
    assert [link for link in links if not (ROOT / link).exists()] == []
    files = re.findall(r"`([\w./-]+\.(?:md|py)|docs/)`", text)
    assert [file for file in files if not (ROOT / file).exists()] == []
    assert set(re.findall(r"`rollout-trace ([a-z]+)`", text)) <= set(COMMANDS)
    sessions = (ROOT / "noxfile.py").read_text()
    assert [target for target in re.findall(r"`make ([a-z]+)`", text) if f'("{target}"' not in sessions] == []
