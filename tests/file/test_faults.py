"""Files and disks that fail under a writer: what each message says of the file is so, and no trajectory is lost."""

from __future__ import annotations

import errno
import fcntl
import gzip
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rollout_trace as rt
from rollout_trace import JSONLWriter, read
from tests.file.disks import fail, failing_disk, fill, small_disk
from tests.file.processes import environment, run
from tests.file.test_writer import SUFFIXES, names, written


@pytest.fixture(params=SUFFIXES)
def suffix(request: pytest.FixtureRequest) -> str:
    suffix: str = request.param
    return suffix


@pytest.fixture
def path(suffix: str, tmp_path: Path) -> Path:
    return tmp_path / f"rollouts{suffix}"


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk") as disk:
        yield disk


@pytest.fixture
def failing(tmp_path: Path) -> Iterator[Path]:
    with failing_disk(tmp_path / "disk") as disk:
        yield disk


def large(name: str) -> rt.Trajectory:
    """A trajectory whose line takes 20 kB or more, however it is compressed."""
    return rt.Trajectory(name=name, metadata={"noise": random.Random(name).randbytes(20_000).hex()})


def refusal(out: JSONLWriter, trajectory: rt.Trajectory) -> rt.WriteError:
    """The error of a write; it holds the trajectory."""
    with pytest.raises(rt.WriteError) as refused:
        out.write(trajectory)
    assert [lost for lost, _ in refused.value.lost] == [trajectory]
    assert str(refused.value).startswith(f"trajectory {trajectory.id} could not be written to {out.path}: ")
    return refused.value


AS_BEFORE = ". The file is as it was before, and the trajectory can be written again."
NOTHING = ". Nothing of its line is in the file, and the trajectory can be written again."
WHOLE = ". Its line is whole in the file, though maybe not on the disk, and writing it again would double it."


# Full disks


def test_a_full_disk(small: Path, suffix: str) -> None:
    path, trajectory = small / f"rollouts{suffix}", large("second")
    written("first", path=path)
    filler, before = fill(small, leave=8192), path.read_bytes()
    with JSONLWriter(path) as out:
        for _ in range(2):
            assert str(refusal(out, trajectory)).endswith(f"[Errno {errno.ENOSPC}] No space left on device{AS_BEFORE}")
            assert path.read_bytes() == before
        filler.unlink()
        out.write(trajectory)
    assert names(path) == ["first", "second"]


def test_a_full_disk_without_room_for_the_file(small: Path, tmp_path: Path) -> None:
    """The lost trajectory goes to another disk, once."""
    path, other, trajectory = small / "rollouts.jsonl", tmp_path / "other.jsonl", large("a")
    fill(small, leave=0)
    with JSONLWriter(path) as out:
        error = refusal(out, trajectory)
    assert str(error).endswith(AS_BEFORE)
    assert path.read_bytes() == b""
    assert (error.write(other), error.write(other)) == (1, 0)
    assert [one.metadata for one in read(other)] == [trajectory.metadata]


def test_a_full_disk_under_the_media(small: Path) -> None:
    path = small / "rollouts.jsonl"
    image = "data:image/png;base64,{}".format("A" * 40_000)
    with JSONLWriter(path, media="folder") as out:
        out.write(rt.Trajectory(name="first"))
        filler, before = fill(small, leave=8192), path.read_bytes()
        error = refusal_of_media(out, rt.Trajectory(name="second", metadata={"image": image}))
        assert path.read_bytes() == before
        assert list((small / "rollouts.jsonl.media").iterdir()) == []
        filler.unlink()
        assert error.write(path) == 1
    assert [one.metadata for one in read(path)] == [None, {"image": image}]


def refusal_of_media(out: JSONLWriter, trajectory: rt.Trajectory) -> rt.WriteError:
    with pytest.raises(rt.WriteError) as refused:
        out.write(trajectory)
    assert str(refused.value) == (
        f"the media of trajectory {trajectory.id} could not be written to {out.path}.media: [Errno 28] No space left "
        f"on device. Nothing of its line is in {out.path}, and the trajectory can be written again."
    )
    return refused.value


