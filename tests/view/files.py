"""Files of trajectories for the tests of the index and of the page's server."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np

import rollout_trace as rt
from rollout_trace import JSONLWriter
from rollout_trace.data.model import Completion, Step

START = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)


def run(number: int, text: str = "How many eggs?", **values: Any) -> rt.Trajectory:
    """A trajectory of one step; reward: 0, 0.5 or 1; four to a group."""
    step = Step(
        id=f"s{number}",
        call_id=f"c{number}",
        protocol="openai.chat",
        model="m",
        messages=[{"role": "user", "content": text}],
        completion=Completion(role="assistant", content=f"answer {number}"),
        prompt_token_ids=np.array([1, 2, number], np.int32),
        completion_token_ids=np.array([3, 4], np.int32),
        logprobs=np.array([-0.5, -0.25], np.float32),
        request_bytes=b'{"model": "m"}',
        response_bytes=b"{}",
    )
    given: dict[str, Any] = {
        "id": f"t{number}",
        "name": "solver",
        "task": f"task/{number // 4}",
        "group_id": f"task/{number // 4}",
        "rollout_index": number % 4,
        "reward": number % 3 / 2,
        "steps": [step],
        "started_at": START + timedelta(seconds=number),
        "ended_at": START + timedelta(seconds=2 * number + 1),
    }
    return rt.Trajectory(**{**given, **values})


def write(path: Path, trajectories: Iterable[rt.Trajectory]) -> Path:
    """Appends trajectories to a file."""
    with JSONLWriter(path) as out:
        for trajectory in trajectories:
            out.write(trajectory)
    return path
