"""Shards at an address: uploaded whole, by a thread of their own, kept until they are; read as a folder is."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

import rollout_trace as rt
from rollout_trace.errors import WriteError
from rollout_trace.file import shards_upload
from rollout_trace.file.addresses import is_address, make_parents, shown, to_local
from rollout_trace.file.shards import Settings
from rollout_trace.file.shards_upload import ROOT, UploadedShards, Uploader, claim, send, spool_of, spooled
from rollout_trace.record.journal import Journal
from rollout_trace.testing import ScriptedServer
from tests.file.test_shards import Clock, made
from tests.record.journaled import died, journaled, sdk, talk

fsspec: Any = pytest.importorskip("fsspec")
memory: Any = pytest.importorskip("fsspec.implementations.memory")
OUT = "memory://bucket/run"


class Flaky(memory.MemoryFileSystem):  # type: ignore[misc]
    """In memory, not an object store; ``put_file`` does first what the test wants."""

    protocol = "flaky"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    before: ClassVar[Callable[[str], object]] = print

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return memory.MemoryFileSystem._strip_protocol(path.replace("flaky://", "memory://"))

    def put_file(self, lpath: Any, rpath: Any, **options: Any) -> None:
        type(self).before(rpath)
        super().put_file(lpath, rpath, **options)


fsspec.register_implementation("flaky", Flaky, clobber=True)


@pytest.fixture(autouse=True)
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(ROOT, str(tmp_path / "spools"))
    yield tmp_path / "spools"
    for system in (memory.MemoryFileSystem, Flaky):
        system.store.clear()
        system.pseudo_dirs[:] = [""]


def remote(address: str = OUT) -> list[str]:
    system, place = fsspec.core.url_to_fs(address)
    return sorted(name.rpartition("/")[2] for name in system.find(place))


def writer(address: str = OUT, clock: Clock | None = None, **settings: Any) -> UploadedShards:
    return UploadedShards(address, Settings(**{"compression": "none", **settings}), {}, clock=clock or Clock())


def left(spool: Path, address: str = OUT) -> list[str]:
    return sorted(one.name for one in spool_of(address, spool).glob("part-*"))


def test_what_is_an_address() -> None:
    for text in ("s3://b/x", "memory://x", "simplecache::s3://b/x", "GS://b"):
        assert is_address(text)
    for path in ("C://x", "C:\\x", "/a/b", "file:///a", "local://a", "a:b", Path("s3://b/x")):
        assert not is_address(path)
    assert to_local("file:///a%20b/c") == "/a b/c"
    assert to_local("file:///a#b?c/d.jsonl") == to_local("local://localhost/a#b?c/d.jsonl") == "/a#b?c/d.jsonl"
    for relative in ("file://runs/x.jsonl", "local://x", "file://"):
        with pytest.raises(ValueError, match=f"{relative} has no absolute path"):
            to_local(relative)
    assert shown("sftp://me:secret@host/x") == "sftp://host/x"
    with pytest.raises(ValueError, match=r"Path dropped one of its slashes\. Give the text 's3://b/x' instead"):
        rt.read(Path("s3://b/x"))


@pytest.mark.processes
@pytest.mark.parametrize(
    ("there", "asked", "is_near"),
    [
        ("rollouts", "rollots", True), ("my-rollouts", "my-rollots", True), ("my_experiment-a", "my_experimnt-a", True),
        ("experiment-a", "experiment-b", False), ("experiment-1", "experiment-2", False),
        ("experiment-low", "experiment-high", False), ("experiment", "experiment-b", False),
    ],
)  # fmt: skip
def test_a_folder_that_is_misspelt(
    there: str, asked: str, is_near: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / there).mkdir()
    make_parents(tmp_path / asked)
    assert (tmp_path / asked).is_dir()
    assert (f"{there} is beside it" in caplog.text) is is_near


def test_a_folder_in_one_that_cannot_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    # Not by permissions: the tests may run as root.
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", refused)
        make_parents(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()


def test_a_recording_to_an_address_is_read_from_it(spool: Path) -> None:
    with rt.recording(f"{OUT}/") as target, rt.trajectory(task="one") as trajectory:
        assert str(getattr(target, "path", None)) == OUT
    assert [one.id for one in rt.read(OUT)] == [trajectory.id]
    (name,) = remote()
    assert name.startswith("part-")
    assert name.endswith(f"-{os.getpid()}-0.jsonl.zst")
    for address in (f"{OUT}/", f"{OUT}/{name}", "memory://bucket/*/part-*.zst"):
        assert [one.id for one in rt.read(address)] == [trajectory.id]
    assert [one.id for one in rt.read([OUT], workers=2)] == [trajectory.id]
    # Spool and journal are gone.
    assert list(spool.iterdir()) == []


def test_a_shard_is_uploaded_when_it_is_large_enough(spool: Path) -> None:
    shards = writer(shard_bytes=1)
    for number in range(3):
        shards.write(made(number))
    shards.close()
    assert len(remote()) == 3
    assert sorted(one.id for one in rt.read(OUT)) == ["run0", "run1", "run2"]
    assert (shards.unsent, list(spool.iterdir())) == ([], [])


def test_an_old_shard_is_uploaded_though_nothing_more_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = threading.Event()

    def noted(address: str, path: Path) -> None:
        send(address, path)
        sent.set()

    monkeypatch.setattr(shards_upload, "send", noted)
    shards = writer(shard_seconds=1e-6, clock=Ticking())
    shards.write(made(0))
    assert sent.wait(60)
    assert [one.id for one in rt.read(OUT)] == ["run0"]
    shards.close()


class Ticking(Clock):
    """A second passes whenever somebody looks."""

    def __call__(self) -> float:
        self.now += 1
        return self.now


def test_uploading_holds_up_nobody(spool: Path) -> None:
    begun, released = threading.Event(), threading.Event()

    def wait(_: str) -> None:
        begun.set()
        assert released.wait(60)

    Flaky.before = staticmethod(wait)
    shards = writer("flaky://bucket/run", shard_bytes=1)
    for number in range(20):
        shards.write(made(number))
    assert begun.wait(60)
    assert len(left(spool, "flaky://bucket/run")) == 20
    assert remote("flaky://bucket/run") == []
    released.set()
    shards.close()
    assert len(list(rt.read("flaky://bucket/run"))) == 20


def test_an_upload_that_fails_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, spool: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shards_upload, "FIRST_RETRY", 0.0)
    tries, done = [], threading.Event()

    def fail_twice(path: str) -> None:
        tries.append(path)
        if len(tries) < 3:
            raise ConnectionError("no route \x1b[2J")
        done.set()

    Flaky.before = staticmethod(fail_twice)
    shards = writer("flaky://bucket/run", shard_bytes=1)
    shards.write(made(0))
    shards.write(made(1))
    assert done.wait(60)
    shards.close()
    assert (shards.unsent, left(spool, "flaky://bucket/run")) == ([], [])
    assert [one.id for one in rt.read("flaky://bucket/run")] == ["run0", "run1"]
    (warned,) = [one for one in caplog.messages if "could not be uploaded" in one]
    assert "no route \\x1b[2J" in warned


def refuse(_: str) -> None:
    raise PermissionError("access denied")


def test_what_could_not_be_uploaded_is_kept_told_and_recovered(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards_upload, "FIRST_RETRY", 0.0)
    Flaky.before = staticmethod(refuse)
    target = "flaky://bucket/run"

    def two_trajectories() -> None:
        with rt.recording(target):
            for number in range(2):
                with rt.trajectory(task=str(number)):
                    pass

    with pytest.raises(WriteError, match="1 shard with 2 trajectories could not be uploaded to flaky://") as found:
        two_trajectories()
    assert "PermissionError: access denied" in str(found.value)
    assert f"rt.recover({target!r}, write=True) uploads them" in str(found.value)
    assert len(left(spool, target)) == 1
    report = rt.recover(target, write=True).report
    assert "access denied" in report.not_written[0]
    Flaky.before = staticmethod(lambda _: None)
    assert [len(rt.recover(target).report.spooled), remote(target)] == [1, []]
    assert len(rt.recover(target, write=True).report.uploaded) == 1
    assert [one.task.id for one in rt.read(target) if one.task] == ["0", "1"]
    assert rt.recover(target, write=True).report.uploaded == []
    assert list(spool.iterdir()) == []


def test_a_recovery_says_where_its_shard_is_and_tries_again(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trajectories of a dead process are in the spool, and no longer in a journal, when the upload fails."""
    monkeypatch.setattr(shards_upload, "FIRST_RETRY", 0.0)
    target = "flaky://bucket/run"
    folder = spool_of(target, spool)
    folder.mkdir(parents=True)
    journal = Journal(folder)
    with ScriptedServer("words") as server:
        for number in range(2):
            with journaled(journal, task=f"{number}"):
                talk(sdk(server), 1)
    died(journal)
    tries: list[str] = []

    def fail(path: str) -> None:
        tries.append(path)
        raise ConnectionError("no route")

    Flaky.before = staticmethod(fail)
    found = rt.recover(target, write=True)
    (shard,) = found.report.waiting
    assert (found.report.waiting[shard], len(found.report.written), len(tries)) == (len(found), len(found), 4)
    text = str(found.report)
    assert f"{len(found)} trajectories are in {shard}, which could not be uploaded" in text
    assert "\n0 appended to the output\n" in text
    assert f"not in the output: 1\n  {shard} could not be uploaded to {target}, and is kept: " in text
    assert sorted(one.id for one in rt.read(shard)) == sorted(one.id for one in found)
    # As a recording does, and where the address answers again before the tries are over.
    Flaky.before = staticmethod(lambda path: fail(path) if len(tries) < 7 else None)
    again = rt.recover(target, write=True).report
    assert (again.waiting, again.not_written, again.uploaded) == ({}, [], [shard.name])
    assert sorted(one.id for one in rt.read(target)) == sorted(one.id for one in found)


