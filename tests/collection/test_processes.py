"""Rollouts in processes: real ones, that crash, hang and are replaced."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace.collection.job import Outcome, WorkerLost
from rollout_trace.collection.processes import ProcessExecutor
from tests.collection.jobs import job, work
from tests.collection.making import all_of, exists, said, using

ROOT = Path(rt.__file__).parents[1]
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="uses signals")


def ended(process: int) -> bool:
    """Whether a process is no more."""
    try:
        os.kill(process, 0)
        # It may have ended, and wait to be asked for its exit code by a process that is not ours.
        return "\nState:\tZ" in Path(f"/proc/{process}/status").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return True


def test_rollouts_are_spread_over_processes(tmp_path: Path) -> None:
    """More rollouts at once than processes: each process makes several at the same time."""
    shared = work()
    outcomes = all_of(ProcessExecutor(2), *(job(shared, n, "meet", str(tmp_path), 6) for n in range(6)))
    processes = said(outcomes)
    assert sorted(map(processes.count, set(processes))) == [3, 3]
    assert str(os.getpid()) not in processes


def test_closing_ends_the_processes() -> None:
    processes = said(all_of(ProcessExecutor(1), job(work(), 0, "process")))
    assert ended(int(processes[0]))


def test_an_executor_is_used_again() -> None:
    executor = ProcessExecutor(1)
    first, second = (said(all_of(executor, job(work(), 0, "process"))) for _ in range(2))
    assert first != second


@pytest.mark.parametrize(
    ("how", "text"),
    [
        (("die", signal.SIGKILL), "ended by SIGKILL: the machine may be short of memory"),
        (("die", signal.SIGSEGV), "ended by SIGSEGV"),
        (("leave", 3), "ended with exit code 3"),
        (("leave", 0), "ended with exit code 0"),
    ],
)
def test_a_process_that_ends(how: tuple[Any, ...], text: str) -> None:
    """Its rollout is lost, with the reason; the next one is made in a new process."""

    async def body(executor: ProcessExecutor) -> tuple[str, str]:
        shared = work()
        first = (await executor.run(job(shared, 0, "process"))).trajectory_id
        with pytest.raises(WorkerLost, match=text):
            await executor.run(job(shared, 1, *how))
        return first, (await executor.run(job(shared, 2, "process"))).trajectory_id

    first, second = using(ProcessExecutor(1), body)
    assert first != second


def test_rollouts_beside_one_that_crashes(tmp_path: Path) -> None:
    """They are lost once: made again, one that crashes for good is alone."""
    shared = work()
    bad = job(shared, 0, "die", signal.SIGKILL)
    good = [job(shared, n, "for_ever", str(tmp_path / f"begun{n}"), str(tmp_path / "ended")) for n in (1, 2)]

    async def body(executor: ProcessExecutor) -> None:
        running = [asyncio.ensure_future(executor.run(one)) for one in good]
        for n in (1, 2):
            await exists(tmp_path / f"begun{n}")
        lost = await asyncio.gather(executor.run(bad), *running, return_exceptions=True)
        assert [type(one) for one in lost] == [WorkerLost] * 3
        again = [job(shared, n, "process") for n in (1, 2)]
        outcomes = await asyncio.gather(*map(executor.run, [bad, *again]), return_exceptions=True)
        assert [type(one) for one in outcomes] == [WorkerLost, Outcome, Outcome]

    using(ProcessExecutor(1), body)


@pytest.mark.parametrize("how", ["block_loop", "hold_everything"])
def test_a_process_that_does_not_answer(how: str, tmp_path: Path) -> None:
    """It is killed when the time of a rollout is over by the grace."""

    async def body(executor: ProcessExecutor) -> Outcome:
        shared = work(timeout=0.1)
        with pytest.raises(WorkerLost, match=r"did not answer 0\.5 seconds after a rollout's time had ended"):
            await executor.run(job(shared, 0, how, str(tmp_path / "ready")))
        return await executor.run(job(shared, 1, "process"))

    assert using(ProcessExecutor(1, grace=0.5), body).status == "completed"
    assert (tmp_path / "ready").exists()


def test_a_long_rollout_in_a_process_that_answers(tmp_path: Path) -> None:
    """It is not killed: its reward may take longer than its timeout, which is the agent's."""

    async def body(executor: ProcessExecutor) -> str:
        begun = tmp_path / "begun"
        running = asyncio.ensure_future(executor.run(job(work(timeout=0.01), 0, "for_ever", str(begun), "/dev/null")))
        await exists(begun)
        done, _ = await asyncio.wait([running], timeout=0.5)
        assert not done
        running.cancel()
        return begun.read_text()

    using(ProcessExecutor(1, grace=0.2), body)


