"""What docs/start.md has its reader change in its agent, below "Your own model"."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from page_blocks import ROOT

import rollout_trace as rt
from rollout_trace.testing import ScriptedServer

PAGE = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
ADDRESS = "http://localhost:8000/v1"


def test_the_changed_agent_runs_against_a_server_of_ones_own(tmp_path: Path) -> None:
    agent = re.findall("```python\n(.*?)```", PAGE, re.S)[0]
    for change in re.findall("```diff\n(.*?)```", PAGE, re.S):
        old, new = ("".join(re.findall(rf"^{re.escape(sign)}(.*\n)", change, re.M)) for sign in "-+")
        assert agent.count(old) == 1
        agent = agent.replace(old, new)
    with ScriptedServer(lambda request: "It is 42.", model="Qwen/Qwen3-0.6B", strict_model=True) as server:
        assert agent.count(ADDRESS) == 1
        (tmp_path / "agent.py").write_text(agent.replace(ADDRESS, server.base_url))
        subprocess.run([sys.executable, "agent.py"], cwd=tmp_path, check=True, timeout=120)
    runs = list(rt.read(tmp_path / "rollouts.jsonl"))
    assert [(one.group_id, one.rollout_index, one.reward) for one in runs] == [
        (task, sample, reward) for task, reward in (("sum/1", 1.0), ("sum/2", 0.0)) for sample in range(4)
    ]
