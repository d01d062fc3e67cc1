"""The spool: the local folder in which shards of an address are written, until they have been uploaded whole."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections import defaultdict
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import msgspec

from rollout_trace._forks import renew_after_fork
from rollout_trace.file import locking
from rollout_trace.file.addresses import shown
from rollout_trace.file.plain import dumps
from rollout_trace.file.replacing import make_folder
from rollout_trace.file.shards import host_label, is_shard_name

ROOT = "ROLLOUT_TRACE_SPOOL"
"""Environment variable: the folder with the spools of all addresses."""
_OWNER = ".owner-"
_TRIES = 32


def spool_of(address: str, root: str | os.PathLike[str] | None = None) -> Path:
    """The spool of an address: a folder of its own in ``root``, for all processes of this machine and user.

    Args:
        address: without the slash at its end.
        root: None: that of the variable ``ROLLOUT_TRACE_SPOOL``, else ``rollout-trace/spool`` in the user's folder for
            what programs keep (``~/.local/state`` on Linux).
    """
    name = re.sub(r"[^A-Za-z0-9.]+", "-", shown(address))[:60].strip("-.")
    return Path(os.path.abspath(root or _root())) / f"{name}-{sha256(address.encode()).hexdigest()[:12]}"


def has_default_root(spool: Path) -> bool:
    """Tells whether a spool is where it is looked for unless another folder is named."""
    return spool.parent == Path(os.path.abspath(_root()))


def _root() -> Path:
    if given := os.environ.get(ROOT):
        return Path(given)
    if sys.platform == "win32":
        state = os.environ.get("LOCALAPPDATA")
    else:
        state = os.environ.get("XDG_STATE_HOME")
    home = os.path.expanduser("~")
    for folder in (state, os.path.join(home, ".local", "state") if os.path.isabs(home) else None):
        if folder and _may_be_made(Path(folder)):
            return Path(folder) / "rollout-trace" / "spool"
    user = os.getuid() if hasattr(os, "getuid") else "user"
    return Path(tempfile.gettempdir()) / f"rollout-trace-spool-{user}"


def _may_be_made(folder: Path) -> bool:
    """Tells whether a folder is there and can be written to, or could be made: containers may have no home."""
    there = next((one for one in (folder, *folder.parents) if one.exists()), None)
    return there is not None and there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def make_spool(folder: Path, address: str) -> None:
    """Makes a spool, which only its user may read, with a text file that names its address.

    Raises:
        OSError: it cannot be made.
    """
    make_folder(folder, 0o600)
    note = folder / "ADDRESS"
    if not note.exists():
        note.write_text(f"{shown(address)}\n")


class Claim:
    """Says that a process works on shards: until it is released, or the process is dead, others leave them alone.

    A file beside the shards, locked. Where there are no locks, it names the process.
    """

    def __init__(self, path: Path, fd: int) -> None:
        self._path = path
        self._fd = fd
        renew_after_fork(self, Claim.renew)

    def release(self) -> None:
        """Gives it up. A second call does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            if locking.HAS_LOCKS:
                self._path.unlink(missing_ok=True)
                os.close(fd)
            else:  # Windows deletes no open file.
                os.close(fd)
                self._path.unlink(missing_ok=True)

    def renew(self) -> None:
        """Closes the descriptor of a forked process, which shares the lock and would outlive the other process."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def claim(folder: Path, stem: str) -> Claim | None:
    """Claims the shards of a spool whose names begin with ``stem``; None where a process that lives has.

    Raises:
        OSError: it cannot be found out.
    """
    path = folder / f"{_OWNER}{stem}"
    for _ in range(_TRIES):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600)
        try:
            is_held = locking.lock_open(fd)
            # Another process may have released it, and removed the file, since it was opened.
            is_current = _is_at(fd, path)
            if is_held is not False and is_current and (is_held or not _may_live(fd)):
                os.ftruncate(fd, 0)
                os.lseek(fd, 0, os.SEEK_SET)
                os.write(fd, dumps(locking.owner()))
                return Claim(path, os.dup(fd))
        finally:
            # Of a claim, the duplicate goes on to hold the lock.
            os.close(fd)
        if is_current:
            return None
    return None


def claim_new(folder: Path, address: str) -> tuple[str, Claim]:
    """Claims a stem for new shards in the spool of an address, which is made where it is missing.

    Beside host and process id a random number is in it: machines may share their name, and processes of two containers
    their id, and at an address nobody can keep a name for himself.

    Raises:
        OSError: the spool cannot be made.
    """
    for _ in range(_TRIES):
        stem = f"part-{host_label()}-{os.urandom(4).hex()}-{os.getpid()}"
        # A process that has ended may remove the spool, empty as it is, at any moment until there is a claim.
        with suppress(FileNotFoundError):
            make_spool(folder, address)
            if (made := claim(folder, stem)) is not None:
                return stem, made
    raise OSError(f"no shard can be begun in {folder}: another process removes the folder again and again.")


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def _may_live(fd: int) -> bool:
    """Tells whether the process that a claim names may live; for files without locks."""
    try:
        first = msgspec.json.decode(os.read(fd, 4096), type=dict)
    except (msgspec.DecodeError, ValueError):
        return False
    return locking.may_live(first)


def stale_claims(folder: Path) -> list[Claim]:
    """Claims, now of this process, of dead processes that left no shard."""
    used, found = spooled(folder), []
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    for name in names:
        stem = name.removeprefix(_OWNER)
        if name.startswith(_OWNER) and stem not in used and (left := claim(folder, stem)) is not None:
            found.append(left)
    return found


def stem_of(name: str) -> str:
    """The beginning of a shard's name, which the shards of one process share."""
    return name.split(".jsonl", 1)[0].rpartition("-")[0]


def spooled(folder: Path) -> dict[str, list[Path]]:
    """The shards of a spool by their stems, in the order of their numbers."""
    found: dict[str, list[Path]] = defaultdict(list)
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return {}
    for name in sorted(filter(is_shard_name, names), key=_number):
        found[stem_of(name)].append(folder / name)
    return dict(found)


def _number(name: str) -> int:
    return int(name.split(".jsonl", 1)[0].rpartition("-")[2])


def remove_if_empty(folder: Path) -> None:
    """Removes a spool in which nothing is left but its note."""
    try:
        if os.listdir(folder) in (["ADDRESS"], []):
            (folder / "ADDRESS").unlink(missing_ok=True)
            folder.rmdir()
    except OSError:
        # Another process has begun to use it, or it is gone.
        pass
