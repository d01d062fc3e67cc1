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
rt.reward(1)
with rt.recording(kept), rt.trajectory("parent") as parent:
    first = client()
    call(first, 0)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        rt.reward(2)
        call(client(), 1)
        with rt.trajectory("own"):
            call(client(), 2)
        found = {"orphans": seeds(rt.orphans()), "counted": rt.stats().orphans, "parents": seeds(parent.steps)}
        found["calls"] = rt.stats().calls
        found["id"] = rt.Trajectory().id
        os.write(write, json.dumps({**found, "written": kept.seeds}).encode())
        os._exit(0)
    os.waitpid(child, 0)
    call(first, 3)
ids = [rt.Trajectory().id for _ in range(500)]
found = {"child": json.loads(os.read(read, 65536)), "parent": seeds(parent.steps), "written": kept.seeds, "ids": ids}
print(json.dumps(found))
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


@pytest.mark.more
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
    # Nor do the two have an id in common.
    assert forked["child"]["id"] not in forked["ids"]


WITH_EVERY_LOCK_HELD = """
import gc, importlib, json, os, pkgutil, signal, sys, threading, types
import openai, rollout_trace as rt
from rollout_trace.clients import detect

KINDS = (type(threading.Lock()), type(threading.RLock()))

def locks():
    "Every lock that a module, an object or a property of the package holds, by the name of its place."
    found = {}
    holders = [module for name, module in list(sys.modules.items()) if name.startswith("rollout_trace")]
    holders += [one for one in gc.get_objects() if str(type(one).__module__).startswith("rollout_trace")]
    for holder in holders:
        held = dict(getattr(holder, "__dict__", {}))
        if isinstance(holder, types.ModuleType):
            for kind in [value for value in held.values() if isinstance(value, type)]:
                held.update({f"{kind.__name__}.{name}": value for name, value in vars(kind).items()})
        for name, value in held.items():
            value = value if isinstance(value, KINDS) else getattr(value, "lock", None)
            if isinstance(value, KINDS):
                found[id(value)] = (f"{getattr(holder, '__name__', type(holder).__name__)}.{name}", value)
    return sorted(found.values(), key=lambda item: item[0])

def client(engine=None):
    return rt.wrap_openai(openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0), engine=engine)

def call(client, seed):
    client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], seed=seed)

def seeds(steps):
    return [step.sampling["seed"] for step in steps]

call(client(), 9)
for module in pkgutil.walk_packages(rt.__path__, "rollout_trace."):
    if not module.name.startswith(("rollout_trace.testing", "rollout_trace.cli", "rollout_trace.__main__")):
        try:
            importlib.import_module(module.name)  # Each may hold locks.
        except ModuleNotFoundError as error:
            if error.name.partition(".")[0] not in ("opentelemetry", "rich"):  # Of extras that few have.
                raise
with rt.recording(sys.argv[2]), rt.trajectory("parent") as parent:
    call(client("auto"), 0)
    held, everywhere = threading.Event(), locks()
    def hold():
        for _, lock in everywhere:
            lock.acquire()
        held.set()
        threading.Event().wait()
    threading.Thread(target=hold, daemon=True).start()
    held.wait()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        counted, orphans = rt.stats().calls, seeds(rt.orphans())
        call(client("auto"), 1)
        call(rt.bind(client(), parent), 2)
        with rt.trajectory("own") as own:
            call(client(), 3)
        found = {
            "parents": seeds(parent.steps), "own": seeds(own.steps), "episode": own.episode_id == parent.id,
            "counted": [counted, rt.stats().calls], "orphans": [orphans, seeds(rt.orphans())],
            "held": [name for name, lock in locks() if not lock.acquire(blocking=False)],
        }
        os.write(write, json.dumps(found).encode())
        os._exit(0)
    os.close(write)
    status = os.waitpid(child, 0)[1]
    places = [name for name, _ in everywhere]
    print(json.dumps({"status": status, "places": places, "child": os.read(read, 65536).decode()}))
    sys.stdout.flush()
    os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_fork_while_other_threads_hold_every_lock(tmp_path: Path) -> None:
    """A child waits for none of them: it reads what was recorded, records, and writes."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([LIBRARY, os.environ.get("PYTHONPATH", "")])}
    with ScriptedServer("fine") as server:
        command = [sys.executable, "-W", "ignore", "-c", WITH_EVERY_LOCK_HELD, server.base_url]
        ended = subprocess.run(
            [*command, str(tmp_path / "runs.jsonl")], env=environment, capture_output=True, text=True
        )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["status"] == 0, "the child hangs"
    # That they are found at all.
    assert {
        "rollout_trace.guard._lock",
        "rollout_trace.record.recording._lock",
        "rollout_trace.record.lifecycle._lock",
        "rollout_trace.clients.detect._lock",
    } <= set(found["places"])
    assert {"StepLog._lock", "_Pending._lock", "JSONLWriter._lock"} <= set(found["places"])
    child = json.loads(found["child"])
    assert child == {
        "parents": [0], "own": [3], "episode": True, "counted": [0, 3], "orphans": [[], [1, 2]], "held": [],
    }  # fmt: skip
    assert [(t.name, [s.sampling for s in t.steps]) for t in rt.read(tmp_path / "runs.jsonl")] == [
        ("own", [{"seed": 3}])
    ]


def test_what_was_said_is_said_again_in_a_child(forked: Any) -> None:
    """A child warns of its own mistakes, and counts its own calls."""
    assert forked["log"].count("rt.reward(1) outside every trajectory") == 1
    assert forked["log"].count("rt.reward(2) outside every trajectory") == 1
    assert forked["child"]["calls"] == 2


WITHOUT_A_CLIENT = """
import os, signal, sys, threading
import rollout_trace as rt

with rt.recording(sys.argv[1]):
    with rt.trajectory("parent"):
        pass
    from rollout_trace.record import lifecycle, recording
    held = threading.Event()

    def hold():
        with recording._lock, lifecycle._lock:
            held.set()
            threading.Event().wait()

    threading.Thread(target=hold, daemon=True).start()
    held.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        with rt.trajectory("child"):
            pass
        os._exit(0)
    print(os.waitpid(child, 0)[1], flush=True)
    os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_fork_of_a_process_that_has_wrapped_no_client(tmp_path: Path) -> None:
    """What a child must renew is renewed by whoever holds it, whatever else was imported."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([LIBRARY, os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-W", "ignore", "-c", WITHOUT_A_CLIENT, str(tmp_path / "runs.jsonl")]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ended.stdout == "0\n", ended.stderr


WHILE_WRITING_IMPORTS = """
import os, signal, sys, threading
import rollout_trace as rt

begun, forking = threading.Event(), threading.Event()

class Writer:
    def write(self, trajectory):
        import slow

sys.modules["events"] = type(sys)("events")
sys.modules["events"].begun, sys.modules["events"].forking = begun, forking
with rt.recording(Writer()):
    # Functions that run before a fork are called in the reverse order: this one before the library's own.
    os.register_at_fork(before=forking.set)
    with rt.trajectory():
        pass
    begun.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        import slow
        os._exit(0)
    print(os.waitpid(child, 0)[1], flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_fork_while_the_first_trajectory_is_written(tmp_path: Path) -> None:
    """The thread that writes imports modules then: in the child such an import would never end."""
    (tmp_path / "slow.py").write_text(
        "import events\nevents.begun.set()\nevents.forking.wait()\nsum(range(3_000_000))\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([LIBRARY, str(tmp_path)])}
    command = [sys.executable, "-W", "ignore", "-c", WHILE_WRITING_IMPORTS]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ended.stdout == "0\n", ended.stderr
