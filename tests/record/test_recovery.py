"""``rt.recover``: damage, versions, live journals, writing once, and what the report has of it."""

from __future__ import annotations

import gzip
import os
import random
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

import rollout_trace as rt
from rollout_trace.clients import recorder
from rollout_trace.file import journal as form
from rollout_trace.file import journal as journal_files
from rollout_trace.record import call as call_module
from rollout_trace.record import journal_records, journal_texts
from rollout_trace.record.journal import Journal, TrajectoryJournal
from rollout_trace.record.settings import Settings
from rollout_trace.record.state import log_of, state_of
from rollout_trace.testing import Reply, ScriptedServer
from tests.amount import amount

from .journaled import ask, died, files_of, journaled, sdk, talk


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, list[rt.Trajectory]]:
    """A journal that a process left, and its trajectories as they were recorded."""
    output = tmp_path_factory.mktemp("left") / "out.jsonl"
    journal, recorded = Journal(output), []
    with ScriptedServer("some words to say") as server:
        client = sdk(server)
        for number in range(3):
            with journaled(journal, task=f"{number}") as trajectory:
                talk(client, 4)
                trajectory.reward = float(number)
            # The rest of the environment is collected when the trajectory is written.
            trajectory.environment = None
            recorded.append(trajectory)
    died(journal)
    (file,) = files_of(output)
    return file.read_bytes(), recorded


def place(folder: Path, data: bytes, name: str = "host-1-ab-0") -> Path:
    """An output with a journal of these bytes."""
    journal = folder / "out.jsonl.journal"
    journal.mkdir(exist_ok=True)
    (journal / f"{name}.journal").write_bytes(data)
    return folder / "out.jsonl"


def by_id(trajectories: Any) -> dict[str, rt.Trajectory]:
    return {one.id: one for one in trajectories}


def test_all_of_it(left: tuple[bytes, list[rt.Trajectory]], tmp_path: Path) -> None:
    data, recorded = left
    found = rt.recover(place(tmp_path, data))
    assert list(found) == recorded
    assert found.report.is_clean
    assert str(found.report).startswith("3 trajectories recovered from 1 journal of ")
    assert "nothing was written" in str(found.report)
    assert list(rt.recover(tmp_path / "out.jsonl.journal")) == recorded


def test_no_journal(tmp_path: Path) -> None:
    found = rt.recover(tmp_path / "out.jsonl")
    assert (list(found), found.report.journals) == ([], [])
    with pytest.raises(TypeError, match="expected the path of an output"):
        rt.recover(5)  # type: ignore[arg-type]


@pytest.mark.amount
def test_cut_at_any_place(left: tuple[bytes, list[rt.Trajectory]], tmp_path: Path) -> None:
    data, recorded = left
    ends = [one.offset for one in form.records(data) if isinstance(one, form.Record)]
    for cut in sorted(random.Random(5).sample(range(len(data)), amount(50, 200, 500))):
        found = rt.recover(place(tmp_path, data[:cut]))
        assert_part_of(found, recorded)
        # The steps of every call whose record is whole, and nothing else.
        whole = sum(one.kind == form.CALL for one in form.records(data[:cut]) if isinstance(one, form.Record))
        assert sum(len(one.steps) for one in found) == whole
        expected = [] if cut in ends else [max(end for end in ends if end <= cut)]
        assert [one.offset for one in found.report.damaged] == expected


def assert_part_of(found: rt.Recovered, recorded: list[rt.Trajectory]) -> None:
    """Every recovered step is one that was recorded, or has what it lacks named in its issue."""
    steps = {step.id: step for one in recorded for step in one.steps}
    for one in found:
        for step in one.steps:
            expected = steps[step.id]
            if step.token_issue is None:
                assert step.completion == expected.completion
                assert list(step.completion_token_ids) == list(expected.completion_token_ids)  # type: ignore[arg-type]
                assert step.messages == expected.messages
            else:
                assert step.token_issue.code == "recorder_failed"


def test_damage_costs_what_it_hits(left: tuple[bytes, list[rt.Trajectory]], tmp_path: Path) -> None:
    data, recorded = left
    for seed in range(100):
        own, changed = random.Random(seed), bytearray(data)
        at, length = own.randrange(len(data)), own.randrange(1, 2000)
        changed[at : at + length] = own.randbytes(length)
        output = place(tmp_path, bytes(changed))
        found = rt.recover(output)
        assert_part_of(found, recorded)
        assert sum(len(one.steps) for one in found) >= 7
        assert any(one.offset <= at < one.offset + one.length + 2000 for one in found.report.damaged)
        assert str(files_of(output)[0]) in str(found.report)