def test_a_cancelled_rollout_is_stopped(tmp_path: Path) -> None:
    """In its process, which goes on."""

    async def body(executor: ProcessExecutor) -> tuple[str, str]:
        begun, stopped = tmp_path / "begun", tmp_path / "stopped"
        running = asyncio.ensure_future(executor.run(job(work(), 0, "for_ever", str(begun), str(stopped))))
        await exists(begun)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await exists(stopped)
        return begun.read_text(), (await executor.run(job(work(), 1, "process"))).trajectory_id

    first, second = using(ProcessExecutor(1), body)
    assert first == second


def test_a_cancelled_rollout_that_cannot_be_stopped(tmp_path: Path) -> None:
    """Its process is killed after the grace."""

    async def body(executor: ProcessExecutor) -> str:
        running = asyncio.ensure_future(executor.run(job(work(), 0, "block_loop", str(tmp_path / "ready"))))
        await exists(tmp_path / "ready")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        # Waits until there is a process that makes it.
        return (await executor.run(job(work(), 1, "process"))).trajectory_id

    assert using(ProcessExecutor(1, rollouts_per_process=1, grace=0.2), body)


def test_processes_are_replaced_after_so_many_rollouts() -> None:
    """And there are never more at once than were asked for."""

    async def body(executor: ProcessExecutor) -> list[str]:
        shared = work()
        return [(await executor.run(job(shared, n, "process"))).trajectory_id for n in range(6)]

    processes = using(ProcessExecutor(1, rollouts_per_process=2), body)
    assert [processes.count(one) for one in dict.fromkeys(processes)] == [2, 2, 2]


def test_one_rollout_a_process() -> None:
    shared = work()
    processes = said(all_of(ProcessExecutor(2, rollouts_per_process=1), *(job(shared, n, "process") for n in range(5))))
    assert len(set(processes)) == 5


def test_exceptions_of_a_job() -> None:
    """They are raised as they are; one that cannot be sent as its text."""
    shared = work()
    found = all_of(ProcessExecutor(1), job(shared, 0, "fail", "value"), job(shared, 1, "fail", "own"))
    assert [repr(one) for one in found] == ["ValueError('no such thing')", "RuntimeError('Own: of a function')"]


def test_an_agent_that_cannot_be_pickled() -> None:
    """It is refused before a process is started: by ``check``, or by the first rollout."""
    with pytest.raises(TypeError, match="the agent cannot be sent to another process"):
        ProcessExecutor(1).check(work(agent=lambda task: task))
    found = all_of(ProcessExecutor(1), job(work(agent=lambda task: task), 0, "process"))
    assert isinstance(found[0], TypeError)
    assert "the agent cannot be sent to another process" in str(found[0])
    assert "top level of a module" in str(found[0])


def test_a_task_that_cannot_be_pickled() -> None:
    found = all_of(ProcessExecutor(1), job(work(), 0, "process", lambda: None))
    assert isinstance(found[0], TypeError)
    assert "the task t cannot be sent to another process" in str(found[0])


def test_ctrl_c_is_for_the_parent_and_programs_start_as_ever() -> None:
    assert said(all_of(ProcessExecutor(1), job(work(), 0, "ask_signals"))) == ["True"]


def test_rollouts_have_no_parent_in_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the trajectory that is open here, nor the file, nor what `rollout-trace run` gave this process."""
    with rt.instrument(), rt.recording(tmp_path / "here.jsonl"), rt.trajectory():
        for name, value in rt.child_environment().items():
            monkeypatch.setenv(name, value)
        assert said(all_of(ProcessExecutor(1), job(work(), 0, "ask_environment"))) == ["[] None {} False"]


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"processes": 0}, ValueError),
        ({"processes": 1.5}, TypeError),
        ({"processes": True}, TypeError),
        ({"rollouts_per_process": 0}, ValueError),
        ({"grace": 0}, ValueError),
        ({"grace": "1"}, TypeError),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], kind: type[Exception]) -> None:
    with pytest.raises(kind, match=next(iter(arguments))):
        ProcessExecutor(**arguments)


# Programs of their own.

UNGUARDED = """
import asyncio, os
from pathlib import Path
from rollout_trace.collection.processes import ProcessExecutor
from tests.collection.jobs import job, work

with open("begun", "a") as file:
    file.write("x")

