"""The journal's files: records, rotation, deletion, failures of the disk, threads and forks."""

from __future__ import annotations

import errno
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_trace.file import journal, locking
from rollout_trace.file import journal as form
from rollout_trace.file.journal import JournalFiles, Pin, folder_of

HEAD = b'{"a":1}'


def whole(data: bytes) -> list[tuple[int, list[bytes]]]:
    found = [one for one in form.records(data) if isinstance(one, form.Record)]
    return [(one.kind, [bytes(blob) for blob in one.blobs]) for one in found]


def packed(*blobs: bytes, kind: int = form.CALL) -> bytes:
    return b"".join(form.pack(kind, HEAD, blobs))


def names(files: JournalFiles) -> list[str]:
    return sorted(one.name for one in files.folder.iterdir()) if files.folder.is_dir() else []


RECORDS = [packed(), packed(b"", b"x" * 500), packed(form.MAGIC * 9), packed(b"\x00" * 40, kind=200)]


def test_records_are_read_as_they_were_written() -> None:
    assert whole(b"".join(RECORDS)) == [
        (form.CALL, []),
        (form.CALL, [b"", b"x" * 500]),
        (form.CALL, [form.MAGIC * 9]),
        (200, [b"\x00" * 40]),
    ]


def test_each_cut_leaves_the_whole_records_before_it() -> None:
    data, ends = b"".join(RECORDS), [0]
    for one in RECORDS:
        ends.append(ends[-1] + len(one))
    for cut in range(len(data)):
        found = list(form.records(data[:cut]))
        count = sum(end <= cut for end in ends[1:])
        assert len(whole(data[:cut])) == count
        damages = [one for one in found if isinstance(one, form.Damage)]
        assert [(one.offset, one.offset + one.length) for one in damages] == [(ends[count], cut)] * (cut not in ends)


def test_each_changed_byte_costs_its_record_alone() -> None:
    data, ends = b"".join(RECORDS), list(itertools.accumulate(map(len, RECORDS)))
    expected = whole(data)
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 0xFF
        hit = next(number for number, end in enumerate(ends) if at < end)
        assert whole(bytes(changed)) == expected[:hit] + expected[hit + 1 :]


@given(st.binary(max_size=400), st.integers(0, 20))
def test_random_bytes_are_no_record(data: bytes, count: int) -> None:
    assert whole(data + form.MAGIC * count) == []
    assert whole(data + RECORDS[1])[-1] == (form.CALL, [b"", b"x" * 500])


def test_a_file_is_made_with_the_first_record_and_deleted_with_the_last_trajectory(tmp_path: Path) -> None:
    files = JournalFiles(tmp_path / "out.jsonl")
    one, other = Pin(), Pin()
    assert not files.folder.exists()
    assert files.append(form.pack(form.CALL, HEAD), one)
    assert files.append(form.pack(form.CALL, HEAD), other)
    (name,) = names(files)
    assert name.endswith(".journal")
    files.release(one)
    assert names(files) == [name]
    files.release(other)
    assert not files.folder.exists()


def test_rotated_files_stay_while_a_trajectory_needs_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "ROTATE_AT", 1000)
    files = JournalFiles(tmp_path / "out.jsonl")
    long, counts = Pin(), []
    files.append(form.pack(form.CALL, HEAD), long)
    for _ in range(20):
        short = Pin()
        files.append(form.pack(form.CALL, HEAD, [b"x" * 700]), short)
        files.release(short)
        counts.append(len(names(files)))
    # The long one's first file, and at most the one that is written to.
    assert max(counts) <= 2
    files.release(long)
    assert not files.folder.exists()


def test_the_mode_is_of_files_and_folder(tmp_path: Path) -> None:
    files = JournalFiles(tmp_path / "out.jsonl", 0o600)
    files.append(form.pack(form.CALL, HEAD), Pin())
    (file,) = files.folder.iterdir()
    assert (file.stat().st_mode & 0o777, files.folder.stat().st_mode & 0o777) == (0o600, 0o700)


def test_a_deleted_journal_is_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(journal, "CHECK_SECONDS", 0.0)
    files = JournalFiles(tmp_path / "out.jsonl")
    assert files.append(form.pack(form.CALL, HEAD), Pin())
    for one in files.folder.iterdir():
        one.unlink()
    files.folder.rmdir()
    epoch = files.epoch
    assert not files.append(form.pack(form.CALL, HEAD), Pin())
    assert files.append(form.pack(form.CALL, HEAD), Pin())
    assert len(names(files)) == 1
    assert (files.failures, files.epoch) == (1, epoch + 1)
    assert "another program deleted the journal" in caplog.text


def test_a_folder_that_cannot_be_made_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = JournalFiles(tmp_path / "out.jsonl")
    files.folder.write_text("a file")
    assert [files.append(form.pack(form.CALL, HEAD), Pin()) for _ in range(3)] == [False] * 3
    assert files.failures == 3
    assert caplog.text.count("cannot be written") == 1
    files.folder.unlink()
    assert files.append(form.pack(form.CALL, HEAD), Pin())


