"""Read in several processes, files give what they give in one: trajectories, order, errors, notes."""

from __future__ import annotations

import gc
import gzip
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rollout_trace as rt
from rollout_trace.data.model import new_step
from rollout_trace.data.tokens import TokenStore
from rollout_trace.errors import FormatError
from rollout_trace.file import parallel
from rollout_trace.file.compression import compressor
from rollout_trace.file.decode import decode, parse
from rollout_trace.file.encode import encode
from rollout_trace.file.parallel import Batch, _decoder, _encoder, line_trajectory, packed_line, parts_of
from rollout_trace.file.reader import TrajectoryReader
from tests.amount import some
from tests.file.processes import run
from tests.file.test_round_trip import assert_same
from tests.strategies import PROFILE, trajectories

SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
ANY_SIZE = "from rollout_trace.file import parallel\nparallel.PAYS_OFF_BYTES = 0\n"
"""Of a program."""


@pytest.fixture(autouse=True)
def _however_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "PAYS_OFF_BYTES", 0)


def made(number: int, size: int = 200) -> rt.Trajectory:
    store = TokenStore()
    asked, said = store.add(_ids(size), _ids(5))
    store.finish()
    step = new_step({"id": "s", "call_id": "s", "prompt_token_ids": asked, "completion_token_ids": said})
    return rt.Trajectory(id=f"run{number}", steps=[step])


def _ids(count: int) -> Any:
    import numpy as np

    return np.arange(count, dtype=np.int32)


def write(path: Path, numbers: range) -> Path:
    with rt.JSONLWriter(path) as writer:
        for number in numbers:
            writer.write(made(number))
    return path


def both(path: Any, **options: Any) -> tuple[list[rt.Trajectory], list[str]]:
    """What two processes give; it must be what this one gives alone."""
    alone, together = rt.read(path, **options), rt.read(path, workers=2, **options)
    found = list(alone)
    assert list(together) == found
    assert [str(one) for one in together.skipped] == [str(one) for one in alone.skipped]
    return found, [str(one) for one in alone.skipped]


@PROFILE
@given(st.lists(trajectories(), max_size=3))
def test_a_packed_line_is_the_line(made_up: list[rt.Trajectory]) -> None:
    lines = [encode(one) for one in made_up]
    try:
        packed = [packed_line(at, parse(line)) for at, line in enumerate(lines)]
        data = _encoder.encode(Batch([one for one in packed if one is not None]))
    except (OverflowError, UnicodeEncodeError):
        return
    read = [line_trajectory(one) for one in _decoder.decode(data).lines]
    for line, one in zip([line for line, one in zip(lines, packed, strict=True) if one is not None], read, strict=True):
        assert_same(decode(line), one)


@pytest.mark.parametrize("suffix", some(SUFFIXES, SUFFIXES[0]))
def test_many_files_give_the_same_in_the_same_order(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "PART_BYTES", 3000)
    for number in range(5):
        write(tmp_path / f"part-a-{number}{suffix}", range(10 * number, 10 * number + 10))
    rt.annotate(tmp_path, "run13", reward=0.5)
    found, _ = both(tmp_path)
    assert [one.id for one in found] == [f"run{number}" for number in range(50)]
    assert [one.reward for one in found if one.reward is not None] == [0.5]
    assert suffix == ".jsonl.gz" or len(list(parts_of(str(tmp_path / f"part-a-0{suffix}")))) > 2


def test_parts_are_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "PART_BYTES", 3000)
    for suffix in (".jsonl", ".jsonl.zst"):
        path = write(tmp_path / f"rollouts{suffix}", range(30))
        found = list(parts_of(str(path)))
        assert [one.start for one in found[1:]] == [one.stop for one in found[:-1]]
        assert ([one.is_last for one in found], found[-1].stop) == ([False] * (len(found) - 1) + [True], None)
        assert len(found) > 5


def damage_end(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 20)


def damage_middle(path: Path) -> None:
    data = bytearray(path.read_bytes())
    at = len(data) // 2
    data[at : at + 10] = b"\xff" * 10
    path.write_bytes(data)


def join_lines(path: Path) -> None:
    """The newline of a line is missing, in whatever member it is."""
    compress = compressor(path) or bytes
    lines = [encode(made(number)) for number in range(20)]
    lines[7] = lines[7].removesuffix(b"\n")
    path.write_bytes(b"".join(map(compress, lines)))


