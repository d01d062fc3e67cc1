"""Child processes of an instrumented program: what they call is written to the same file, with its parent."""

from __future__ import annotations

import asyncio
import multiprocessing.pool
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace.testing import ScriptedServer
from tests.amount import amount, some
from tests.process import agents

LIBRARY = str(Path(rt.__file__).parents[1])
METHODS = [one for one in ("fork", "forkserver", "spawn") if one in multiprocessing.get_all_start_methods()]


@pytest.fixture
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of the recording; the server's address is in the environment, as an agent's configuration is."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([LIBRARY, os.environ.get("PYTHONPATH", "")]))
    monkeypatch.chdir(LIBRARY)
    with ScriptedServer("fine") as server:
        monkeypatch.setenv("MODEL_ADDRESS", server.base_url)
        yield tmp_path / "rollouts.jsonl"


def command(*seeds: int) -> list[str]:
    return [sys.executable, "-m", "tests.process.agents", *map(str, seeds)]


def seeds(trajectory: rt.Trajectory) -> list[int]:
    return [(step.sampling or {})["seed"] for step in trajectory.steps]


def family(output: Path) -> dict[tuple[int, ...], rt.Trajectory]:
    """The trajectories of the file by the calls in them."""
    return {tuple(seeds(one)): one for one in rt.read(output)}


def is_child(child: rt.Trajectory, parent: rt.Trajectory, after: int | None = 0) -> bool:
    step = None if after is None else parent.steps[after].id
    return (child.parent_id, child.episode_id, child.parent_step_id) == (parent.id, parent.episode_id, step)


def by_run() -> None:
    subprocess.run(command(1), check=True)


def by_copied_environment() -> None:
    subprocess.check_output(command(1), env={**os.environ, "OTHER": "x"})


def by_bytes() -> None:
    subprocess.run(command(1), env=dict(os.environb), check=True)


def by_position() -> None:
    process = subprocess.Popen(command(1), -1, None, None, None, None, None, True, False, None, dict(os.environ))
    assert process.wait() == 0


def by_shell() -> None:
    subprocess.run(f"{sys.executable} -m tests.process.agents 1", shell=True, check=True)


def by_asyncio() -> None:
    async def main() -> None:
        process = await asyncio.create_subprocess_exec(*command(1))
        assert await process.wait() == 0

    asyncio.run(main())


def by_another_process() -> None:
    """A process between that calls nothing itself."""
    program = "import os; from tests.process.agents import nested; nested(1, os.environ['MODEL_ADDRESS'])"
    subprocess.run([sys.executable, "-c", program], check=True)


WAYS: list[Callable[[], None]] = [
    by_run, by_copied_environment, by_bytes, by_position, by_shell, by_asyncio, by_another_process,
]  # fmt: skip


@pytest.mark.parametrize("way", some(WAYS, by_run))
def test_a_child_is_started(way: Callable[[], None], output: Path) -> None:
    """However it is: its call is in the file, as a child of the trajectory and the step that started it."""
    with rt.instrument(), rt.recording(output), rt.trajectory("parent"):
        agents.ask(0)
        way()
    found = family(output)
    assert set(found) == {(0,), (1,)}
    assert is_child(found[1,], found[0,])
    assert found[1,].status == "completed"


def test_uvloop(output: Path) -> None:
    """Its processes are started without the standard library."""
    uvloop = pytest.importorskip("uvloop")

    async def main() -> None:
        process = await asyncio.create_subprocess_shell(" ".join(command(1)))
        assert await process.wait() == 0

    with rt.instrument(), rt.recording(output), rt.trajectory("parent") as parent:
        uvloop.run(main())
    assert is_child(family(output)[1,], parent, None)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_process_starts_one(output: Path) -> None:
    """Its trajectory is that of its original."""
    with rt.instrument(), rt.recording(output), rt.trajectory("parent") as parent:
        forked = os.fork()
        if not forked:
            os._exit(subprocess.run(command(1)).returncode)
        assert os.waitpid(forked, 0)[1] == 0
    assert is_child(family(output)[1,], parent, None)