LIMITED = """
import json, resource, sys
import rollout_trace as rt

path = sys.argv[1]
noise = {"noise": __import__("random").Random(1).randbytes(10_000).hex()}
with rt.JSONLWriter(path) as out:
    out.write(rt.Trajectory(name="first"))
    before = open(path, "rb").read()
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 500, hard))
    second = rt.Trajectory(name="second", metadata=noise)
    try:
        out.write(second)
    except rt.WriteError as error:
        message = str(error)
    same = open(path, "rb").read() == before
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    out.write(second)
print(json.dumps([message, same]))
"""


@pytest.mark.skipif(os.name != "posix", reason="this system limits no files")
def test_a_file_that_may_not_grow(path: Path) -> None:
    message, same = json.loads(run(LIMITED, path))
    assert message.endswith(f"[Errno {errno.EFBIG}] File too large{AS_BEFORE}")
    assert same
    assert names(path) == ["first", "second"]


# File systems that take no change any more


def test_a_disk_that_became_read_only(failing: Path, suffix: str, tmp_path: Path) -> None:
    path, trajectory = failing / f"rollouts{suffix}", rt.Trajectory(name="second")
    with JSONLWriter(path, fsync=True) as out:
        out.write(rt.Trajectory(name="first"))
        before = path.read_bytes()
        fail(failing)
        error = refusal(out, trajectory)
        assert str(error).endswith(f"[Errno {errno.EROFS}] Read-only file system{AS_BEFORE}")
        assert path.read_bytes() == before
    assert error.write(tmp_path / "other.jsonl") == 1


def test_a_disk_that_fails_when_the_line_is_written(
    failing: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot be cut off, and readers see it: who writes it again, doubles it."""
    path, real = failing / f"rollouts{suffix}", os.fsync

    def fsync(file: int) -> None:
        fail(failing)
        real(file)

    with JSONLWriter(path, fsync=True) as out:
        out.write(rt.Trajectory(name="first"))
        monkeypatch.setattr(os, "fsync", fsync)
        error = refusal(out, rt.Trajectory(name="second"))
    assert str(error).endswith(f"[Errno {errno.EROFS}] Read-only file system (fsync){WHOLE}")
    assert error.is_in_file
    assert names(path) == ["first", "second"]


def test_a_disk_that_is_full_and_fails(failing: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of the line stays, of the length that the message has."""
    path, real = failing / f"rollouts{suffix}", os.ftruncate

    def ftruncate(file: int, length: int) -> None:
        fail(failing)
        real(file, length)

    with JSONLWriter(path) as out:
        out.write(rt.Trajectory(name="first"))
        fill(failing, leave=8192)
        before, trajectory = path.read_bytes(), large("second")
        monkeypatch.setattr(os, "ftruncate", ftruncate)
        error = refusal(out, trajectory)
        length = len(out.encode(trajectory).data)
    left = len(path.read_bytes()) - len(before)
    assert 0 < left < length
    assert str(error).endswith(
        f"No space left on device. A part of its line is at the end of the file ({left} of {length} bytes), which "
        "readers report as a damaged line: the file was not cut back (Read-only file system), and the trajectory can "
        "be written again."
    )
    assert not error.is_in_file
    reader = read(path, on_error="skip")
    assert [one.name for one in reader] == ["first"]
    assert len(reader.skipped) == 1


def test_a_line_without_its_newline_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk takes all but the last byte, and cannot be cut back: readers find the trajectory."""
    path, real = tmp_path / "rollouts.jsonl", os.write

    def write(file: int, data: bytes) -> int:
        if len(data) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, data[:-1])

    def ftruncate(file: int, length: int) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with JSONLWriter(path) as out:
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", write)
            patched.setattr(os, "ftruncate", ftruncate)
            error = refusal(out, rt.Trajectory(name="a"))
        assert error.is_in_file
        assert str(error).endswith(WHOLE)
        out.write(rt.Trajectory(name="b"))
    assert names(path) == ["a", "b"]


def test_a_newline_alone_is_nothing_of_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first byte ends what a killed writer left; then the disk is full and cannot be cut back."""
    path, real = tmp_path / "rollouts.jsonl", os.write
    path.write_bytes(b'{"schema":"roll')

    def write(file: int, data: bytes) -> int:
        if len(path.read_bytes()) > 15:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, data[:1])

    def ftruncate(file: int, length: int) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with JSONLWriter(path) as out:
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", write)
            patched.setattr(os, "ftruncate", ftruncate)
            assert str(refusal(out, rt.Trajectory(name="a"))).endswith(NOTHING)
        assert path.read_bytes() == b'{"schema":"roll\n'
        out.write(rt.Trajectory(name="b"))
    assert [one.name for one in read(path, on_error="skip")] == ["b"]