def test_a_damaged_request_that_others_are_differences_of(tmp_path: Path) -> None:
    """They cannot be restored: their tokens are withheld, for nobody knows what they answer."""
    output = tmp_path / "out.jsonl"
    journal = Journal(output)
    with ScriptedServer("some words to say") as server, journaled(journal):
        client = sdk(server)
        for number in range(3):
            ask(client, user="x" * 5000 + str(number))
    died(journal)
    (file,) = files_of(output)
    data = file.read_bytes()
    first = next(one for one in form.records(data) if isinstance(one, form.Record) and one.kind == form.CALL)
    at = first.offset + 3000
    file.write_bytes(data[:at] + b"y" + data[at + 1 :])
    recovered = rt.recover(output)
    (found,) = recovered
    codes = [step.token_issue and step.token_issue.code for step in found.steps]
    assert codes == ["recorder_failed"] * 2
    assert all(step.messages is None and step.completion_token_ids is None for step in found.steps)
    assert [step.completion.content for step in found.steps if step.completion] == ["some words to say"] * 2
    assert str(recovered.report).count("cannot be restored") == 2


def test_a_stream_whose_middle_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of it may lack tokens between two others: all are withheld."""
    monkeypatch.setattr(call_module, "JOURNAL_SECONDS", 0.0)
    output = tmp_path / "out.jsonl"
    journal = Journal(output)
    with journaled(journal) as trajectory:
        call = recorder.begin(Settings(lambda method, path: None), "openai.chat")
        recorder.attempt(call, b'{"model": "m"}')
        recorder.answered(call, 200, {"content-type": "text/event-stream"})
        for number, reason in ((1, b"null"), (2, b"null"), (3, b'"stop"')):
            event = b'data: {"choices": [{"index": 0, "delta": {}, "token_ids": [%d], "finish_reason": %b}]}\n\n'
            recorder.receive(call, event % (number, reason))
        recorder.ended(call)
        (step,) = trajectory.steps
        assert list(step.completion_token_ids) == [1, 2, 3]  # type: ignore[arg-type]
        died(journal)
    (file,) = files_of(output)
    data = file.read_bytes()
    assert data.count(b"[2]") == 1
    file.write_bytes(data.replace(b"[2]", b"[9]"))
    recovered = rt.recover(output)
    ((step,),) = (one.steps for one in recovered)
    assert (step.finish_reason, step.completion_token_ids) == ("stop", None)
    assert step.token_issue is not None
    assert step.token_issue.code == "recorder_failed"
    assert f"of the response of call {step.call_id} are missing" in str(recovered.report)


@pytest.mark.parametrize("size", [0, 1, 3, 24, 5000])
def test_random_bytes(size: int, tmp_path: Path) -> None:
    output = place(tmp_path, random.Random(size).randbytes(size))
    found = rt.recover(output, write=True)
    assert list(found) == []
    assert [(one.offset, one.length) for one in found.report.damaged] == [(0, size)] * bool(size)
    assert not output.exists()
    # Not thrown away: somebody may know what it is. And not read again.
    assert [file.name for file in files_of(output)] == ["host-1-ab-0.journal.damaged"] * bool(size)
    assert rt.recover(output).report.is_clean


def changed_heads(data: bytes, change: Callable[[form.Record], dict[str, Any]]) -> bytes:
    """The journal with other heads, with right checksums."""
    return b"".join(
        b"".join(form.pack(one.kind, orjson.dumps(change(one)), [bytes(blob) for blob in one.blobs]))
        for one in form.records(data)
        if isinstance(one, form.Record)
    )


def test_a_newer_format_is_left_alone(left: tuple[bytes, list[rt.Trajectory]], tmp_path: Path) -> None:
    newer = changed_heads(left[0], lambda one: {**one.head, "format": form.VERSION + 1, "library": "9.9"})
    output = place(tmp_path, newer)
    found = rt.recover(output, write=True)
    assert list(found) == []
    (unread,) = found.report.unread
    assert f"written by rollout_trace 9.9 in version {form.VERSION + 1}" in unread.reason
    assert files_of(output)[0].read_bytes() == newer


def test_what_a_later_version_adds_is_skipped(left: tuple[bytes, list[rt.Trajectory]], tmp_path: Path) -> None:
    data = changed_heads(left[0], lambda one: {**one.head, "later": [1]})
    data += b"".join(form.pack(77, b'{"trajectory":"x"}', [b"?"]))
    found = rt.recover(place(tmp_path, data))
    assert [one for one in found if one.id != "x"] == left[1]
    assert found.report.is_clean


@pytest.mark.parametrize(
    "broken",
    [
        {"times": "now"},
        {"attempts": [[1]]},
        {"attempts": 5},
        {"protocol": None},
        {"number": "x"},
        {"difference": [0, 10**9, 0]},
        {"difference": [99, 0, 0]},
        {"from": 10**9},
        {"call": 5},
        {"settings": 3, "others": 4, "refusals": None},
        {"failure": ["error", {"type": 1}]},
    ],
)
def test_heads_of_other_types_cost_their_call(
    broken: dict[str, Any], left: tuple[bytes, list[rt.Trajectory]], tmp_path: Path
) -> None:
    seen = 0

    def change(one: form.Record) -> dict[str, Any]:
        nonlocal seen
        seen += one.kind == form.CALL
        return {**one.head, **broken} if one.kind == form.CALL and seen == 2 else one.head

    found = rt.recover(place(tmp_path, changed_heads(left[0], change)))
    others = by_id(left[1])
    assert all(one == others[one.id] for one in found if one.id != left[1][0].id)
    assert len(found) >= 2


def test_an_unreadable_journal_is_named(
    left: tuple[bytes, list[rt.Trajectory]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = place(tmp_path, left[0])
    (tmp_path / "out.jsonl.journal" / "host-2-ab-0.journal").mkdir()
    found = rt.recover(output, write=True)
    assert len(found) == 3
    assert [one.path.name for one in found.report.unread] == ["host-2-ab-0.journal"]
    assert not found.report.is_clean


SUFFIXES = ["", ".gz", ".zst"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_written_once(suffix: str, left: tuple[bytes, list[rt.Trajectory]], tmp_path: Path) -> None:
    data, recorded = left
    place(tmp_path, data)
    output = tmp_path / f"out.jsonl{suffix}"
    (tmp_path / "out.jsonl.journal").rename(f"{output}.journal")
    with rt.JSONLWriter(output) as writer:
        writer.write(recorded[1])
    found = rt.recover(output, write=True)
    assert [one.id for one in found] == [recorded[0].id, recorded[2].id] == found.report.written
    assert found.report.present == [recorded[1].id]
    assert not os.path.exists(f"{output}.journal")
    # As if the recovering process had been killed before it deleted the journal.
    place(tmp_path, data)
    (tmp_path / "out.jsonl.journal").rename(f"{output}.journal")
    again = rt.recover(output, write=True)
    assert (list(again), len(again.report.present)) == ([], 3)
    assert by_id(rt.read(output)) == by_id(recorded)
    assert sum(1 for _ in rt.read(output)) == 3


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("share", [0.001, 0.3, 0.999])
def test_a_line_that_a_killed_writer_left_is_replaced(
    share: float, suffix: str, left: tuple[bytes, list[rt.Trajectory]], tmp_path: Path
) -> None:
    data, recorded = left
    output = tmp_path / f"out.jsonl{suffix}"
    place(tmp_path, data)
    (tmp_path / "out.jsonl.journal").rename(f"{output}.journal")
    with rt.JSONLWriter(output) as writer:
        writer.write(recorded[0])
        begin = output.stat().st_size
        writer.write(recorded[1])
    kept = begin + max(1, int((output.stat().st_size - begin) * share))
    os.truncate(output, kept)
    found = rt.recover(output, write=True)
    assert by_id(rt.read(output)) == by_id(recorded)
    assert sum(1 for _ in rt.read(output)) == 3
    assert found.report.bytes_cut == kept - begin


def test_the_partial_line_of_another_trajectory_stays(left: tuple[bytes, list[rt.Trajectory]], tmp_path: Path) -> None:
    output = place(tmp_path, left[0])
    partial = b'{"schema":"rollout-trace/1","id":"of another writer","name":"' + b"x" * 100
    output.write_bytes(partial)
    found = rt.recover(output, write=True)
    assert (found.report.bytes_cut, len(found.report.written)) == (0, 3)
    assert output.read_bytes().startswith(partial + b"\n")


def test_the_output_is_as_private_as_the_journal(left: tuple[bytes, list[rt.Trajectory]], tmp_path: Path) -> None:
    output = place(tmp_path, left[0])
    files_of(output)[0].chmod(0o600)
    assert len(rt.recover(output, write=True)) == 3
    assert output.stat().st_mode & 0o777 == 0o600


def test_an_unreadable_output_stops_it(left: tuple[bytes, list[rt.Trajectory]], tmp_path: Path) -> None:
    output = place(tmp_path, left[0])
    output.mkdir()
    with pytest.raises(OSError, match=r"out\.jsonl"):
        rt.recover(output)


def test_a_live_journal_is_left_alone(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    journal = Journal(output)
    with ScriptedServer("ok") as server, journaled(journal):
        ask(sdk(server))
        found = rt.recover(output, write=True)
        assert (list(found), len(found.report.live)) == ([], 1)
        assert len(files_of(output)) == 1
        died(journal)
        assert len(rt.recover(output)) == 1


def test_two_recoveries_at_once(left: tuple[bytes, list[rt.Trajectory]], tmp_path: Path) -> None:
    """While one recovers, another finds the journal locked."""
    output = place(tmp_path, left[0])
    code = "import sys, rollout_trace as rt; r = rt.recover(sys.argv[1], write=True).report; print(len(r.live))"
    with files_of(output)[0].open("rb") as file:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX)
        child = subprocess.run([sys.executable, "-c", code, output], capture_output=True, text=True, check=True)
    assert child.stdout == "1\n"
    assert not output.exists()
    workers = [subprocess.Popen([sys.executable, "-c", code, output]) for _ in range(3)]
    assert [one.wait() for one in workers] == [0, 0, 0]
    assert sorted(one.id for one in rt.read(output)) == sorted(one.id for one in left[1])


FULL = """
import resource, sys
import rollout_trace as rt
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY))
report = rt.recover(sys.argv[1], write=True).report
print(len(report.written), report.is_clean, "could not be written" in str(report))
"""


def test_a_full_disk_keeps_the_journal(left: tuple[bytes, list[rt.Trajectory]], tmp_path: Path) -> None:
    output = place(tmp_path, left[0])
    child = subprocess.run([sys.executable, "-c", FULL, output], capture_output=True, text=True, check=True)
    written, *rest = child.stdout.split()
    assert rest == ["False", "True"], child.stderr
    assert files_of(output)[0].read_bytes() == left[0]
    found = rt.recover(output, write=True)
    assert len(found.report.present) == int(written)
    assert by_id(rt.read(output)) == by_id(left[1])


def test_files_of_one_process_belong_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_files, "ROTATE_AT", 4000)
    output = tmp_path / "out.jsonl"
    journal = Journal(output)
    with ScriptedServer("an answer") as server, journaled(journal) as trajectory:
        talk(sdk(server), 12)
        recorded = list(trajectory.steps)
        died(journal)
    assert len(files_of(output)) > 2
    (one,) = rt.recover(output)
    assert one.steps == recorded


def test_a_file_that_was_being_made_is_removed(tmp_path: Path) -> None:
    output = place(tmp_path, b"")
    file = files_of(output)[0]
    file.rename(f"{file}.new")
    assert list(rt.recover(output, write=True)) == []
    assert files_of(output) == []


def test_a_base_that_was_dropped_is_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_texts, "LIMIT", 2000)
    output = tmp_path / "out.jsonl"
    journal = Journal(output)
    with ScriptedServer("an answer") as server, journaled(journal) as trajectory, journaled(journal):
        client = rt.bind(sdk(server), trajectory)
        talk(client, 20)
        recorded = list(trajectory.steps)
        died(journal)
    (one,) = rt.recover(output)
    assert one.steps == recorded


def test_a_journal_that_is_deleted_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_files, "CHECK_SECONDS", 0.0)
    output = tmp_path / "out.jsonl"
    journal = Journal(output)
    with ScriptedServer("an answer") as server, journaled(journal, task="t") as trajectory:
        client = sdk(server)
        talk(client, 3)
        for file in files_of(output):
            file.unlink()
        talk(client, 3)
        recorded = list(trajectory.steps)
        died(journal)
    (one,) = rt.recover(output)
    # What was before is lost. The call that noticed is written with the next one; nothing is built upon what is lost.
    assert [step.id for step in one.steps] == [step.id for step in recorded[3:]]
    assert [step.messages for step in one.steps] == [step.messages for step in recorded[3:]]
    assert one.task == rt.Task(id="t")


def test_an_agent_that_fails_before_its_first_call(tmp_path: Path) -> None:
    """Its close is the first that the journal gets: the line may not be written before the process is killed."""
    output = tmp_path / "out.jsonl"
    journal = Journal(output)
    with pytest.raises(RuntimeError, match="no tools"), journaled(journal, task="7"):
        raise RuntimeError("no tools")
    with journaled(journal, task="8"):
        pass
    died(journal)
    failed, completed = rt.recover(output)
    assert (failed.status, failed.error.message if failed.error else None) == ("failed", "no tools")
    assert (completed.status, completed.task) == ("completed", rt.Task(id="8"))
    assert None not in (failed.ended_at, completed.ended_at)


def test_gzip_bodies_are_kept_as_they_came(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "out.jsonl")
    with ScriptedServer(Reply("words " * 300, compress="gzip")) as server, journaled(journal):
        for _ in ask(sdk(server), stream=True):
            pass
        died(journal)
    (file,) = files_of(tmp_path / "out.jsonl")
    assert gzip.compress(b"")[:3] in file.read_bytes()
    assert b"data:" not in file.read_bytes()


def test_a_written_trajectory_is_known_by_each_of_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another trajectory needs one of the two; the output has been moved away."""
    output = tmp_path / "out.jsonl"
    journal = Journal(output)
    with ScriptedServer("an answer") as server, journaled(journal, name="open") as outer:
        with journaled(journal, name="written") as inner:
            for one in (outer, inner):
                ask(rt.bind(sdk(server), one))
            monkeypatch.setattr(journal_files, "ROTATE_AT", 1)
            ask(rt.bind(sdk(server), inner))
        state = state_of(inner)
        assert state is not None
        assert state.journal is not None
        state.journal.written()
        died(journal)
    assert [one.name for one in rt.recover(output)] == ["open"]