def test_by_hand_without_instrumenting(output: Path) -> None:
    """The variables are enough; the program that calls them uses wrapped clients, or none."""
    with rt.recording(output), rt.trajectory("parent") as parent:
        subprocess.run(command(1, 2), env={**os.environ, **rt.child_environment()}, check=True)
    found = family(output)
    assert set(found) == {(), (1, 2)}
    assert is_child(found[1, 2], parent, None)


def test_rewards_reach_what_children_wrote(output: Path) -> None:
    """Of the episode alone, at any depth, before and after the child was started; its own and the innermost win."""
    program = "import rollout_trace as rt; from tests.process import agents\n"
    program += "with rt.trajectory('own'): agents.ask(3); rt.reward(0.125)\n"
    with rt.instrument(), rt.recording(output):
        with rt.trajectory("first"):
            rt.reward(1.0, children=True)
            rt.reward(1.0, name="right", children=True)
            with rt.trajectory("inner"):
                subprocess.run(command(1), check=True)
                rt.reward(0.5, name="right", children=True)
            subprocess.run([sys.executable, "-c", program], check=True)
        with rt.trajectory("second"):
            subprocess.run(command(2), check=True)
            rt.reward(0.25)
    found = {tuple(seeds(one)): (one.reward, one.rewards) for one in rt.read(output) if one.steps}
    assert found == {(1,): (1.0, {"right": 0.5}), (3,): (0.125, {"right": 1.0}), (2,): (None, None)}


@pytest.mark.more
@pytest.mark.amount
def test_tasks_with_a_child_each(output: Path) -> None:
    """Started at the same time in several trajectories: each child has its own parent."""
    tasks = amount(4, 12, 12)

    async def one(number: int) -> rt.Trajectory:
        with rt.trajectory(str(number)) as trajectory:
            await asyncio.sleep(0)
            process = await asyncio.create_subprocess_exec(*command(number))
            assert await process.wait() == 0
        return trajectory

    async def everyone() -> list[rt.Trajectory]:
        return list(await asyncio.gather(*(one(number) for number in range(tasks))))

    with rt.instrument(), rt.recording(output):
        parents = asyncio.run(everyone())
    found = family(output)
    assert [is_child(found[number,], parents[number], None) for number in range(tasks)] == [True] * tasks


@pytest.mark.parametrize("method", some(METHODS, "spawn"))
def test_multiprocessing(method: str, output: Path) -> None:
    """Each start method: a process, and one that it starts."""
    context: Any = multiprocessing.get_context(method)
    with rt.instrument(), rt.recording(output), rt.trajectory("parent"):
        agents.ask(0)
        for target, seed in ((agents.ask, 1), (agents.nested, 2)):
            # The address as an argument: the server of forked processes keeps the environment that it began with.
            process = context.Process(target=target, args=(seed, os.environ["MODEL_ADDRESS"]))
            process.start()
            process.join()
            assert process.exitcode == 0
    found = family(output)
    assert set(found) == {(0,), (1,), (2,)}
    assert is_child(found[1,], found[0,])
    assert is_child(found[2,], found[0,])


@pytest.mark.parametrize("method", some(METHODS, "spawn"))
def test_a_process_serves_several_trajectories(method: str, output: Path) -> None:
    """The tasks of one process of a pool: each has the parent that it was submitted in, and a trajectory of its own."""
    context: Any = multiprocessing.get_context(method)
    address = os.environ["MODEL_ADDRESS"]
    with rt.instrument(), rt.recording(output), ProcessPoolExecutor(1, mp_context=context) as executor:
        with rt.trajectory("one") as one:
            agents.ask(0)
            first = executor.submit(agents.ask, 1, address).result()
            assert executor.submit(agents.ask, 2, address).result() == first
        with rt.trajectory("two") as two:
            assert list(executor.map(agents.ask, [3, 4], [address] * 2, chunksize=2)) == [first] * 2
            error = executor.submit(agents.fail, 5, address).exception()
        assert executor.submit(agents.ask, 6, address).result() == first
    assert isinstance(error, ValueError)
    found = family(output)
    assert set(found) == {(0,), (), (1,), (2,), (3,), (4,), (5,), (6,)}
    assert is_child(found[1,], one)
    assert is_child(found[2,], one)
    assert [is_child(found[seed,], two, None) for seed in (3, 4, 5)] == [True] * 3
    assert found[6,].parent_id is None
    failure = found[5,].error
    assert failure is not None
    assert (found[5,].status, failure.type, failure.message) == ("failed", "ValueError", "of the agent")


