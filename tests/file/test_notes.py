"""What is known later: notes are appended beside the file, and every reader and exporter applies them."""

from __future__ import annotations

import json
import logging
import os
import stat
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rollout_trace as rt
from rollout_trace import JSONLWriter, export
from rollout_trace.file import records as schema
from rollout_trace.file.notes import apply_note, merge_notes, notes_path
from rollout_trace.file.records import NOTE_SCHEMA, NoteRecord, StepNoteRecord
from tests.consumers.traces import trajectory_of
from tests.strategies import PROFILE

FIXTURE = Path(__file__).parent / "data" / "rollout-trace-note-1.jsonl"
TRACE = [([1, 2], [3, 4], [-0.5, -0.25]), ([1, 2, 3, 4, 5], [6], [-1.0])]


def write(path: Path, *trajectories: rt.Trajectory) -> Path:
    with JSONLWriter(path) as out:
        for trajectory in trajectories:
            out.write(trajectory)
    return path


def one(path: Path) -> rt.Trajectory:
    (found,) = rt.read(path)
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with one trajectory of two steps, ``trace``, without a reward."""
    return write(tmp_path / "rollouts.jsonl", trajectory_of(TRACE, reward=None))


@pytest.mark.parametrize(
    ("file", "notes"),
    [
        ("rollouts.jsonl", "rollouts.notes.jsonl"),
        ("runs/rollouts.jsonl.gz", "runs/rollouts.notes.jsonl"),
        ("/a.b/rollouts.jsonl.zst", "/a.b/rollouts.notes.jsonl"),
        ("rollouts.ndjson", "rollouts.notes.jsonl"),
        ("rollouts.json.gz", "rollouts.notes.jsonl"),
        ("rollouts.gz", "rollouts.notes.jsonl"),
        ("rollouts", "rollouts.notes.jsonl"),
        ("qwen2.5", "qwen2.5.notes.jsonl"),
        (".jsonl", ".jsonl.notes.jsonl"),
    ],
)
def test_the_notes_of_a_file_stand_beside_it(file: str, notes: str) -> None:
    assert notes_path(file) == notes


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "jsonl.zst"])
def test_a_note_is_one_line_and_the_file_stays_as_it_is(suffix: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"rollouts.{suffix}", trajectory_of(TRACE, reward=None), rt.Trajectory(id="other"))
    before = path.read_bytes()
    rt.annotate(
        path,
        "trace",
        reward=np.float32(0.5),
        rewards={"style": 1},
        metrics={"judge_seconds": 2.5},
        metadata={"label": "good", "at": datetime(2026, 11, 22, tzinfo=timezone.utc)},
        steps={"step0": {"reward": 1, "trainable": False}, 1: {"advantage": [0.5], "policy_version": 7}},
    )
    assert path.read_bytes() == before
    (line,) = (tmp_path / "rollouts.notes.jsonl").read_text().splitlines()
    note = json.loads(line)
    assert datetime.fromisoformat(note.pop("at").replace("Z", "+00:00")).tzinfo is not None
    assert note == {
        "schema": "rollout-trace-note/1",
        "id": "trace",
        "reward": 0.5,
        "rewards": {"style": 1},
        "metrics": {"judge_seconds": 2.5},
        "metadata": {"label": "good", "at": "2026-11-22T00:00:00Z"},
        "steps": [
            {"id": "step0", "reward": 1, "trainable": False},
            {"index": 1, "advantage": [0.5], "policy_version": 7},
        ],
    }
    found, other = rt.read(path)
    assert (found.reward, found.rewards, found.metrics) == (0.5, {"style": 1}, {"judge_seconds": 2.5})
    assert found.metadata == {"label": "good", "at": "2026-11-22T00:00:00Z"}
    first, second = found.steps
    assert (first.reward, first.trainable, second.trainable) == (1, False, True)
    assert (second.advantage, second.policy_version) == ([0.5], 7)
    assert (other.reward, other.metadata) == (None, None)


def test_a_note_matches_the_published_schema(path: Path) -> None:
    import jsonschema

    rt.annotate(path, "trace", reward=1, rewards={"a": None}, steps={0: {"advantage": [1.0], "metadata": {"k": 1}}})
    note = json.loads((path.parent / "rollouts.notes.jsonl").read_text())
    jsonschema.validate(note, json.loads(schema.NOTE_PATH.read_text()))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**note, "reward": "1"}, json.loads(schema.NOTE_PATH.read_text()))


def test_later_notes_win_field_by_field_and_names_are_merged(path: Path) -> None:
    rt.annotate(path, "trace", reward=0, rewards={"a": 1, "b": 2}, metadata={"x": {"deep": 1}, "y": 1})
    rt.annotate(path, "trace", reward=1.0, steps={"step0": {"reward": 1, "metadata": {"k": 1}}})
    rt.annotate(path, "trace", rewards={"b": 3, "c": None}, metadata={"x": 2}, steps={0: {"metadata": {"l": 2}}})
    found = one(path)
    assert found.reward == 1.0
    assert found.rewards == {"a": 1, "b": 3, "c": None}
    assert found.metadata == {"x": 2, "y": 1}
    assert (found.steps[0].reward, found.steps[0].metadata) == (1, {"k": 1, "l": 2})


def test_a_note_adds_to_what_the_line_has(tmp_path: Path) -> None:
    recorded = rt.Trajectory(id="a", reward=1, rewards={"a": 1}, metrics={"m": 1}, metadata={"k": 1, "l": 1})
    path = write(tmp_path / "rollouts.jsonl", recorded)
    rt.annotate(path, "a", rewards={"b": 2}, metrics={"m": 2}, metadata={"l": 2})
    found = one(path)
    assert (found.reward, found.rewards, found.metrics) == (1, {"a": 1, "b": 2}, {"m": 2})
    assert found.metadata == {"k": 1, "l": 2}
    with pytest.raises(ValueError, match="finite"):  # What was noted is checked as if it were set.
        found.rewards["b"] = float("nan")  # type: ignore[index]


BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "nan": ({"reward": float("nan")}, ValueError, "reward is nan; give a finite number, or None where there is none."),
    "text": ({"reward": "1"}, TypeError, "reward is '1' (str); give one finite number"),
    "rewards": ({"rewards": {"a": float("inf")}}, ValueError, "rewards['a'] is inf"),
    "metrics": ({"metrics": [1]}, TypeError, 'metrics is [1] (list); give a dict, {"name": number}.'),
    "metadata": ({"metadata": "x"}, TypeError, "metadata is 'x' (str); give a dict"),
    "keys": ({"metadata": {1: 1, "1": 2}}, ValueError, "metadata has two keys 1 and '1'"),
    "steps": ({"steps": [1]}, TypeError, "steps is [1] (list); give a dict, {id or index: values}."),
    "step": ({"steps": {0: 1.0}}, TypeError, "steps[0] is 1.0 (float); give a dict with any of reward, advantage"),
    "index": ({"steps": {-1: {"reward": 1}}}, ValueError, "the index in steps[-1] is -1"),
    "field": ({"steps": {0: {"rewrad": 1}}}, ValueError, "steps[0] has 'rewrad', which a note of a step cannot hold"),
    "empty": ({"steps": {0: {"reward": None}}}, ValueError, "steps[0] gives no value"),
    "trainable": ({"steps": {0: {"trainable": 0}}}, TypeError, "steps[0]['trainable'] is 0 (int); give True or False."),
    "advantage": ({"steps": {0: {"advantage": [1, None]}}}, TypeError, "steps[0]['advantage'][1] is None"),
    "version": ({"steps": {0: {"policy_version": 1.5}}}, TypeError, "give text or a whole number."),
    "no-names": ({"rewards": {}, "metadata": {}, "steps": {}}, ValueError, "no value is given for trajectory"),
    "nothing": ({}, ValueError, "no value is given for trajectory 'trace': give any of reward, rewards"),
}


@pytest.mark.parametrize(("values", "kind", "said"), BAD.values(), ids=BAD)
def test_a_bad_value_raises_at_once_and_nothing_is_written(
    values: dict[str, Any], kind: type[Exception], said: str, path: Path
) -> None:
    with pytest.raises(kind) as found:
        rt.annotate(path, "trace", **values)
    assert said in str(found.value)
    assert not (path.parent / "rollouts.notes.jsonl").exists()


def test_bad_places_are_refused(path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"^there is no file .*no\.jsonl: give the path of the file with the"):
        rt.annotate(path.parent / "no.jsonl", "trace", reward=1)
    with pytest.raises(ValueError, match=r"^no file of the folder .* has trajectory 'other': no note was written\.$"):
        rt.annotate(path.parent, "other", reward=1)
    with pytest.raises(ValueError, match=r"^s3://b/run is an address, where no note can be appended\. Copy"):
        rt.annotate("s3://b/run", "trace", reward=1)
    with pytest.raises(TypeError, match=r'^expected the path of a file, such as "rollouts\.jsonl", got 3\.$'):
        rt.annotate(3, "trace", reward=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"holds no trajectories"):
        rt.annotate(os.devnull, "trace", reward=1)
    assert not os.path.exists(f"{os.devnull}.notes.jsonl")
    for bad in (None, "", 7):
        with pytest.raises(TypeError, match=r"^trajectory_id is .*; give the id of a trajectory as text\.$"):
            rt.annotate(path, bad, reward=1)  # type: ignore[arg-type]
    rt.annotate(path, "trace", reward=1)
    with pytest.raises(ValueError, match="is itself a file of notes"):
        rt.annotate(path.parent / "rollouts.notes.jsonl", "trace", reward=1)


def test_a_file_of_trajectories_with_the_name_of_notes_stays_one(tmp_path: Path) -> None:
    """Such a file may be older than notes: it is read, never left out, and gets no notes of another file."""
    path = write(tmp_path / "rollouts.jsonl", rt.Trajectory(id="a"))
    old = tmp_path / "rollouts.notes.jsonl"
    old.write_text('{"schema": "rollout-trace/1", "id": "b"}\n')
    assert [found.id for found in rt.read(tmp_path / "*.jsonl")] == ["a", "b"]
    assert one(path).id == "a"
    with pytest.raises(ValueError, match="is a file of trajectories, but has the name of the notes of"):
        rt.annotate(path, "a", reward=1)
    rt.annotate(old, "b", reward=1)
    assert one(old).reward == 1


def test_patterns_and_lists_leave_notes_out(path: Path) -> None:
    rt.annotate(path, "trace", reward=1)
    assert [found.reward for found in rt.read(path.parent / "*.jsonl")] == [1]
    assert [found.reward for found in rt.read(sorted(path.parent.iterdir()))] == [1]
    with pytest.raises(FileNotFoundError, match="has only files of notes"):
        rt.read([path.parent / "rollouts.notes.jsonl"])
    with pytest.raises(FileNotFoundError, match="no file matches"):
        rt.read(path.parent / "*.notes.jsonl")
    with pytest.raises(rt.FormatError, match=r"is a line of notes: read the file that they belong to"):
        list(rt.read(path.parent / "rollouts.notes.jsonl"))


def test_notes_that_match_nothing_are_one_warning(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rt.annotate(path, "trace", reward=1, steps={"no": {"reward": 1}, 9: {"reward": 1}})
    rt.annotate(path, "late\x1b[2J", reward=1)
    assert one(path).reward == 1
    (said,) = caplog.messages
    assert said == (
        f"3 notes in {path.parent}/rollouts.notes.jsonl match nothing in the files read: trajectory 'late\\x1b[2J', "
        "step 'no' of trajectory 'trace', step 9 of trajectory 'trace'"
    )


def test_files_of_one_name_share_their_notes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for suffix, name in (("jsonl", "a"), ("jsonl.gz", "b")):
        rt.annotate(write(tmp_path / f"rollouts.{suffix}", rt.Trajectory(id=name)), name, reward=1)
    caplog.set_level(logging.WARNING)
    assert [found.reward for found in rt.read(tmp_path / "*")] == [1, 1]
    assert caplog.messages == []
    assert one(tmp_path / "rollouts.jsonl").reward == 1
    (said,) = caplog.messages
    assert said.endswith("rollouts.notes.jsonl matches nothing in the files read: trajectory 'b'")


DAMAGED_NOTES = {
    "text": ("x", ": expected a line of JSON, got something else"),
    "half": ('{"schema": "rollout-trace-note/1", "id": "tr', ": expected a whole line of JSON, got one that ends"),
    "type": ('{"schema": "rollout-trace-note/1", "id": "trace", "reward": "1"}', ", $.reward: expected int | float"),
    "id": ('{"schema": "rollout-trace-note/1"}', ", $.id: the required field is missing"),
    "step": (
        '{"schema": "rollout-trace-note/1", "id": "trace", "steps": [{"reward": 1}]}',
        ", $.steps[0]: expected the id or the index of a step, got neither",
    ),
    "newer": (
        '{"schema": "rollout-trace-note/2", "id": 3}',
        ", $.schema: expected 'rollout-trace-note/1', got 'rollout-trace-note/2': the line was written by a newer",
    ),
    "deep": (
        '{"schema": "rollout-trace-note/1", "id": "trace", "metadata": {"a": ' + "[" * 200_000 + "]" * 200_000 + "}}",
        ": expected values that can be decoded, got lists or objects nested too deeply",
    ),
}


@pytest.mark.parametrize(("line", "said"), DAMAGED_NOTES.values(), ids=DAMAGED_NOTES)
def test_a_damaged_note_is_named_or_skipped(line: str, said: str, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rt.annotate(path, "trace", reward=1)
    beside = path.parent / "rollouts.notes.jsonl"
    with beside.open("a") as file:
        file.write(f"{line}\n")
    rt.annotate(path, "trace", metadata={"k": 1})
    with pytest.raises(rt.FormatError) as found:
        list(rt.read(path))
    assert str(found.value).startswith(f"{beside}, line 2{said}")
    reader = rt.read(path, on_error="skip")
    (trajectory,) = reader
    assert (trajectory.reward, trajectory.metadata) == (1, {"k": 1})
    assert [str(error) for error in reader.skipped] == [str(found.value)]
    assert len(caplog.messages) == 1


@pytest.mark.skipif(os.name == "nt", reason="no flock")
def test_notes_that_stay_locked_are_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    from rollout_trace.file import annotate as module

    monkeypatch.setattr(module, "_LOCK_TIMEOUT", 0.01)
    beside = path.parent / "rollouts.notes.jsonl"
    with beside.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(rt.WriteError) as found:
            rt.annotate(path, "trace", reward=1)
    assert str(found.value).startswith(f"{beside} could not be written: ")
    assert "holds its lock" in str(found.value)
    assert str(found.value).endswith("Nothing of what was to be noted is in the file.")
    assert beside.read_bytes() == b""
    rt.annotate(path, "trace", reward=1)
    assert one(path).reward == 1


def test_notes_cut_at_any_place_give_the_whole_ones(path: Path) -> None:
    rt.annotate(path, "trace", reward=0.5, metadata={"é": "数"})
    whole = len((path.parent / "rollouts.notes.jsonl").read_bytes())
    rt.annotate(path, "trace", reward=1)
    beside = path.parent / "rollouts.notes.jsonl"
    data = beside.read_bytes()
    for end in range(len(data)):
        beside.write_bytes(data[:end])
        reader = rt.read(path, on_error="skip")
        (found,) = reader
        # A line is whole without its newline too.
        assert found.reward == (None if end < whole - 1 else 0.5 if end < len(data) - 1 else 1)
        assert len(reader.skipped) == (0 if end in (0, whole - 1, whole, len(data) - 1) else 1)


def test_notes_of_the_first_version_are_read(tmp_path: Path) -> None:
    """The file was written by it and is never changed."""
    steps = [rt.Step(id="s0", call_id="c"), rt.Step(id="s1", call_id="d", index=1)]
    path = write(tmp_path / "rollouts.jsonl", rt.Trajectory(id="t", steps=steps), rt.Trajectory(id="u"))
    (tmp_path / "rollouts.notes.jsonl").write_bytes(FIXTURE.read_bytes())
    first, second = rt.read(path)
    assert (first.reward, first.rewards, first.metrics) == (0.75, {"style": 1, "format": None}, {"seconds": 2.5})
    assert first.metadata == {"label": "good", "by": "judge", "n": [1, None]}
    assert [(s.reward, s.advantage, s.trainable, s.policy_version, s.metadata) for s in first.steps] == [
        (1, None, False, None, {"k": 1}),
        (None, [0.5, -0.25], True, 7, None),
    ]
    assert second.metadata == {"score_error": {"type": "TimeoutError", "message": "the judge did not answer"}}
    assert second.reward is None


def test_a_note_after_a_part_of_a_line_begins_a_new_one(path: Path) -> None:
    (path.parent / "rollouts.notes.jsonl").write_text('{"schema": "rollout-tr')
    rt.annotate(path, "trace", reward=1)
    reader = rt.read(path, on_error="skip")
    assert [found.reward for found in reader] == [1]
    assert len(reader.skipped) == 1


def test_texts_that_were_cut_inside_a_character_are_noted(path: Path) -> None:
    rt.annotate(path, "trace", metadata={"said": "cut \ud83d", "\udc0d": 10**30})
    assert one(path).metadata == {"said": "cut \ud83d", "\udc0d": 10**30}


def test_fields_of_the_future_are_ignored_in_notes(path: Path) -> None:
    line = {
        "schema": "rollout-trace-note/1",
        "id": "trace",
        "reward": 1,
        "new": [1],
        "steps": [{"id": "step0", "n": 1}],
    }
    (path.parent / "rollouts.notes.jsonl").write_text(json.dumps(line))
    assert one(path).reward == 1


def test_notes_are_as_private_as_their_file(path: Path) -> None:
    path.chmod(0o600)
    rt.annotate(path, "trace", reward=1)
    assert stat.S_IMODE(os.stat(path.parent / "rollouts.notes.jsonl").st_mode) == 0o600


def test_threads_annotate_one_file(path: Path) -> None:
    def work(at: int) -> None:
        for number in range(25):
            rt.annotate(path, "trace", metrics={f"{at}.{number}": number})

    threads = [threading.Thread(target=work, args=(at,)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(one(path).metrics or ()) == 200


# Every consumer sees them


EXPORTERS: dict[str, Callable[[Any], Any]] = {
    "agent_lightning": export.agent_lightning,
    "areal": export.areal,
    "art": export.art,
    "atif": export.atif,
    "chat": export.chat,
    "batches": lambda runs: list(export.batches(runs, batch_size=4)),
    "exchanges": export.exchanges,
    "nemo_gym": export.nemo_gym,
    "nemo_rl": export.nemo_rl,
    "openenv": export.openenv,
    "openrlhf": lambda runs: export.openrlhf(runs, several="longest"),
    "rllm": export.rllm,
    "skyrl": export.skyrl,
    "slime": export.slime,
    "steps": export.steps,
    "tinker": lambda runs: export.tinker(runs, advantages=None),
    "trl": export.trl,
    "trl_dpo": export.trl_dpo,
    "trl_kto": lambda runs: export.trl_kto(runs, threshold=0.5),
    "trl_prompts": export.trl_prompts,
    "trl_rollout": lambda runs: export.trl_rollout(runs, several="longest"),
    "turns": export.turns,
    "verifiers": export.verifiers,
    "verl": export.verl,
}
WITHOUT_REWARDS = {"arrow", "dataset", "distillation", "features", "otel", "verl_prompts"}
"""These take rows, send spans, or give prompts or a teacher's tokens alone."""


