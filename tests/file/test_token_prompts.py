"""Prompts that are sent as token ids: the loop of a trainer that renders its own templates."""

from __future__ import annotations

import json
from pathlib import Path

import rollout_trace as rt
from rollout_trace.wire.steps import Stores, exchange_of


def test_a_loop_of_token_prompts_is_stored_once(tmp_path: Path) -> None:
    """A hundred turns of five hundred new ids: the file is less than three times the ids' own JSON."""
    stores, prompt, steps = Stores(), [], []
    for turn in range(100):
        prompt += [100_000 + turn * 400 + at for at in range(400)]
        sampled = [200_000 + turn * 100 + at for at in range(100)]
        request = {"model": "m", "prompt": prompt, "max_tokens": 100}
        choice = {"index": 0, "text": "x", "finish_reason": "length", "token_ids": sampled}
        answer = {"choices": [choice], "usage": {"prompt_tokens": len(prompt), "completion_tokens": 100}}
        bodies = json.dumps(request).encode(), json.dumps(answer).encode()
        steps += exchange_of(
            str(turn), "openai.completions", *bodies, content_type="application/json", status=200, stores=stores
        )[0]
        prompt += sampled
    assert [len(step.prompt_token_ids) for step in steps if step.prompt_token_ids is not None][-1] == 49_900
    with rt.JSONLWriter(tmp_path / "rollouts.jsonl") as writer:
        writer.write(rt.Trajectory(steps=steps))
    assert (tmp_path / "rollouts.jsonl").stat().st_size < 3 * len(json.dumps(prompt))
    (back,) = rt.read(tmp_path / "rollouts.jsonl")
    assert len(back.sequences()) == 1
