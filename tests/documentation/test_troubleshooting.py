"""docs/checks.md has every line that the library logs, and no other; each public error; where codes are."""

from __future__ import annotations

import re

import pytest
from page_blocks import ROOT

import rollout_trace as rt
from rollout_trace.train.check_codes import CODES, ISSUE_CODES

from .log_lines import SOURCES, Line, lines, texts

PAGE = (ROOT / "docs" / "checks.md").read_text(encoding="utf-8")
_TABLES = PAGE.partition("## Log lines")[2].partition("## Errors")[0]
SHOWN = re.findall(r"^\| `([^`]+)` \|", _TABLES, re.MULTILINE)
MADE_ELSEWHERE = {
    "rollout_trace/file/shards.py:rotate": "… Its line is whole in the file",
    "rollout_trace/record/sink.py:_attempt": "… Its line is whole in the file",
    "rollout_trace/record/writer_child.py:_write": "… Its line is whole in the file",
    "rollout_trace/record/sink.py:_lose": "trajectory … (…) was not written to",
    "rollout_trace/record/sink.py:finish": "…: … could not be written at once",
    "rollout_trace/record/recording.py:end_with_process": "… could not be written completely",
    "rollout_trace/guard.py:failed": "recording failed in",
    "rollout_trace/guard.py:warn": "",
}
"""Where the message of a call is made by another function: how it begins on the page."""
LINES = list(dict.fromkeys(lines()))


def _begins(shown: str, template: str) -> bool:
    return template.startswith(shown.rstrip("…").rstrip())


@pytest.mark.parametrize("line", LINES, ids=lambda line: f"{line.place}: {line.template[:40]}")
def test_the_page_has_every_line(line: Line) -> None:
    if line.template in ("…", "%s"):
        assert any(one.startswith(MADE_ELSEWHERE[line.place]) for one in SHOWN)
    else:
        assert any(_begins(one, line.template) for one in SHOWN), line.template


@pytest.mark.parametrize("shown", SHOWN)
def test_the_page_has_no_other(shown: str) -> None:
    elsewhere = any(shown.startswith(one) for one in MADE_ELSEWHERE.values() if one)
    assert elsewhere or any(_begins(shown, line.template) for line in LINES)


@pytest.mark.parametrize("begins", sorted(set(MADE_ELSEWHERE.values()) - {""}))
def test_what_is_made_elsewhere_is_made(begins: str) -> None:
    words = max(begins.split("…"), key=len).strip(" ():")
    assert any(words in one for one in texts())


def test_nothing_else_logs() -> None:
    """Each line goes through the logger of `guard.py`, whose callers are those of `log_lines`."""
    found = {path.relative_to(ROOT).as_posix() for path in SOURCES if "getLogger(" in path.read_text(encoding="utf-8")}
    # The second one gives rollouts loggers of their own.
    assert found == {"rollout_trace/guard.py", "rollout_trace/collection/logs.py"}


def test_the_page_has_every_error() -> None:
    public = [name for name in rt.__all__ if isinstance(getattr(rt, name), type)]
    errors = {name for name in public if issubclass(getattr(rt, name), Exception)}
    assert set(re.findall(r"^\| `rt\.(\w+)` \|", PAGE, re.MULTILINE)) == errors


def test_every_code_is_on_the_page_that_is_named() -> None:
    steps, checks = ((ROOT / "docs" / name).read_text() for name in ("steps.md", "checks.md"))
    assert [code for code in ISSUE_CODES if f"`{code}`" not in steps] == []
    assert [code for code in CODES if f"`{code}`" not in checks] == []


def test_links_lead_to_headings() -> None:
    for page, heading in re.findall(r"\]\(([\w-]+\.md)(?:#([\w-]+))?\)", PAGE):
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        anchors = {
            re.sub(r"[^\w -]", "", one.lower()).strip().replace(" ", "-") for one in re.findall(r"^#+ (.*)", text, re.M)
        }
        assert not heading or heading in anchors, (page, heading)