def test_a_line_that_is_not_on_the_disk_is_taken_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed fsync the bytes may never reach the disk; written anew they are new bytes."""
    real = os.fsync
    failures = [OSError(errno.EIO, "Input/output error")]

    def fsync(file: int) -> None:
        if failures:
            raise failures.pop()
        real(file)

    written("first", path=path)
    before, trajectory = path.read_bytes(), rt.Trajectory(name="second")
    with JSONLWriter(path, fsync=True) as out:
        monkeypatch.setattr(os, "fsync", fsync)
        error = refusal(out, trajectory)
        assert str(error).endswith(f"[Errno {errno.EIO}] Input/output error (fsync){AS_BEFORE}")
        assert not error.is_in_file
        assert path.read_bytes() == before
        out.write(trajectory)
    assert names(path) == ["first", "second"]


def test_without_locks_such_a_line_stays(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(file: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    def fsync(file: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(os, "fsync", fsync)
    with JSONLWriter(path, fsync=True) as out:
        error = refusal(out, rt.Trajectory(name="a"))
    assert error.is_in_file
    assert str(error).endswith(WHOLE)
    assert names(path) == ["a"]


# Files that others move, remove or change


def test_a_rotated_file_keeps_what_it_has_and_a_new_one_is_begun(path: Path) -> None:
    rotated = path.with_name(f"old-{path.name}")
    with JSONLWriter(path) as out:
        out.write(rt.Trajectory(name="a"))
        path.rename(rotated)
        before = rotated.read_bytes()
        out.write(rt.Trajectory(name="b"))
        path.rename(path.with_name(f"older-{path.name}"))
        written("c", path=path)
        out.write(rt.Trajectory(name="d"))
    assert rotated.read_bytes() == before
    assert names(path) == ["c", "d"]
    assert names(path.with_name(f"older-{path.name}")) == ["b"]


def test_a_file_that_is_replaced_by_one_of_another_format_is_not_written(tmp_path: Path) -> None:
    path, trajectory = tmp_path / "rollouts.jsonl", rt.Trajectory(name="b")
    with JSONLWriter(path) as out:
        out.write(rt.Trajectory(name="a"))
        packed = gzip.compress(path.read_bytes())
        path.unlink()
        path.write_bytes(packed)
        error = refusal(out, trajectory)
        assert re.search(r"holds gzip \(its first bytes: .*or move the file\. Nothing of its line is in", str(error))
        assert path.read_bytes() == packed
        path.unlink()
        out.write(trajectory)
    assert names(path) == ["b"]


def test_a_folder_that_was_removed_is_made_again(path: Path) -> None:
    place = path.parent / "runs" / "today" / path.name
    image = "data:image/png;base64,{}".format("A" * 2000)
    with JSONLWriter(place, media="folder") as out:
        out.write(rt.Trajectory(name="a", metadata={"image": image}))
        shutil.rmtree(path.parent / "runs")
        out.write(rt.Trajectory(name="b", metadata={"image": image}))
    assert [(one.name, one.metadata) for one in read(place)] == [("b", {"image": image})]


def test_a_folder_that_cannot_be_made_again(path: Path) -> None:
    place, trajectory = path.parent / "runs" / path.name, rt.Trajectory(name="b")
    with JSONLWriter(place) as out:
        out.write(rt.Trajectory(name="a"))
        shutil.rmtree(place.parent)
        place.parent.write_text("in its place")
        for _ in range(2):
            assert str(refusal(out, trajectory)).endswith(NOTHING)
        place.parent.unlink()
        out.write(trajectory)
    assert names(place) == ["b"]


def test_a_pipe_in_the_place_of_the_file(path: Path) -> None:
    trajectory = rt.Trajectory(name="b")
    with JSONLWriter(path) as out:
        path.unlink()
        os.mkfifo(path)
        assert "expected a file of lines, got a named pipe" in str(refusal(out, trajectory))
        path.unlink()
        out.write(trajectory)
    assert names(path) == ["b"]


@pytest.mark.parametrize("length", [0, 20, -1])
def test_a_file_that_somebody_cut_short(length: int, path: Path) -> None:
    """What is left of a line does not swallow the next one."""
    with JSONLWriter(path) as out:
        out.write(rt.Trajectory(id="0" * 24, name="cut"))
        size = path.stat().st_size
        os.truncate(path, length if length >= 0 else size - 5)
        out.write(rt.Trajectory(name="b"))
        out.write(rt.Trajectory(name="c"))
    reader = read(path, on_error="skip")
    assert [one.name for one in reader if one.name != "cut"] == ["b", "c"]
    assert len(reader.skipped) <= 1
    assert not path.read_bytes().startswith(b"\0")


def test_a_file_that_is_cut_short_while_it_is_written_gets_no_zeros(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real = tmp_path / "rollouts.jsonl", os.write

    def write(file: int, data: bytes) -> int:
        os.truncate(path, 0)
        raise OSError(errno.ENOSPC, "No space left on device")

    with JSONLWriter(path) as out:
        out.write(rt.Trajectory(name="a"))
        monkeypatch.setattr(os, "write", write)
        refusal(out, rt.Trajectory(name="b"))
        monkeypatch.setattr(os, "write", real)
        assert path.read_bytes() == b""
        out.write(rt.Trajectory(name="c"))
    assert names(path) == ["c"]


KILLED = """
import os, sys
import rollout_trace as rt

