"""Scores the trajectories of files with a function, and notes what it returns beside them."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from rollout_trace import _event_loop
from rollout_trace._event_loop import POLL
from rollout_trace._field_docs import document_fields
from rollout_trace.data.model import error_info
from rollout_trace.data.user_values import brief, is_async, position, to_builtin
from rollout_trace.errors import FormatError
from rollout_trace.file.annotate import VALUES, append_notes, checked_note
from rollout_trace.file.notes import load_notes
from rollout_trace.file.reader import OnError, PathLike, TrajectoryReader, expand_paths
from rollout_trace.file.records import NoteRecord
from rollout_trace.guard import describe, printable

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory


@document_fields
@dataclass(slots=True, kw_only=True)
class ScoreReport:
    """The result of ``score``. The four counts add up to the trajectories of the files, each id once per file."""

    scored: int = 0
    """Number of trajectories whose score was noted."""
    skipped: int = 0
    """Number of trajectories that were scored before, or that ``where`` left out."""
    failed: int = 0
    """Number of trajectories for which the function raised, or returned an invalid score. A note has the error."""
    unscored: int = 0
    """Number of trajectories for which the function returned None. Nothing is noted for them."""
    errors: list[str] = field(default_factory=list)
    """The first failures: trajectory id, exception class and message. At most 10."""
    unreadable: list[FormatError] = field(default_factory=list)
    """An error for each line and each note that could not be read."""

    def __str__(self) -> str:
        parts = [f"scored {self.scored}, skipped {self.skipped}, failed {self.failed}"]
        if self.unscored:
            parts.append(f"without a score {self.unscored}: the function returned None")
        if self.errors:
            more = f" (and {self.failed - len(self.errors)} more)" if self.failed > len(self.errors) else ""
            parts.append(f"failures: {'; '.join(self.errors)}{more}")
        if self.unreadable:
            parts.append(f"lines that could not be read: {len(self.unreadable)}, the first: {self.unreadable[0]}")
        return "; ".join(parts)


def result_values(result: Any) -> Mapping[str, Any] | None:
    """The values to note for what a scoring function returned, unchecked; None where it gave no score.

    Raises:
        TypeError: it is a dict, or an object, of which it cannot be told what is what.
    """
    found = to_builtin(result)
    if found is None:
        return None
    if not isinstance(found, dict):
        return {"reward": found}
    known = [name for name in found if name in VALUES]
    others = [name for name in found if name not in VALUES]
    if known and others:
        raise TypeError(
            f"the function returned {brief(others[0])} beside {brief(known[0])}. Put named rewards in 'rewards', and "
            "everything else in 'metadata'."
        )
    if others:
        return {"rewards": found}
    return found if any(value is not None and value != {} for value in found.values()) else None


def name_of(function: Any) -> str | None:
    """The name under which the scores of a function are noted; None for a lambda, which shares its name with others."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return None if name.endswith("<lambda>") else str(name)


T = TypeVar("T")
Function: TypeAlias = "Callable[[Trajectory], Any]"
Where: TypeAlias = "Callable[[Trajectory], object]"

_ERRORS_KEPT = 10
_LONGEST_MESSAGE = 2000
"""Characters of an exception's message that are noted."""


