"""``rollout-trace ls``, ``stats`` and ``check``, run as a shell runs them."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace.data.episodes import FIELD
from rollout_trace.data.model import Step
from rollout_trace.guard import printable
from rollout_trace.view.model import Summary
from tests.amount import some

from .command import command

HOSTILE = "\x1b[31m‮evil\x07\n数"


def step(number: int, **facts: Any) -> Step:
    whole: dict[str, Any] = {
        "id": f"s{number}", "call_id": f"c{number}", "index": number, "token_source": "engine", "model": "m",
        "prompt_token_ids": [1, 2], "completion_token_ids": [3, 4, 5], "logprobs": [-1.0, -0.5, -0.25], "latency": 0.5,
    }  # fmt: skip
    return Step(**{**whole, **facts})


CONTINUED = step(1, prompt_token_ids=[1, 2, 3, 4, 5, 6])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with rt.JSONLWriter(tmp_path / "1.jsonl") as out:
        out.write(
            rt.Trajectory(id="a" * 24, task=rt.Task(id="t1"), group_id="g", reward=1.0, steps=[step(0), CONTINUED])
        )
        out.write(rt.Trajectory(id="b" * 24, task=rt.Task(id="t2"), group_id="g", status="failed", steps=[step(0)]))
    with rt.JSONLWriter(tmp_path / "2.jsonl.gz") as out:
        out.write(rt.Trajectory(id="c", name=HOSTILE, reward=0.25, steps=[step(0, completion_token_ids=None)]))
    rt.annotate(tmp_path / "1.jsonl", "b" * 24, reward=0.0)
    return tmp_path


def on_a_terminal(folder: Path, *args: str, columns: int = 80, **environment: str) -> str:
    """What the command prints to a terminal of this width, then what to stderr, which is none.

    On a terminal stderr would have a bar after a second.
    """
    parent, child = pty.openpty()
    variables = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm-256color", "PYTHONUTF8": "1", **environment}
    program = [sys.executable, "-W", "error", "-m", "rollout_trace", *args]
    errors = TemporaryFile()  # noqa: SIM115
    process = subprocess.Popen(program, cwd=folder, stdout=child, stderr=errors, stdin=child, env=variables)
    os.close(child)
    parts = []
    while True:
        try:
            part = os.read(parent, 65536)
        except OSError:  # The end, on Linux.
            break
        if not part:
            break
        parts.append(part)
    os.close(parent)
    process.wait()
    with errors:
        errors.seek(0)
        return b"".join(parts).decode().replace("\r\n", "\n") + errors.read().decode()


# ls


def test_ls_lists_every_line_with_its_notes(folder: Path) -> None:
    done = command(folder, "ls", ".", "--columns", "id,task,status,reward,steps")
    assert (done.code, done.err) == (0, "")
    assert [line.split("\t") for line in done.out.splitlines()] == [
        ["id", "task", "status", "reward", "steps"],
        ["a" * 24, "t1", "completed", "1.0", "2"],
        ["b" * 24, "t2", "failed", "0.0", "1"],
        ["c", "", "completed", "0.25", "1"],
    ]


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        (["--sort", "reward"], "bca"), (["--sort", "reward", "--reverse"], "acb"), (["-n", "1"], "a"),
        (["--reverse"], "cba"), (["--where", "reward < 0.5"], "bc"), (["--sort", "task"], "abc"),
        (["--sort", "task", "--reverse", "-n", "2"], "ba"), (["--sort", "findings", "-n", "1", "--reverse"], "c"),
        (["-n", "0"], ""),
    ],
)  # fmt: skip
def test_ls_sorts_and_filters(options: list[str], ids: str, folder: Path) -> None:
    done = command(folder, "ls", ".", "--json", *options)
    assert (done.code, done.err) == (0, "")
    assert "".join(json.loads(line)["id"][0] for line in done.out.splitlines()) == ids


@pytest.mark.parametrize("option", ["--sort", "--columns"])
def test_a_column_that_there_is_not(option: str, folder: Path) -> None:
    done = command(folder, "ls", "missing.jsonl", option, "rewrad")
    assert done.code == 2
    assert "there is no column 'rewrad'. Did you mean reward?" in done.err


def test_values_are_whole_in_a_pipe_and_mappings_stay_json(tmp_path: Path) -> None:
    metrics, note = {"\ud83d \x9b\u202e \u6f22": 1.0}, "word " * 1000
    with rt.JSONLWriter(tmp_path / "a.jsonl") as out:
        out.write(rt.Trajectory(id="a", metrics=metrics, metadata={"note": note}))
    done = command(tmp_path, "ls", "a.jsonl", "--columns", "metrics,note")
    assert (done.code, done.err) == (0, "")
    shown = done.out.splitlines()[1].split("\t")
    assert (json.loads(shown[0]), shown[1]) == (metrics, note.strip())
    assert done.out.replace("\t", "").replace("\n", "").isprintable()


def test_notes_among_the_files_of_a_shells_pattern_are_left_out(folder: Path) -> None:
    rt.annotate(folder / "1.jsonl", "a" * 24, reward=1)
    given = ["1.jsonl", "1.notes.jsonl", "2.jsonl.gz"]
    for name in ("ls", "stats", "ls --last", "check --format"):
        done = command(folder, *name.split(), *given)
        assert "only files of notes" not in done.err
    done = command(folder, "ls", *given, "--columns", "id", "-n", "1")
    assert done.out == f"id\n{'a' * 24}\n"


def test_columns_have_the_names_of_filter_and_query_too(folder: Path) -> None:
    done = command(folder, "ls", ".", "--columns", "id,task_id,n_steps", "--sort", "n_steps", "--reverse", "-n", "1")
    assert (done.code, done.out) == (0, f"id\ttask\tsteps\n{'a' * 24}\tt1\t2\n")


def test_the_fields_of_filter_that_a_column_has_are_taken(folder: Path) -> None:
    from rollout_trace.view.listing import FIELDS, SAME

    assert set(SAME.values()) <= set(FIELDS)
    assert not set(SAME) & set(FIELDS)


@pytest.mark.parametrize(("options", "first"), [([], "a"), (["--last"], "c")])
def test_a_number_alone_is_that_of_lines(options: list[str], first: str, folder: Path) -> None:
    done = command(folder, "ls", "-1", ".", *options, "--columns", "id")
    assert (done.code, done.err) == (0, "")
    assert [line[0] for line in done.out.splitlines()] == ["i", first]


@pytest.mark.parametrize("name", ["check", "mismatch"])
def test_long_lines_break_between_words_on_a_terminal_alone(name: str, folder: Path) -> None:
    whole = command(folder, name, "1.jsonl", "2.jsonl.gz").out
    shown = on_a_terminal(folder, name, "1.jsonl", "2.jsonl.gz", columns=60)
    assert shown.split() == whole.split()
    assert max(map(len, whole.splitlines())) > 60 >= max(map(len, shown.splitlines()))


@pytest.mark.parametrize("columns", some([30, 80, 120, 200], 30, 120))
def test_a_list_fits_the_terminal(columns: int, folder: Path) -> None:
    lines = on_a_terminal(folder, "ls", ".", columns=columns).splitlines()
    assert len(lines) == 4
    assert max(map(len, lines)) <= columns
    assert lines[0].startswith("id ")
    assert lines[1].startswith("aaaaaaaa  ")
    if columns >= 80:
        assert "!ids_missing" in lines[3]
        assert lines[2].split()[3:5] == ["failed", "0"]
    if columns == 200:
        assert printable(HOSTILE.replace("\n", " ")).split()[0] in lines[3]


def test_all_fields_are_columns(folder: Path) -> None:
    done = command(folder, "ls", "1.jsonl", "--columns", "all")
    assert done.out.splitlines()[0].split("\t") == list(Summary.__struct_fields__)
    assert {len(line.split("\t")) for line in done.out.splitlines()} == {len(Summary.__struct_fields__)}


LISTS = [["ls", "."], ["ls", ".", "--json"], ["ls", ".", "-n", "1"], ["stats", ".", "--by", "name"],
         ["stats", ".", "--by", "name", "--json"], ["check", "."], ["check", ".", "--all"], ["ls", ".", "--last"],
         ["check", ".", "--json"]]  # fmt: skip


@pytest.mark.parametrize("args", some(LISTS, LISTS[0], LISTS[3], LISTS[-1]))
def test_hostile_text_is_escaped(args: list[str], folder: Path) -> None:
    for out in (command(folder, *args).out, on_a_terminal(folder, *args)):
        assert out
        assert all(one.isprintable() or one in "\n\t" for one in out)


def test_raw_lines_are_escaped_on_a_terminal_alone(folder: Path) -> None:
    piped = command(folder, "ls", "--raw", "2.jsonl.gz").out
    assert json.loads(piped)["name"] == HOSTILE
    shown = on_a_terminal(folder, "ls", "--raw", "2.jsonl.gz")
    assert all(one.isprintable() or one == "\n" for one in shown)
    assert json.loads(shown)["name"] == HOSTILE


@pytest.mark.parametrize("name", ["ls", "stats", "check", "ls --raw", "ls --last"])
def test_lines_that_cannot_be_read_are_named(name: str, folder: Path) -> None:
    with (folder / "1.jsonl").open("a") as file:
        file.write('{"schema":"rollout-trace/1"\n')
    done = command(folder, *name.split(), "1.jsonl", *(["--fail-on", "never"] if name == "check" else []))
    assert done.code == 1
    assert "1.jsonl, line 3" in done.err
    assert done.out


@pytest.mark.parametrize("name", ["ls", "stats", "check", "ls --raw", "ls --last"])
def test_what_cannot_be_done(name: str, folder: Path) -> None:
    done = command(folder, *name.split(), "missing.jsonl")
    assert (done.code, done.out) == (2, "")
    assert "there is no file missing.jsonl." in done.err
    assert command(folder, *name.split(), "1.jsonl", "--where", "nonsense(").code == 2


@pytest.mark.parametrize("name", ["ls", "stats", "check", "ls --raw", "ls --last"])
def test_stdin(name: str, folder: Path) -> None:
    text = (folder / "1.jsonl").read_text()
    done = command(folder, *name.split(), "-", stdin=text)
    assert (done.code, done.err) == (0, "")
    assert "b" * 24 in done.out or name in ("stats", "check")


def test_the_lines_as_they_are(folder: Path) -> None:
    done = command(folder, "ls", "--raw", "-n", "1", "1.jsonl", "2.jsonl.gz")
    assert done.out == (folder / "1.jsonl").read_text().splitlines(keepends=True)[0]
    ids = [json.loads(line)["id"] for line in command(folder, "ls", "--raw", ".").out.splitlines()]
    assert ids == ["a" * 24, "b" * 24, "c"]
    done = command(folder, "ls", "--last", ".", "--sort", "reward")
    assert (done.code, "cannot be used with --last, -f or --raw." in done.err) == (2, True)


# old spellings


@pytest.mark.parametrize(
    ("old", "now"),
    [
        (["head"], ["ls", "-n", "10", "--raw"]),
        (["head", "-1", "--json"], ["ls", "-n", "10", "--raw", "-1", "--raw"]),
        (["head", "-n", "1", "--table"], ["ls", "-n", "1"]),
        (["tail", "-n", "2"], ["ls", "--last", "--raw", "-n", "2"]),
        (["tail", "--table"], ["ls", "--last"]),
        (["validate"], ["check", "--format"]),
        (["schema", "--note"], ["--schema", "--note"]),
        (["versions", "--json"], ["--versions", "--json"]),
    ],
)
def test_an_old_command_is_the_new_one_and_says_so(old: list[str], now: list[str], folder: Path) -> None:
    paths = [] if old[0] in ("schema", "versions") else ["."]
    done, expected = command(folder, *old, *paths), command(folder, *now, *paths)
    assert (done.code, done.out) == (expected.code, expected.out)
    assert expected.out
    begin = f"rollout-trace {old[0]} is an old name of: rollout-trace {now[0]}"
    assert (done.err.startswith(begin), len(done.err.splitlines())) == (True, 1)


def test_on_a_terminal_head_and_tail_list(folder: Path) -> None:
    for old, first in (("head", "aaaaaaaa"), ("tail", "bbbbbbbb")):
        lines = on_a_terminal(folder, old, "-n", "2", ".").splitlines()
        shown = [line.split()[0] for line in lines if not line.startswith("rollout-trace ")]
        # How wide its columns are depends on how soon the lines come.
        assert (shown[:2], len(shown), len(lines)) == (["id", first], 3, 4)


# stats


def test_ls_marks_sub_agents_and_leaves_columns_out_rather_than_cutting_codes(tmp_path: Path) -> None:
    agent = rt.Trajectory(id="a" * 24, name="coordinator", task=rt.Task(id="chain/1"), reward=1.0, steps=[step(0)])
    kept = {"prompt_token_ids": None, "sampling": {"temperature": 0.5, "top_p": 0.5}, "logprobs_mode": "raw"}
    inside = rt.Trajectory(id="b" * 24, name="sub-agent", parent_id="a" * 24, steps=[step(0, **kept)])
    with rt.JSONLWriter(tmp_path / "a.jsonl") as out:
        out.write(agent)
        out.write(inside)
    wide = on_a_terminal(tmp_path, "ls", "a.jsonl", columns=200).splitlines()
    assert "!prompt_ids_missing 1 …" in wide[2]
    narrow = on_a_terminal(tmp_path, "ls", "a.jsonl", columns=80).splitlines()
    assert narrow[0].split() == ["id", "name", "task", "status", "reward", "findings"]
    assert narrow[1].split() == ["a" * 8, "coordinator", "chain/1", "completed", "1", "-"]
    assert narrow[2].split() == ["b" * 8, "└", "sub-agent", "-", "completed", "-", "!prompt_ids_missing", "1", "…"]
    assert "\tsub-agent\t" in command(tmp_path, "ls", "a.jsonl").out


def test_stats(folder: Path) -> None:
    done = command(folder, "stats", ".", "--by", "group")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[:2] == ["trajectories  3", "status        completed 2, failed 1"]
    assert "reward        0.4167 ± 0.5204 (standard error 0.3005), min 0, median 0.25," in lines
    assert "              max 1, of 3" in lines
    assert "rows          2 rows, 14 tokens together, 9 of them trained on (64.3%)" in lines
    assert "pass@k        1: 0.500, 2: 1.000 (1 group, reward >= 1)" in lines
    assert "left out      steps: ids_missing 1" in lines
    assert [line.split()[:3] for line in lines[-2:]] == [["g", "2", "0.5"], ["(none)", "1", "0.25"]]


def test_stats_as_json(folder: Path) -> None:
    found = command(folder, "stats", ".", "--by", "task", "--json").json
    assert (found["trajectories"], found["statuses"]) == (3, {"completed": 2, "failed": 1})
    assert found["pass_at_k"] == {"1": 0.5, "2": 1.0}
    assert found["output_tokens"] == {"sum": 9, "unknown": 1}
    assert (found["latency"]["count"], found["latency"]["p50"]) == (4, 0.5)
    assert found["findings"]["ids_missing"] == {"grade": "fatal", "count": 1, "trajectories": 1}
    assert {name: part["trajectories"] for name, part in found["parts"].items()} == {"t1": 1, "t2": 1, "(none)": 1}


def test_stats_counts_doubles_once_also_from_stdin(folder: Path) -> None:
    text = (folder / "1.jsonl").read_text()
    for done in (
        command(folder, "stats", "-", "--json", stdin=text * 2),
        command(folder, "stats", "1.jsonl", "1.jsonl", "--json"),
    ):
        assert (done.code, done.json["trajectories"], done.json["not_counted"]["doubles"]) == (0, 2, 2)


def test_stats_of_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    done = command(tmp_path, "stats", "empty.jsonl")
    assert (done.code, done.out, done.err) == (0, "trajectories  0\n", "")
    assert command(tmp_path, "stats", "empty.jsonl", "--json").json["reward"] == {"count": 0}


def test_stats_where_only_ascii_can_be_printed(folder: Path) -> None:
    shown = on_a_terminal(folder, "stats", ".", "--by", "name", PYTHONUTF8="0", PYTHONIOENCODING="ascii", LC_ALL="C")
    assert shown.isascii()
    assert "0.4167 \\xb1 0.5204" in shown


# check


def test_check_names_places_and_fails_on_a_grade(folder: Path) -> None:
    done = command(folder, "check", "1.jsonl")
    assert (done.code, done.out) == (0, "2 trajectories, 0 with findings\n")
    done = command(folder, "check", ".")
    assert (done.code, done.err) == (1, "")
    lines = done.out.splitlines()
    assert lines[0] == "fatal  ids_missing  1 in 1 trajectory: the step has no completion ids"
    assert lines[1] == "    ./2.jsonl.gz:1: trajectory c, step 0: completion_token_ids is None."
    assert command(folder, "check", ".", "--fail-on", "never").code == 0
    assert command(folder, "check", ".", "--code", "forks").code == 0


def test_check_of_files_without_ids(tmp_path: Path) -> None:
    """What training lacks is left out, and said to be; not for a script that names a grade."""
    bare = step(0, finish_reason="length", completion_token_ids=None, logprobs=None)
    with rt.JSONLWriter(tmp_path / "a.jsonl") as out:
        out.write(rt.Trajectory(id="t", steps=[bare], reward=1))
    done = command(tmp_path, "check", "a.jsonl")
    assert (done.code, done.out.count("truncated"), done.out.count("ids_missing")) == (0, 1, 0)
    assert done.out.endswith("this used --profile observe. --profile train lists what training lacks\n")
    codes = [command(tmp_path, "check", "a.jsonl", "--fail-on", one).code for one in ("fatal", "warning", "never")]
    assert codes == [1, 1, 0]
    assert command(tmp_path, "check", "a.jsonl", "--fail-on", "fatal", "--profile", "observe").code == 0


def test_check_prints_at_once_what_every_profile_has(tmp_path: Path) -> None:
    bare = step(0, finish_reason="length", completion_token_ids=None, logprobs=None)
    steps = {"a": bare, "b": bare, "c": step(0, finish_reason="length")}
    with rt.JSONLWriter(tmp_path / "a.jsonl") as out:
        for name, one in steps.items():
            out.write(rt.Trajectory(id=name, steps=[one], reward=1))
    found = [json.loads(line) for line in command(tmp_path, "check", "a.jsonl", "--all", "--json").out.splitlines()]
    assert [(one["trajectory"], one["code"]) for one in found] == [
        ("a", "truncated"), ("b", "truncated"), ("a", "ids_missing"), ("a", "nothing_trainable"),
        ("b", "ids_missing"), ("b", "nothing_trainable"), ("c", "truncated"),
    ]  # fmt: skip
    done = command(tmp_path, "check", "a.jsonl", "--all", "--json", "--profile", "train")
    assert [json.loads(line)["trajectory"] for line in done.out.splitlines()] == list("aaabbbc")


def test_check_prints_each(folder: Path) -> None:
    done = command(folder, "check", ".", "--all", "--vocab-size", "5")
    assert done.code == 1
    lines = done.out.splitlines()
    assert lines[0].startswith("./1.jsonl:1: fatal: ids_out_of_range: trajectory " + "a" * 24 + ", step 0, token 2: ")
    as_json = [json.loads(line) for line in command(folder, "check", ".", "--all", "--json").out.splitlines()]
    assert [(one["file"], one["line"], one["code"], one["step"]) for one in as_json] == [
        ("./2.jsonl.gz", 1, "ids_missing", 0),
        ("./2.jsonl.gz", 1, "nothing_trainable", None),
    ]


def test_check_finds_rollouts_that_are_there_twice(tmp_path: Path) -> None:
    """A recording that was made once more into the same file: each rollout of a group has two lines then."""

    def rollout(name: str, **facts: Any) -> rt.Trajectory:
        return rt.Trajectory(id=name, group_id="g", reward=1.0, steps=[step(0)], **facts)

    def attempt(number: int) -> rt.Trajectory:
        return rollout(f"t{number}", task=rt.Task(id="t"), rollout_index=7, metadata={FIELD: {"attempt": number}})

    with rt.JSONLWriter(tmp_path / "a.jsonl") as out:
        for one in (
            *(rollout(f"a{index}", rollout_index=index) for index in range(2)),
            *(rollout(f"b{index}", rollout_index=index) for index in range(2)),
            # None of these is another run of the same rollout.
            rollout("a1", rollout_index=1),
            rollout("child", rollout_index=1, parent_id="b1"),
            rollout("none"),
            rollout("other", rollout_index=2),
            *(attempt(number) for number in (1, 2)),
        ):
            out.write(one)
    done = command(tmp_path, "check", "a.jsonl", "--all", "--fail-on", "warning")
    assert (done.code, done.err) == (1, "")
    message = "line 1 of a.jsonl has rollout 0 of the group 'g' too, as trajectory a0: was it recorded twice?"
    assert done.out.splitlines() == [
        f"a.jsonl:3: warning: repeated_rollout: trajectory b0: {message}",
        f"a.jsonl:4: warning: repeated_rollout: trajectory b1: {message.replace('0', '1').replace('line 1', 'line 2')}",
    ]
    assert command(tmp_path, "check", "a.jsonl", "--code", "forks", "--all").out == ""
    found = command(tmp_path, "check", "a.jsonl", "--code", "repeated_rollout", "--json").json
    assert [(one["code"], one["count"]) for one in found["findings"]] == [("repeated_rollout", 2)]


def test_check_as_json_and_a_warning(folder: Path) -> None:
    rt.JSONLWriter(folder / "3.jsonl").write(rt.Trajectory(id="d", steps=[step(0, finish_reason="length")], reward=1))
    found = command(folder, "check", "3.jsonl", "--json").json
    assert [(one["code"], one["grade"], one["count"]) for one in found["findings"]] == [("truncated", "warning", 1)]
    assert [command(folder, "check", "3.jsonl", "--fail-on", grade).code for grade in ("fatal", "warning", "info")] == [
        0, 1, 1,
    ]  # fmt: skip
    done = command(folder, "check", "3.jsonl", "--code", "truncatd")
    assert (done.code, "there is no code 'truncatd'. Did you mean truncated?" in done.err) == (2, True)