def other_lines(path: Path) -> None:
    """Values that cannot be sent as they are, and one that is refused only when it is built."""
    compress = compressor(path) or bytes
    lines = [encode(made(number)) for number in range(12)]
    lines[2] = lines[2].replace(b'"id":"run2"', b'"id":"run2","metadata":{"n":123456789012345678901234567890}')
    lines[4] = lines[4].replace(b'"id":"run4"', b'"id":"run4","metadata":{"n":"\\ud800"}')
    lines[6] = lines[6].replace(b'"id":"run6"', b'"id":"run6","started_at":"2026-11-21T00:31:30+02:00"')
    lines[8] = lines[8].replace(b'"end":205', b'"end":9999')
    lines[10] = b"[1, 2]\n"
    path.write_bytes(b"".join(map(compress, lines)))


def no_rollouts(path: Path) -> None:
    compress = compressor(path) or bytes
    path.write_bytes(compress(b"[1]\n") + compress(b"[2]\n"))


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("suffix", some(SUFFIXES, SUFFIXES[0]))
@pytest.mark.parametrize(
    "spoil", some([damage_end, damage_middle, join_lines, other_lines, no_rollouts, empty], damage_middle, other_lines)
)
def test_errors_and_what_is_skipped_are_the_same(
    spoil: Callable[[Path], None], suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "PART_BYTES", 3000)
    for number in range(3):
        write(tmp_path / f"part-a-{number}{suffix}", range(20 * number, 20 * number + 20))
    spoil(tmp_path / f"part-a-1{suffix}")
    found, skipped = both(tmp_path, on_error="skip")
    assert {"run0", "run19", "run40", "run59"} <= {one.id for one in found}
    if skipped:
        messages = []
        for workers in (1, 2):
            with pytest.raises(FormatError) as raised:
                list(rt.read(tmp_path, workers=workers))
            messages.append(str(raised.value))
        assert messages[0] == messages[1] == skipped[0]


def test_media_are_restored_or_kept(tmp_path: Path) -> None:
    image = "data:image/png;base64," + "iVBORw0KGgoA" * 200
    with rt.JSONLWriter(tmp_path / "a.jsonl", media="folder") as writer:
        writer.write(rt.Trajectory(id="a", metadata={"image": image}))
    found, _ = both(tmp_path)
    assert found[0].metadata == {"image": image}
    both(tmp_path, media="keep")
    next((tmp_path / "a.jsonl.media").iterdir()).unlink()
    both(tmp_path, on_error="skip")


def pids(reader: TrajectoryReader) -> list[int]:
    """Of the processes that read for it."""
    generator: Any = reader._trajectories
    pool: parallel.Workers | None = generator.gi_frame.f_locals["pool"]
    return [] if pool is None else [process.pid for process in pool._processes]