def test_a_spawned_process_without_calls_starts_light(output: Path) -> None:
    """No room is imported in it, so no numpy."""
    with rt.instrument(), rt.recording(output), rt.trajectory():
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
            modules = executor.submit(agents.modules).result()
    assert "rollout_trace.process.child_tasks" in modules
    assert not {"numpy", "rollout_trace.record.recording", "rollout_trace.process.instrument"} & set(modules)


def test_a_trajectory_whose_process_makes_the_calls_is_not_warned_of(
    output: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It has a reward and no call, for they are in its child; one without a child is warned of."""
    with rt.instrument(), rt.recording(output):
        with rt.trajectory("with a child") as trajectory:
            subprocess.run(command(1), env={**os.environ, **rt.child_environment()}, check=True)
            trajectory.reward = 1
        with rt.trajectory("without") as trajectory:
            trajectory.reward = 1
    lines = [record.getMessage() for record in caplog.records if "no model call was recorded" in record.getMessage()]
    assert ["'without'" in line for line in lines] == [True]


@pytest.mark.parametrize("method", some(["fork", "spawn"], "fork"))
def test_a_pool_of_multiprocessing(method: str, output: Path) -> None:
    """Made in one trajectory, used in another."""
    context: Any = multiprocessing.get_context(method)
    address = os.environ["MODEL_ADDRESS"]
    submitted = []
    with rt.instrument(), rt.recording(output):
        with rt.trajectory("maker"):
            pool = context.Pool(1)
        with pool, rt.trajectory("user") as user:
            pool.apply(agents.ask, (1, address))
            pool.starmap(agents.ask, [(2, address), (3, address)], chunksize=2)
            # The callback runs in a thread of the pool.
            result = pool.apply_async(int, (), {}, lambda _: submitted.append(rt.current()))
            result.get()
            pool.close()
            pool.join()
    assert submitted == [user]
    found = family(output)
    assert [is_child(found[key], user, None) for key in ((1,), (2,), (3,))] == [True] * 3


@pytest.mark.more
def test_loky(output: Path) -> None:
    """joblib's processes, which it keeps for the next use."""
    joblib = pytest.importorskip("joblib")
    address = os.environ["MODEL_ADDRESS"]
    parents = []
    with rt.instrument(), rt.recording(output):
        for turn in range(2):
            with rt.trajectory() as trajectory:
                calls = (joblib.delayed(agents.ask)(10 * turn + number, address) for number in range(6))
                joblib.Parallel(2, pre_dispatch=2, batch_size=1)(calls)
            parents.append(trajectory)
        # They write their last trajectories at their end.
        joblib.externals.loky.get_reusable_executor().shutdown(wait=True)
    children = [one for one in rt.read(output) if one.parent_id is not None]
    assert sorted(seed for one in children for seed in seeds(one)) == [*range(6), *range(10, 16)]
    assert [is_child(one, parents[seeds(one)[0] // 10], None) for one in children] == [True] * len(children)


def test_a_clean_environment_stays_clean(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the caller gives is neither written to nor added to, unless it is a copy of this process's own."""
    for name in [name for name in os.environ if "ROLLOUT" in name]:
        # Such as ROLLOUT_TRACE_AGENTS, by which CI says how many agents it tests.
        monkeypatch.delenv(name)
    show = [sys.executable, "-c", "import os; print(sorted(name for name in os.environ if 'ROLLOUT' in name))"]
    given = {"PATH": os.environ["PATH"]}
    copied = dict(os.environ)
    with rt.instrument(), rt.recording(output), rt.trajectory():
        assert subprocess.check_output(show, env=given) == b"[]\n"
        assert subprocess.check_output(show, env={}) == b"[]\n"
        # It was made before.
        assert subprocess.check_output(show, env=copied) == b"[]\n"
        copied = dict(os.environ)
        before = dict(copied)
        assert b"ROLLOUT_TRACE_PARENT" in subprocess.check_output(show, env=copied)
    assert (given, copied) == ({"PATH": os.environ["PATH"]}, before)


def test_nothing_is_handed_on_where_nothing_records(output: Path) -> None:
    """Neither without a recording, nor when it has ended, nor after `undo`; the environment is what it was."""
    show = [sys.executable, "-c", "import os; print('ROLLOUT_TRACE_OUTPUT' in os.environ)"]
    before = dict(os.environ)
    assert rt.child_environment() == {}
    with rt.instrument() as handle:
        assert subprocess.check_output(show) == b"False\n"
        with rt.recording(output):
            assert subprocess.check_output(show) == b"True\n"
            handle.undo()
            assert subprocess.check_output(show) == b"False\n"
            # It needs no instrumented process.
            assert rt.child_environment()["ROLLOUT_TRACE_OUTPUT"] == str(output)
        assert rt.child_environment() == {}
    assert dict(os.environ) == before


def test_the_variables(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the trajectory and the recording that are current where they are asked for."""
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    boot = str(Path(rt.__file__).parent / "process" / "boot")
    with rt.instrument(engine="vllm"), rt.recording(output), rt.trajectory() as trajectory:
        found = rt.child_environment()
        assert found["PYTHONPATH"] == os.pathsep.join([boot, "/elsewhere"])
        assert found["ROLLOUT_TRACE_PARENT"] == f"{trajectory.id}:{trajectory.id}"
        assert found["ROLLOUT_TRACE_ENGINE"] == "vllm"
        assert len(bytes.fromhex(found["ROLLOUT_TRACE_RUN"])) == 16
        agents.ask(1)
        with rt.trajectory() as inner:
            agents.ask(2)
            parent = f"{trajectory.id}:{inner.id}:{inner.steps[0].id}"
            assert rt.child_environment()["ROLLOUT_TRACE_PARENT"] == parent
        with rt.recording(output.with_name("other.jsonl")), rt.trajectory():
            assert rt.child_environment()["ROLLOUT_TRACE_OUTPUT"] == str(output.with_name("other.jsonl"))
        elsewhere = rt.child_environment(output="/mnt/out.jsonl", boot="/opt/boot")
    assert (elsewhere["ROLLOUT_TRACE_OUTPUT"], elsewhere["PYTHONPATH"]) == ("/mnt/out.jsonl", "/opt/boot")
    assert set(rt.child_environment(output="x.jsonl")) == {"PYTHONPATH", "ROLLOUT_TRACE_OUTPUT", "ROLLOUT_TRACE_RUN"}


@pytest.mark.parametrize(
    ("options", "error", "problem"),
    [
        ({"output": ""}, ValueError, "expected the path of a file, such as"),
        ({"output": 3}, TypeError, "expected the path of a file, such as"),
        ({"output": "out.txt"}, ValueError, "'.txt' is not a format for trajectories"),
        ({"boot": ""}, ValueError, "boot='': expected the path of the folder"),
        ({"boot": 3}, TypeError, "boot=3: expected the path of the folder"),
    ],
)
def test_bad_paths_are_refused(options: dict[str, Any], error: type[Exception], problem: str) -> None:
    """Here, not in a child that could not write, in silence."""
    with pytest.raises(error, match=problem):
        rt.child_environment(**options)


class Kept:
    def write(self, trajectory: rt.Trajectory) -> None:
        pass


def test_the_program_may_change_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "inside").mkdir()
    monkeypatch.chdir(tmp_path)
    with rt.recording("rollouts.jsonl"):
        monkeypatch.chdir("inside")
        assert rt.child_environment()["ROLLOUT_TRACE_OUTPUT"] == str(tmp_path / "rollouts.jsonl")
    assert not os.listdir()


def test_a_recording_that_cannot_be_handed_on(output: Path) -> None:
    """To a writer, or with rules of redaction: refused where it is asked for; processes start as they would."""
    refused = [(Kept(), {}, "does not write to a file"), (output, {"redact": "secret"}, "redact=")]
    for target, settings, problem in refused:
        with rt.instrument(), rt.recording(target, **settings), rt.trajectory():  # type: ignore[arg-type]
            with pytest.raises(RuntimeError, match=problem):
                rt.child_environment()
            assert subprocess.run([sys.executable, "-c", ""]).returncode == 0
            assert rt.child_environment(output="other.jsonl")["ROLLOUT_TRACE_OUTPUT"] == os.path.abspath("other.jsonl")


def test_a_parent_that_is_none(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """One warning; the trajectory is a root."""
    for text in ("garbage", "a:", ":b"):
        monkeypatch.setenv("ROLLOUT_TRACE_PARENT", text)
        with rt.trajectory() as trajectory:
            assert trajectory.parent_id is None
    assert [record.getMessage() for record in caplog.records] == [
        "ROLLOUT_TRACE_PARENT='garbage' names no trajectory: trajectories of this process begin new episodes. "
        "Expected EPISODE_ID:TRAJECTORY_ID or EPISODE_ID:TRAJECTORY_ID:STEP_ID, as rt.child_environment() gives it."
    ]


def test_another_interpreter(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python without rollout_trace runs as it would, in silence."""
    monkeypatch.delenv("PYTHONPATH")
    run = "import sys; print('rollout_trace' in sys.modules, sys.argv)"
    with rt.instrument(), rt.recording(output), rt.trajectory():
        done = subprocess.run([sys.executable, "-S", "-c", run, "x"], capture_output=True, text=True)
        isolated = subprocess.run([sys.executable, "-I", "-c", run], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "False ['-c', 'x']\n", "")
    assert (isolated.returncode, isolated.stdout, isolated.stderr) == (0, "False ['-c']\n", "")


def failures() -> list[str]:
    """The tracebacks of processes that cannot be started, and of tasks that fail."""
    found = []
    calls: list[Callable[[], object]] = [
        lambda: subprocess.run(["/does/not/exist"]),
        lambda: multiprocessing.get_context("spawn").Process(target=lambda: None).start(),
        lambda: subprocess.Popen([sys.executable], bufsize="no"),  # type: ignore[call-overload]
    ]
    for call in calls:
        with pytest.raises(Exception, match=r".") as caught:
            call()
        found.append("".join(traceback.format_exception(caught.value)))
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as executor:
        found.append("".join(traceback.format_exception(executor.submit(divmod, 1, 0).exception())))
    return found


@pytest.mark.skipif(sys.version_info < (3, 11), reason="`raise` puts our frame back there")
def test_tracebacks_are_the_programs(output: Path) -> None:
    """Line by line what they are without us."""
    bare = failures()
    with rt.instrument(), rt.recording(output), rt.trajectory():
        found = failures()
    hide = re.compile("0x[0-9a-f]+")
    assert [hide.sub("", one) for one in found] == [hide.sub("", one) for one in bare]


def test_all_is_put_back() -> None:
    """Classes and the environment are as they were."""
    classes = (subprocess.Popen, multiprocessing.process.BaseProcess, multiprocessing.pool.Pool, ProcessPoolExecutor)
    before = [dict(vars(one)) for one in classes]
    environment = dict(os.environ)
    for _ in range(50):
        rt.instrument().undo()
    assert [dict(vars(one)) for one in classes] == before
    assert dict(os.environ) == environment
