"""Sessions of Codex: the rollout files of its CLI."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rollout_trace.data.trajectory import Trajectory
from rollout_trace.importing._codex_session import Session
from rollout_trace.importing.imported import Imported, Job, imported, session_lines

if TYPE_CHECKING:
    from rollout_trace.importing._codex_calls import Calls
    from rollout_trace.importing.fields import OnError
    from rollout_trace.importing.inputs import Given, Input
    from rollout_trace.importing.report import ImportReport

SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst")


def codex(path: Given, *, on_error: OnError = "raise", report: ImportReport | None = None) -> Imported:
    """The trajectories of sessions; a sub-agent's names its parent, which has a file of its own.

    The items between two that the model read are one call; its usage is that of the next ``token_count``, or of its
    ``token_usage_record``. Prompts are put together: the instructions, then the items before it, after a compaction
    what replaced them. Most sampling parameters are not in these files, nor are tools of models that Codex does not
    know, token ids and logprobs. The beginning that a fork or a sub-agent copied from a session of this import, or goes
    on from, is its prompt, not steps.

    Args:
        path: session files, or folders such as ``~/.codex/sessions``; or an open file.
        on_error: ``raise`` at the first value that cannot be read; ``skip``: leave it out, and keep its error in
            ``skipped`` of the iterator. A last line without its end is left out, and counted, in both.
        report: counts what the source did not have, and what was left out.

    Raises:
        FileNotFoundError: there is nothing to read.
        ValueError: ``on_error`` has another value.
        FormatError: while iterating, unless skipped: something is no line of a session.
    """
    return imported("codex", path, SUFFIXES, on_error, report, _sessions)


def _sessions(sources: list[Input], job: Job) -> Iterator[Trajectory]:
    known: dict[str, Session] = {}
    roots: dict[str, str | None] = {}
    begins = _Begins()
    # By their names, which are times: a parent's file may stand in another folder than those of its sub-agents.
    for source in sorted(sources, key=lambda one: one.stem):
        session = _read(source, job, known, begins.of)
        if not session.has_content:
            job.report.drop("files without a conversation")
            continue
        same = known.get(session.thread_id)
        if same is not None and session.is_begin_of(same):
            job.report.drop("files that hold a session of this import again")
            continue
        trajectory = session.trajectory()
        if _is_circle(session, known):
            trajectory.parent_id = session.parent_id = None
            job.report.note("sessions that are above themselves, cut off")
        parent = known.get(session.parent_id or "")
        if parent is not None:
            trajectory.parent_step_id = parent.caller_of(session)
        elif session.parent_id is not None:
            job.report.note("sub-agents and forks whose parent is not in this import")
        # The id of the outermost: the parent's file is named after an earlier time, and so comes first.
        trajectory.episode_id = roots.get(session.parent_id or "") or session.parent_id or trajectory.id
        roots[session.thread_id] = trajectory.episode_id
        session.forget()
        known.setdefault(session.thread_id, session)
        begins.sources[session.thread_id] = source
        yield trajectory


def _is_circle(session: Session, known: dict[str, Session]) -> bool:
    """Whether a session is above itself, by what the files have."""
    above = known.get(session.parent_id or "")
    while above is not None and above.parent_id != session.thread_id:
        above = known.get(above.parent_id or "")
    return above is not None


class _Begins:
    """The begins of sessions that others go on from: read again for them, so that no conversation is kept for it."""

    def __init__(self) -> None:
        self.sources: dict[str, Input] = {}
        self._asked: list[str] = []

    def of(self, thread_id: str, end: int) -> Calls | None:
        """The calls of a session in its lines before one; None where the session is not known."""
        source = self.sources.get(thread_id)
        if source is None or source.is_open_file or thread_id in self._asked:
            return None
        self._asked.append(thread_id)
        try:
            return _read(source, Job("codex", "skip", None), {}, self.of, end).calls
        finally:
            self._asked.pop()


def _read(
    source: Input,
    job: Job,
    known: dict[str, Session],
    begin_of: Callable[[str, int], Calls | None],
    end: int | None = None,
) -> Session:
    """A session; ``end``: of its lines those before this one."""
    session = Session(source.stem, job, known, begin_of)
    for record in session_lines(source, job):
        ordinal = None if end is None else record.count("ordinal")
        if end is None or (ordinal is not None and ordinal < end):
            job.attempt(session.add, record)
    session.end()
    return session
