"""Imports, forks and the recorder's start in programs of several threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rollout_trace.testing import ScriptedServer
from tests.amount import some

from .running import CALL, environment, recorded, run

WAITING_MODULE = """
import inside, sys, time
inside.event.set()
while "rollout_trace.process.launched" not in sys.modules:
    time.sleep(0.001)
import colorsys
with open(inside.original) as file:
    exec(file.read())
"""
THREAD_IN_AN_IMPORT = (
    """
import threading, types, sys, textwrap
sys.modules["inside"] = types.SimpleNamespace(event=threading.Event(), original=textwrap.__file__)
del sys.modules["textwrap"]
sys.path.insert(0, "shadow")
thread = threading.Thread(target=__import__, args=("textwrap",), daemon=True)
thread.start()
sys.modules["inside"].event.wait()
"""
    + CALL
    + "thread.join()\nask()\n"
)


def test_the_recorder_starts_while_a_thread_imports_what_it_needs(tmp_path: Path) -> None:
    """Python looks for modules under a lock of all imports, and executes each under one of its own."""
    (tmp_path / "shadow").mkdir()
    (tmp_path / "shadow/textwrap.py").write_text(WAITING_MODULE)
    (tmp_path / "agent.py").write_text(THREAD_IN_AN_IMPORT)
    with ScriptedServer("fine") as server:
        done = run(tmp_path, "-q", "agent.py", SERVER=server.base_url)
    assert (done.code, done.err) == (0, "")
    assert [len(one.steps) for one in recorded(tmp_path / "rollouts.jsonl")] == [1]


HALF_IMPORTED = """
import sys, threading
import rollout_trace as rt

inside, go = threading.Event(), threading.Event()

class Holding:
    def find_spec(self, name, path=None, target=None):
        if name != "httpx._api":
            return None
        sys.meta_path.remove(self)
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in sys.meta_path)))
        execute = spec.loader.exec_module

        def exec_module(module):
            inside.set()
            go.wait()
            execute(module)

        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Holding())
thread = threading.Thread(target=__import__, args=("httpx",))
thread.start()
inside.wait()
kind = type(sys.modules["httpx"].__spec__)
handle = rt.instrument()
if sys.argv[1:] == ["undone"]:
    handle.undo()
go.set()
thread.join()
import httpx
assert type(httpx.__spec__) is kind
print(httpx.Client.send.__code__.co_filename)
"""


@pytest.mark.parametrize(("argument", "expected"), [("", "clients/http_exchange.py"), ("undone", "httpx/_client.py")])
def test_a_module_that_another_thread_is_importing(argument: str, expected: str) -> None:
    """Nothing is imported after it, and no trajectory opened, that would have it looked at again."""
    command = [sys.executable, "-c", HALF_IMPORTED, argument]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip().endswith(expected)


ARCHIVE = """
import importlib.util, sys, zipfile
with zipfile.ZipFile("library.zip", "w") as archive:
    archive.writestr("httpx.py", "class Client:\\n    def send(self): pass\\nAsyncClient = Client\\n")
    archive.writestr("plain.py", "loader = sorted(vars(__loader__))\\nimport sys\\n")
sys.path.insert(0, "library.zip")
for _ in range(1100):
    importlib.util.find_spec("httpx")
import plain
import httpx
print(httpx.Client.send.__code__.co_filename, sorted(vars(httpx.__loader__)) == sorted(vars(plain.__loader__)))
"""


@pytest.mark.parametrize("first", some(["", "import requests\n"], ""))
def test_an_archive_whose_modules_have_one_loader(first: str, tmp_path: Path) -> None:
    """Modules are looked for that are not imported then, such as optional ones."""
    (tmp_path / "agent.py").write_text(first + ARCHIVE)
    done = run(tmp_path, "-q", "agent.py")
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith("clients/http_exchange.py True\n")


FORK_WHILE_LOCKED = """
import importlib, multiprocessing, sys, threading
import httpx
import rollout_trace as rt
from tests.process.agents import ask

module = importlib.import_module(sys.argv[1])
held, go = threading.Event(), threading.Event()

def hold():
    with module._lock:
        held.set()
        go.wait()

with rt.instrument(), rt.recording(sys.argv[2]), rt.trajectory("parent"):
    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    process = multiprocessing.get_context("fork").Process(target=ask, args=(0,))
    process.start()
    go.set()
    thread.join()
    process.join(30)
    if process.exitcode is None:
        process.kill()
        process.join()
print(process.exitcode)
"""


LOCKED = ["process.patches", "process.imports", "record.lifecycle"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.parametrize("module", some(LOCKED, "process.imports", "record.lifecycle"))
def test_a_process_that_is_forked_while_a_thread_holds_a_lock(module: str, tmp_path: Path) -> None:
    output = tmp_path / "rollouts.jsonl"
    with ScriptedServer("fine") as server:
        command = [sys.executable, "-c", FORK_WHILE_LOCKED, f"rollout_trace.{module}", str(output)]
        variables = environment(MODEL_ADDRESS=server.base_url)
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
    assert sorted(len(one.steps) for one in recorded(output)) == [0, 1]
