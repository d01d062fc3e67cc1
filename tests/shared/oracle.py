"""What a scripted server was asked and answered, read from its own log; and what was recorded, for comparison with it.

For the tests of integrations. Nothing here uses the recorder's decoders.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import rollout_trace as rt
from rollout_trace import Step, Trajectory
from rollout_trace.testing import RequestRecord, ScriptedServer


class Recorded:
    """Records to a file, and reads it back at the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._recording = rt.recording(path)
        self._known: list[Trajectory] = []

    def __enter__(self) -> Recorded:
        self._recording.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._recording.__exit__(*exception)
        read = {trajectory.id: trajectory for trajectory in rt.read(self._path)}
        for trajectory in self._known:
            assert read[trajectory.id] == trajectory

    def keep(self, *trajectories: Trajectory) -> None:
        """These must be in the file as they are."""
        self._known.extend(trajectories)

    def all(self) -> list[Trajectory]:
        """What has closed so far."""
        self._recording.flush()
        return list(rt.read(self._path))


class Served:
    """What a server answered to one request of OpenAI's chat."""

    def __init__(self, record: RequestRecord) -> None:
        self.asked = record.json
        self.status = record.status
        self.ids: list[int] = []
        self.prompt_ids: list[int] | None = None
        self.logprobs: list[float] = []
        self.response_id: str | None = None
        for event in events_of(record) if record.status == 200 else ():
            self.response_id = event.get("id", self.response_id)
            self.prompt_ids = event.get("prompt_token_ids", self.prompt_ids)
            for choice in event.get("choices", ()):
                self.ids += choice.get("token_ids") or ()
                self.logprobs += [entry["logprob"] for entry in (choice.get("logprobs") or {}).get("content") or ()]

    def assert_is(self, step: Step) -> None:
        """The step has what was asked and served."""
        assert step.messages is not None
        assert list(step.messages) == self.asked["messages"]
        assert (None if step.tools is None else list(step.tools)) == self.asked.get("tools")
        assert step.model == self.asked["model"]
        if self.status != 200:
            assert (step.status, step.error and step.error.status) == ("error", self.status)
            return
        assert step.response_id == self.response_id
        assert step.prompt_token_ids is not None
        assert step.completion_token_ids is not None
        assert step.logprobs is not None
        assert len(self.ids) > 0
        assert step.prompt_token_ids.tolist() == self.prompt_ids
        assert step.completion_token_ids.tolist() == self.ids
        assert np.array_equal(step.logprobs, np.asarray(self.logprobs, np.float32))
        assert step.token_issue is None
        assert step.token_source == "engine"


def events_of(record: RequestRecord) -> list[Any]:
    """The JSON of an answer: one value, or one for each event of a stream."""
    body = record.response_body.decode()
    if not body.startswith(("data:", "event:")):
        return [json.loads(body)]
    lines = [line.removeprefix("data: ") for line in body.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def assert_served(server: ScriptedServer, steps: Sequence[Step]) -> None:
    """The steps are what the server was asked and answered, in order: no more, no less."""
    server.wait_idle()
    assert len(steps) == len(server.requests)
    for record, step in zip(server.requests, steps, strict=True):
        Served(record).assert_is(step)


def assert_all_served(server: ScriptedServer, trajectories: Sequence[Trajectory]) -> None:
    """The steps of all trajectories are what the server was asked and answered, each once, in any order."""
    server.wait_idle()
    served = {one.response_id: one for one in map(Served, server.requests)}
    steps = [step for trajectory in trajectories for step in trajectory.steps]
    assert None not in served
    assert sorted(str(step.response_id) for step in steps) == sorted(map(str, served))
    for step in steps:
        served[step.response_id].assert_is(step)


_OF_ONE_RUN = {"id", "call_id", "response_id", "started_at", "latency", "time_to_first_token", "attempts", "sampling"}


def said(steps: Sequence[Step]) -> list[dict[str, Any]]:
    """The steps without what differs from run to run: ids of ours, times, and what depends on the stream option."""
    names = [name for name in Step.__dataclass_fields__ if name not in _OF_ONE_RUN and not name.startswith("_")]
    rows = [{name: getattr(step, name) for name in names} for step in steps]
    for row in rows:
        for name, value in row.items():
            row[name] = value.tolist() if isinstance(value, np.ndarray) else value
    return rows


def bodies(server: ScriptedServer, *capture: str) -> list[dict[str, Any]]:
    """The requests that a server got, without ``capture``: the fields that ``engine=`` adds, by default vLLM's."""
    server.wait_idle()
    added = {"logprobs", "top_logprobs", "return_token_ids", "return_weight_versions", "stream_options"}
    left_out = set(capture) or added
    return [{key: value for key, value in record.json.items() if key not in left_out} for record in server.requests]
