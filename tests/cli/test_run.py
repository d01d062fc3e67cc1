"""``rollout-trace run``: its options, and what it refuses before the program starts."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import click
import pytest

from rollout_trace.cli.about import run
from rollout_trace.cli.launch import FLAGS, OPTIONS, Refusal, check_output, parse

from .command import fresh_command as command

STARTED = "import pathlib; pathlib.Path('started').touch()"


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (["nothing.py"], "there is no program nothing.py."),
        (["./nothing"], "there is no program ./nothing."),
        (["no-such-command"], "there is no program no-such-command on PATH."),
        (["data"], "there is no program data on PATH; the file of this name here is ./data"),
        (["./data"], "./data is not executable; if it is a Python script, run: python ./data"),
        (["./folder"], "./folder is not a program: a folder needs a __main__.py."),
        (["-m", "no_such_module"], f"this Python ({sys.executable}) has no module no_such_module that can be run"),
        (["-m", "email"], "has no module email that can be run with -m."),
        (["-m", "json.nothing"], "has no module json.nothing that can be run with -m."),
        (["-m"], "-m needs a module."),
        (["-c"], "-c needs a program text."),
        (["-o", "folder", "agent.py"], "the output folder is a folder; give the path of a file in it."),
        (["-o", "data/x.jsonl", "agent.py"], "the output data/x.jsonl cannot be written: Not a directory."),
        (["-o", "/proc/x.jsonl", "agent.py"], "the output /proc/x.jsonl cannot be written: "),
        (["-o", "pipe", "agent.py"], "the output pipe is a pipe; give the path of a file."),
        (["-o", "x.parquet", "agent.py"], "x.parquet: '.parquet' is not a format for trajectories"),
        (["-o", "", "agent.py"], "the output needs the path of a file, such as -o rollouts.jsonl"),
        (["-o"], "-o needs a value."),
        (["--engine", "vlm", "agent.py"], "there is no engine 'vlm'; there are vllm, sglang, "),
        (["--exact-turns", "agent.py"], "--exact-turns needs the engine that takes the ids: --engine vllm"),
        (
            ["--engine", "openai", "--exact-turns", "agent.py"],
            "exact_turns=True): it is not known whether this engine takes ids",
        ),
        (["--reward-from", "folder", "agent.py"], "--reward-from needs the path of a file that the program writes"),
        (["--reward-from=", "agent.py"], "--reward-from needs the path of a file that the program writes"),
        (["--rewards", "agent.py"], "there is no option --rewards; options of the program come after the program."),
        (["-q"], "name the program to run. For example: rollout-trace run -o rollouts.jsonl agent.py"),
        (["--"], "name the program to run. For example: rollout-trace run -o rollouts.jsonl agent.py"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_mistakes_are_one_sentence_before_the_program_starts(args: list[str], problem: str, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(STARTED)
    (tmp_path / "data").write_text("")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    before = sorted(os.listdir(tmp_path))
    done = command(tmp_path, "run", *args)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("Error: ")
    assert problem in done.err
    assert done.err.count("\n") == 1
    assert sorted(os.listdir(tmp_path)) == before


def test_a_program_that_cannot_be_executed(tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("#!/no/such/interpreter\n")
    (tmp_path / "tool").chmod(stat.S_IRWXU)
    done = command(tmp_path, "run", "./tool")
    assert (done.code, done.err) == (2, "Error: ./tool cannot be executed: No such file or directory.\n")


def test_no_program_at_all(tmp_path: Path) -> None:
    done = command(tmp_path, "run")
    assert done.code == 2
    assert "Error: name the program to run." in done.err


@pytest.mark.parametrize(
    ("args", "program", "values"),
    [
        (["a.py", "-q", "-o", "x"], ["a.py", "-q", "-o", "x"], {}),
        (["-o", "x", "-q", "--", "-m", "a"], ["-m", "a"], {"output": "x", "quiet": True}),
        (["-ox", "--engine=vllm", "-m", "a", "--"], ["-m", "a", "--"], {"output": "x", "engine": "vllm"}),
        (["--name", "n", "--task", "t", "--reward-from", "r", "-c", "p"], ["-c", "p"],
         {"name": "n", "task": "t", "reward_from": "r"}),
        (["--cli", "codex", "npx", "a"], ["npx", "a"], {"cli": "codex"}),
        (["--", "--", "a"], ["--", "a"], {}),
        (["-", "a"], ["-", "a"], {}),
        (["--output=-o", "a"], ["a"], {"output": "-o"}),
    ],
)  # fmt: skip
def test_options_end_at_the_program(args: list[str], program: list[str], values: dict[str, object]) -> None:
    given = parse(args)
    assert given.program == program
    defaults = {"output": "rollouts.jsonl", "engine": None, "name": None, "task": None, "reward_from": None}
    flags = {"quiet": False, "exact_turns": False, "cli": None, "fork": None}
    assert {**vars(given)} == {**defaults, **flags, "program": program, **values}


def test_help_lists_the_options_that_are_read() -> None:
    listed = {name for option in run.params if isinstance(option, click.Option) for name in option.opts}
    assert listed == {*OPTIONS, *FLAGS}


def test_the_output_is_checked_without_a_trace(tmp_path: Path) -> None:
    (tmp_path / "old.jsonl").write_text("{}\n")
    for name in ("new.jsonl", "old.jsonl", "folder/deep/new.jsonl.gz"):
        assert check_output(str(tmp_path / name)) == str(tmp_path / name)
    assert os.listdir(tmp_path) == ["old.jsonl"]
    assert (tmp_path / "old.jsonl").read_text() == "{}\n"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_output_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(Refusal, match="Permission denied"):
        check_output(str(tmp_path / "x.jsonl"))


def test_it_needs_neither_click_nor_the_recorder(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("print('ran')")
    for module in ("click", "typing", "rollout_trace.record"):
        done = command(tmp_path, "run", "-q", "agent.py", without=module)
        assert (done.code, done.out, done.err) == (0, "ran\n", "")