@pytest.mark.parametrize("suffix", some(["", ".gz", ".zst"], ""))
def test_no_processes_are_started_for_little(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [write(tmp_path / f"{number}.jsonl{suffix}", range(1)) for number in range(2)]
    size = sum(path.stat().st_size for path in paths) * (4 if suffix else 1)
    for limit, count in ((size, 2), (size + 1, 0)):
        monkeypatch.setattr(parallel, "PAYS_OFF_BYTES", limit)
        reader = rt.read(paths, workers=2)
        assert next(reader).id == "run0"
        assert len(pids(reader)) == count
        assert len(list(reader)) == 1


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_processes_end_with_the_iterator(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", range(100))
    reader = rt.read(tmp_path, workers=2)
    next(reader)
    found = pids(reader)
    assert [is_there(one) for one in found] == [True, True]
    del reader
    gc.collect()
    assert [is_there(one) for one in found] == [False, False]
    reader = rt.read(tmp_path, workers=2)
    next(reader)
    found = pids(reader)
    list(reader)
    assert [is_there(one) for one in found] == [False, False]


def test_they_end_where_reading_fails(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", range(2))
    path.write_bytes(path.read_bytes() + b"no line\n")
    reader = rt.read(tmp_path, workers=2)
    next(reader)
    found = pids(reader)
    with pytest.raises(FormatError):
        list(reader)
    assert [is_there(one) for one in found] == [False, False]


def test_where_a_process_is_killed_this_one_reads_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(20):
        write(tmp_path / f"part-a-{number:02}.jsonl", range(10 * number, 10 * number + 10))
    reader = rt.read(tmp_path, workers=2)
    first = next(reader)
    for pid in pids(reader):
        os.kill(pid, signal.SIGKILL)
    assert [one.id for one in (first, *reader)] == [f"run{number}" for number in range(200)]
    assert [one for one in caplog.messages if "was killed by signal 9: only this process reads the rest" in one]


def test_a_program_without_a_main_guard_is_not_run_again(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", range(3))
    (tmp_path / "program.py").write_text(
        f"import rollout_trace as rt\n{ANY_SIZE}"
        f"print([one.id for one in rt.read({str(tmp_path / 'a.jsonl')!r}, workers=2)])\n"
    )
    assert run(f"exec(open({str(tmp_path / 'program.py')!r}).read())") == "['run0', 'run1', 'run2']\n"


def test_a_recorded_program_s_readers_are_not_recorded(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", range(3))
    program = (
        f"import os, rollout_trace as rt\n{ANY_SIZE}"
        "os.environ['ROLLOUT_TRACE_OUTPUT'] = '/nowhere/x.jsonl'\n"
        "print(len(list(rt.read(os.environ['READ'], workers=2))))"
    )
    os.environ["READ"] = str(tmp_path / "a.jsonl")
    try:
        assert run(program) == "3\n"
    finally:
        del os.environ["READ"]


@pytest.mark.parametrize(("workers", "kind"), [(0, ValueError), (-1, ValueError), ("2", TypeError), (True, TypeError)])
def test_bad_numbers_of_workers(workers: Any, kind: type[Exception], tmp_path: Path) -> None:
    with pytest.raises(kind, match="workers is"):
        rt.read(write(tmp_path / "a.jsonl", range(1)), workers=workers)


def test_a_file_that_is_no_longer_there(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", range(1))
    reader = rt.read(path, workers=2)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        next(reader)


def test_gzip_of_other_writers(tmp_path: Path) -> None:
    """One member, and no newline at the end."""
    data = b"".join(encode(made(number)) for number in range(5)).removesuffix(b"\n")
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(data))
    assert len(both(tmp_path)[0]) == 5


def test_a_name_that_is_no_text(tmp_path: Path) -> None:
    path = os.fsdecode(os.path.join(os.fsencode(tmp_path), b"a\xff.jsonl"))
    try:
        write(Path(path), range(3))
    except OSError:
        pytest.skip("such a name cannot be given here")
    assert len(both(path)[0]) == 3


@pytest.mark.parametrize("place", some(['"status":', '"steps":[{'], '"steps":[{'))
def test_a_deep_line_is_read_wherever_it_is_asked_for(place: str, tmp_path: Path) -> None:
    """The limit of recursion counts the caller's frames, which another process has not."""
    path = write(tmp_path / "x.jsonl", range(1))
    deep = "[" * 300 + "]" * 300
    put = f'"metadata":{{"deep":{deep}}},'
    path.write_text(path.read_text().replace(place, f"{place}{put}" if place.endswith("{") else f"{put}{place}", 1))

    def asked(frames: int) -> int:
        return asked(frames - 1) if frames else sum(len(one.steps) for one in rt.read(path, workers=2))

    # Fewer than the limit, more than it without the line's.
    assert asked(800) == 1


def test_what_is_printed_at_the_start_of_a_process_is_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "noise"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("print('hello')")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    assert len(both(write(tmp_path / "x.jsonl", range(3)))[0]) == 3


@pytest.mark.skipif(sys.platform == "win32", reason="uses signals")
def test_ctrl_c_is_not_for_the_processes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It reaches all processes of a terminal; whoever reads goes on, or ends them."""
    paths = [write(tmp_path / f"{number}.jsonl", range(2)) for number in range(8)]
    reader = rt.read(paths, workers=2)
    next(reader)
    for pid in pids(reader):
        os.kill(pid, signal.SIGINT)
    assert len(list(reader)) == 15
    assert caplog.messages == []


def test_where_pipes_cannot_be_widened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user may have so many wide ones, of all processes together."""
    fcntl = pytest.importorskip("fcntl")

    def refuse(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    assert len(both(write(tmp_path / "x.jsonl", range(3)))[0]) == 3


def test_a_process_that_cannot_be_started_leaves_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    start = parallel._start

    def second_fails() -> Any:
        if started:
            raise OSError("no more processes")
        started.append(start())
        return started[0]

    monkeypatch.setattr(parallel, "_start", second_fails)
    with pytest.raises(OSError, match="no more processes"):
        list(rt.read(write(tmp_path / "x.jsonl", range(3)), workers=2))
    gc.collect()
    assert not is_there(started[0].pid)
