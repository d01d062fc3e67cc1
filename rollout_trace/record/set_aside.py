"""Calls that a writer process decodes: their bytes are dropped here, and read in the journal where steps are wanted."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

from rollout_trace import guard
from rollout_trace.file import journal as form

if TYPE_CHECKING:
    from rollout_trace.record.call import Call


def restored(trajectory: str, calls: dict[str, Call], files: Iterable[form.JournalFile]) -> Iterator[Call]:
    """The calls, by id, each with its bytes again: the one before is to be done with. None is left out.

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
        guard.warn_once("set-aside", f"calls cannot be read in the journal again: {guard.describe(error)}.")
    for call in missing.values():
        # Their tokens are withheld.
        call.faults.append("journal: its bytes cannot be read again.")
        yield call


def _read(name: str, calls: dict[str, Call], files: Iterable[form.JournalFile]) -> Iterator[Call]:
    # Imported on use: few programs need it.
    from rollout_trace.record.recovered import Pieces, filled, records_in

    opened: list[int] = []
    with ExitStack() as stack:
        for file in files:
            opened.append(file.reader())
            stack.callback(os.close, opened[-1])
        records = records_in(opened, {name}, stack)
        pieces = Pieces(name, [one for one in records if one.kind in (form.CALL, form.PART)])
        del records
        yield from filled({name: call for name, call in calls.items() if name in pieces.calls}, pieces)
        # They are views of the files.
        pieces.records.clear()
        pieces.calls.clear()
