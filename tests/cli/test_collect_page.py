"""Every block of ``docs/collect-command.md`` runs as it is printed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import rollout_trace as rt
from rollout_trace.testing import ScriptedServer

from .command import command

PAGE = Path(__file__).parents[2] / "docs" / "collect-command.md"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE.read_text(), re.M | re.S)


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedServer("four") as server:
        monkeypatch.setenv("BASE_URL", server.base_url)
        for kind, text in BLOCKS:
            if kind == "bash":
                for line in text.splitlines():
                    program, *args = shlex.split(line)
                    assert program == "rollout-trace"
                    done = command(tmp_path, *args)
                    assert done.code == 0, f"{line}\n{done.err}"
            else:
                named = re.match(r"# (\S+)\n", text)
                (tmp_path / (named[1] if named else "tasks.jsonl")).write_text(text)
    sums = list(rt.read(tmp_path / "runs" / "sums.jsonl"))
    assert sorted((one.task.id, one.rollout_index) for one in sums if one.task) == [
        (task, index) for task in ("sum/1", "sum/2") for index in range(4)
    ]
    assert {one.reward for one in sums} == {1.0}
    assert {one.reward for one in rt.read(tmp_path / "runs" / "weighted.jsonl")} == {1.025}
    found = {(one.name, one.reward) for one in rt.read(tmp_path / "runs" / "from-file.jsonl")}
    assert found == {("solve", 1.125), ("again", 1.025)}


def test_the_page_has_blocks_of_each_kind() -> None:
    assert {kind for kind, _ in BLOCKS} == {"python", "json", "bash", "toml"}