real = os.write
def write(file, data):
    real(file, data[: len(data) // 2])
    os.kill(os.getpid(), 9)

out = rt.JSONLWriter(sys.argv[1])
out.write(rt.Trajectory(name="first"))
os.write = write
out.write(rt.Trajectory(id="0" * 24, name="killed"))
"""


def test_a_writer_that_was_killed_in_the_middle(path: Path) -> None:
    """Its lock is free, and its half of a line is one damaged line, or some: half a gzip member may seem to go on."""
    with JSONLWriter(path, lock_timeout=60) as out:
        done = subprocess.run([sys.executable, "-c", KILLED, str(path)], env=environment(), capture_output=True)
        assert done.returncode == -9, done.stderr
        out.write(rt.Trajectory(name="second"))
    reader = read(path, on_error="skip")
    assert [one.name for one in reader] == ["first", "second"]
    assert len(reader.skipped) == 1 or (reader.skipped and path.suffix == ".gz")


FORBIDDEN = """
import json, os, sys
import rollout_trace as rt

folder = sys.argv[1]
path = os.path.join(folder, "rollouts" + sys.argv[2])
with rt.JSONLWriter("warm-" + path.replace("/", "-")) as out:
    out.write(rt.Trajectory())
assert list(rt.read(out.path)) and rt.WriteError
os.unlink(out.path)
# Whatever is imported is imported: the other user may not read it.
if os.geteuid() == 0:
    os.chown(folder, 65534, 65534)
    os.seteuid(65534)
with rt.JSONLWriter(path) as out:
    out.write(rt.Trajectory(name="first"))
    os.chmod(path, 0o400)
    out.write(rt.Trajectory(name="second"))  # The open file may be written.
    os.chmod(path, 0o600)
    os.chmod(folder, 0)
    out.write(rt.Trajectory(name="third"))  # Nor can anybody have moved it.
    os.chmod(folder, 0o700)
    os.rename(path, path + ".old")
    os.chmod(folder, 0o500)
    fourth, messages = rt.Trajectory(name="fourth"), []
    for _ in range(2):
        try:
            out.write(fourth)
        except rt.WriteError as error:
            messages.append(str(error))
    os.chmod(folder, 0o700)
    out.write(fourth)
    moved = path + ".moved"
    os.rename(path, moved)
    out.write(rt.Trajectory(name="removed"))
    os.unlink(path)
    os.rename(moved, path)
    os.chmod(folder, 0)  # The open file has no name any more, and nobody can look.
    try:
        out.write(rt.Trajectory(name="sixth"))
    except rt.WriteError as error:
        messages.append(str(error))
    os.chmod(folder, 0o700)
found = [[one.name for one in rt.read(name)] for name in (path + ".old", path)]
print(json.dumps([messages, found]))
"""


@pytest.mark.skipif(os.name != "posix", reason="this system has no permission bits")
def test_a_permission_that_was_lost(suffix: str, tmp_path: Path) -> None:
    # Not under pytest's own folder, which no other user may enter.
    folder = Path(subprocess.run(["mktemp", "-d"], capture_output=True, text=True, check=True).stdout.strip())
    try:
        messages, found = json.loads(run(FORBIDDEN, folder, suffix, folder=tmp_path))
    finally:
        shutil.rmtree(folder)
    assert len(messages) == 3
    for message in messages:
        assert message.endswith(f"Permission denied: '{folder}/rollouts{suffix}'{NOTHING}")
    assert found == [["first", "second", "third"], ["fourth"]]


DAEMON = """
import os, sys
import rollout_trace as rt

out = rt.JSONLWriter(sys.argv[1])
out.write(rt.Trajectory(name="first"))
file = out._file._file
os.closerange(3, 256)  # As a program does that becomes a daemon.
other = os.open(sys.argv[2], os.O_RDWR | os.O_CREAT)
assert other == file
out.write(rt.Trajectory(name="second"))
os.write(other, b"of the program")
os.closerange(3, 256)
again = [os.open(sys.argv[2], os.O_RDWR) for _ in range(3)]
out.close()
for file in again:
    os.fstat(file)
"""


def test_a_descriptor_that_somebody_closed_is_not_used(path: Path) -> None:
    """Its number may be that of another file now, which is neither written nor closed."""
    other = path.with_name("other")
    assert run(DAEMON, path, other) == ""
    assert names(path) == ["first", "second"]
    assert other.read_bytes() == b"of the program"


@pytest.mark.parametrize("is_contended", [False, True])
def test_inode_numbers_that_do_not_last(is_contended: bool, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on some network file systems: the file is opened more often than it must be, and written."""
    real, counter, lock, attempts = os.stat, iter(range(10**9)), fcntl.flock, iter(range(10**9))

    def stat(place: int | str | Path, **options: object) -> os.stat_result:
        facts = real(place, **options)  # type: ignore[arg-type]
        return os.stat_result((facts[0], 10**12 + next(counter), *facts[2:])) if place == path else facts

    def flock(file: int, operation: int) -> None:
        if is_contended and operation & fcntl.LOCK_EX and next(attempts) % 2 == 0:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        lock(file, operation)

    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.setattr(fcntl, "flock", flock)
    with JSONLWriter(path) as out:
        out.write(rt.Trajectory(name="a"))
        out.write(rt.Trajectory(name="b"))
    monkeypatch.undo()
    assert names(path) == ["a", "b"]


def test_a_line_is_encoded_once_and_appended_when_that_is_possible(path: Path) -> None:
    with JSONLWriter(path, lock_timeout=0) as out:
        line = out.encode(rt.Trajectory(name="a"))
        with out._lock, pytest.raises(rt.WriteError) as refused:
            out.append(line)
        assert [lost for lost, _ in refused.value.lost] == [line.trajectory]
        assert path.read_bytes() == b""
        out.append(line)
        assert path.read_bytes() == line.data
    with pytest.raises(ValueError, match="is closed: nothing more can be written to it"):
        out.append(line)


def test_a_closing_that_fails_is_told_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As over NFS, which may store only then. The descriptor is gone all the same."""
    real = os.close

    def close(file: int) -> None:
        real(file)
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    out = JSONLWriter(path)
    out.write(rt.Trajectory(name="a"))
    with monkeypatch.context() as patched, pytest.raises(rt.WriteError, match="Disk quota exceeded") as refused:  # noqa: PT012
        patched.setattr(os, "close", close)
        out.close()
    assert str(refused.value).startswith(f"closing {path} failed: ")
    out.close()
