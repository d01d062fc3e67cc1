"""`AgentFrame(auxiliary=True)`: what is beside the agent's own work, such as a judge."""

from __future__ import annotations

from pathlib import Path

from openai import OpenAI

import rollout_trace as rt
from rollout_trace.record.frames import AgentFrame
from rollout_trace.testing import ScriptedServer


def test_its_steps_and_those_inside_it_are_not_trained_on(tmp_path: Path) -> None:
    with ScriptedServer("yes") as server, OpenAI(base_url=server.base_url, api_key="none") as plain:
        client = rt.wrap_openai(plain, engine="vllm")

        def ask() -> None:
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi"}])

        with rt.recording(tmp_path / "r.jsonl"), AgentFrame("agent"):
            ask()
            with AgentFrame("judge", auxiliary=True):
                ask()
                with AgentFrame("helper"):
                    ask()
            ask()
    found = {one.name: one for one in rt.read(tmp_path / "r.jsonl")}
    assert {name: [step.trainable for step in one.steps] for name, one in found.items()} == {
        "agent": [True, True],
        "judge": [False],
        "helper": [False],
    }
    assert found["judge"].parent_id == found["agent"].id
    assert len(found["helper"].sequences()) == 0


def test_without_a_call_there_is_no_trajectory(tmp_path: Path) -> None:
    with rt.recording(tmp_path / "r.jsonl"), AgentFrame("agent"):
        with AgentFrame("judge", auxiliary=True):
            pass
        # Left open by a hook that was never called.
        AgentFrame("judge", auxiliary=True).enter()
    (agent,) = rt.read(tmp_path / "r.jsonl")
    assert (agent.name, agent.status) == ("agent", "completed")
