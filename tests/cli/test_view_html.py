"""``rollout-trace view --html``: a selection in one file."""

from __future__ import annotations

from pathlib import Path

import rollout_trace as rt
from tests.view.build import conversation, hostile
from tests.view.test_static import held

from .command import command


def recorded(folder: Path) -> Path:
    """A file with five trajectories."""
    path = folder / "rollouts.jsonl"
    with rt.JSONLWriter(path) as out:
        out.write(hostile())
        for at in range(4):
            one = conversation()
            one.id, one.episode_id, one.reward = f"t{at}", f"t{at}", float(at)
            out.write(one)
    return path


def test_a_selection_is_written(tmp_path: Path) -> None:
    path, out = recorded(tmp_path), tmp_path / "page.html"
    done = command(tmp_path, "view", path, "--html", out, "--where", "reward > 0", "-n", "2", "--json")
    assert done.code == 0, done.err
    found = done.json
    assert found["trajectories"] == 2
    assert found["is_cut"] is True
    assert found["bytes"] == out.stat().st_size
    listed = held(out.read_text(encoding="utf-8"))["rollout-data"]
    assert [one["id"] for one in listed["summaries"]] == ["t1", "t2"]
    assert listed["info"]["title"] == "rollouts.jsonl"


def test_an_existing_file_is_kept_unless_asked(tmp_path: Path) -> None:
    path, out = recorded(tmp_path), tmp_path / "page.html"
    out.write_text("mine")
    refused = command(tmp_path, "view", path, "--html", out)
    assert refused.code == 2
    assert "--overwrite" in refused.err
    assert out.read_text() == "mine"
    done = command(tmp_path, "view", path, "--html", out, "--overwrite")
    assert done.code == 0
    assert done.out == f"5 trajectories in {out} ({out.stat().st_size / 1e6:.1f} MB)\n"


def test_lines_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    path, out = recorded(tmp_path), tmp_path / "page.html"
    with path.open("a") as file:
        file.write("no line\n")
    done = command(tmp_path, "view", path, "--html", out)
    assert done.code == 1
    assert "line 6" in done.err
    assert len(held(out.read_text(encoding="utf-8"))) == 6


def test_options_of_a_file_are_refused_without_one(tmp_path: Path) -> None:
    done = command(tmp_path, "view", recorded(tmp_path), "-n", "3")
    assert done.code == 2
    assert "--html" in done.err
