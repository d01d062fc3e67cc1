"""Rows one by one, how far an export is, and what strictness is about."""

from __future__ import annotations

import io
import pickle
import sys
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace import export
from rollout_trace.export import ExportReport
from rollout_trace.export._rows import MAX_WAITING
from rollout_trace.view.formats import FORMATS
from tests.amount import some
from tests.consumers.traces import trajectory_of
from tests.export.drawn import drawn
from tests.export.plain import plain

TRACE = [([1, 2], [3, 4], [-0.5, -0.25]), ([1, 2, 3, 4, 5], [6], [-1.0])]
STREAMS = (
    "agent_lightning", "areal", "atif", "chat", "exchanges", "nemo_gym", "nemo_rl", "openenv", "rllm", "slime", "steps",
    "tinker", "trl", "turns", "verl",
)  # fmt: skip
WRITTEN = ("chat", "distillation", "exchanges", "steps", "trl", "turns", "verifiers", "verl_prompts")
"""What had a writer of its own."""
EPISODES = ("agent_lightning", "atif", "rllm")
"""These wait for the other trajectories of an episode."""


def talks(count: int) -> list[rt.Trajectory]:
    made = [trajectory_of(TRACE, reward=at % 2) for at in range(count)]
    for run in made:
        run.steps = [
            replace(step, messages=[{"role": "user", "content": str(at)}], completion=rt.Completion(content="a"))
            for at, step in enumerate(run.steps)
        ]
    return [replace(run, id=str(at)) for at, run in enumerate(made)]


STREAMED = [one.name for one in FORMATS.values() if one.streams]


@pytest.mark.parametrize("name", some(STREAMED, *STREAMED[::4]))
def test_a_format_that_streams_holds_few_trajectories(name: str, tmp_path: Path) -> None:
    """As ``rollout-trace convert --list`` says: one at a time, or those that wait for others of their episode."""
    options = {"data_source": "a", "ability": "b"} if name == "verl_prompts" else {}
    alive: weakref.WeakSet[rt.Trajectory] = weakref.WeakSet()
    most = written = 0

    def source() -> Iterator[rt.Trajectory]:
        nonlocal most, written
        for at in range(3 * MAX_WAITING):
            run = trajectory_of(TRACE, reward=1.0)
            said: dict[str, Any] = {
                "messages": [{"role": "user", "content": f"{at}"}],
                "completion": rt.Completion(content="a"),
            }
            run.steps = [replace(one, **said) for one in run.steps]
            run.id = run.episode_id = str(at)
            alive.add(run)
            yield run
            most = max(most, len(alive))
        written = sum(file.stat().st_size for file in tmp_path.iterdir())

    FORMATS[name].write(str(tmp_path / "a.jsonl"), source(), options)
    assert 0 < most <= MAX_WAITING + 5
    assert written or name in ("distillation", "verl_prompts")  # No rows, or fewer than a buffer holds.


@pytest.mark.hypothesis
@pytest.mark.parametrize("name", STREAMS)
def test_rows_one_by_one_are_the_rows(name: str) -> None:
    for runs in drawn():
        assert_same_rows(name, runs)


def assert_same_rows(name: str, runs: list[rt.Trajectory]) -> None:
    one, other = ExportReport(), ExportReport()
    exporter = getattr(export, name)
    assert plain(list(exporter.rows(iter(runs), report=one))) == plain(exporter(runs, report=other))
    assert (one.dropped, one.metadata) == (other.dropped, other.metadata)


def test_old_names_of_rows_and_files(tmp_path: Path) -> None:
    """`iter_NAME` and `write_NAME` are `NAME.rows`, which can be pickled as functions can, and `write` of these."""
    for name in (*STREAMS, "distillation"):
        old = getattr(export, f"iter_{name}")
        assert old == getattr(export, name).rows == pickle.loads(pickle.dumps(old))
    for name in WRITTEN:
        options: Any = {"data_source": "a", "ability": "b"} if name == "verl_prompts" else {}
        old, new = tmp_path / f"{name}.jsonl", tmp_path / "new.jsonl"
        count = getattr(export, f"write_{name}")(old, talks(2), **options)
        assert count == export.write(new, getattr(export, name).rows(talks(2), **options))
        assert old.read_bytes() == new.read_bytes()
    for name in ("iter_openrlhf", "write_tinker"):
        with pytest.raises(AttributeError, match=f"has no attribute '{name}'"):
            getattr(export, name)


def test_a_list_of_rows_is_written_like_the_rows_themselves(tmp_path: Path) -> None:
    """Also those rows of an iterator that were not taken from it."""
    for name in WRITTEN[:-1]:
        exporter = getattr(export, name)
        for suffix in ("jsonl", "parquet") if name == "turns" else ("jsonl",):
            made, listed, rest = (tmp_path / f"{name}-{which}.{suffix}" for which in ("made", "listed", "rest"))
            count = export.write(made, exporter.rows(talks(3)))
            assert export.write(listed, exporter(talks(3))) == count
            assert made.read_bytes() == listed.read_bytes()
            rows = exporter.rows(talks(3))
            if next(rows, None) is not None:
                assert export.write(rest, rows) == count - 1


@pytest.mark.parametrize("name", STREAMS)
def test_the_first_row_needs_no_other_trajectory(name: str) -> None:
    """But where runs are compared, or columns are of all rows or none."""
    read = 0

    def stream() -> Iterator[rt.Trajectory]:
        nonlocal read
        for run in talks(5):
            read += 1
            yield run

    options: Any = {"advantages": None} if name == "tinker" else {}
    rows = getattr(export, name).rows(stream(), **options)
    assert read == 0
    assert next(rows)
    assert read == (5 if name in ("nemo_rl", "slime", "verl", *EPISODES) else 1)