def test_a_completed_trajectory_is_whole_after_its_journal_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was deleted is written again: fields, calls and tool runs."""
    monkeypatch.setattr(journal_files, "CHECK_SECONDS", 0.0)
    output = tmp_path / "out.jsonl"
    journal = Journal(output)
    with ScriptedServer("an answer") as server:
        with journaled(journal, name="a", task="t") as trajectory:
            talk(sdk(server), 3)
            with rt.tool_run("look") as run:
                run.result = 5
            for file in files_of(output):
                file.unlink()
        state = state_of(trajectory)
        assert state is not None
        assert state.journal is not None
        # Read, so that the journal gives the same.
        assert trajectory.environment is not None
        state.journal.completed(trajectory)
        assert state.journal.is_whole
        died(journal)
    (found,) = rt.recover(output)
    assert found == trajectory


def test_a_call_that_another_thread_decodes_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bytes are dropped meanwhile; the record says, as it did, that there is a request."""
    plain = TrajectoryJournal._fields_in_place

    def decoding(journal: TrajectoryJournal) -> None:
        assert log is not None
        for call in log.calls:
            log.decode(call)
        plain(journal)

    monkeypatch.setattr(TrajectoryJournal, "_fields_in_place", decoding)
    journal = Journal(tmp_path / "out.jsonl")
    with ScriptedServer("ok") as server, journaled(journal) as trajectory:
        log = log_of(trajectory)
        ask(sdk(server))
        recorded = list(trajectory.steps)
        died(journal)
    (one,) = rt.recover(tmp_path / "out.jsonl")
    assert one.steps == recorded
    assert one.steps[0].messages == [{"role": "user", "content": "hi"}]


