"""Extras of recorded answers: recovered from the journal, and read from the file, they are what was recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace.clients import recorder
from rollout_trace.data.exchange import Exchange
from rollout_trace.data.extras import EXTRAS
from rollout_trace.file.decode import decode
from rollout_trace.file.encode import encode
from rollout_trace.record.journal import Journal
from rollout_trace.record.redaction import Redactor
from rollout_trace.record.settings import Settings
from rollout_trace.testing.recordings import load_exchanges
from tests.amount import amount
from tests.file.test_extras import conversation

from .journaled import died, files_of, journaled

DATA = Path(__file__).parents[1] / "data" / "wire_vllm_extras.jsonl.xz"
PROTOCOLS = {
    "/v1/chat/completions": "openai.chat",
    "/v1/completions": "openai.completions",
    "/inference/v1/generate": "vllm.generate",
}


def exchanges() -> Iterator[tuple[str, Exchange]]:
    for one in load_exchanges(DATA)[:: amount(3, 1, 1)]:
        protocol = PROTOCOLS.get(one.path)
        # Full distributions are megabytes, and of no other form than the short ones.
        if protocol is not None and one.status == 200 and len(one.response) < 200_000:
            yield protocol, one


def answer(protocol: str, one: Exchange) -> None:
    """Records an exchange as a client does, its answer in two pieces."""
    call = recorder.begin(Settings(lambda method, path: None), protocol)
    recorder.attempt(call, one.request)
    recorder.answered(call, one.status or 0, {"content-type": str(one.content_type)})
    half = len(one.response) // 2
    recorder.receive(call, one.response[:half])
    recorder.receive(call, one.response[half:])
    recorder.ended(call)


REDACTORS: dict[str, Any] = {"bytes": None, "steps": lambda: Redactor("no text has this")}


@pytest.mark.parametrize("kind", REDACTORS)
def test_extras_are_recovered_as_recorded(kind: str, tmp_path: Path) -> None:
    """From the bytes of the calls; with rules that redact, from the steps, whose arrays are parts of the journal."""
    redactor = REDACTORS[kind] and REDACTORS[kind]()
    journal = Journal(tmp_path / "out.jsonl", redactor=redactor)
    with journaled(journal) as trajectory:
        for protocol, one in exchanges():
            answer(protocol, one)
        journal.write_waiting()
        recorded = list(trajectory.steps)
        died(journal)
    assert all(sum(getattr(step, name) is not None for step in recorded) > 5 for name in EXTRAS)
    found = rt.recover(tmp_path / "out.jsonl")
    assert found.report.is_clean, str(found.report)
    (recovered,) = found
    for one_step, other in zip(recovered.steps, recorded, strict=True):
        assert one_step == other, other.id
    assert decode(encode(recovered)).steps == recorded
    line = encode(decode(encode(trajectory)))
    assert encode(decode(line)) == line


def test_the_journal_of_steps_grows_with_what_is_new(tmp_path: Path) -> None:
    """Where steps are written instead of bytes, each with the arrays of its whole prompt."""

    def size(turns: int) -> int:
        output = tmp_path / str(turns) / "out.jsonl"
        output.parent.mkdir()
        journal = Journal(output)
        given = conversation(turns, live=True)
        with rt.trajectory() as trajectory:
            own = journal.trajectory(trajectory)
            for step in given.steps:
                own.steps([step])
        died(journal)
        written = sum(path.stat().st_size for path in files_of(output))
        (recovered,) = rt.recover(output)
        assert [replace(one, agent=None) for one in recovered.steps] == given.steps
        # In the recovered steps each row is once, too.
        rows = [one["shape"][0] for one in json.loads(encode(recovered))["arrays"]]
        assert rows == [200 * turns - 1, *[200 * turns - 20] * 3]
        return written

    first, second, third = size(10), size(20), size(30)
    assert third - second < 1.1 * (second - first)
