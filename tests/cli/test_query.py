"""``rollout-trace query``, the old spelling: one sentence says what to do instead, and that works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .command import command
from .runs import write_runs


def test_it_says_what_to_do_instead(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    path = write_runs(tmp_path / "rollouts.jsonl")
    for arguments in (["SELECT 1", "rollouts.jsonl"], ["SELECT 1", "-", "--csv", "-o", "x.csv"], ["--columns"], []):
        done = command(tmp_path, "query", *arguments)
        assert (done.code, done.out, len(done.err.splitlines())) == (2, "", 1)
    (sql,) = re.findall('duckdb -c "(.*?)"', done.err)
    ((mean,),) = duckdb.sql(sql.replace("rollouts.jsonl", str(path))).limit(1).fetchall()
    assert mean == pytest.approx(6 / 11)  # Of t00 the note alone has one.
    ((expression, file),) = re.findall(r"rollout-trace filter '(.*?)' (\S+)\.", done.err)
    assert command(tmp_path, "filter", expression, file, "--count").code == 0