def talk(name: str, reward: float | None) -> rt.Trajectory:
    """Two turns of a conversation, with text and ids."""
    made = replace(trajectory_of(TRACE, reward=reward), id=name, started_at=DAY, ended_at=DAY)
    asked: list[Any] = [{"role": "user", "content": "2 + 2?"}]
    answer = rt.Completion(content=name)
    again = [*asked, {"role": "assistant", "content": name}, {"role": "user", "content": "sure?"}]
    first, second = made.steps
    first, second = (
        replace(first, messages=asked, completion=answer),
        replace(second, messages=again, completion=answer),
    )
    made.steps = [replace(first, id=f"{name}0"), replace(second, id=f"{name}1", advantage=[reward or 0.0])]
    return made


DAY = datetime(2026, 11, 22, tzinfo=timezone.utc)


@pytest.mark.parametrize("name", EXPORTERS)
def test_an_exporter_gives_the_same_for_a_noted_and_for_a_recorded_reward(name: str, tmp_path: Path) -> None:
    """And not what it gives without it: so the test finds an exporter that takes the reward from elsewhere."""
    recorded = write(tmp_path / "recorded.jsonl", talk("a", 0.75), talk("b", 0.25))
    noted = write(tmp_path / "noted.jsonl", talk("a", None), talk("b", 0.25))
    bare = write(tmp_path / "bare.jsonl", talk("a", None), talk("b", 0.25))
    rt.annotate(noted, "a", reward=0.75, steps={"a1": {"advantage": [0.75]}})
    given = [repr(EXPORTERS[name](list(rt.read(path)))) for path in (recorded, noted, bare)]
    assert given[0] == given[1]
    assert given[0] != given[2]


