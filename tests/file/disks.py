"""Small file systems that fill up or fail, where the tests may mount one (as root on Linux)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def _sudo_less(*command: str | Path) -> bool:
    return subprocess.run([*map(str, command)], capture_output=True).returncode == 0


@contextmanager
def mounted(folder: Path, *options: str | Path) -> Iterator[Path]:
    """A mount at ``folder``; the test is skipped where none can be made."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        pytest.skip("only root can mount a file system")
    folder.mkdir()
    if not _sudo_less("mount", *options, folder):
        pytest.skip("no file system can be mounted here")
    try:
        yield folder
    finally:
        assert _sudo_less("umount", folder) or _sudo_less("umount", "--lazy", folder)


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system in memory with room for 64 KiB."""
    with mounted(folder, "-t", "tmpfs", "-o", "size=64k", "tmpfs") as place:
        yield place


@contextmanager
def failing_disk(folder: Path) -> Iterator[Path]:
    """An ext4 of 4 MiB, which ``fail`` makes read-only as the kernel does after an error of the device."""
    image = folder.with_suffix(".img")
    with image.open("wb") as file:
        file.truncate(4 << 20)
    if shutil.which("mkfs.ext4") is None or not _sudo_less("mkfs.ext4", "-q", "-b", "1024", image):
        pytest.skip("no ext4 can be made here")
    with mounted(folder, "-o", "loop", image) as place:
        yield place


def fail(disk: Path) -> None:
    """From now on the file system takes no change, not even to open files."""
    assert _sudo_less("mount", "-o", "remount,abort", disk)


def fill(disk: Path, leave: int) -> Path:
    """Fills a file system up to ``leave`` bytes or a little less; the file that does."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(1024)):
                pass
        except OSError:
            file.truncate(file.tell() - leave)
    return filler
