"""A process that is forked in the middle of a trajectory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace.testing import ScriptedServer

LIBRARY = str(Path(rt.__file__).parents[1])

IN_A_CHILD = """
import json, os, sys
import openai, rollout_trace as rt

def call(client, seed):
    client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], seed=seed)

def seeds(steps):
    return [step.sampling["seed"] for step in steps]

class Kept:
    def __init__(self):
        self.seeds = []
    def write(self, trajectory):
        self.seeds.append(seeds(trajectory.steps))

def client():
    return rt.wrap_openai(openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0))

kept = Kept()
with rt.recording(kept), rt.trajectory("parent") as parent:
    first = client()
    call(first, 0)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        call(client(), 1)
        with rt.trajectory("own"):
            call(client(), 2)
        found = {"orphans": seeds(rt.orphans()), "counted": rt.stats().orphans, "parents": seeds(parent.steps)}
        os.write(write, json.dumps({**found, "written": kept.seeds}).encode())
        os._exit(0)
    os.waitpid(child, 0)
    call(first, 3)
print(json.dumps({"child": json.loads(os.read(read, 65536)), "parent": seeds(parent.steps), "written": kept.seeds}))
"""


@pytest.fixture(scope="module")
def forked() -> Any:
    """What a process and its forked child have recorded."""
    if not hasattr(os, "fork"):
        pytest.skip("this system cannot fork")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([LIBRARY, os.environ.get("PYTHONPATH", "")])}
    with ScriptedServer("fine") as server:
        found = subprocess.run(
            [sys.executable, "-c", IN_A_CHILD, server.base_url], env=environment, capture_output=True, text=True
        )
    assert found.returncode == 0, found.stderr
    assert len(server.requests) == 4
    return {**json.loads(found.stdout), "log": found.stderr}


def test_a_fork_leaves_the_parent_alone(forked: Any) -> None:
    """A forked child's calls are not the parent's."""
    assert forked["parent"] == [0, 3]
    assert forked["written"] == [[0, 3]]


def test_a_call_in_a_forked_child(forked: Any) -> None:
    """A forked child's call outside a trajectory of its own is an orphan of the child, with a warning."""
    assert forked["child"]["counted"] == 1
    assert "outside every open trajectory" in forked["log"]
    assert forked["child"]["orphans"] == [1]


def test_a_trajectory_in_a_forked_child(forked: Any) -> None:
    """A trajectory opened in a forked child is written by the child: the parent does not know of it."""
    assert forked["child"]["written"] == [[2]]
