"""How processes end, and what is in the file then. Each program is run as one of its own."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import rollout_trace as rt
from rollout_trace.testing import ScriptedServer
from tests.amount import some
from tests.forked import Starter

BEGINNING = """
import asyncio, atexit, multiprocessing, os, signal, sys, threading
import openai
import rollout_trace as rt

client = rt.wrap_openai(openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0))
path = sys.argv[2]

def ask(name="hi", **options):
    return client.chat.completions.create(model="m", messages=[{"role": "user", "content": name}], **options)
"""

ABORTED = [("a", "aborted", ["ok"])]

ENDS: dict[str, tuple[str, int, list[tuple[str, str, list[str]]], str]] = {
    "entered by hand": (
        """
rt.recording(path).__enter__()
rt.trajectory("a").__enter__()
ask()
""",
        0,
        ABORTED,
        "1 trajectory was open",
    ),
    # Writing imports modules, which makes Python forget that it ends by this, and end with 1.
    "Ctrl-C, entered by hand": (
        """
rt.recording(path).__enter__()
rt.trajectory("a").__enter__()
ask()
os.kill(os.getpid(), signal.SIGINT)
""",
        -signal.SIGINT,
        ABORTED,
        "1 trajectory was open",
    ),
    "sys.exit inside": (
        """
with rt.recording(path), rt.trajectory("a"):
    ask()
    sys.exit(3)
""",
        3,
        ABORTED,
        "",
    ),
    "an uncaught exception": (
        """
with rt.recording(path), rt.trajectory("a"):
    ask()
    raise KeyError("mine")
""",
        1,
        [("a", "failed", ["ok"])],
        "KeyError: 'mine'",
    ),
    "an uncaught exception, entered by hand": (
        """
rt.recording(path).__enter__()
rt.trajectory("a").__enter__()
ask()
raise KeyError("mine")
""",
        1,
        ABORTED,
        "1 trajectory was open",
    ),
    "SIGTERM": (
        """
with rt.recording(path), rt.trajectory("a"):
    ask()
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(60)
""",
        -signal.SIGTERM,
        ABORTED,
        "1 trajectory was open",
    ),
    "SIGTERM while the main thread holds what closing needs": (
        """
from rollout_trace.record import process_end
process_end.GRACE = 0.1
with rt.recording(path), rt.trajectory("a") as trajectory:
    ask()
    with trajectory._recorder.log.completing:
        os.kill(os.getpid(), signal.SIGTERM)
        trajectory.steps
    threading.Event().wait(60)
""",
        -signal.SIGTERM,
        ABORTED,
        "1 trajectory was open",
    ),
    "SIGTERM with a handler of the program's": (
        """
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(7))
with rt.recording(path), rt.trajectory("a"):
    ask()
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(60)
""",
        7,
        ABORTED,
        "",
    ),
    "SIGINT": (
        """
with rt.recording(path), rt.trajectory("a"):
    ask()
    os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait(60)
""",
        -signal.SIGINT,
        ABORTED,
        "KeyboardInterrupt",
    ),
    "a daemon thread": (
        """
asked = threading.Event()

def agent():
    with rt.trajectory("a"):
        ask()
        asked.set()
        threading.Event().wait()

rt.recording(path).__enter__()
threading.Thread(target=agent, daemon=True).start()
asked.wait(60)
""",
        0,
        ABORTED,
        "1 trajectory was open",
    ),
    "a thread": (
        """
main = threading.main_thread()

def agent():
    with rt.trajectory("a"):
        main.join()
        ask()

rt.recording(path).__enter__()
threading.Thread(target=agent).start()
""",
        0,
        [("a", "completed", ["ok"])],
        "",
    ),
    "a suspended generator": (
        """
def agent():
    with rt.trajectory("a"):
        yield ask()

kept = agent()
rt.recording(path).__enter__()
next(kept)
""",
        0,
        ABORTED,
        "1 trajectory was open",
    ),
    "children first": (
        """
rt.recording(path).__enter__()
rt.trajectory("a").__enter__()
ask()
rt.trajectory("b").__enter__()
ask()
""",
        0,
        [("a", "aborted", ["ok"]), ("b", "aborted", ["ok"])],
        "2 trajectories were open",
    ),
    "a stream that is still read": (
        """
# Run after the recording's end: CPython 3.13.0 crashes where such a stream of httpx2 is left to the interpreter's own.
atexit.register(lambda: stream.close())
rt.recording(path).__enter__()
with rt.trajectory("a"):
    stream = ask("held", stream=True)
    next(stream)
""",
        0,
        [("a", "completed", ["abandoned"])],
        "",
    ),
    "an event loop that is stopped": (
        """
async def agent():
    with rt.trajectory("a"):
        ask()
        await asyncio.Event().wait()

