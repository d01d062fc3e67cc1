"""Cassettes: files of rollouts whose trajectories hold their HTTP exchanges, some or all of them one test's."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import orjson

from rollout_trace.data.exchange import Exchange
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.errors import FormatError
from rollout_trace.file.addresses import replacing
from rollout_trace.file.compression import compressor
from rollout_trace.file.decode import decode
from rollout_trace.file.encode import encode
from rollout_trace.file.lines import Damaged, lines
from rollout_trace.file.locking import NoFileLocks, lock_for
from rollout_trace.file.reader import read
from rollout_trace.file.writer import check_path

TEST = "test"
"""The entry of a trajectory's ``metadata`` that names the test it was recorded in."""
IN_TEST = "test_exchanges"
"""The entry with the number of exchanges that the test itself made; those after them its fixtures made at their end."""
_KEPT = ("rollout_trace", "python", "packages")
"""What a cassette holds of its trajectories' environment: nothing of the machine that it was recorded on."""
_LOCK_TIMEOUT = 60.0


class CassetteError(Exception):
    """A cassette cannot be used: which one, why, and what to do."""


def load(path: Path, test: str) -> list[Trajectory]:
    """The trajectories of a cassette that serve a test: its own, else those of no test. Raises CassetteError."""
    try:
        found = _all(path)
    except FileNotFoundError:
        raise CassetteError(f"there is no cassette {path}") from None
    except (FormatError, OSError, ValueError, ImportError) as error:
        raise CassetteError(f"the cassette {path} cannot be read: {error}") from error
    named = [one for one in found if _test_of(one) is not None]
    chosen = [one for one in named if _test_of(one) == test] or [one for one in found if _test_of(one) is None]
    if not chosen:
        others = ", ".join(sorted({str(_test_of(one)) for one in named})) or "no test"
        raise CassetteError(f"the cassette {path} has no recording of {test}. It has those of {others:.300}")
    if not any(one.exchanges for one in chosen) and any(one.steps for one in chosen):
        raise CassetteError(f"the cassette {path} has steps but no HTTP exchanges, so it cannot be replayed")
    return chosen


def can_load(path: Path, test: str) -> bool:
    """Whether a cassette holds a test."""
    try:
        return bool(load(path, test))
    except CassetteError:
        return False


def made_in_test(trajectory: Trajectory) -> int:
    """Returns how many of a trajectory's exchanges the test function made: always the first ones."""
    number = (trajectory.metadata or {}).get(IN_TEST)
    return number if isinstance(number, int) else len(trajectory.exchanges)


def with_exchanges(
    trajectories: Sequence[Trajectory], own: int, exchanges: Sequence[Exchange], made: int | None, test: str
) -> list[Trajectory]:
    """Copies of a test's trajectories that hold their exchanges: the agent keeps its own as they are.

    The ``own`` of the test takes the exchanges of no other; the first ``made`` are of its function, and not of the end
    of its fixtures.
    """
    place = {step.call_id or "": index for index, one in enumerate(trajectories) for step in one.steps}
    shares: list[list[Exchange]] = [[] for _ in trajectories]
    late = {exchange.name for exchange in exchanges[made:]}
    for exchange in exchanges:
        shares[place.get(exchange.call_id or "", own)].append(exchange)
    copies = []
    for index, (original, share) in enumerate(zip(trajectories, shares, strict=True)):
        if index != own and not (share or original.steps or original.tool_runs):
            continue
        copy = decode(encode(original))
        in_test = sum(one.name not in late for one in share)
        marks = {TEST: test} | ({} if in_test == len(share) else {IN_TEST: in_test})
        copy.metadata = {**(copy.metadata or {}), **marks}
        copy.exchanges = tuple(share)
        copy.environment = {name: value for name, value in (copy.environment or {}).items() if name in _KEPT}
        copies.append(copy)
    return copies


def save(path: Path, test: str, trajectories: Sequence[Trajectory]) -> None:
    """Puts trajectories into a cassette, in the place of those of the test; other lines stay. Raises CassetteError."""
    try:
        check_path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.parent):
            _replace(path, test, [encode(one) for one in trajectories])
    except (OSError, ValueError, ImportError) as error:
        raise CassetteError(f"the cassette {path} cannot be written: {error}") from error


def _replace(path: Path, test: str, own: list[bytes]) -> None:
    compress = compressor(path)
    kept = list(_lines_of_others(path, test))
    # Its own are where its first one was, so that a cassette recorded anew differs little.
    at = kept.index(None) if None in kept else len(kept)
    with replacing(path) as file:
        for line in filter(None, [*kept[:at], *own, *kept[at:]]):
            file.write(line if compress is None else compress(line))


def _lines_of_others(path: Path, test: str) -> Iterator[bytes | None]:
    """The lines of a cassette with their ends; None in the place of the test's own."""
    if not path.exists():
        return
    for number, line in lines(os.fspath(path)):
        if isinstance(line, Damaged):
            raise ValueError(f"line {number} is damaged ({line}): delete the file, or the line, to record it anew")
        if line.strip():
            yield None if _is_of(line, test, number) else bytes(line).rstrip(b"\n") + b"\n"


def _is_of(line: bytes, test: str, number: int) -> bool:
    try:
        record = orjson.loads(line)
        return bool((record.get("metadata") or {}).get(TEST) == test)
    except (orjson.JSONDecodeError, AttributeError):
        raise ValueError(
            f"line {number} is not a trajectory: delete the file, or the line, to record it anew"
        ) from None


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Holds the lock of a folder, for files in it that are replaced: pytest-xdist's workers record at once."""
    lock, opened = lock_for(folder / ".cassettes"), -1
    with ExitStack() as stack:
        try:
            # Windows opens no folders; `filelock` needs none.
            opened = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, opened)
        except OSError:
            pass
        try:
            lock.acquire(opened, _LOCK_TIMEOUT)
            stack.callback(lock.release, opened)
        except NoFileLocks:
            # One process at a time, then: nothing else can be done.
            pass
        yield


_read: dict[str, tuple[tuple[int, int, int], list[Trajectory]]] = {}
"""Cassettes that were read, with what shows whether they have changed: many tests may share one."""


def _all(path: Path) -> list[Trajectory]:
    facts = path.stat()
    now = (facts.st_mtime_ns, facts.st_size, facts.st_ino)
    known = _read.get(os.fspath(path))
    if known is None or known[0] != now:
        if len(_read) >= 8:
            _read.clear()
        known = _read[os.fspath(path)] = (now, list(read(path)))
    return known[1]


def _test_of(trajectory: Trajectory) -> object:
    return (trajectory.metadata or {}).get(TEST)
