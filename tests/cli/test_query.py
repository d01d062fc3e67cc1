"""``rollout-trace query``: SQL on the tables of trajectories, and on nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rollout_trace as rt
from rollout_trace.view.sql_tables import TABLES

from .command import command
from .runs import HOSTILE, write_runs

pytest.importorskip("duckdb")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_runs(tmp_path / "a.jsonl")
    return tmp_path


def test_tables_have_types_notes_and_rows(folder: Path) -> None:
    sql = (
        "SELECT t.id, t.reward, t.rewards['format'] AS format, t.metadata->>'split' AS split, "
        "t.started_at::VARCHAR AS at, "
        "t.n_rows, t.trained, count(s.id) AS steps, sum(s.n_completion) AS sampled, avg(s.mean_logprob) AS logprob, "
        "list_distinct(flatten(list(s.tool_calls))) AS tools "
        "FROM trajectories t JOIN steps s ON s.trajectory_id = t.id "
        "WHERE t.rollout_index = 0 GROUP BY ALL ORDER BY t.id"
    )
    done = command(folder, "query", sql, "a.jsonl", "--json")
    assert (done.code, done.err) == (0, "")
    expected = {
        "id": "t00", "reward": 5.0, "format": 0.5, "split": "test", "at": "2026-11-21 08:00:00", "n_rows": 1,
        "trained": 6, "steps": 3, "sampled": 6, "logprob": -0.375, "tools": ["bash"],
    }  # fmt: skip
    assert done.json["columns"] == list(expected)
    assert done.json["rows"][0] == expected
    assert [row["id"] for row in done.json["rows"]] == ["t00", "t10", "t20"]


def test_tool_runs_and_findings(folder: Path) -> None:
    done = command(
        folder,
        "query",
        "SELECT name, error_type, count(*) AS n FROM tool_runs GROUP BY ALL ORDER BY n",
        "a.jsonl",
        "--csv",
    )
    assert done.out.splitlines() == ["name,error_type,n", "bash,Timeout,3", "bash,,9"]
    with rt.JSONLWriter(folder / "b.jsonl") as out:
        out.write(rt.Trajectory(id="x", reward=1.0))
    done = command(folder, "query", "SELECT count(*) AS n FROM findings", "b.jsonl", "--json")
    assert done.json["rows"] == [{"n": len(next(rt.read(folder / "b.jsonl")).check())}]


def test_every_column_can_be_read_of_any_trajectory(folder: Path) -> None:
    (folder / "c.jsonl").write_text(
        '{"schema":"rollout-trace/1","id":"half \\ud800","name":"a\\u0000b","metadata":{"\\udc00":["\\ud801"]}}\n'
    )
    for name, table in TABLES.items():
        done = command(folder, "query", f"SELECT * FROM {name}", "a.jsonl", "c.jsonl", "--json")
        assert (done.code, done.err) == (0, "")
        assert done.json["columns"] == list(table.columns)
    done = command(folder, "query", "SELECT id, name, metadata FROM trajectories", "c.jsonl", "--json")
    assert done.json["rows"] == [{"id": "half \ufffd", "name": "a\0b", "metadata": '{"\ufffd":["\ufffd"]}'}]


def test_a_table_escapes_what_models_wrote(folder: Path) -> None:
    done = command(folder, "query", "SELECT result, reward FROM tool_runs, trajectories LIMIT 1", "a.jsonl")
    assert done.code == 0
    assert done.out.replace("\n", "").isprintable()
    assert "\\x1b[2J\\u202e</script>" in done.out
    done = command(folder, "query", "SELECT NULL AS nothing, 1 AS nothing", "a.jsonl")
    assert [line.split() for line in done.out.splitlines()] == [["nothing", "nothing_2"], ["-", "1"]]


def test_rows_go_to_files(folder: Path) -> None:
    sql = "SELECT id, reward, rewards, result FROM trajectories JOIN tool_runs ON trajectory_id = id ORDER BY id"
    for name in ("x.csv", "x.jsonl"):
        done = command(folder, "query", sql, "a.jsonl", "-o", name)
        assert (done.code, done.out, done.err) == (0, f"12 rows in {name}\n", "")
        assert "exists already" in command(folder, "query", sql, "a.jsonl", "-o", name).err
    row = json.loads((folder / "x.jsonl").read_text().splitlines()[0])
    assert row == {"id": "t00", "reward": 5.0, "rewards": {"format": 0.5}, "result": HOSTILE}
    parquet = pytest.importorskip("pyarrow.parquet")
    done = command(folder, "query", sql, "a.jsonl", "-o", "x.parquet", "--json")
    assert done.json == {"output": "x.parquet", "rows": 12, "unreadable": []}
    assert parquet.read_table(folder / "x.parquet").column("reward").to_pylist()[:2] == [5.0, 1.0]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('secret.csv')",
        "SELECT * FROM 'secret.csv'",
        "SELECT * FROM glob('*')",
        "COPY trajectories TO 'secret.csv'",
        "ATTACH 'secret.db' AS s",
        "SET enable_external_access = true",
        "INSTALL httpfs",
        "SELECT * FROM sql",
        "SELECT 1; COPY steps TO 'secret.csv'",
    ],
)
def test_sql_reaches_no_file_and_no_variable(sql: str, folder: Path) -> None:
    (folder / "secret.csv").write_text("a\n1\n")
    done = command(folder, "query", sql, "a.jsonl")
    assert (done.code, done.out) == (2, "")
    assert len(done.err.splitlines()) == 1
    assert (folder / "secret.csv").read_text() == "a\n1\n"


def test_mistakes_are_one_sentence(folder: Path) -> None:
    for sql, message in (
        ("SELEC 1", 'syntax error at or near "SELEC"'),
        ("SELECT rewrd FROM trajectories", '"reward"'),
        ("SELECT * FROM runs", "The tables are trajectories, steps, tool_runs, findings."),
        ("", "the SQL is empty"),
        ("SELECT 1/'a'", "Error: "),
    ):
        done = command(folder, "query", sql, "a.jsonl")
        assert (done.code, done.out, len(done.err.splitlines())) == (2, "", 1), sql
        assert message in done.err
    assert "first the SQL" in command(folder, "query", "a.jsonl", "SELECT 1").err
    assert "expected a name that ends with" in command(folder, "query", "SELECT 1", "a.jsonl", "-o", "x.txt").err
    done = command(folder, "query", "SELECT 1", "a.jsonl", without="duckdb")
    assert (done.code, done.err) == (
        2,
        "Error: query needs the package duckdb. Install it in a checkout with: pip install '.[duckdb]'\n",
    )


def test_damaged_lines_are_left_out_and_named(folder: Path) -> None:
    text = (folder / "a.jsonl").read_text()
    done = command(folder, "query", "SELECT count(*) FROM trajectories", "-", "--json", stdin=f"{text}x\n")
    assert (done.code, done.json["rows"]) == (1, [{"count_star()": 12}])
    assert done.json["unreadable"][0].startswith("stdin, line 13")


def test_where_and_columns(folder: Path) -> None:
    sql = "SELECT count(*) AS n, min(file) AS file, max(line) AS line FROM trajectories"
    done = command(folder, "query", sql, "a.jsonl", "--where", "reward > 1", "--json")
    assert done.json["rows"] == [{"n": 1, "file": "a.jsonl", "line": 1}]
    listed = command(folder, "query", "--columns").out
    assert "mean_logprob          DOUBLE" in listed
