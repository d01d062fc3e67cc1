"""The page docs/import.md: its blocks, in their order, what it says they print, and its table."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace import importing
from tests.cli.command import command

from .files import DATA

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "import.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(python|text|bash)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


class _Tokenizer:
    """One id for each byte, and a template that renders any chat."""

    def apply_chat_template(self, messages: Any, *, add_generation_prompt: bool = False, **_: Any) -> str:
        text = "".join(f"<{one['role']}>{one.get('content')}{one.get('tool_calls') or ''}\n" for one in messages)
        return text + "<assistant>" * add_generation_prompt

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return list(text.encode())


def test_every_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    for source, target in (("claude_code", "claude/projects"), ("codex", "codex/sessions"), ("atif", "atif")):
        shutil.copytree(DATA / source, tmp_path / target)
    shutil.copytree(DATA / "inspect", tmp_path / "logs")
    (tmp_path / "broken.jsonl").write_text('{"traces": 3}\n')
    space: dict[str, Any] = {"tokenizer": _Tokenizer()}
    printed = ""
    for number, (kind, text) in enumerate(BLOCKS):
        if kind == "python":
            exec(compile(text, f"docs/import.md, block {number}", "exec"), space)
            printed = capsys.readouterr().out
        elif kind == "text":
            assert printed == text
        else:
            for line in text.splitlines():
                done = command(tmp_path, *line.split()[1:])
                assert (done.code, done.err) == (0, ""), line
    assert [one.name for one in rt.read(tmp_path / "sessions.jsonl")] == ["claude-code", "Explore"]
    assert next(rt.read(tmp_path / "evals.jsonl.gz")).reward == 1.0


def test_the_table_has_every_source() -> None:
    for one in importing.SOURCES.values():
        assert f"| `{one.name}` | {one.what} | {one.lacks} |" in PAGE
