"""A sample that inspect tried again: what was said before the error is there, and is not trained on."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from rollout_trace import importing

LOG = Path(__file__).parents[1] / "data" / "imports" / "inspect" / "log.json"


def test_attempts_before_a_retry_are_superseded(tmp_path: Path) -> None:
    """Each begins its spans anew, with ids of their own."""
    log = json.loads(LOG.read_text())
    sample = log["samples"][0]
    clean = {run.id: run for run in importing.inspect(LOG)}
    attempts: list[Any] = []
    for number in range(2):
        text = json.dumps(copy.deepcopy(sample["events"]))
        for event in sample["events"]:
            for name in ("id", "uuid"):
                if event.get(name):
                    text = text.replace(json.dumps(event[name]), json.dumps(f"{event[name]}-{number}"))
        attempts.append({"message": "boom", "traceback": "", "traceback_ansi": "", "events": json.loads(text)})
    attempts.append({"message": "boom", "traceback": "", "traceback_ansi": ""})  # a log before events were kept
    sample["error_retries"] = attempts
    path = tmp_path / "log.json"
    path.write_text(json.dumps(log))
    report = importing.ImportReport()
    found = {run.id: run for run in importing.inspect(path, report=report)}
    assert list(found) == list(clean)
    calls = sum(event["event"] == "model" for event in sample["events"])
    first = next(iter(found))
    earlier = found[first].steps[: 2 * calls]
    again = [step.status for run in clean.values() for step in run.steps]
    assert sorted(step.status for step in earlier) == sorted(
        "superseded" if status == "ok" else status for status in again[:calls] * 2
    )
    assert report.noted["calls of attempts before a retry, superseded"] == 2 * calls
    for name, run in found.items():
        kept = run.steps[-len(clean[name].steps) :]
        assert [step.completion for step in kept] == [step.completion for step in clean[name].steps]
        assert [step.messages for step in kept] == [step.messages for step in clean[name].steps]
        assert (run.name, run.parent_id, run.reward) == (clean[name].name, clean[name].parent_id, clean[name].reward)
    retries = (found[first].metadata or {})["error_retries"]
    assert [one["message"] for one in retries] == ["boom"] * 3
    assert all("events" not in one for one in retries)
