"""A program, and the Python programs that it starts, send exact turns: ``run --exact-turns``, ``rt.instrument``."""

from __future__ import annotations

from pathlib import Path

from rollout_trace.testing import Reply, ScriptedServer
from rollout_trace.testing.tokenizer import ByteTokenizer

from .running import recorded, run

TOKENIZER = ByteTokenizer(("hello",))
PROGRAM = """
import os, subprocess, sys
from openai import OpenAI
with OpenAI(base_url=os.environ["SERVER"], api_key="none", max_retries=0) as client:
    messages = [{"role": "user", "content": "hi"}]
    for turn in range(3):
        answer = client.chat.completions.create(model="m", messages=messages).choices[0].message
        messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": "go on"}]
if len(sys.argv) == 1:
    subprocess.run([sys.executable, __file__, "child"], check=True)
"""


def test_a_program_and_its_child(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(PROGRAM)
    spelled = Reply(token_ids=[*b"hello", TOKENIZER.eos_token_id])
    with ScriptedServer(lambda request: spelled, tokenizer=TOKENIZER) as server:
        done = run(tmp_path, "--engine", "vllm", "--exact-turns", "agent.py", SERVER=server.base_url)
    assert done.code == 0, done.err
    trajectories = recorded(tmp_path / "rollouts.jsonl")
    assert len(trajectories) == 2
    for one in trajectories:
        assert [step.exact_turn is not None and step.exact_turn.is_exact for step in one.steps] == [False, True, True]
        assert len(one.sequences()) == 1
