"""Permission bits of the files that a writer creates."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace import JSONLWriter
from rollout_trace.file import locking
from tests.file.test_writer import names

IMAGE = f"data:image/png;base64,{'A' * 2000}"

pytestmark = pytest.mark.skipif(os.name != "posix", reason="this system has no permission bits")


@pytest.fixture(params=[0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """The umask of the process."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def bits(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst"])
@pytest.mark.parametrize(("mode", "folder"), [(0o600, 0o700), (0o640, 0o750), (0o664, 0o775), (0o666, 0o777)])
def test_they_are_those_asked_for_whatever_the_umask(mode: int, folder: int, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"rollouts{suffix}"
    with JSONLWriter(path, media="folder", mode=mode) as out:
        out.write(rt.Trajectory(name="a", metadata={"image": IMAGE}))
        path.rename(tmp_path / "rotated.jsonl")
        out.write(rt.Trajectory(name="b"))
    media = Path(f"{path}.media")
    assert [oct(bits(one)) for one in (tmp_path / "rotated.jsonl", path, *media.iterdir())] == [oct(mode)] * 3
    assert oct(bits(media)) == oct(folder)


def test_without_any_they_are_the_umasks(umask: int, tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    with JSONLWriter(path, media="folder") as out:
        out.write(rt.Trajectory(name="a", metadata={"image": IMAGE}))
    media = Path(f"{path}.media")
    assert {bits(one) for one in (path, *media.iterdir())} == {0o666 & ~umask}
    assert bits(media) == 0o777 & ~umask


def test_existing_files_keep_theirs(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    media = Path(f"{path}.media")
    path.touch(0o644)
    media.mkdir(0o755)
    with JSONLWriter(path, media="folder", mode=0o600) as out:
        out.write(rt.Trajectory(name="a", metadata={"image": IMAGE}))
    assert (bits(path), bits(media), [bits(one) for one in media.iterdir()]) == (0o644, 0o755, [0o600])
    assert names(path) == ["a"]


def test_a_link_to_no_file_yet_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.symlink_to(tmp_path / "target.jsonl")
    with JSONLWriter(path, mode=0o600) as out:
        out.write(rt.Trajectory(name="a"))
    assert bits(tmp_path / "target.jsonl") == 0o600
    assert names(path) == ["a"]


def test_a_lock_file_has_them_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("filelock")
    monkeypatch.setattr(locking, "fcntl", None)
    path = tmp_path / "rollouts.jsonl"
    with JSONLWriter(path, mode=0o600) as out:
        out.write(rt.Trajectory(name="a"))
    assert bits(Path(f"{path}.lock")) == 0o600


@pytest.mark.parametrize(
    ("mode", "error", "message"),
    [
        ("0o600", TypeError, "mode is '0o600'; give the permission bits of new files, such as mode=0o600."),
        (True, TypeError, "mode is True; give the permission bits"),
        (6e2, TypeError, "mode is 600.0; give the permission bits"),
        (600, ValueError, "mode is 600; give permission bits in octal, 0o600 to 0o777 (mode=0o600?)."),
        (0o100600, ValueError, "mode is 33152; give permission bits in octal, 0o600 to 0o777."),
        (-1, ValueError, "mode is -1; give permission bits in octal"),
        (0o400, ValueError, "mode is 0o400; the owner must be able to read and write the file: 0o600 at least."),
        (0, ValueError, "mode is 0o000; the owner must"),
    ],
)
def test_other_values_are_refused(mode: Any, error: type[Exception], message: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        JSONLWriter(tmp_path / "rollouts.jsonl", mode=mode)
    assert list(tmp_path.iterdir()) == []
