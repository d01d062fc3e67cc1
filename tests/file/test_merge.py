"""Several files as one: notes folded in, doubles dropped, everything else the same to the byte."""

from __future__ import annotations

import base64
import gzip
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rollout_trace as rt
from rollout_trace import JSONLWriter
from rollout_trace.file.copies import fold
from rollout_trace.file.decode import decode
from rollout_trace.file.encode import encode
from rollout_trace.file.lines import lines
from rollout_trace.file.notes import apply_note
from rollout_trace.file.records import NOTE_SCHEMA, NoteRecord, StepNoteRecord
from tests.strategies import PROFILE, json_values, texts, trajectories


def write(path: Path, *runs: rt.Trajectory, media: Any = "inline") -> Path:
    with JSONLWriter(path, media=media) as out:
        for run in runs:
            out.write(run)
    return path


def content(path: Path) -> list[bytes]:
    return [bytes(line) for _, line in lines(str(path))]  # type: ignore[arg-type]


def names(path: Path) -> list[str]:
    return [run.name for run in rt.read(path)]


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "jsonl.zst"])
def test_lines_without_notes_are_copied_byte_for_byte(suffix: str, tmp_path: Path) -> None:
    odd = b'{ "schema":"rollout-trace/1" ,"id":"a","future": [1.50, 1e3, "\\u00e9"],"steps":[]}'
    (tmp_path / "a.jsonl").write_bytes(odd + b"\r\n\n")
    write(tmp_path / "b.jsonl.gz", rt.Trajectory(id="b", name="cut \ud83d"))
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    report = rt.merge([tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz"], tmp_path / f"out.{suffix}")
    assert content(tmp_path / f"out.{suffix}") == [odd, *content(tmp_path / "b.jsonl.gz")]
    assert {path: path.read_bytes() for path in before} == before
    assert (report.read, report.written, report.doubles, report.notes) == (2, 2, 0, 0)
    assert str(report) == f"2 trajectories in {tmp_path}/out.{suffix}, of 2 read; trajectories with notes folded in: 0"
    assert len(list(tmp_path.iterdir())) == 3


def test_the_last_of_doubles_is_kept_in_its_place(tmp_path: Path) -> None:
    one = write(tmp_path / "1.jsonl", *(rt.Trajectory(id=name, name=f"{name}1") for name in "abca"))
    two = write(tmp_path / "2.jsonl", *(rt.Trajectory(id=name, name=f"{name}2") for name in "db"))
    report = rt.merge([one, two], tmp_path / "out.jsonl")
    assert names(tmp_path / "out.jsonl") == ["c1", "a1", "d2", "b2"]
    assert (report.read, report.written, report.doubles) == (6, 4, 2)
    assert "doubles dropped: 2" in str(report)


def test_notes_are_folded_in_and_read_the_same(tmp_path: Path) -> None:
    steps = [rt.Step(id="s0", call_id="c", reward=1, metadata={"k": 1}), rt.Step(id="s1", call_id="d")]
    path = write(tmp_path / "a.jsonl", rt.Trajectory(id="a", rewards={"x": 1}, steps=steps), rt.Trajectory(id="b"))
    rt.annotate(path, "a", reward=0.5, rewards={"y": 2}, metadata={"label": "good", "big": 10**30, "cut": "\ud83d"})
    rt.annotate(path, "a", steps={"s0": {"metadata": {"l": 2}}, 1: {"trainable": False, "advantage": [1.5]}})
    report = rt.merge(path, tmp_path / "out.jsonl")
    assert (report.written, report.notes, report.unmatched_notes) == (2, 1, [])
    assert list(rt.read(tmp_path / "out.jsonl")) == list(rt.read(path))
    assert not (tmp_path / "out.notes.jsonl").exists()
    assert content(tmp_path / "out.jsonl")[1] == content(path)[1]


def test_the_notes_of_all_files_are_applied_in_their_order(tmp_path: Path) -> None:
    """Of a double too: what became known of a trajectory does not depend on which of its lines is kept."""
    one = write(tmp_path / "1.jsonl", rt.Trajectory(id="a"))
    two = write(tmp_path / "2.jsonl", rt.Trajectory(id="a", name="last"))
    rt.annotate(two, "a", reward=2)
    rt.annotate(one, "a", reward=1, metrics={"m": 1})
    rt.merge([one, two], tmp_path / "out.jsonl")
    (found,) = rt.read(tmp_path / "out.jsonl")
    assert (found.name, found.reward, found.metrics) == ("last", 2, {"m": 1})


def test_notes_without_a_trajectory_are_reported(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", rt.Trajectory(id="a"))
    for at in range(4):
        rt.annotate(path, f"no{at}", reward=1)
    report = rt.merge(path, tmp_path / "out.jsonl")
    assert report.unmatched_notes == ["no0", "no1", "no2", "no3"]
    assert str(report).endswith("notes without a trajectory: 4 ('no0', 'no1', 'no2', ...)")


def test_notes_without_their_step_are_reported(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", rt.Trajectory(id="a", steps=[rt.Step(id="s", call_id="c")]))
    rt.annotate(path, "a", steps={0: {"reward": 1}, 7: {"reward": 1}, "no": {"trainable": False}})
    rt.annotate(path, "a", steps={7: {"reward": 2}})
    report = rt.merge(path, tmp_path / "out.jsonl")
    assert report.unmatched_steps == ["step 7 of trajectory 'a'", "step 'no' of trajectory 'a'"]
    assert str(report).endswith("; notes without their step: 2 (step 7 of trajectory 'a', step 'no' of trajectory 'a')")


def test_a_merged_file_shares_notes_with_the_file_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packing a file is a merge: notes made for either are then read with both, and twice is as once."""
    path = write(tmp_path / "a.jsonl", rt.Trajectory(id="a"))
    rt.annotate(path, "a", reward=1)
    monkeypatch.chdir(tmp_path)
    rt.merge("./a.jsonl", "a.jsonl.gz")
    rt.annotate(path, "a", reward=2)
    assert [run.reward for run in rt.read(tmp_path / "a.jsonl*")] == [2, 2]


@pytest.mark.parametrize("bad", [b"x\n", b'{"schema":"rollout-trace/1"}\n', b'{"schema":"rollout-trace/1","id":"a"'])
def test_what_cannot_be_read_raises_or_is_named(bad: bytes, tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", rt.Trajectory(id="a", name="good"))
    with path.open("ab") as file:
        file.write(bad)
    out = tmp_path / "out.jsonl"
    with pytest.raises(rt.FormatError, match=r"a\.jsonl, line 2"):
        rt.merge(path, out)
    assert [one.name for one in tmp_path.iterdir()] == ["a.jsonl"]
    report = rt.merge(path, out, on_error="skip")
    assert names(out) == ["good"]
    assert [str(error).partition(",")[0] for error in report.unreadable] == [str(path)]
    assert "lines that could not be read: 1, the first: " in str(report)


def test_a_damaged_note_raises_or_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", rt.Trajectory(id="a"))
    (tmp_path / "a.notes.jsonl").write_text("x\n")
    with pytest.raises(rt.FormatError, match=r"a\.notes\.jsonl, line 1"):
        rt.merge(path, tmp_path / "out.jsonl")
    assert len(rt.merge(path, tmp_path / "out.jsonl", on_error="skip").unreadable) == 1


def test_a_line_behind_damaged_bytes_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    good = encode(rt.Trajectory(id="good"))
    path.write_bytes(gzip.compress(b'{"bad"') + gzip.compress(good))
    report = rt.merge(path, tmp_path / "out.jsonl", on_error="skip")
    assert content(tmp_path / "out.jsonl") == [good.rstrip()]
    assert (report.written, len(report.unreadable)) == (1, 1)


def test_the_output_is_never_an_input_nor_replaced_unasked(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", rt.Trajectory(id="a"))
    before = path.read_bytes()
    os.link(path, tmp_path / "link.jsonl")
    for out in (path, tmp_path / "link.jsonl"):
        with pytest.raises(ValueError, match="is one of the files to merge"):
            rt.merge(path, out, overwrite=True)
    other = write(tmp_path / "other.jsonl", rt.Trajectory(id="b", name="old"))
    with pytest.raises(FileExistsError, match=r"other\.jsonl exists\. Give a new name, or overwrite=True"):
        rt.merge(path, other)
    assert names(other) == ["old"]
    with pytest.raises(IsADirectoryError):
        rt.merge(path, tmp_path)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ValueError, match="is a pipe or a device: give the path of a file"):
        rt.merge(path, pipe, overwrite=True)
    with pytest.raises(ValueError, match="are for notes"):
        rt.merge(path, tmp_path / "b.notes.jsonl")
    with pytest.raises(ValueError, match="is not a format for trajectories"):
        rt.merge(path, tmp_path / "b.parquet")
    assert rt.merge(path, other, overwrite=True).written == 1
    assert path.read_bytes() == other.read_bytes() == before


def test_notes_that_lie_beside_the_output_are_not_applied_to_it(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", rt.Trajectory(id="a"))
    old = write(tmp_path / "out.jsonl", rt.Trajectory(id="a"))
    rt.annotate(old, "a", reward=0)
    with pytest.raises(FileExistsError, match=r"out\.notes\.jsonl exists already, and its notes would be applied"):
        rt.merge(path, old, overwrite=True)


def test_a_merge_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """Here in the second reading: a note that looks like a reference, so that the media themselves are needed."""
    (tmp_path / "in").mkdir()
    path = write(tmp_path / "in" / "a.jsonl", picture("a"), media="folder")
    rt.annotate(path, "a", metadata={"k": "rollout-trace-media("})
    (media,) = (tmp_path / "in" / "a.jsonl.media").iterdir()
    media.write_bytes(bytes(media.stat().st_size))
    with pytest.raises(rt.FormatError, match=r"a\.jsonl, line 1, \$.*other bytes"):
        rt.merge(path, tmp_path / "out.jsonl")
    assert [one.name for one in tmp_path.iterdir()] == ["in"]


def picture(name: str, size: int = 2000) -> rt.Trajectory:
    image = base64.b64encode(name.encode() * size).decode()
    asked = [{"role": "user", "content": f"data:image/png;base64,{image}"}]
    return rt.Trajectory(id=name, name=name, steps=[rt.Step(id=f"{name}0", call_id="c", messages=asked)])


def test_media_follow_their_lines(tmp_path: Path) -> None:
    one = write(tmp_path / "1.jsonl", picture("a"), picture("b"), media="folder")
    two = write(tmp_path / "2.jsonl.gz", picture("b"), picture("c"), media="folder")
    write(tmp_path / "3.jsonl", rt.Trajectory(id="b", name="last"))
    rt.annotate(one, "a", reward=1)
    paths = [one, two, tmp_path / "3.jsonl"]
    report = rt.merge(paths, tmp_path / "sub" / "out.jsonl")
    found = list(rt.read(tmp_path / "sub" / "out.jsonl"))
    everything = {run.id: run for run in rt.read(paths)}
    assert [run.id for run in found] == ["a", "c", "b"]
    assert found == [everything[run.id] for run in found]
    assert report.doubles == 2
    # Only the media of lines that are in the output, and nothing half written.
    folder = tmp_path / "sub" / "out.jsonl.media"
    assert len(list(folder.iterdir())) == 2
    assert sorted(path.name for path in folder.parent.iterdir()) == ["out.jsonl", "out.jsonl.media"]


def test_a_note_that_looks_like_a_reference_stays_text(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", picture("a"), media="folder")
    (media,) = (tmp_path / "a.jsonl.media").iterdir()
    text = f"rollout-trace-media(sha256={media.name};bytes=2000;as=url;type=image/png)"
    rt.annotate(path, "a", metadata={"said": text})
    rt.merge(path, tmp_path / "out.jsonl")
    (found,) = rt.read(tmp_path / "out.jsonl")
    assert found.metadata == {"said": text}
    assert found.steps == next(rt.read(path)).steps
    assert len(content(tmp_path / "out.jsonl")[0]) < 2000


def test_missing_media_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", picture("a"), rt.Trajectory(id="b"), media="folder")
    (media,) = (tmp_path / "a.jsonl.media").iterdir()
    media.write_bytes(b"cut")
    with pytest.raises(rt.FormatError, match=r"line 1: expected 2000 bytes of media in .*, got 3$"):
        rt.merge(path, tmp_path / "out.jsonl")
    media.unlink()
    report = rt.merge(path, tmp_path / "out.jsonl", on_error="skip")
    assert [run.id for run in rt.read(tmp_path / "out.jsonl")] == ["b"]
    assert "No such file" in str(report.unreadable[0])


def test_the_output_is_as_private_as_its_sources(tmp_path: Path) -> None:
    one, two = (write(tmp_path / name, rt.Trajectory(id=name)) for name in ("1.jsonl", "2.jsonl"))
    one.chmod(0o600)
    rt.merge([one, two], tmp_path / "out.jsonl")
    assert stat.S_IMODE((tmp_path / "out.jsonl").stat().st_mode) == 0o600


def test_bad_arguments_raise_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match='on_error is \'stop\'; it can be "raise" or "skip"'):
        rt.merge(tmp_path / "no.jsonl", tmp_path / "out.jsonl", on_error="stop")  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        rt.merge(tmp_path / "no.jsonl", tmp_path / "out.jsonl")


# Folding


numbers = st.none() | st.integers(-3, 3) | st.floats(-1, 1)
by_name: Any = st.none() | st.dictionaries(texts, st.integers(0, 3), max_size=2)
metadata = st.none() | st.dictionaries(texts, json_values, max_size=2)


@st.composite
def noted(draw: st.DrawFn) -> tuple[rt.Trajectory, NoteRecord]:
    run = draw(trajectories())
    steps = [
        StepNoteRecord(
            id=step.id if draw(st.booleans()) else None,
            index=step.index,
            reward=draw(numbers),
            trainable=draw(st.none() | st.booleans()),
            policy_version=draw(st.none() | st.integers(0, 3)),
            metadata=draw(metadata),
        )
        for step in run.steps
        if draw(st.booleans()) and step.index >= 0
    ]
    note = NoteRecord(
        schema=NOTE_SCHEMA,
        id=run.id,
        reward=draw(numbers),
        rewards=draw(by_name),
        metrics=draw(by_name),
        metadata=draw(metadata),
        steps=steps,
        score_error=draw(st.none() | st.just(rt.ErrorInfo(type="E", message="m"))),
    )
    return run, note


@settings(PROFILE)
@given(pair=noted())
def test_a_folded_note_is_read_as_an_applied_one(pair: tuple[rt.Trajectory, NoteRecord]) -> None:
    run, note = pair
    line = encode(run).rstrip()
    applied = decode(line)
    apply_note(note, applied)
    assert decode(fold(line, note)) == applied


def test_folding_keeps_what_it_does_not_know() -> None:
    line = {"schema": "rollout-trace/1", "id": "a", "new": {"x": 1}, "steps": [{"id": "s", "new": [10**30, 1.50]}]}
    steps = [StepNoteRecord(index=0, reward=1), StepNoteRecord(id="no", reward=2)]
    note = NoteRecord(schema=NOTE_SCHEMA, id="a", reward=1, steps=steps)
    folded = json.loads(fold(json.dumps(line).encode(), note))
    assert folded == {**line, "reward": 1, "steps": [{"id": "s", "new": [10**30, 1.5], "reward": 1}]}