def test_a_shard_that_was_uploaded_and_not_deleted_is_not_doubled(spool: Path) -> None:
    folder = spool_of(OUT, spool)
    folder.mkdir(parents=True)
    system, _ = fsspec.core.url_to_fs(OUT)
    shards = rt.JSONLWriter(folder / "part-a-1-0.jsonl")
    shards.write(made(0))
    shards.close()
    system.put_file(str(folder / "part-a-1-0.jsonl"), "/bucket/run/part-a-1-0.jsonl")
    assert rt.recover(OUT, write=True).report.uploaded == ["part-a-1-0.jsonl"]
    assert [one.id for one in rt.read(OUT)] == ["run0"]
    assert list(spool.iterdir()) == []


def test_another_file_of_the_name_is_not_replaced(spool: Path) -> None:
    folder = spool_of(OUT, spool)
    folder.mkdir(parents=True)
    (folder / "part-a-1-0.jsonl").write_text("ours\n")
    system, _ = fsspec.core.url_to_fs(OUT)
    system.pipe_file("/bucket/run/part-a-1-0.jsonl", b"them\n")
    report = rt.recover(OUT, write=True).report
    assert "another file of the name" in report.not_written[0]
    assert system.cat_file("/bucket/run/part-a-1-0.jsonl") == b"them\n"
    assert (folder / "part-a-1-0.jsonl").exists()