def score(
    path: PathLike | Iterable[PathLike],
    function: Function,
    *,
    concurrency: int = 8,
    where: Where | None = None,
    name: str | None = None,
    again: bool = False,
    on_error: OnError = "raise",
) -> ScoreReport:
    """Calls a function with each trajectory that has no reward yet, and notes the returned score (see ``annotate``).

    Each score is noted at once: after an interruption (Ctrl-C, a killed process), the next call continues where this
    one stopped. If the function raises, the exception is noted in ``metadata["score_error"]``, without a reward; the
    other trajectories are scored, and the next ``score`` retries this one.

    Inside a running event loop (a notebook) it blocks that loop; ``await rt.ascore(...)`` does not.

    Args:
        path: as for ``read``.
        function: called with a trajectory, with notes applied. A coroutine function runs in an event loop; any other
            function runs in threads, so it must be thread-safe unless ``concurrency`` is 1. It returns the reward (a
            number), named rewards (a dict of numbers), or a dict or object with any of ``reward``, ``rewards``,
            ``metrics``, ``metadata``, ``steps`` (as ``annotate`` takes them). None: no score.
        concurrency: maximum number of simultaneous calls. As many trajectories are in memory.
        where: called with a trajectory; a false result leaves it out. None: only trajectories without a reward are
            scored. ``where`` replaces this rule, so that trajectories with a reward are scored too and get the new one;
            to keep the rule, also test ``one.reward is None``.
        name: name under which scores are noted; trajectories that have a score of this name are left out. None: the
            function's name. A lambda has no name, so that only rewards tell which trajectories it has scored.
        again: also score trajectories that have a score of this name. To include those with a reward, pass ``where``
            too.
        on_error: ``raise``: raise at a line or note that cannot be read; ``skip``: leave it out and put its error in
            the report.

    Raises:
        TypeError, ValueError: an argument has a wrong type or value.
        FileNotFoundError, FormatError: as for ``read``.
        WriteError: a score cannot be noted.
    """
    # Made here, so that mistakes in the arguments raise before any thread or loop is started.
    scoring = _Scoring(path, function, concurrency, where, name, again, on_error)
    return _event_loop.run(scoring.run, "rollout_trace score")


async def ascore(
    path: PathLike | Iterable[PathLike],
    function: Function,
    *,
    concurrency: int = 8,
    where: Where | None = None,
    name: str | None = None,
    again: bool = False,
    on_error: OnError = "raise",
) -> ScoreReport:
    """Does what ``score`` does, in the running event loop, without blocking it."""
    return await _Scoring(path, function, concurrency, where, name, again, on_error).run()