FULL = """
import os, resource, sys
from rollout_trace.file import journal as form
from rollout_trace.file.journal import JournalFiles, Pin
files, pin = JournalFiles(sys.argv[1]), Pin()
limits = resource.getrlimit(resource.RLIMIT_FSIZE)
written = [files.append(form.pack(form.CALL, b"{}", [b"%d" % 1 * 900]), pin)]
resource.setrlimit(resource.RLIMIT_FSIZE, (2500, limits[1]))
written += [files.append(form.pack(form.CALL, b"{}", [b"2" * 900]), pin) for _ in range(3)]
resource.setrlimit(resource.RLIMIT_FSIZE, limits)
written.append(files.append(form.pack(form.CALL, b"{}", [b"3" * 900]), pin))
print(written, files.failures, flush=True)
os._exit(0)
"""


def test_a_full_disk_costs_the_records_that_do_not_fit(tmp_path: Path) -> None:
    child = subprocess.run([sys.executable, "-c", FULL, tmp_path / "out.jsonl"], capture_output=True, text=True)
    assert child.stdout.strip() == "[True, True, False, False, True] 2", child.stderr
    assert child.stderr.count("cannot be written") == 1 + ("only" in child.stderr)
    (file,) = folder_of(tmp_path / "out.jsonl").iterdir()
    assert [blobs[0][:1] for kind, blobs in whole(file.read_bytes()) if kind == form.CALL] == [b"1", b"2", b"3"]


def test_threads_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight threads append to and finish trajectories, one of which is long, with a rotation every few records."""
    monkeypatch.setattr(journal, "ROTATE_AT", 3000)
    files, long = JournalFiles(tmp_path / "out.jsonl"), Pin()
    kept: dict[bytes, None] = {}

    def work(number: int) -> None:
        own = random.Random(number)
        for turn in range(150):
            short = Pin()
            files.append(form.pack(form.CALL, HEAD, [b"short"]), short)
            if own.random() < 0.3:
                text = b"%d %d" % (number, turn)
                assert files.append(form.pack(form.CALL, HEAD, [text, b"x" * 200]), long)
                kept[text] = None
            files.release(short)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    data = b"".join(file.read_bytes() for file in files.folder.iterdir())
    assert all(isinstance(one, form.Record) for one in form.records(data))
    assert sorted(blobs[0] for _, blobs in whole(data) if len(blobs) == 2) == sorted(kept)
    files.release(long)
    assert not files.folder.exists()


def test_a_forked_process_has_files_of_its_own(tmp_path: Path) -> None:
    files, pin = JournalFiles(tmp_path / "out.jsonl"), Pin()
    files.append(form.pack(form.CALL, HEAD), pin)
    (ours,) = files.folder.iterdir()
    go, done = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        files.append(form.pack(form.CALL, HEAD), Pin())
        os.write(done[1], b".")
        os.read(go[0], 1)
        os.kill(os.getpid(), signal.SIGKILL)
    os.read(done[0], 1)
    (theirs,) = set(files.folder.iterdir()) - {ours}
    assert f"-{child}-" in theirs.name
    held = {path: _is_held(path) for path in (ours, theirs)}
    files.close()
    # The child holds its own file alone: the inherited descriptor would keep ours locked.
    after = {path: _is_held(path) for path in (ours, theirs)}
    os.write(go[1], b".")
    os.waitpid(child, 0)
    assert (held, after) == ({ours: True, theirs: True}, {ours: False, theirs: True})
    assert not _is_held(theirs)
    for one in (*go, *done):
        os.close(one)


def _is_held(path: Path) -> bool:
    with path.open("rb") as file:
        return locking.lock_open(file.fileno()) is False


def test_processes_without_locks_are_known_by_their_start() -> None:
    first = locking.owner()
    assert locking.may_live(first)
    assert locking.may_live({**first, "host": "another"})
    assert not locking.may_live({**first, "process_start": -1})
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert not locking.may_live({**first, "pid": ended.pid})


def test_a_record_that_comes_after_the_close_leaves_no_file(tmp_path: Path) -> None:
    """A thread may be in the middle of its call. What was left before stays for the recovery."""
    files, lost, late = JournalFiles(tmp_path / "out.jsonl"), Pin(), Pin()
    assert files.append(form.pack(form.CALL, HEAD), lost)
    files.close()
    before = list(files.folder.iterdir())
    assert not files.append(form.pack(form.CALL, HEAD), late)
    assert list(files.folder.iterdir()) == before


def test_a_folder_that_another_process_removes_meanwhile_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is there when it is to be made, and gone when Python looks whether it is a folder."""
    real = os.mkdir

    def mkdir(*arguments: Any) -> None:
        monkeypatch.setattr(os, "mkdir", real)
        raise FileExistsError(errno.EEXIST, "File exists")

    files = JournalFiles(tmp_path / "out.jsonl")
    monkeypatch.setattr(os, "mkdir", mkdir)
    assert files.append(form.pack(form.CALL, HEAD), Pin())
    assert (files.failures, caplog.text) == (0, "")
