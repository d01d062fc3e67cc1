"""``rollout-trace show``: which trajectory of which file is shown, and what of it."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rollout_trace as rt
from tests.cli.command import command
from tests.view.build import conversation, hostile, says, step, user
from tests.view.pictures import FOLDER, family

WIDE = ("--width", "80")


def write(path: Path, *trajectories: rt.Trajectory) -> Path:
    with rt.JSONLWriter(path) as writer:
        for one in trajectories:
            writer.write(one)
    return path


def many(path: Path) -> Path:
    """Six trajectories of two tasks."""
    return write(
        path,
        *(
            rt.Trajectory(
                id=f"{at}a{at}", task=rt.Task(id=f"gsm8k/{at % 2}"), rollout_index=at // 2, reward=at / 10,
                steps=[step(0, [user(f"question {at}")], says(f"answer {at}"))],
            )
            for at in range(6)
        ),
    )  # fmt: skip


def test_the_first_one_with_its_sub_agents(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", *family())
    done = command(tmp_path, "show", "a.jsonl", "1", "--tokens", *WIDE)
    assert (done.code, done.err) == (0, "")
    assert done.out == (FOLDER / "tokens-80.txt").read_text(encoding="utf-8")
    # The same without a number, which names how many there are.
    first, *others = command(tmp_path, "show", "a.jsonl", "--tokens", *WIDE).out.splitlines()
    assert first.startswith("━━ repair · 0f3c · 1 of 2 ━━")
    assert others == done.out.splitlines()[1:]
    assert "reviewer" not in command(tmp_path, "show", "a.jsonl", "--alone").out


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "-"])
@pytest.mark.parametrize(
    ("wanted", "answer"),
    [("3a3", 3), ("3", 2), ("4a", 4), ("-1", 5), ("-6", 0), ("6", 5), (None, 0)],
)
def test_a_trajectory_is_found(tmp_path: Path, name: str, wanted: str | None, answer: int) -> None:
    many(tmp_path / ("a.jsonl" if name == "-" else name))
    stdin = (tmp_path / "a.jsonl").read_text() if name == "-" else ""
    done = command(tmp_path, "show", name, *([] if wanted is None else [wanted]), stdin=stdin)
    assert (done.code, done.err) == (0, "")
    assert re.findall(r"answer \d", done.out) == [f"answer {answer}"]


def test_a_task_of_one_trajectory_and_a_fragment_of_an_address(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", conversation(), hostile())
    assert "It is 4." in command(tmp_path, "show", "a.jsonl", "sum/1").out
    assert "It is 4." in command(tmp_path, "show", "a.jsonl#sum/1").out
    # As writers of other languages escape it.
    text = (tmp_path / "a.jsonl").read_text().replace("sum/1", "sum\\/1")
    (tmp_path / "a.jsonl").write_text(text)
    assert "It is 4." in command(tmp_path, "show", "a.jsonl", "sum/1").out


def test_several_that_fit_are_listed(tmp_path: Path) -> None:
    many(tmp_path / "a.jsonl")
    done = command(tmp_path, "show", "a.jsonl", "gsm8k/1")
    assert (done.code, done.out) == (2, "")
    assert "'gsm8k/1' names 3 trajectories" in done.err
    assert "  3a3  agent, completed, task gsm8k/1, rollout 1 (a.jsonl, line 4)\n" in done.err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["a.jsonl", "zzz"], "there is no trajectory zzz in a.jsonl. rollout-trace ls a.jsonl lists"),
        (["a.jsonl", "0"], "there is no position 0"),
        (["a.jsonl", "99"], "there is no trajectory 99"),
        (["a.jsonl", "--colour"], "No such option '--colour'"),
        (["a.jsonl", "1", "--step", "7"], "there is no step 7: trajectory 0a0 has one step, 0."),
        (["nope.jsonl"], "there is no file nope.jsonl"),
        (["a.jsonl", "1", "-n", "2"], "-n N and an ID cannot be used together"),
        (["a.jsonl", "--where", "reward > 5"], "for which the expression is true"),
        (["a.jsonl", "--where", "rewrd > 5"], "rewrd"),
        (["-", "a.jsonl"], "cannot be read together with files"),
        (["a.jsonl", "--tokenizer", "no-such-tokenizer"], "no-such-tokenizer"),
    ],
)
def test_mistakes_are_said(tmp_path: Path, args: list[str], message: str) -> None:
    many(tmp_path / "a.jsonl")
    done = command(tmp_path, "show", *args)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert "Traceback" not in done.err


def test_a_condition_and_a_number(tmp_path: Path) -> None:
    many(tmp_path / "a.jsonl")
    done = command(tmp_path, "show", "a.jsonl", "--where", "reward >= 0.2", "-n", "2")
    assert re.findall(r"answer \d", done.out) == ["answer 2", "answer 3"]
    found = command(tmp_path, "show", "a.jsonl", "-n", "2", "--json").json["trajectories"]
    assert [one["outline"]["summary"]["id"] for one in found] == ["0a0", "1a1"]


def test_json_is_what_the_page_gets(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", *family())
    whole = command(tmp_path, "show", "a.jsonl", "--json").json
    assert whole["outline"]["summary"]["reward"] == 0.5
    assert [one["line"]["index"] for one in whole["steps"]] == [0, 1, 2, 3]
    assert "tokens" not in whole["steps"][0]
    assert command(tmp_path, "show", "a.jsonl", "--json", "--tokens").json["steps"][0]["tokens"]["n"] == 7
    assert command(tmp_path, "show", "a.jsonl", "--json", "--step", "1").json["tokens"]["n"] == 9


def test_hostile_texts_are_harmless(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", hostile())
    for options in ((), ("--tokens", "--full"), ("--step", "0"), ("--raw",), ("--json",)):
        done = command(tmp_path, "show", "a.jsonl", *options)
        assert (done.code, done.err) == (0, "")
        assert [one for one in done.out.replace("\n", "") if not one.isprintable()] == []


def test_raw_prints_the_bytes_or_the_line(tmp_path: Path) -> None:
    kept = step(1, [user("x")], says("y"), request_bytes=b'{"a":\x1b}', response_bytes=b"\xff ok\nnext")
    write(tmp_path / "a.jsonl", rt.Trajectory(id="t", steps=[step(0, [user("x")], says("y")), kept]))
    shown = command(tmp_path, "show", "a.jsonl", "--raw").out
    assert '"id": "step-0"\n' in shown
    assert 'request, 7 bytes\n{"a":\\x1b}\nanswer, 9 bytes\n\\xff ok\nnext\n' in shown
    assert "step-0" not in command(tmp_path, "show", "a.jsonl", "--raw", "--step", "1").out


def test_notes_are_applied(tmp_path: Path) -> None:
    many(tmp_path / "a.jsonl")
    rt.annotate(tmp_path / "a.jsonl", "0a0", reward=0.75, metadata={"note": "good"})
    shown = command(tmp_path, "show", "a.jsonl").out
    assert "reward 0.75" in shown
    assert "note: good" in shown


def test_lines_that_cannot_be_read_are_said_and_passed(tmp_path: Path) -> None:
    many(tmp_path / "a.jsonl")
    good = (tmp_path / "a.jsonl").read_bytes()
    (tmp_path / "a.jsonl").write_bytes(b"{broken\n\n" + good)
    done = command(tmp_path, "show", "a.jsonl")
    assert (done.code, "answer 0" in done.out) == (1, True)
    assert "a.jsonl, line 1: " in done.err
    assert command(tmp_path, "show", "a.jsonl", "1a1").code == 0
    (tmp_path / "b.jsonl").write_bytes(b"{broken\n")
    done = command(tmp_path, "show", "b.jsonl")
    assert (done.code, "b.jsonl, line 1: " in done.err) == (2, True)
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(good)[:-50])
    assert "Traceback" not in command(tmp_path, "show", "c.jsonl.gz", "-1").err


def test_a_line_of_the_wrong_types_is_an_error_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"schema": "rollout-trace/1", "id": "t", "steps": 7}\n')
    done = command(tmp_path, "show", "a.jsonl")
    assert (done.code, "Traceback" in done.err) == (1, False)
    assert "a.jsonl, line 1, $.steps" in done.err


def test_without_rich_it_says_what_to_install(tmp_path: Path) -> None:
    many(tmp_path / "a.jsonl")
    done = command(tmp_path, "show", "a.jsonl", without="rich.console")
    assert (done.code, "pip install '.[rich]'" in done.err) == (2, True)


def test_colours_go_to_a_pipe_when_asked_for_and_nowhere_with_no_color(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", *family())
    shown = command(tmp_path, "show", "a.jsonl", "1", "--tokens", "--color", "always", "--theme", "light", *WIDE).out
    assert shown == (FOLDER / "tokens-light-80.txt").read_text(encoding="utf-8")
    assert "\x1b" not in command(tmp_path, "show", "a.jsonl", "--tokens", "--color", "never").out


def test_the_steps_come_one_after_the_other(tmp_path: Path) -> None:
    # The reader of the pipe goes away after the first lines: a command that printed at the end would not notice.
    steps = [step(at, [user("x" * 200)], says("y" * 200)) for at in range(3000)]
    write(tmp_path / "a.jsonl", rt.Trajectory(id="t", steps=steps))
    program = "import sys; from rollout_trace.cli import main; sys.exit(main())"
    with subprocess.Popen(
        [sys.executable, "-c", program, "show", "a.jsonl"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        seen = b""
        while b"step 1 " not in seen:
            seen += os.read(process.stdout.fileno(), 1 << 16)
        process.stdout.close()
        assert process.stderr is not None
        assert (process.wait(60), process.stderr.read()) == (1, b"")
    assert b"step 2999 " not in seen


CASSETTE = Path(__file__).parent.parent / "file" / "data" / "rollout-trace-1-exchanges.jsonl"


def test_a_cassette_is_shown_as_any_file(tmp_path: Path) -> None:
    (recorded,) = rt.read(CASSETTE)
    length = sum(len(one.request) + len(one.response) for one in recorded.exchanges)
    done = command(tmp_path, "show", str(CASSETTE), *WIDE)
    assert (done.code, done.err) == (0, "")
    assert f"7 exchanges · {length} bytes" in done.out
    outline = json.loads(command(tmp_path, "show", str(CASSETTE), "--json").out)["outline"]
    assert (outline["exchanges"], outline["exchange_bytes"]) == (7, length)
    for options in (["--step", "0"], ["--raw"], ["--step", "1", "--raw", "--full"]):
        done = command(tmp_path, "show", str(CASSETTE), *options, *WIDE)
        assert (done.code, done.err) == (0, "")
    assert command(tmp_path, "view", str(CASSETTE), "--html", "page.html").code == 0


def test_what_chooses_lines_of_a_cassette_keeps_them(tmp_path: Path) -> None:
    command(tmp_path, "filter", "n_steps == 3", str(CASSETTE), "-o", "filtered.jsonl")
    command(tmp_path, "merge", str(CASSETTE), "-o", "merged.jsonl")
    command(tmp_path, "split", str(CASSETTE), "-n", "1", "-o", "parts")
    (part,) = (tmp_path / "parts").glob("*.jsonl")
    for path in (tmp_path / "filtered.jsonl", tmp_path / "merged.jsonl", part):
        assert path.read_bytes() == CASSETTE.read_bytes()


def test_without_exchanges_none_are_named(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", rt.Trajectory(id="t"))
    assert "exchange" not in command(tmp_path, "show", "a.jsonl", *WIDE).out
    assert "exchanges" not in json.loads(command(tmp_path, "show", "a.jsonl", "--json").out)["outline"]
