"""WriteError holds the trajectories that were not written, and writes them to another file."""

from __future__ import annotations

import copy
import errno
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace import JSONLWriter
from tests.file.test_writer import names


class SomebodysError(Exception):
    """Of a library whose exceptions cannot be loaded from a pickle."""

    def __init__(self, code: int, *, text: str) -> None:
        super().__init__(f"{code} {text}")


class Refusing(JSONLWriter):
    """Refuses trajectories by their names."""

    refused: tuple[str, ...] = ()

    def write(self, trajectory: rt.Trajectory) -> None:
        if trajectory.name in self.refused:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(trajectory)


def lost(*names: str, open_writer: Callable[..., Any] | None = JSONLWriter) -> rt.WriteError:
    """An error about trajectories of these names."""
    pairs: list[tuple[Any, BaseException]] = [
        (rt.Trajectory(id=f"id-{name}", name=name), OSError(errno.EIO, "Input/output error")) for name in names
    ]
    return rt.WriteError.summary(pairs, "rollouts.jsonl", open_writer)


def test_the_message_has_how_many_the_first_the_cause_and_what_to_do() -> None:
    assert str(lost("a", "b")) == (
        "2 trajectories could not be written to rollouts.jsonl; the first is id-a (OSError: [Errno 5] Input/output "
        'error). `lost` of this error holds each with its cause. error.write("other.jsonl") appends them to another '
        "file."
    )
    assert str(lost("a", open_writer=None)) == (
        "1 trajectory could not be written to rollouts.jsonl; it is id-a (OSError: [Errno 5] Input/output error). "
        "`lost` of this error holds each with its cause."
    )


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst"])
def test_they_are_written_once(suffix: str, tmp_path: Path) -> None:
    error, path = lost("a", "b", "c"), tmp_path / f"other{suffix}"
    assert error.write(path) == 3
    assert (error.lost, names(path)) == ([], ["a", "b", "c"])
    before = path.read_bytes()
    assert error.write(path) == error.write(tmp_path / "third.jsonl") == 0
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_those_that_fail_again_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error, path = lost("a", "b", "c", "d", open_writer=Refusing), tmp_path / "other.jsonl"
    monkeypatch.setattr(Refusing, "refused", ("a", "c"))
    with pytest.raises(
        rt.WriteError, match=rf"^2 trajectories could not be written to {path}; .* id-a .*No space"
    ) as again:
        error.write(path)
    assert [(one.name, str(cause)) for one, cause in error.lost] == [
        (name, "[Errno 28] No space left on device") for name in "ac"
    ]
    monkeypatch.setattr(Refusing, "refused", ())
    assert again.value.write(path) == 2
    assert error.write(path) == 0
    assert names(path) == ["b", "d", "a", "c"]


def test_ctrl_c_meanwhile_keeps_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error, path, real = lost("a", "b", "c"), tmp_path / "other.jsonl", JSONLWriter.write

    def write(self: JSONLWriter, trajectory: rt.Trajectory) -> None:
        if trajectory.name == "b":
            raise KeyboardInterrupt
        real(self, trajectory)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):  # noqa: PT012
        patched.setattr(JSONLWriter, "write", write)
        error.write(path)
    assert [one.name for one, _ in error.lost] == ["b", "c"]
    assert error.write(path) == 2
    assert names(path) == ["a", "b", "c"]


def test_a_file_that_cannot_be_opened_loses_nothing(tmp_path: Path) -> None:
    error = lost("a")
    with pytest.raises(IsADirectoryError):
        error.write(tmp_path)
    with pytest.raises(ValueError, match="is not a format for trajectories"):
        error.write(tmp_path / "a.parquet")
    assert error.write(tmp_path / "other.jsonl") == 1


def test_those_of_another_writer_are_left_to_it() -> None:
    error = lost("a", open_writer=None)
    with pytest.raises(RuntimeError, match=r"rt\.JSONLWriter\(path\)\.write\(trajectory\)"):
        error.write("other.jsonl")
    assert len(error.lost) == 1


def test_it_is_an_os_error_as_before() -> None:
    error = rt.WriteError(errno.ENOSPC, "No space left on device")
    assert (error.errno, error.lost, error.is_in_file, error.write("nowhere.jsonl")) == (errno.ENOSPC, [], False, 0)
    assert isinstance(error, OSError)
    assert repr(rt.WriteError("text")) == "WriteError('text')"


def test_a_writers_options_are_those_of_the_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, other = tmp_path / "rollouts.jsonl", tmp_path / "other.jsonl"
    image = f"data:image/png;base64,{'A' * 2000}"
    with JSONLWriter(path, media="folder", mode=0o600, lock_timeout=0) as out:
        with out._lock, pytest.raises(rt.WriteError) as refused:
            out.write(rt.Trajectory(name="a", metadata={"image": image}))
    assert refused.value.write(other) == 1
    assert [one.metadata for one in rt.read(other)] == [{"image": image}]
    assert image.encode() not in other.read_bytes()
    assert other.stat().st_mode & 0o777 == 0o600


def test_a_pickle_holds_each_trajectory_once(tmp_path: Path) -> None:
    trajectory = rt.Trajectory(name="a", metadata={"text": "x" * 100_000})
    cause = rt.WriteError("inner", lost=[(trajectory, OSError(errno.EIO, "Input/output error"))])
    error = rt.WriteError.summary([(trajectory, cause)], "rollouts.jsonl", JSONLWriter)
    data = pickle.dumps(error)
    assert len(data) < 110_000
    same = pickle.loads(data)
    assert (type(same), str(same), same.args) == (rt.WriteError, str(error), error.args)
    ((found, why),) = same.lost
    assert found.metadata == trajectory.metadata
    assert str(why) == "inner"
    assert why.lost[0][0] is found
    assert same.write(tmp_path / "other.jsonl") == 1
    assert len(error.lost) == 1


def test_a_cause_that_cannot_be_pickled_does_not_take_the_others_with_it() -> None:
    error = rt.WriteError.summary([(rt.Trajectory(id="t"), SomebodysError(3, text="odd"))], "x", JSONLWriter)
    for same in (pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):
        ((trajectory, cause),) = same.lost
        assert (trajectory.id, type(cause), str(cause)) == ("t", rt.RolloutTraceError, "SomebodysError: 3 odd")


def test_a_copy_shares_what_is_lost(tmp_path: Path) -> None:
    error = lost("a")
    same = copy.copy(error)
    assert str(same) == str(error)
    assert same.write(tmp_path / "other.jsonl") == 1
    assert error.write(tmp_path / "other.jsonl") == 0