async def main():
    rt.recording(path).__enter__()
    task = asyncio.create_task(agent())
    await asyncio.sleep(0)

asyncio.run(main())
""",
        0,
        [("a", "aborted", ["ok"])],
        "",
    ),
    "a worker of multiprocessing": (
        """
def work():
    rt.recording(path).__enter__()
    rt.trajectory("a").__enter__()
    ask()

worker = multiprocessing.get_context("fork").Process(target=work)
worker.start()
worker.join()
""",
        0,
        ABORTED,
        "1 trajectory was open",
    ),
    "a worker of multiprocessing in its parent's recording": (
        """
def work():
    rt.trajectory("a").__enter__()
    ask()

with rt.recording(path):
    worker = multiprocessing.get_context("fork").Process(target=work)
    worker.start()
    worker.join()
""",
        0,
        ABORTED,
        "1 trajectory was open",
    ),
    "a forked child": (
        """
with rt.recording(path):
    child = os.fork()
    if child == 0:
        with rt.trajectory("a"):
            ask()
        os._exit(0)
    os.waitpid(child, 0)
    with rt.trajectory("parent"):
        ask()
""",
        0,
        [("a", "completed", ["ok"]), ("parent", "completed", ["ok"])],
        "",
    ),
    "a recording in a suspended generator": (
        """
def agent():
    with rt.recording(path), rt.trajectory("a"):
        yield ask()

kept = agent()
next(kept)
""",
        0,
        ABORTED,
        "1 trajectory was open",
    ),
    "a function of atexit leaves the recording": (
        """
import atexit
from contextlib import ExitStack

stack = ExitStack()
atexit.register(stack.close)
stack.enter_context(rt.recording(path))
stack.enter_context(rt.trajectory("a"))
ask()
""",
        0,
        ABORTED,
        "1 trajectory was open",
    ),
    "a daemon thread with a recording of its own": (
        """
class Other:
    def write(self, trajectory):
        print("recording failed: the wrong one", file=sys.stderr)

asked = threading.Event()

def agent():
    with rt.recording(path), rt.trajectory("a"):
        ask()
        asked.set()
        threading.Event().wait()

rt.recording(Other()).__enter__()
threading.Thread(target=agent, daemon=True).start()
asked.wait(60)
""",
        0,
        ABORTED,
        "1 trajectory was open",
    ),
    "SIGTERM while the recording ends": (
        """
class Target:
    file, signalled = rt.JSONLWriter(path), threading.Event()

    def write(self, trajectory):
        while recording.is_open:
            pass
        if not self.signalled.is_set():
            self.signalled.set()
            os.kill(os.getpid(), signal.SIGTERM)
        self.file.write(trajectory)

recording = rt.recording(Target())
with recording:
    for name in "ab":
        with rt.trajectory(name):
            ask()
""",
        -signal.SIGTERM,
        [("a", "completed", ["ok"]), ("b", "completed", ["ok"])],
        "",
    ),
    "nothing open": (
        """
with rt.recording(path), rt.trajectory("a"):
    ask()
""",
        0,
        [("a", "completed", ["ok"])],
        "",
    ),
}


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer("fine") as one:
        yield one


@functools.lru_cache
def starter() -> Starter:
    # The library is imported by each process itself.
    return Starter(
        "import asyncio, multiprocessing, openai\nopenai.OpenAI(api_key='-')", "-W", "ignore::DeprecationWarning"
    )


@pytest.mark.parametrize("end", some(ENDS, "SIGTERM", "a forked child", *list(ENDS)[::6]))
def test_what_is_written(end: str, server: ScriptedServer, tmp_path: Path) -> None:
    program, code, expected, said = ENDS[end]
    path = tmp_path / "runs.jsonl"
    ended, _, error = starter().run(BEGINNING + program, [server.base_url, str(path)], cwd=tmp_path)
    stderr = error.decode()
    assert ended == code, stderr
    assert [(one.name, one.status, [step.status for step in one.steps]) for one in rt.read(path)] == expected
    assert said in stderr
    assert ("open when the process ended" in stderr) == ("open" in said), stderr
    assert "recording failed" not in stderr
    assert "Exception ignored" not in stderr
    assert sorted(os.listdir(tmp_path)) == ["runs.jsonl"]


def test_the_handler_of_sigterm_is_taken_off_again(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with rt.recording(tmp_path / "a.jsonl"):
            with rt.recording(tmp_path / "b.jsonl"):
                pass
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        mine = lambda number, frame: None  # noqa: E731
        signal.signal(signal.SIGTERM, mine)
        with rt.recording(tmp_path / "a.jsonl"):
            assert signal.getsignal(signal.SIGTERM) is mine
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)