def test_shards_of_a_living_process_are_left_alone(spool: Path) -> None:
    shards = writer()
    shards.write(made(0))
    report = rt.recover(OUT, write=True).report
    assert [one.name for one in report.live] == left(spool)
    assert (report.uploaded, report.is_clean) == ([], True)
    shards.close()
    assert len(remote()) == 1


def test_a_partial_line_is_cut_before_a_shard_is_uploaded(spool: Path) -> None:
    folder = spool_of(OUT, spool)
    folder.mkdir(parents=True)
    for name in ("part-a-1-0.jsonl", "part-a-1-1.jsonl.gz", "part-a-1-2.jsonl.zst"):
        with rt.JSONLWriter(folder / name) as shards:
            shards.write(made(0))
            size = (folder / name).stat().st_size
            shards.write(made(1))
        os.truncate(folder / name, size + 40)
    report = rt.recover(OUT, write=True).report
    assert (report.bytes_cut, len(report.uploaded)) == (120, 3)
    assert [one.id for one in rt.read(OUT)] == ["run0"] * 3


def test_a_claim_is_one_process_s(tmp_path: Path) -> None:
    first = claim(tmp_path, "part-a-1")
    assert first is not None
    assert claim(tmp_path, "part-a-1") is None
    first.release()
    again = claim(tmp_path, "part-a-1")
    assert again is not None
    again.release()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "part-h-ab-12-3.jsonl.zst").touch()
    (tmp_path / "part-h-ab-12-20.jsonl.zst").touch()
    assert [one.name for one in spooled(tmp_path)["part-h-ab-12"]] == [
        "part-h-ab-12-3.jsonl.zst",
        "part-h-ab-12-20.jsonl.zst",
    ]