def test_a_call_has_its_id_when_others_can_see_that_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made later, by two threads at once, it would be another one in the journal than in the step."""
    seen: list[str | None] = []

    class Ended(deque[Any]):
        def append(self, call: Any) -> None:
            seen.append(call.id)
            super().append(call)

    monkeypatch.setattr(call_module, "just_ended", Ended())
    with ScriptedServer("ok") as server, rt.trajectory() as trajectory:
        ask(sdk(server))
        assert seen == [step.call_id for step in trajectory.steps]


def test_a_link_and_its_file_have_one_journal(tmp_path: Path) -> None:
    """Also where the link leads elsewhere by the time of the recovery."""
    output, link = tmp_path / "17" / "out.jsonl", tmp_path / "latest.jsonl"
    output.parent.mkdir()
    link.symlink_to(output)
    journal = Journal(link)
    with ScriptedServer("an answer") as server, journaled(journal):
        ask(sdk(server))
        died(journal)
    assert [len(rt.recover(path)) for path in (output, link, f"{link}.journal", f"{output}.journal")] == [1] * 4
    link.unlink()
    link.symlink_to(tmp_path / "18.jsonl")
    assert rt.recover(link, write=True) == []
    assert len(rt.recover(output, write=True)) == len(list(rt.read(output))) == 1


def test_files_of_others_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    folder = place(tmp_path, b"").with_name("out.jsonl.journal")
    files_of(tmp_path / "out.jsonl")[0].unlink()
    for name in ("diary.journal", "empty.journal", "2026-11-22.journal"):
        (folder / name).write_bytes(b"dear diary" * (name != "empty.journal"))
    found = rt.recover(tmp_path / "out.jsonl", write=True)
    assert (found, found.report.journals, found.report.is_clean) == ([], [], True)
    assert len(files_of(tmp_path / "out.jsonl")) == 3


def test_an_empty_path_is_refused() -> None:
    """It would be the folder of the process."""
    with pytest.raises(ValueError, match=r"expected the path of an output"):
        rt.recover("")


def test_a_folder_is_refused(tmp_path: Path) -> None:
    """Nothing found would read as if nothing were left in it."""
    place(tmp_path, b"")
    with pytest.raises(IsADirectoryError, match="is a folder: give the path of an output in it"):
        rt.recover(tmp_path)


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
def test_a_call_that_found_no_room_is_written_with_the_next_one(
    is_streamed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a stream the beginning is there; what is recovered is all of it."""
    monkeypatch.setattr(call_module, "JOURNAL_SECONDS", 0.0)
    output = tmp_path / "out.jsonl"
    journal = Journal(output)
    with ScriptedServer("an answer of some words") as server, journaled(journal) as trajectory:
        client = sdk(server)
        ask(client, "first")
        answer = ask(client, "second", stream=is_streamed) if is_streamed else None
        if answer is not None:
            next(answer)
            next(answer)
        # The next record needs a new file, and there is no folder for it.
        monkeypatch.setattr(journal_files, "ROTATE_AT", 1)
        journal.path.rename(tmp_path / "away")
        journal.path.touch()
        if answer is None:
            ask(client, "second")
        else:
            list(answer)
        journal.path.unlink()
        (tmp_path / "away").rename(journal.path)
        monkeypatch.undo()
        ask(client, "third")
        recorded = list(trajectory.steps)
        died(journal)
    assert "cannot be written" in caplog.text
    (found,) = rt.recover(output)
    assert [step.status for step in recorded] == ["ok"] * 3
    assert found.steps == recorded


