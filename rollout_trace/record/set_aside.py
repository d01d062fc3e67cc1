"""Calls that a writer process decodes: their bytes are dropped here, and read in the journal where steps are wanted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from rollout_trace import guard
from rollout_trace.file import journal as form
from rollout_trace.record.recovered import Pieces, filled

if TYPE_CHECKING:
    from rollout_trace.record.call import Call


def restored(trajectory: str, calls: dict[str, Call], files: Iterable[form.JournalFile]) -> Iterator[Call]:
    """Yields all calls by id, each with its bytes again. Finish with one before taking the next.

    Args:
        trajectory: its id in the journal.
        calls: its calls.
        files: the files that have their bytes.
    """
    missing = dict(calls)
    try:
        for call in _read(trajectory, calls, files):
            del missing[call.id]
            call.held = sum(map(len, call.chunks))
            yield call
    except Exception as error:
        guard.warn_once("set-aside", f"calls cannot be read back from the journal: {guard.describe(error)}.")
    for call in missing.values():
        # Their tokens are withheld.
        call.faults.append("journal: its bytes cannot be read again.")
        yield call


def _read(name: str, calls: dict[str, Call], files: Iterable[form.JournalFile]) -> Iterator[Call]:
    records = [
        record
        for file in files
        for record in form.records(file.contents())
        if isinstance(record, form.Record)
        and record.kind in (form.CALL, form.PART)
        and record.head.get("trajectory") == name
    ]
    pieces = Pieces(name, records)
    yield from filled({name: call for name, call in calls.items() if name in pieces.calls}, pieces)