@pytest.mark.parametrize("name", [name for name in STREAMS if name not in ("chat", "exchanges")])
def test_a_stream_checks_its_options_at_once(name: str) -> None:
    with pytest.raises(TypeError, match="allow='error'"):
        getattr(export, name).rows([], allow="error")


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_checks_strict_at_once(name: str) -> None:
    with pytest.raises(ValueError, match="strict='tokens': expected True, False or 'metadata'"):
        getattr(export, name).rows([], strict="tokens")


def test_a_stream_says_at_its_end_what_was_left_out(caplog: pytest.LogCaptureFixture) -> None:
    failed = rt.Trajectory(steps=[rt.Step(id="a", call_id="a", status="error")])
    assert list(export.trl.rows(failed)) == []
    (line,) = caplog.messages
    assert line.startswith("export.trl left out: steps left out: error: 1.")
    with pytest.raises(rt.ExportError, match=r"export\.trl: steps left out: error"):
        list(export.trl.rows(failed, strict=True))


def test_progress_is_the_number_of_trajectories(tmp_path: Path) -> None:
    runs = talks(3)
    seen: list[int] = []
    export.write_atif(tmp_path / "atif", iter(runs), report=ExportReport(progress=seen.append))
    assert seen == [1, 2, 3]
    seen = []
    export.write(tmp_path / "a.jsonl", export.trl.rows(iter(runs), report=ExportReport(progress=seen.append)))
    assert seen == [1, 2, 3]
    for name in (
        *STREAMS,
        "art",
        "openrlhf",
        "skyrl",
        "tinker",
        "trl",
        "trl_dpo",
        "trl_kto",
        "verl",
        "verifiers",
        "atif",
        "chat",
        "steps",
    ):
        seen = []
        getattr(export, name)(runs, report=ExportReport(progress=seen.append))
        assert seen == [1, 2, 3], name


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal_is_one_line_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    for screen in (Terminal(), io.StringIO()):
        monkeypatch.setattr(sys, "stderr", screen)
        export.trl(talks(1), report=ExportReport(progress=True))
        text = "export.trl: 1 trajectories"
        shown = f"\r{text}\r{' ' * len(text)}\r"
        assert screen.getvalue() == (shown if isinstance(screen, Terminal) else "")


def test_strict_is_about_tokens_and_rewards() -> None:
    """What stands beside them is said, and raises under a word of its own."""
    (run,) = talks(1)
    for step in run.steps:
        step.policy_version = "v1"
    run.rewards = {"short": 1.0}
    report = ExportReport()
    assert len(export.trl(run, strict=True, report=report)) == 1
    assert report.dropped == {"policy versions": 2, "rewards by name": 1}
    assert report.metadata == {"policy versions", "rewards by name"}
    with pytest.raises(rt.ExportError, match=r"policy versions .*: 2\. Without strict='metadata' it would be left out"):
        export.trl(run, strict="metadata")
    run.steps[0].reward = 0.5
    with pytest.raises(rt.ExportError, match="step rewards"):
        export.trl(run, strict=True)
    with pytest.raises(ValueError, match="strict='tokens': expected True, False or 'metadata'"):
        export.trl(run, strict="tokens")  # type: ignore[arg-type]


def test_rows_say_what_they_were_sampled_at() -> None:
    (run,) = talks(1)
    run.group_id = None
    at: Any = {"sampling": {"temperature": 0.7}, "logprobs_mode": "processed"}
    run.steps = [replace(step, **at) for step in run.steps]
    found = [
        export.verl(run)[0]["extra_fields"],
        export.tinker(run, advantages=None)[0],
        {name: values[0] for name, values in export.trl_rollout(run).items()},
    ]
    assert [(row["temperature"], row["logprobs_mode"]) for row in found] == [(0.7, "processed")] * 3
    run.steps[1] = replace(run.steps[1], sampling={"temperature": 1})
    report = ExportReport()
    assert export.verl(run, report=report)[0]["extra_fields"]["temperature"] is None
    assert report.dropped == {"temperatures of rows whose steps differ": 1}
    assert report.metadata == set(report.dropped)


def test_rows_are_cut_between_turns_and_of_one_policy() -> None:
    first, second = talks(2)
    for step in second.steps:
        step.policy_version = 2
    report = ExportReport()
    rows = export.trl([first, second], report=report, max_length=5, truncate="turn", policy_versions={2})
    assert [(row["trajectory_id"], row["input_ids"]) for row in rows] == [("1", [1, 2, 3, 4])]
    assert report.dropped == {
        "steps left out: policy_version": 2,
        "scored trajectories without a row": 1,
        "steps left out: max_length": 1,
        "tokens cut: max_length": 2,
        "policy versions": 1,
    }


@pytest.mark.parametrize("name", ["atif", "skyrl", "steps", "tinker", "trl", "trl_rollout", "verifiers", "verl"])
def test_tokens_that_a_grammar_decided_are_said(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """They are in the rows, exact as they are; but ratios to a trainer's own forward pass are not 1."""
    (run,) = talks(1)
    run.steps[0] = replace(run.steps[0], sampling={"response_format": {"type": "json_object"}})
    report = ExportReport()
    options: Any = {"advantages": None} if name == "tinker" else {}
    getattr(export, name)(run, report=report, strict=True, **options)
    what = "tokens sampled under a grammar (response_format), whose ratios are not 1"
    assert (report.noted, report.dropped) == ({what: 2}, {})
    assert str(report) == f"nothing was left out; {what}: 2"
    assert caplog.messages == [f"export.{name}: {what}: 2. See docs/training.md."]
