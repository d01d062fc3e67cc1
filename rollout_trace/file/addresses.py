"""Tells what a path is (a regular file, a history), and opens addresses and paths by one set of names.

Addresses are those of the package fsspec (``s3://``, ``gs://``, ``memory://``, ...), which is imported on use. Its own
settings (environment variables ``FSSPEC_S3_...``, ``AWS_...``, ``fsspec.config``) say how a file system is reached:
nothing of it is in an address here.
"""

from __future__ import annotations

import errno
import glob as local_glob
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote

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
        raise ValueError(f"{text} was an address, and a Path drops a slash of it: give the text {fixed!r}.")
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
    """The file system of an address, and the path in it. To be asked for in each process anew: some have threads.

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
            f"{shown(address)}: fsspec needs a further package for {scheme}:// ({error}). Install it, such as s3fs for "
            "s3://, gcsfs for gs:// or adlfs for az://, beside: pip install '.[fsspec]'"
        ) from None
    except (ValueError, TypeError) as error:
        raise ValueError(f"{shown(address)} is no address that fsspec can open: {describe(error)}") from error
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
        raise PermissionError(f"{shown(address)} may not be read: {describe(error)}") from error
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
    if "::" in address:
        return f"{address.rpartition('::')[0]}::{system.unstrip_protocol(path)}"
    unstripped_path: str = system.unstrip_protocol(path)
    return unstripped_path


def join(folder: str, name: str) -> str:
    """A name in a folder, or at an address."""
    return f"{folder.rstrip('/')}/{name}" if is_address(folder) else os.path.join(folder, name)
