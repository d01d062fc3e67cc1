"""Every block of Python of docs/shards.md runs, in its order, in a folder of its own."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest

from rollout_trace.file.shards_spool import ROOT as SPOOL

PAGE = Path(__file__).resolve().parents[2] / "docs" / "shards.md"


def test_the_blocks_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: Any
) -> None:
    pytest.importorskip("fsspec")
    caplog.set_level(logging.CRITICAL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(SPOOL, str(tmp_path / "spool"))
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert len(blocks) == 5
    assert names["tokens"] == 0
    assert capsys.readouterr().out.startswith("gsm8k/17 1.0\n0 trajectories recovered from 0 journals of ")