def test_every_exporter_of_rewards_is_tried_above() -> None:
    names = {name for name in export.__all__ if name.islower() and not name.startswith("write")}
    assert names == EXPORTERS.keys() | WITHOUT_REWARDS


def test_sequences_have_the_noted_reward(path: Path) -> None:
    rt.annotate(path, "trace", reward=0.25, steps={1: {"trainable": False}})
    (sequence,) = one(path).sequences()
    assert sequence.reward == 0.25
    assert sum(sequence.loss_mask) == 2


# Merging notes, and applying them


numbers = st.none() | st.integers(-3, 3)
by_name = st.none() | st.dictionaries(st.sampled_from("abc"), st.integers(0, 3), max_size=2)
step_notes = st.builds(
    lambda by_id, at, **given: StepNoteRecord(id=f"step{at}" if by_id else None, index=None if by_id else at, **given),
    st.booleans(),
    st.integers(0, 2),
    reward=numbers,
    trainable=st.none() | st.booleans(),
    metadata=by_name,
)
notes = st.builds(
    lambda failed, **given: NoteRecord(
        schema=NOTE_SCHEMA,
        id="trace",
        score_error=rt.ErrorInfo(type="E", message="m") if failed and given["reward"] is None else None,
        **given,
    ),
    st.booleans(),
    reward=numbers,
    rewards=by_name,
    metrics=by_name,
    metadata=by_name,
    steps=st.lists(step_notes, max_size=2),
)


@settings(PROFILE)
@given(given_notes=st.lists(notes, min_size=1, max_size=4))
def test_merged_notes_do_what_they_do_one_by_one(given_notes: list[NoteRecord]) -> None:
    together, apart = trajectory_of(TRACE), trajectory_of(TRACE)
    merged = None
    for note in given_notes:
        apply_note(note, apart)
        merged = merge_notes(merged, note)
    assert merged is not None
    apply_note(merged, together)
    assert (together.metadata or None) == (apart.metadata or None)
    together.metadata = apart.metadata = None
    assert together == apart
