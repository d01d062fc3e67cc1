"""A file of trajectories: three groups of four runs, each with three steps and a tool run."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

import rollout_trace as rt
from rollout_trace.data.model import Completion, ErrorInfo, Step, ToolCall, ToolRun, Usage

HOSTILE = "ok \x1b[2J\u202e</script>"
BEGIN = datetime(2026, 11, 21, 8, tzinfo=timezone.utc)


def run_of(group: int, index: int) -> rt.Trajectory:
    """A scored run, whose steps extend each other."""
    messages: list[Any] = [{"role": "user", "content": f"question {group}"}]
    prompt, steps = [1, 2, 3, group], []
    for at in range(3):
        sampled = [10 + at, 11 + index]
        call = {"id": f"k{at}", "type": "function", "function": {"name": "bash", "arguments": '{"x": 1}'}}
        steps.append(
            Step(
                id=f"s{group}{index}{at}",
                call_id=f"c{group}{index}{at}",
                index=at,
                agent="solver",
                model="m",
                protocol="openai.chat",
                messages=list(messages),
                completion=Completion(
                    content=f"answer {at}", tool_calls=(ToolCall(id=f"k{at}", name="bash", arguments='{"x": 1}'),)
                ),
                finish_reason="stop",
                prompt_token_ids=np.array(prompt, np.int32),
                completion_token_ids=np.array(sampled, np.int32),
                logprobs=np.array([-0.25, -0.5], np.float32),
                token_source="engine",
                usage=Usage(input=len(prompt), output=2),
                started_at=BEGIN.replace(minute=index, second=at),
                latency=0.5,
            )
        )
        messages += [
            {"role": "assistant", "content": f"answer {at}", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"k{at}", "content": HOSTILE},
        ]
        prompt = [*prompt, *sampled, 99]
    failed = ErrorInfo(type="Timeout", message="too slow") if index == 3 else None
    return rt.Trajectory(
        id=f"t{group}{index}",
        name="solver",
        group_id=f"g/{group}",
        rollout_index=index,
        task=rt.Task(id=f"task{group}", data={"level": group}),
        reward=float(index % 2),
        rewards={"format": 0.5},
        steps=steps,
        tool_runs=[
            ToolRun(
                tool_call_id="k0", name="bash", result=HOSTILE, duration=0.5, step_id=f"s{group}{index}0", error=failed
            )
        ],
        started_at=BEGIN.replace(minute=index),
        ended_at=BEGIN.replace(minute=index, second=30),
        metadata={"split": "train" if group else "test"},
    )


def write_runs(path: Path) -> Path:
    """Writes the twelve runs; one of them is not scored, and has a note that gives its reward."""
    with rt.JSONLWriter(path) as out:
        for group in range(3):
            for index in range(4):
                run = run_of(group, index)
                if run.id == "t00":
                    run.reward = None
                out.write(run)
    rt.annotate(path, "t00", reward=5.0)
    return path
