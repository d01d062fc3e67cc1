"""Tells what a path is (a regular file, a history), opens addresses and paths by one set of names, creates files and
replaces them whole.

Addresses are those of the package fsspec (``s3://``, ``gs://``, ``memory://``, ...), which is imported on use. Its own
settings (environment variables ``FSSPEC_S3_...``, ``AWS_...``, ``fsspec.config``) say how a file system is reached:
nothing of it is in an address here.
"""

from __future__ import annotations

import errno
import glob as local_glob
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote

from rollout_trace import guard
from rollout_trace.guard import describe

HISTORY_SCHEMA = "rollout-trace-history/1"
"""The first field of each line of a history."""
_HISTORY_NAME = re.compile(r"(.*\.)?history(-[0-9a-f]+)?\.jsonl")

_SPECIAL_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def refuse_special_file(path: str | os.PathLike[str]) -> None:
    """Raises OSError where a path is a pipe, a socket or a device other than ``/dev/null``.

    A pipe cannot be read from its start, a device may have no end, and neither can be truncated to whole lines. Missing
    paths are accepted.
    """
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    kind = _SPECIAL_KINDS.get(stat.S_IFMT(mode))
    if kind is not None and not os.path.samefile(path, os.devnull):
        raise OSError(errno.EINVAL, f"expected a file of lines, got {kind}", os.fspath(path))


def is_history_file(path: str | os.PathLike[str]) -> bool:
    """True for a history of ``rt.collect``: its name is that of one, and so is its first line, if there is one.

    An address, whose content is not looked at, is judged by its name.
    """
    name = os.fspath(path)
    if not _HISTORY_NAME.fullmatch(re.split(r"[/\\]", name)[-1]):
        return False
    try:
        with open(name, "rb") as file:
            begin = file.read(200).lstrip()
    except OSError:
        return True
    # A file of trajectories may have had this name before there were histories.
    return re.match(rb'\{\s*"schema"\s*:\s*"rollout-trace/', begin) is None