class _Scoring:
    """A run of a function over files."""

    def __init__(
        self,
        path: PathLike | Iterable[PathLike],
        function: Function,
        concurrency: int,
        where: Where | None,
        name: str | None,
        again: bool,
        on_error: OnError,
    ) -> None:
        if not callable(function):
            raise TypeError(f"function is {brief(function)} ({type(function).__name__}); give a function.")
        self._concurrency = position(concurrency, "concurrency")
        if not self._concurrency:
            raise ValueError("concurrency is 0; give how many calls may run at the same time, at least 1.")
        if on_error not in ("raise", "skip"):
            raise ValueError(f'on_error is {on_error!r}; it can be "raise" or "skip".')
        if where is not None and not callable(where):
            raise TypeError(f"where is {brief(where)} ({type(where).__name__}); give a function of a trajectory.")
        # Anything else would make notes that no reader accepts.
        if name is not None and not isinstance(name, str):
            raise TypeError(f"name is {brief(name)} ({type(name).__name__}); give a name for the scores, as text.")
        self._function = function
        self._is_async = is_async(function)
        self._where = where or (lambda one: one.reward is None)
        self._name = name_of(function) if name is None else name
        self._again = again
        self._files = expand_paths(path)
        self._reader = TrajectoryReader(self._files, on_error)
        self._report = ScoreReport(unreadable=self._reader.skipped)
        self._counting = threading.Lock()
        self._is_stopping = False

    async def run(self) -> ScoreReport:
        # Enough threads for every worker: what is to be noted never waits behind other calls.
        self._pool = ThreadPoolExecutor(self._concurrency + 1, thread_name_prefix="rollout_trace score")
        self._reading = asyncio.Lock()
        todo = self._todo()
        workers = [asyncio.ensure_future(self._work(todo)) for _ in range(self._concurrency)]
        try:
            # Python handles a signal that comes just before the loop begins to wait only when the loop wakes up: Ctrl-C
            # would last as long as the calls that run in threads.
            has_ended = False
            while not has_ended:
                done, running = await asyncio.wait(workers, timeout=POLL, return_when=asyncio.FIRST_EXCEPTION)
                has_ended = not running or any(one.cancelled() or one.exception() for one in done)
            for worker in workers:
                if worker.done():
                    worker.result()
        finally:
            self._is_stopping = True
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            # Functions that run in threads cannot be stopped: they end by themselves, and note what they return.
            self._pool.shutdown(wait=False, cancel_futures=True)
        return self._report

    def _todo(self) -> Iterator[tuple[str, Trajectory]]:
        """The trajectories to score, each with the path of its file."""
        for path in self._files:
            scored: set[str] = set()
            seen: set[str] = set()
            notes = load_notes(path, self._reader.damaged, partial(self._add_scored, scored))
            for line in self._reader.read_lines(path):
                trajectory = line.trajectory
                if trajectory.id in seen:
                    continue
                seen.add(trajectory.id)
                if notes is not None:
                    notes.apply(trajectory)
                is_done = trajectory.id in scored and not self._again
                if is_done or not self._where(trajectory):
                    self._count("skipped")
                else:
                    yield path, trajectory

    def _add_scored(self, scored: set[str], note: NoteRecord) -> None:
        if self._name is None or note.scorer != self._name:
            return
        if note.score_error is None:
            scored.add(note.id)
        else:
            scored.discard(note.id)

    async def _work(self, todo: Iterator[tuple[str, Trajectory]]) -> None:
        while True:
            async with self._reading:
                item = await self._in_thread(next, todo, None)
            if item is None:
                return
            path, trajectory = item
            if self._is_async:
                await self._await_result(path, trajectory, _called(self._function, trajectory))
            elif (awaitable := await self._in_thread(self._call_and_note, path, trajectory)) is not None:
                # Of a lambda around a coroutine function.
                await self._await_result(path, trajectory, awaitable)

    def _call_and_note(self, path: str, trajectory: Trajectory) -> Any:
        """Calls the function and notes its result in one go, so that no interruption comes between."""
        try:
            result = self._function(trajectory)
        except Exception as error:
            self._note_failure(path, trajectory, error)
            return None
        if inspect.isawaitable(result):
            return result
        self._note(path, trajectory, result)
        return None

    async def _await_result(self, path: str, trajectory: Trajectory, awaitable: Any) -> None:
        try:
            # A task of its own: what it cancels within itself is its failure, and does not stop this one.
            result = await asyncio.ensure_future(awaitable)
        except (Exception, asyncio.CancelledError) as error:
            if self._is_stopping:
                raise
            await self._in_thread(self._note_failure, path, trajectory, error)
        else:
            await self._in_thread(self._note, path, trajectory, result)

    async def _in_thread(self, function: Callable[..., T], *args: Any) -> T:
        context = contextvars.copy_context()
        call = partial(context.run, function, *args)
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    def _note(self, path: str, trajectory: Trajectory, result: Any) -> None:
        try:
            values = result_values(result)
            note = None if values is None else checked_note(trajectory.id, values)
        except (TypeError, ValueError) as error:
            self._note_failure(path, trajectory, error)
            return
        if note is None:
            self._count("unscored")
            return
        append_notes(path, [{**note, **self._scorer()}])
        self._count("scored")

    def _note_failure(self, path: str, trajectory: Trajectory, error: BaseException) -> None:
        info = error_info(error)
        failure = {"type": info.type, "message": info.message[:_LONGEST_MESSAGE]}
        note = {"id": trajectory.id, "at": datetime.now(timezone.utc), "score_error": failure, **self._scorer()}
        append_notes(path, [note])
        self._count("failed", f"{printable(trajectory.id, 80)}: {describe(error)}")

    def _scorer(self) -> dict[str, str]:
        return {} if self._name is None else {"scorer": self._name}

    def _count(self, what: str, error: str | None = None) -> None:
        with self._counting:
            setattr(self._report, what, getattr(self._report, what) + 1)
            if error is not None and len(self._report.errors) < _ERRORS_KEPT:
                self._report.errors.append(error)


async def _called(function: Function, trajectory: Trajectory) -> Any:
    return await function(trajectory)