def test_notes_and_media_at_an_address_are_applied(tmp_path: Path) -> None:
    image = "data:image/png;base64," + "iVBORw0KGgoA" * 200
    folder = tmp_path / "run"
    (folder).mkdir()
    with rt.JSONLWriter(folder / "part-a-1-0.jsonl", media="folder") as shards:
        shards.write(rt.Trajectory(id="run0", metadata={"image": image}))
    rt.annotate(folder, "run0", reward=0.25)
    system, _ = fsspec.core.url_to_fs(OUT)
    system.put(f"{folder}/", "/bucket/run/", recursive=True)
    (found,) = rt.read(OUT)
    assert (found.reward, found.metadata) == (0.25, {"image": image})


@pytest.mark.parametrize(
    ("address", "options", "kind", "said"),
    [
        ("memory://b/rollouts.jsonl", {}, ValueError, "names a file, but at an address each process writes"),
        ("s3://", {}, ValueError, "does not name a folder"),
        ("memory://b/x", {"media": "folder"}, ValueError, 'media="folder" works only for local outputs'),
        ("nosuchscheme://b/x", {}, ValueError, "is not an address that fsspec can open"),
    ],
)
def test_addresses_that_cannot_be_outputs_are_refused(
    address: str, options: Any, kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said), rt.recording(address, **options):
        pass


def test_what_is_not_there_is_said() -> None:
    for address, said in (
        ("memory://b/none", "there is nothing at memory://b/none"),
        ("memory://b/*.jsonl", "no file matches the pattern memory://b"),
    ):
        with pytest.raises(FileNotFoundError, match=said.replace("*", r"\*")):
            rt.read(address)
    fsspec.core.url_to_fs(OUT)[0].pipe_file("/bucket/run/notes.txt", b"")
    with pytest.raises(FileNotFoundError, match="there is no file of trajectories in memory://bucket/run"):
        rt.read(OUT)
    with pytest.raises(ValueError, match="spool='x' is for addresses"):
        rt.recover("a.jsonl", spool="x")


def test_what_is_at_an_address_is_merged(tmp_path: Path) -> None:
    shards = writer(shard_bytes=1)
    for number in range(3):
        shards.write(made(number))
    shards.close()
    report = rt.merge(OUT, tmp_path / "one.jsonl.gz")
    assert (report.written, [one.id for one in rt.read(tmp_path / "one.jsonl.gz")]) == (3, ["run0", "run1", "run2"])


def test_a_spool_that_another_process_has_removed_is_made_again(spool: Path) -> None:
    """Whoever ends removes it where it is empty, as it is before the first trajectory of those that have begun."""
    with rt.recording(OUT, journal=False) as begun:
        with rt.recording(OUT, journal=False):
            pass
        assert not spool_of(OUT, spool).exists()
        begun.write(made(1))
    assert [one.id for one in rt.read(OUT)] == ["run1"]
    assert not spool_of(OUT, spool).exists()


def test_a_shard_that_begins_while_the_thread_looks_is_seen() -> None:
    """It would be uploaded when the next trajectory comes, however old it is."""
    looked = threading.Semaphore(0)
    looks: list[int] = []

    def tick() -> float | None:
        looks.append(len(looks))
        if len(looks) == 1:
            # As a trajectory does that is written now.
            uploads.wake()
        looked.release()
        return None

    uploads = Uploader(OUT, tick)
    uploads.wake()
    for _ in range(2):
        assert looked.acquire(timeout=60)
    uploads.finish()


def test_a_shard_may_be_given_an_endless_time(monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    with rt.recording(OUT, shard_seconds=float("inf")) as writing:
        for number in range(20):
            writing.write(made(number))
    assert failed == []
    assert len(list(rt.read(OUT))) == 20