async def main():
    executor, shared = ProcessExecutor(4), work()
    try:
        await asyncio.gather(*(executor.run(job(shared, n, "process")) for n in range(8)))
    finally:
        await executor.close()

asyncio.run(main())
"""


def run(folder: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a program in a folder."""
    (folder / "program.py").write_text(program)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "program.py", *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_a_script_without_the_guard(tmp_path: Path) -> None:
    """It gets one sentence, after one process and not many."""
    done = run(tmp_path, UNGUARDED)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("RuntimeError: each process for rollouts imports the main module")
    assert done.stderr.count("Traceback") == 1
    assert (tmp_path / "begun").read_text() == "xx"


def test_a_main_module_that_fails_elsewhere(tmp_path: Path) -> None:
    """The reason is said, and no further process is started."""
    guarded = UNGUARDED.replace("asyncio.run(main())", 'if __name__ == "__main__":\n    asyncio.run(main())')
    program = f"import sys\nif __name__ != '__main__':\n    raise OSError('not here')\n{guarded}"
    done = run(tmp_path, program)
    assert done.returncode == 1
    assert "cannot import the main module: OSError: not here" in done.stderr.splitlines()[-1]
    assert (tmp_path / "begun").read_text() == "x"


IN_A_SESSION = """
import asyncio
from rollout_trace.collection.processes import ProcessExecutor
from tests.collection.jobs import job, work

def agent(task):
    return task

async def main():
    executor = ProcessExecutor(1)
    try:
        await executor.run(job(work(agent=agent), 0, "process"))
    finally:
        await executor.close()

asyncio.run(main())
"""


def test_an_agent_of_a_session(tmp_path: Path) -> None:
    """What was typed in cannot be imported elsewhere."""
    done = subprocess.run(
        [sys.executable, "-"], input=IN_A_SESSION, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "in a module that can be imported, not in a notebook" in done.stderr.splitlines()[-1]


WITH_CHILDREN = """
import asyncio, sys
from rollout_trace.collection.processes import ProcessExecutor
from tests.collection.jobs import job, work

async def main():
    executor, shared = ProcessExecutor(2), work()
    async def one(n):
        try:
            await executor.run(job(shared, n, *sys.argv[1:]))
        except BaseException as error:
            print(type(error).__name__, flush=True)
            raise
    try:
        await asyncio.gather(one(0), one(1))
    finally:
        await executor.close()

if __name__ == "__main__":
    asyncio.run(main())
"""


FORKED = """
import asyncio, os, sys
from rollout_trace.collection.processes import ProcessExecutor
from tests.collection.jobs import job, work

async def main(folder):
    executor, shared = ProcessExecutor(1), work()
    made = asyncio.ensure_future(executor.run(job(shared, 0, "be_there", folder)))
    while not os.listdir(folder):
        await asyncio.sleep(0.005)
    print(os.listdir(folder)[0], flush=True)
    if os.fork():
        os.kill(os.getpid(), 9)
    # Until the test closes it.
    sys.stdin.read()

if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
"""


def test_workers_end_with_their_parent_though_a_fork_of_it_lives(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(FORKED)
    folder = tmp_path / "begun"
    folder.mkdir()
    with subprocess.Popen(
        [sys.executable, "program.py", str(folder)], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as parent:  # fmt: skip
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        end = time.monotonic() + 60
        while not ended(worker) and time.monotonic() < end:
            os.sched_yield()
        assert ended(worker)


@pytest.mark.parametrize("how", ["SIGKILL", "SIGINT"])
def test_workers_end_with_their_parent(how: str, tmp_path: Path) -> None:
    """Killed, or by Ctrl-C, which the workers get too."""
    (tmp_path / "program.py").write_text(WITH_CHILDREN)
    folder = tmp_path / "begun"
    folder.mkdir()
    with subprocess.Popen(
        [sys.executable, "program.py", "be_there", str(folder)],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as parent:  # fmt: skip
        while len(os.listdir(folder)) < 2:
            assert parent.poll() is None
            os.sched_yield()
        workers = [int(name) for name in os.listdir(folder)]
        if how == "SIGKILL":
            parent.kill()
        else:
            os.killpg(parent.pid, signal.SIGINT)
        # The workers have this pipe too: it closes when the last of them ends.
        _, errors = parent.communicate(timeout=120)
    while not all(map(ended, workers)):
        os.sched_yield()
    if how == "SIGINT":
        assert errors.count("Traceback (most recent call last):\n  File") >= 1
        assert errors.rstrip().endswith("KeyboardInterrupt")
