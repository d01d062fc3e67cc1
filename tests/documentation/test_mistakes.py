"""Sixty mistakes of somebody who begins: each is answered by a line that says what to do."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

import rollout_trace as rt
from rollout_trace import export
from rollout_trace.cli.app import run
from rollout_trace.record import unsaved
from rollout_trace.testing import ScriptedServer

Mistake = Callable[["Beginner"], object]
MISTAKES: dict[str, tuple[Mistake, str]] = {}


class Beginner:
    """Somebody with a server, in a folder with two scored rollouts with ids, one without, and other files."""

    def __init__(self, server: ScriptedServer) -> None:
        self.server = server

    def client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.server.base_url, api_key="-", max_retries=0, **options)

    def wrapped(self) -> openai.OpenAI:
        return rt.wrap_openai(self.client(), engine="vllm")

    def ask(self, client: Any = None, **options: Any) -> None:
        client = client or self.wrapped()
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], **options)

    def make_files(self) -> None:
        client = self.wrapped()
        with rt.recording("ok.jsonl"):
            for index in range(2):
                with rt.trajectory(task="t", group="t", rollout_index=index) as trajectory:
                    self.ask(client)
                    trajectory.reward = float(index)
        with rt.recording("plain.jsonl"), rt.trajectory():
            self.ask(rt.wrap_openai(self.client()))
        Path("other.jsonl").write_text('{"text": "no trajectory"}\n')
        Path("empty.jsonl").touch()
        Path("rollouts").mkdir()


def mistake(line: str) -> Callable[[Mistake], Mistake]:
    """Adds a mistake. ``line``: what is to be found in the log, in the exception, or in what is printed."""

    def add(function: Mistake) -> Mistake:
        MISTAKES[function.__name__] = (function, line)
        return function

    return add


def command(line: str, *arguments: str) -> None:
    """Adds a mistake on the command line."""
    name = " ".join(arguments).replace("'", "")
    MISTAKES[name] = (lambda beginner: run(arguments), line)


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(lambda request: "ok") as server:
        yield server


@pytest.fixture(scope="module")
def folder(server: ScriptedServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("beginner")
    before = os.getcwd()
    os.chdir(folder)
    try:
        Beginner(server).make_files()
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def beginner(server: ScriptedServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Beginner:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "500")
    unsaved.reset()
    return Beginner(server)


# Recording


@mistake(r"1 trajectory was recorded and not written: .* Put the runs inside `with rt\.recording\(")
def recording_forgotten(beginner: Beginner) -> None:
    with rt.trajectory() as trajectory:
        beginner.ask()
        trajectory.reward = 1.0
    unsaved.tell()


@mistake("1 trajectory was recorded and not written: .* no steps were read after it had closed")
def recording_forgotten_and_scored_after_the_block(beginner: Beginner) -> None:
    with rt.trajectory() as trajectory:
        beginner.ask()
    trajectory.reward = 1.0
    unsaved.tell()


@mistake(r"Put the runs inside `with rt\.recording\(")
def recording_made_and_not_entered(beginner: Beginner) -> None:
    rt.recording("unused.jsonl")
    with rt.trajectory():
        beginner.ask()
    unsaved.tell()


@mistake(r"wrapped again without an engine: .* give it the engine too")
def wrapped_again_without_engine(beginner: Beginner) -> None:
    rt.wrap_openai(beginner.wrapped())


@mistake(r'hold no token ids, because .*name its engine, such as rt\.wrap_openai\(client, engine="vllm"\)')
def engine_not_named(beginner: Beginner) -> None:
    with rt.recording("a.jsonl"), rt.trajectory():
        beginner.ask(rt.wrap_openai(beginner.client()))


@mistake(r"no model call was recorded in it\. .*wrap the client that the agent calls")
def client_not_wrapped(beginner: Beginner) -> None:
    with rt.trajectory() as trajectory:
        beginner.ask(beginner.client())
        trajectory.reward = 1.0


@mistake(r"made outside every open trajectory\. .*Wrap the run in `with rt\.trajectory\(\):`")
def call_outside_a_trajectory(beginner: Beginner) -> None:
    beginner.ask()


@mistake(r"in the thread .* rt\.instrument\(threads=True\)")
def call_in_a_thread(beginner: Beginner) -> None:
    with rt.recording("a.jsonl"), rt.trajectory():
        thread = threading.Thread(target=beginner.ask)
        thread.start()
        thread.join()


@mistake(r"which is not a trajectory yet\. Set it inside the block")
def trajectory_not_entered(beginner: Beginner) -> None:
    trajectory: Any = rt.trajectory()
    trajectory.reward = 1.0


@mistake(r"Set it inside the `with rt\.trajectory\(\)` block, or add it with rt\.annotate")
def reward_after_the_block(beginner: Beginner) -> None:
    with rt.recording("a.jsonl"):
        with rt.trajectory() as trajectory:
            beginner.ask()
        trajectory.reward = 1.0


@mistake(r"is 'good' \(str\); give one finite number")
def reward_is_text(beginner: Beginner) -> None:
    rt.Trajectory().reward = "good"  # type: ignore[assignment]


@mistake("is nan; give a finite number, or None")
def reward_is_nan(beginner: Beginner) -> None:
    rt.Trajectory().reward = math.nan


@mistake(r"Call it inside the `with rt\.trajectory\(\)` block")
def reward_outside(beginner: Beginner) -> None:
    rt.reward(1.0)


@mistake(r"rollots did not exist and was created; rollouts is beside it: is the path right\?")
def folder_is_a_typing_error(beginner: Beginner) -> None:
    with rt.recording("rollots/a.jsonl"):
        pass


@mistake(r"give a name that ends with \.jsonl")
def recording_to_csv(beginner: Beginner) -> None:
    rt.recording("a.csv").__enter__()


@mistake(r"an open file\); give the path of a file")
def recording_to_an_open_file(beginner: Beginner) -> None:
    with open(os.devnull, "w") as file:
        rt.recording(file)  # type: ignore[arg-type]


@mistake(r"needs a client object of the openai SDK, such as OpenAI\(\)")
def wrap_a_class(beginner: Beginner) -> None:
    rt.wrap_openai(openai.OpenAI)


@mistake("Did you mean vllm")
def engine_misspelt(beginner: Beginner) -> None:
    rt.wrap_openai(beginner.client(), engine="vLLM")  # type: ignore[arg-type]


@mistake(r"pass what `with rt\.trajectory\(\)` gives")
def bind_to_an_id(beginner: Beginner) -> None:
    rt.bind(beginner.client(), "t1")  # type: ignore[arg-type]


@mistake(r"takes only client by position\. Give the rest by name, such as engine='vllm'")
def engine_by_position(beginner: Beginner) -> None:
    rt.wrap_openai(beginner.client(), "vllm")  # type: ignore[call-arg]


@mistake(r"rt\.instrument\(\) takes nothing by position\. Give the rest by name, such as engine='vllm'")
def engine_of_the_process_by_position(beginner: Beginner) -> None:
    rt.instrument("vllm")  # type: ignore[call-arg]


@mistake(r"rt\.wrap_anthropic\(\) has no argument 'engine'\. There are client, keep_bytes, max_call_bytes")
def engine_of_an_api_without_ids(beginner: Beginner) -> None:
    rt.wrap_anthropic(beginner.client(), engine="vllm")  # type: ignore[call-arg]


@mistake("It names the program that serves the model, not its address")
def address_as_engine(beginner: Beginner) -> None:
    rt.wrap_openai(beginner.client(), engine=beginner.server.base_url)  # type: ignore[arg-type]


@mistake(r"rt\.wrap_openai\(\) has no argument 'engin'\. Did you mean engine\?")
def argument_misspelt(beginner: Beginner) -> None:
    rt.wrap_openai(beginner.client(), engin="vllm")  # type: ignore[call-arg]


@mistake(r"takes only name by position\. Give the rest by name, such as task='sum/1'")
def task_by_position(beginner: Beginner) -> None:
    rt.trajectory("agent", "sum/1")  # type: ignore[call-overload]


@mistake(r"takes only value by position\. Give the rest by name, such as name='style'")
def name_of_a_reward_by_position(beginner: Beginner) -> None:
    with rt.trajectory():
        rt.reward(1.0, "style")  # type: ignore[call-arg]


@mistake(r'needs the argument target, as in `with rt\.recording\("rollouts\.jsonl"\):`')
def recording_to_nowhere(beginner: Beginner) -> None:
    rt.recording()  # type: ignore[call-arg]


@mistake(r"rt\.trajectory is not called here\. Write `with rt\.trajectory\(\) as trajectory:`")
def trajectory_not_called(beginner: Beginner) -> None:
    block: Any = rt.trajectory
    with block:
        pass


@mistake(r"rt\.trajectory is not called here\. Write `with rt\.trajectory\(\) as trajectory:`")
def trajectory_not_called_in_a_coroutine(beginner: Beginner) -> None:
    async def solve(block: Any) -> None:
        async with block:
            pass

    asyncio.run(solve(rt.trajectory))


@mistake(r'rt\.recording is not called here\. Write `with rt\.recording\("rollouts\.jsonl"\):`')
def recording_not_called(beginner: Beginner) -> None:
    block: Any = rt.recording
    with block:
        pass


@mistake(r"rt\.instrument is not called here\. Write `with rt\.instrument\(\):`")
def instrument_not_called(beginner: Beginner) -> None:
    block: Any = rt.instrument
    with block:
        pass


@mistake(r"it is not a trajectory yet\. The block gives one: `with rt\.trajectory")
def trajectory_read_and_not_entered(beginner: Beginner) -> None:
    trajectory: Any = rt.trajectory()
    trajectory.sequences()


@mistake(r"rt\.trajectory\.reward cannot be set: .* Set it on the block's variable")
def reward_of_the_function(beginner: Beginner) -> None:
    with rt.trajectory():
        rt.trajectory.reward = 1.0  # type: ignore[attr-defined]


@mistake(r"takes the tool's name, a text, as its first argument\. .*where the tool is called")
def tool_run_as_a_decorator(beginner: Beginner) -> None:
    def search(text: str) -> str:
        return text

    decorator: Any = rt.tool_run
    decorator(search)("eggs")


# Reading and exporting


@mistake(r"there is no file rollout\.jsonl")
def read_a_name_that_is_wrong(beginner: Beginner) -> None:
    rt.read("rollout.jsonl")


@mistake(r"none ends with \.jsonl")
def read_an_empty_folder(beginner: Beginner) -> None:
    Path("nothing").mkdir(exist_ok=True)
    rt.read("nothing")


@mistake(r"other\.jsonl is not a rollout file: .*rollout-trace import --list")
def read_another_file(beginner: Beginner) -> None:
    list(rt.read("other.jsonl"))


@mistake(r"got a line of one: .* Give the path itself")
def read_a_line(beginner: Beginner) -> None:
    rt.read(Path("ok.jsonl").read_text())


@mistake(r"one at a time: .*list\(rt\.read\(path\)\)")
def read_and_index(beginner: Beginner) -> None:
    files: Any = rt.read("ok.jsonl")
    files[0]


@mistake(r"no 'sequences' here: .*`for trajectory in rt\.read\(path\)`")
def read_and_use_as_one(beginner: Beginner) -> None:
    files: Any = rt.read("ok.jsonl")
    files.sequences()


@mistake(r"has no rows to train on: .*engine is named when recording")
def rows_of_a_file_without_ids(beginner: Beginner) -> None:
    assert not next(rt.read("plain.jsonl")).sequences()


@mistake(r"has no rows to train on: .* What was called sends none; trajectory\.retokenize")
def rows_of_a_protocol_without_ids(beginner: Beginner) -> None:
    step = rt.Step(id="s", call_id="c", index=0, protocol="anthropic.messages")
    assert not rt.Trajectory(steps=[step]).sequences()


@mistake(r"is still open\. Write it after")
def written_before_its_end(beginner: Beginner) -> None:
    with rt.trajectory() as trajectory:
        trajectory.to_json()


@mistake(r"give what rt\.read\('ok\.jsonl'\) yields")
def export_of_a_path(beginner: Beginner) -> None:
    export.trl("ok.jsonl")  # type: ignore[arg-type]


@mistake(r"makes rows and writes no file\. Write `export\.write\('sft\.jsonl', export\.trl\(trajectories\)\)`")
def export_to_a_path(beginner: Beginner) -> None:
    export.trl(rt.read("ok.jsonl"), "sft.jsonl")  # type: ignore[arg-type, call-arg]


@mistake(r"there is no file none\.jsonl: give the path of the file with the trajectory")
def annotate_without_the_file(beginner: Beginner) -> None:
    rt.annotate("none.jsonl", "t1", reward=1.0)


# Collecting


@mistake(r"takes only agent and tasks by position\. Give the rest by name, such as output='c\.jsonl'")
def output_by_position(beginner: Beginner) -> None:
    rt.collect(lambda task: 1.0, ["a"], "c.jsonl")  # type: ignore[call-arg]


@mistake("takes no positional argument\\. It is called with a task: write `def agent")
def agent_without_a_task(beginner: Beginner) -> None:
    rt.collect(lambda: 1.0, ["a"], output="c.jsonl", progress=False)


@mistake(r"there is no file of tasks tasks\.jsonl")
def tasks_that_are_not_there(beginner: Beginner) -> None:
    rt.collect(lambda task: 1.0, "tasks.jsonl", output="c.jsonl", progress=False)


command("give the tasks with --tasks tasks.jsonl", "collect", "agent:solve", "tasks.jsonl", "-o", "c.jsonl")

# The command line

command("Did you mean show", "shwo", "ok.jsonl")
command(r"there is no trajectory 99 in ok\.jsonl\. rollout-trace ls", "show", "ok.jsonl", "99")
command("did you mean ==", "ls", "ok.jsonl", "--where", "reward = 1")
command("write and, or, not instead of &&", "ls", "ok.jsonl", "--where", "reward > 0 && steps")
command(r"did you mean == \?; write and", "ls", "ok.jsonl", "--where", "reward = 1 || 'a'")
command("did you mean == \\?$", "ls", "ok.jsonl", "--where", "task.id = 'a && b!'")
command("Did you mean reward", "ls", "ok.jsonl", "--where", "rewrd > 0")
command("give the expression before the files", "filter", "ok.jsonl", "reward > 0")
command("there is no format 'trll'\\. Formats: ", "convert", "ok.jsonl", "--to", "trll", "-o", "x.jsonl")
command("-o OUT is missing", "convert", "ok.jsonl", "--to", "trl")
command("Name the engine when you record", "convert", "plain.jsonl", "--to", "trl", "-o", "none.jsonl", "--overwrite")
command(
    "Anthropic's and Google's APIs send none", "convert", "plain.jsonl", "--to", "trl", "-o", "n.jsonl", "--overwrite"
)
command("Runs of one task are a group", "convert", "plain.jsonl", "--to", "trl_dpo", "-o", "d.jsonl", "--overwrite")
command("Give a new name, or --overwrite", "convert", "ok.jsonl", "--to", "trl", "-o", "plain.jsonl")
command("one of the files to merge: give a new name", "merge", "ok.jsonl", "plain.jsonl", "-o", "ok.jsonl")
command("rollout-trace ls .*ok.jsonl lists them", "annotate", "ok.jsonl", "nope", "--reward", "1")
command("Did you mean truncated", "check", "ok.jsonl", "--code", "trunkated")
command("this used --profile observe\\. --profile train lists what training lacks", "check", "plain.jsonl")
command("there is no file script.py: give a script", "serve", "script.py")


@pytest.mark.parametrize("name", MISTAKES)
def test_a_line_says_what_to_do(
    name: str,
    beginner: Beginner,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make, line = MISTAKES[name]
    raised = ""
    # Under pytest a failure of the recorder is raised, and what goes to no file is not noted.
    for variable in ("PYTEST_CURRENT_TEST", "PYTEST_VERSION"):
        monkeypatch.delenv(variable, raising=False)
    with caplog.at_level(logging.WARNING, logger="rollout_trace"):
        try:
            make(beginner)
        except (Exception, SystemExit) as error:
            raised = str(error)
    printed = capsys.readouterr()
    said = "\n".join([raised, *caplog.messages, printed.out, printed.err])
    assert re.search(line, said), said


def test_there_are_sixty() -> None:
    assert len(MISTAKES) >= 60