def test_what_is_stored_as_it_is_are_numbers_and_texts() -> None:
    """A slot of a call with something else has to be named in ``_OWN_SLOTS``: it would be stored as its ``repr``."""
    call = recorder.begin(Settings(lambda method, path: None), "openai.chat")
    assert call is not None
    recorder.attempt(call, b"{}")
    recorder.answered(call, 200, {"content-type": "text/event-stream"})
    recorder.receive(call, b": heartbeat\n\n" * 100_000)
    others = journal_records.head_of(call)["others"]
    assert {"held", "limit"} <= others.keys()
    assert {type(value) for value in others.values()} <= {int, float, bool, str, type(None)}


@pytest.mark.parametrize(
    "kept", sorted((Path(__file__).parent / "data").glob("journal-*.journal")), ids=lambda p: p.stem
)
def test_a_journal_of_every_version_is_read(kept: Path, tmp_path: Path) -> None:
    """Of any version of the format that was released; `tests/record/make_journal.py` makes that of a new one."""
    output = tmp_path / "runs.jsonl"
    folder = Path(f"{output}.journal")
    folder.mkdir()
    shutil.copy(kept, folder / "host-1-a-0.journal")
    found = rt.recover(output)
    assert found.report.is_clean, str(found.report)
    # The bytes hold what later versions keep as well.
    later: dict[str, Any] = {"extra": None, "token_texts": None}
    for recovered, expected in zip(found, rt.read(kept.with_suffix(".jsonl")), strict=True):
        steps = [replace(step, **later) for step in recovered.steps]
        assert [replace(step, **later) for step in expected.steps] == steps
        assert replace(recovered, steps=[]) == replace(expected, steps=[])
    long, short = [("talker", "aborted", None)], [("solver", "aborted", 1.0), ("critic", "completed", 0.5)]
    assert [(one.name, one.status, one.reward) for one in found] == (long if "long" in kept.name else short)
