"""``rollout-trace import``: files of other tools as trajectories, and what it says of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rollout_trace as rt
from rollout_trace import importing

from .command import command

DATA = Path(__file__).parent.parent / "data" / "imports"


def test_a_named_source(tmp_path: Path) -> None:
    done = command(tmp_path, "import", "claude-code", DATA / "claude_code", "-o", "out.jsonl", "--json")
    assert (done.code, done.err) == (0, "")
    assert done.json["source"] == "claude_code"
    assert (done.json["trajectories"], done.json["steps"]) == (2, 8)
    assert done.json["missing"]["token ids"] == 7
    assert done.json["unreadable"] == []
    found = list(rt.read(tmp_path / "out.jsonl"))
    assert [one.steps for one in found] == [one.steps for one in importing.claude_code(DATA / "claude_code")]
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


@pytest.mark.parametrize("name", sorted(importing.SOURCES))
def test_the_source_is_found_where_it_is_certain(name: str, tmp_path: Path) -> None:
    done = command(tmp_path, "import", DATA / name, "-o", "out.jsonl.gz")
    assert (done.code, done.err) == (0, "")
    assert f" of {name} in out.jsonl.gz" in done.out.splitlines()[0]
    assert any(line.startswith("missing in the source: ") for line in done.out.splitlines())
    assert command(tmp_path, "validate", "out.jsonl.gz").code == 0
    assert command(tmp_path, "stats", "out.jsonl.gz").code == 0


def test_stdin_needs_its_source(tmp_path: Path) -> None:
    text = (DATA / "verifiers" / "traces.jsonl").read_text()
    done = command(tmp_path, "import", "verifiers", "-", "-o", "out.jsonl", stdin=text)
    assert (done.code, done.out.splitlines()[0]) == (0, "1 trajectories with 5 steps of verifiers in out.jsonl")
    done = command(tmp_path, "import", "-", "-o", "b.jsonl", stdin=text)
    assert done.code == 2
    assert "stdin needs a SOURCE" in done.err


def test_what_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    lines = (DATA / "verifiers" / "traces.jsonl").read_text()
    (tmp_path / "bad.jsonl").write_text('{"traces": 3}\n' + lines)
    done = command(tmp_path, "import", "verifiers", "bad.jsonl", "-o", "out.jsonl")
    assert done.code == 1
    assert "bad.jsonl, line 1, $.traces: expected a list" in done.err
    assert len(list(rt.read(tmp_path / "out.jsonl"))) == 1
    done = command(tmp_path, "import", "verifiers", "bad.jsonl", "-o", "strict.jsonl", "--strict")
    assert done.code == 1
    assert "Error: bad.jsonl, line 1, $.traces" in done.err
    assert not (tmp_path / "strict.jsonl").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.jsonl", "out.jsonl"]


def test_the_score_of_inspect(tmp_path: Path) -> None:
    done = command(tmp_path, "import", DATA / "inspect", "-o", "out.jsonl", "--score", "includes")
    assert done.code == 0
    assert next(rt.read(tmp_path / "out.jsonl")).reward == 1.0
    done = command(tmp_path, "import", DATA / "art", "-o", "b.jsonl", "--score", "includes")
    assert (done.code, "--score works with the source inspect" in done.err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "name a file to import"),
        (("atif",), "name a file to import"),
        (("atif", "run.json"), "-o FILE is missing"),
        (("atif", "run.json", "-o", "x.parquet"), "-o x.parquet has an unknown suffix"),
        (("run.json", "ours.jsonl", "-o", "x.jsonl"), "cannot tell which tool"),
        (("atif", "run.json", "-o", "ours.jsonl"), "--overwrite to replace it"),
        (("atif", "ours.jsonl", "-o", "ours.jsonl", "--overwrite"), "one of the files to import"),
        (("atif", "none.json", "-o", "x.jsonl"), "there is no file none.json"),
        (("atif", "-", "-", "-o", "x.jsonl"), "- is given twice"),
    ],
)
def test_wrong_use(arguments: tuple[str, ...], problem: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text((DATA / "atif" / "run.json").read_text())
    with rt.JSONLWriter(tmp_path / "ours.jsonl") as writer:
        writer.write(rt.Trajectory())
    done = command(tmp_path, "import", *arguments)
    assert done.code == 2
    assert problem in done.err
    assert not (tmp_path / "x.jsonl").exists()


def test_nothing_to_write(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    done = command(tmp_path, "import", "otel", "empty.jsonl", "-o", "out.jsonl")
    assert (done.code, done.out) == (1, "otel had no trajectories to write\n")
    assert not (tmp_path / "out.jsonl").exists()


def test_the_sources_are_listed(tmp_path: Path) -> None:
    listed = command(tmp_path, "import", "--list", "--json").json["sources"]
    assert [one["source"] for one in listed] == list(importing.SOURCES)
    text = command(tmp_path, "import", "--list").out
    assert all(f"{one['source']}: {one['reads']}\n  lacks    {one['lacks']}\n" in text for one in listed)


def test_model_text_does_not_reach_the_terminal_raw(tmp_path: Path) -> None:
    line = {"type": "\u001b[31mred", "uuid": "a"}
    (tmp_path / "s.jsonl").write_text(json.dumps(line) + "\n")
    done = command(tmp_path, "import", "claude_code", "s.jsonl", "-o", "out.jsonl")
    assert done.code == 1
    assert "\u001b" not in done.out + done.err