# Two characters at least: one is a drive of Windows. Chains such as `simplecache::s3://` are fsspec's too.
_ADDRESS = re.compile(r"(?:[a-z][a-z0-9+.-]*::)*[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_COLLAPSED = re.compile(r"(s3|s3a|gs|gcs|az|abfs|adl|hdfs|memory|https?|oci|r2|webhdfs|sftp|ftp):/(?!/)")
_MAGIC = re.compile(r"[*?\[]")
_NOT_SHOWN = re.compile(r"//[^/@\s]*@")


def is_address(path: object) -> bool:
    """Tells whether a path is an address for fsspec. ``file://`` is none: it names a local path, see ``to_local``."""
    return isinstance(path, str) and _ADDRESS.match(path) is not None and not _is_local(path)


def to_local(path: str | os.PathLike[str]) -> str:
    """The text of a path. Of ``file://`` and ``local://``, the local path that it names.

    Raises:
        ValueError: a ``Path`` was made of an address, and has lost a slash of it; or ``file://`` has no absolute path.
    """
    text = os.fspath(path)
    if isinstance(path, Path) and _COLLAPSED.match(text):
        fixed = text.replace(":/", "://", 1)
        raise ValueError(
            f"{text} was an address, but Path dropped one of its slashes. Give the text {fixed!r} instead of a Path."
        )
    if isinstance(text, str) and _is_local(text):
        place = unquote(text.partition("://")[2]).removeprefix("localhost")
        if not place.startswith("/"):
            raise ValueError(
                f"{text} has no absolute path: give the path without {text.partition('://')[0]}://, or one with three "
                "slashes, such as file:///runs/x.jsonl."
            )
        return place
    return text


def is_folder_target(target: str | os.PathLike[str]) -> bool:
    """Tells whether an output is a folder of shards: an address, a folder, or a path that ends with a slash."""
    text = to_local(target)
    return is_address(text) or text.endswith(("/", os.sep)) or os.path.isdir(text)


def absolute(path: str | os.PathLike[str]) -> str:
    """The absolute path of an output; an address as it is."""
    text = to_local(path)
    return text if is_address(text) else os.path.abspath(text)


def _is_local(text: str) -> bool:
    return text.lower().startswith(("file://", "local://"))


def shown(address: str) -> str:
    """An address for messages: without the user and password that it may have."""
    return _NOT_SHOWN.sub("//", address)


def file_system(address: str) -> tuple[Any, str]:
    """Returns an address's file system and the path in it. Call it again in each process: some have threads.

    Raises:
        ImportError: fsspec, or the package for this scheme, is not installed.
        ValueError: no such scheme is known, or the address cannot be read.
    """
    try:
        # Not an import statement: whoever has no fsspec type-checks this too.
        core: Any = import_module("fsspec.core")
    except ImportError:
        raise ImportError(
            f"{shown(address)} is opened with the package fsspec, which is not installed. Install it with: "
            "pip install '.[fsspec]'"
        ) from None
    try:
        system, path = core.url_to_fs(address)
    except ImportError as error:
        scheme = address.partition("://")[0]
        raise ImportError(
            f"{shown(address)}: fsspec needs one more package for {scheme}:// ({error}). Install it, such as s3fs for "
            "s3://, gcsfs for gs:// or adlfs for az://, in addition to: pip install '.[fsspec]'"
        ) from None
    except (ValueError, TypeError) as error:
        raise ValueError(f"{shown(address)} is not an address that fsspec can open: {describe(error)}") from error
    return system, str(path)


@contextmanager
def _asked(address: str) -> Iterator[tuple[Any, str]]:
    """The file system of an address, and the path in it. Raises an OSError for what goes wrong inside the block: each
    file system has exceptions of its own.
    """
    system, place = file_system(address)
    try:
        yield system, place
    except FileNotFoundError as error:
        raise FileNotFoundError(f"there is nothing at {shown(address)}.") from error
    except PermissionError as error:
        raise PermissionError(f"reading {shown(address)} is not allowed: {describe(error)}") from error
    except Exception as error:
        raise OSError(f"{shown(address)} could not be read: {describe(error)}") from error


def open_binary(path: str) -> BinaryIO:
    """Opens a file, or what an address names, to be read. Of an address, blocks are fetched as they are read.

    Raises:
        OSError: it is not there, or cannot be read.
    """
    if not is_address(path):
        return open(path, "rb")
    with _asked(path) as (system, place):
        file: BinaryIO = system.open(place, "rb")
    return file


def is_file(path: str) -> bool:
    """Tells whether there is such a file. Raises OSError where it cannot be found out, at an address."""
    if not is_address(path):
        return os.path.isfile(path)
    with _asked(path) as (system, place):
        found: bool = system.isfile(place)
    return found


def size_of(address: str) -> int:
    """Bytes of what an address names. Raises OSError where it cannot be found out."""
    with _asked(address) as (system, place):
        size = int(system.size(place))
    return size


def has_magic(path: str) -> bool:
    """Tells whether a path is a pattern."""
    return _MAGIC.search(path) is not None if is_address(path) else local_glob.has_magic(path)


def matching(pattern: str) -> list[str]:
    """The files that the pattern of an address matches, sorted, as addresses. Raises OSError as ``names_in``."""
    with _asked(pattern) as (system, place):
        system.invalidate_cache()
        found = system.glob(place, detail=True)
    return sorted(unstripped(pattern, system, name) for name, facts in found.items() if facts.get("type") == "file")


def names_in(address: str) -> list[str] | None:
    """The names of the files in the "folder" of an address, sorted; None where the address is that of a file.

    Raises:
        FileNotFoundError: there is neither.
        OSError: it cannot be listed.
    """
    with _asked(address) as (system, place):
        # Another process may have written since this one has looked.
        system.invalidate_cache()
        found = system.ls(place.rstrip("/") or place, detail=True)
    place = place.strip("/")
    files = [str(facts["name"]).strip("/") for facts in found if facts.get("type") == "file"]
    if files == [place] and not address.endswith("/"):
        return None
    # Object stores may hold an empty object that stands for the folder itself.
    return sorted(name.rpartition("/")[2] for name in files if name != place)


def unstripped(address: str, system: Any, path: str) -> str:
    """The address of a path in the file system of another address."""
    found: str = system.unstrip_protocol(path)
    return f"{address.rpartition('::')[0]}::{found}" if "::" in address else found


def join(folder: str, name: str) -> str:
    """A name in a folder, or at an address."""
    return f"{folder.rstrip('/')}/{name}" if is_address(folder) else os.path.join(folder, name)


# Files created, and replaced whole

_BINARY = getattr(os, "O_BINARY", 0)


def check_permissions(mode: Any) -> int | None:
    """Permission bits that a writer can work with; None stands for those of the process (its umask).

    Raises:
        TypeError: it is no whole number.
        ValueError: it is no permission bits, or the owner could not read and write the file.
    """
    if mode is None:
        return None
    if not isinstance(mode, int) or isinstance(mode, bool):
        raise TypeError(f"mode is {mode!r}; give the permission bits of new files, such as mode=0o600.")
    if not 0 <= mode <= 0o777:
        digits = str(mode)
        is_octal = set(digits) <= set("01234567") and int(digits, 8) <= 0o777
        meant = f" (mode=0o{digits}?)" if is_octal else ""
        raise ValueError(f"mode is {mode}; give permission bits in octal, 0o600 to 0o777{meant}.")
    if mode & 0o600 != 0o600:
        raise ValueError(f"mode is 0o{mode:03o}; the owner must be able to read and write the file: 0o600 at least.")
    return mode


def open_for_append(path: Path, mode: int | None) -> int:
    """Opens a file to read and append, and creates it where it is missing. An existing file keeps its permissions."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | _BINARY
    if mode is None:
        return os.open(path, flags, 0o666)
    try:
        return _create(path, flags, mode)
    except FileExistsError:
        return os.open(path, flags, mode)


def create(path: Path, mode: int | None, bits: int = 0o666) -> int:
    """Creates a file to write. ``mode`` and ``bits``: as for ``replacing``. Raises FileExistsError: there is one."""
    flags = os.O_WRONLY | os.O_CREAT | _BINARY
    return os.open(path, flags | os.O_EXCL, bits) if mode is None else _create(path, flags, mode)


def _create(path: Path, flags: int, mode: int) -> int:
    file = os.open(path, flags | os.O_EXCL, mode)
    # The umask may have taken bits away that were asked for. Windows has no permission bits to set.
    if os.name == "posix":
        os.fchmod(file, mode)
    return file


def make_folder(path: Path, mode: int | None) -> None:
    """Creates a folder whose files have the permissions ``mode``: whoever may read a file may list the folder."""
    if mode is None:
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    bits = mode | (mode & 0o444) >> 2
    try:
        path.mkdir(bits)
    except FileExistsError:
        if not path.is_dir():
            raise
    else:
        path.chmod(bits)


def make_parents(folder: Path) -> None:
    """Creates the missing folders of an output; warns if the first one's name is close to that of a folder beside it.

    Names that differ in numbers, or in whole words, are those of several runs: `run-1` and `run-2`, `lr-low` and
    `lr-high`.
    """
    first = next((one for one in reversed([folder, *folder.parents]) if not one.exists()), None)
    folder.mkdir(parents=True, exist_ok=True)
    if first is None:
        return
    # Imported on use: most outputs go to a folder that is there.
    from difflib import get_close_matches

    try:
        with os.scandir(first.parent) as entries:
            beside = [one.name for one in islice(entries, _MOST_BESIDE) if one.name != first.name and one.is_dir()]
    except OSError:
        # A folder may be written to and not listed.
        return
    near = [name for name in get_close_matches(first.name, beside, 3, 0.85) if _is_misspelt(name, first.name)]
    if near:
        guard.warn(f"{first} did not exist and was created; {near[0]} is beside it: is the path right?")


_MOST_BESIDE = 1000


def _is_misspelt(name: str, other: str) -> bool:
    """Whether two names differ inside of words alone."""
    from difflib import SequenceMatcher

    words, others = (re.split(r"[-_. ]+", re.sub(r"\d+", "", one)) for one in (name, other))
    differing = [pair for pair in zip(words, others, strict=False) if pair[0] != pair[1]]
    is_near = all(SequenceMatcher(None, *pair).ratio() >= 0.8 for pair in differing)
    return bool(differing) and is_near and len(words) == len(others)


@contextmanager
def replacing(
    path: str | os.PathLike[str], *, mode: int | None = None, bits: int = 0o666, fsync: bool = True
) -> Iterator[BinaryIO]:
    """Makes a new file that replaces ``path`` when the block ends; if the block raises, ``path`` is unchanged.

    Args:
        path: missing folders are created.
        mode: permission bits; None leaves them to ``bits``.
        bits: permission bits, less those of the umask.
        fsync: False: without waiting for the disk.
    """
    # `os.replace` would replace a symbolic link itself: the file it points to is meant.
    place = Path(os.path.realpath(path))
    make_parents(place.parent)
    # In the same folder, as a rename is atomic within a file system alone; cut, as names have a maximum length.
    new = place.with_name(f".{place.name[:100]}.{secrets.token_hex(8)}")
    try:
        with open(create(new, mode, bits), "wb") as file:
            yield file
            file.flush()
            if fsync:
                # On disk before it gets its name: after a crash of the machine the file is whole or absent.
                os.fsync(file.fileno())
        os.replace(new, place)
    except BaseException:  # KeyboardInterrupt too must leave no half-written file.
        new.unlink(missing_ok=True)
        raise


@contextmanager
def replacing_in(folder: Path) -> Iterator[Path]:
    """Makes a folder whose files and folders replace those of their names in ``folder`` when the block ends.

    If the block raises, ``folder`` is unchanged, and removed if it was not there.
    """
    existed = folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / f".new-{secrets.token_hex(8)}"
    aside.mkdir()
    try:
        yield aside
        for one in sorted(aside.iterdir()):
            target = folder / one.name
            if one.is_dir() and target.exists():
                for inner in one.iterdir():
                    os.replace(inner, target / inner.name)
                one.rmdir()
            else:
                os.replace(one, target)
        aside.rmdir()
    except BaseException:
        shutil.rmtree(aside if existed else folder, ignore_errors=True)
        raise
