"""``rollout-trace annotate``: one trajectory, or the rows of a file."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt

from .command import command


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With ``a.jsonl`` (one run of ``sum/1``, three of ``sum/2``) and ``b.jsonl.gz``."""
    runs = [
        rt.Trajectory(id="a1", task=rt.Task(id="sum/1"), rollout_index=0, steps=[rt.Step(id="s", call_id="c")]),
        *(rt.Trajectory(id=f"a2{at}", task=rt.Task(id="sum/2"), rollout_index=at) for at in range(3)),
        rt.Trajectory(id="late \x1b[2J"),
    ]
    for name, those in (
        ("a.jsonl", runs),
        ("b.jsonl.gz", [rt.Trajectory(id="b1", task=rt.Task(id="sum/1"), rollout_index=1)]),
    ):
        with rt.JSONLWriter(tmp_path / name) as out:
            for run in those:
                out.write(run)
    return tmp_path


def runs(folder: Path) -> dict[str, rt.Trajectory]:
    return {run.id: run for run in rt.read(folder / "*.jsonl*")}


def rows(folder: Path, *given: Any) -> Path:
    path = folder / "scores.json"
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in given))
    return path


def test_one_trajectory_is_noted(folder: Path) -> None:
    options = ["--rewards", "style=1", "--rewards", "a=b=.5", "--metrics", "seconds=2", "--metadata", "label=good"]
    more = ["--metadata", 'why={"x": [1]}', "--metadata", "n=007", "--metadata", "nan=NaN"]
    done = command(folder, "annotate", "a.jsonl", "a1", "--reward", "0.5", *options, *more)
    assert done.code == 2  # Of "a=b=.5": the name ends at the first "=".
    assert "'b=.5' in 'a=b=.5' is not a number." in done.err
    options[3] = "b=-1e3"
    done = command(folder, "annotate", "a.jsonl", "a1", "--reward", "0.5", *options, *more)
    assert done == (0, "noted in a.notes.jsonl\n", "")
    found = runs(folder)["a1"]
    assert (found.reward, found.rewards, found.metrics) == (0.5, {"style": 1, "b": -1000}, {"seconds": 2})
    assert found.metadata == {"label": "good", "why": {"x": [1]}, "n": "007", "nan": "NaN"}


@pytest.mark.parametrize(("wanted", "noted"), [("a1", "a1"), ("a20", "a20"), ("sum/1", "a1"), ("late", "late \x1b[2J")])
def test_an_id_can_be_its_beginning_or_the_task(folder: Path, wanted: str, noted: str) -> None:
    done = command(folder, "annotate", "a.jsonl", wanted, "--reward", "0.5", "--json")
    assert (done.code, done.json["id"]) == (0, noted)
    assert runs(folder)[noted].reward == 0.5


@pytest.mark.parametrize("wanted", ["a2", "sum/2", "a"])
def test_an_id_of_several_is_refused(folder: Path, wanted: str) -> None:
    done = command(folder, "annotate", "a.jsonl", wanted, "--reward", "0.5")
    assert done.code == 2
    assert f"{wanted!r} names {4 if wanted == 'a' else 3} trajectories: a" in done.err
    assert not (folder / "a.notes.jsonl").exists()


def test_it_is_noted_beside_the_file_that_has_it(folder: Path) -> None:
    done = command(folder, "annotate", ".", "b1", "--reward", "1", "--json")
    assert (done.code, done.json) == (0, {"id": "b1", "notes": ["./b.notes.jsonl"], "unreadable": []})
    assert runs(folder)["b1"].reward == 1
    assert not (folder / "a.notes.jsonl").exists()


@pytest.mark.parametrize("as_json", [False, True])
def test_an_id_that_is_not_there(as_json: bool, folder: Path) -> None:
    done = command(folder, "annotate", "a.jsonl", "no\x1b[2J", "--reward", "1", *(["--json"] if as_json else []))
    assert done.code == 1
    if as_json:
        assert (done.json["notes"], done.err) == ([], "")
    else:
        wanted = "a.jsonl has no trajectory 'no\\x1b[2J' (5 trajectories read). rollout-trace ls a.jsonl lists them.\n"
        assert done[1:] == ("", wanted)
    assert not (folder / "a.notes.jsonl").exists()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["a1", "--reward", "nan"], "reward is nan; give a finite number"),
        (["a1", "--reward", "x"], "'x' is not a valid float"),
        (["a1", "--metrics", "x"], "'x' is not name=number."),
        (["a1"], "name a trajectory (ID) and a value"),
        (["--reward", "1"], "name a trajectory (ID) and a value"),
        (["a1", "--from", "scores.json"], "--from reads ids and values from its rows"),
        (["--from", "no.json"], "no.json"),
    ],
)
def test_wrong_use(args: list[str], said: str, folder: Path) -> None:
    done = command(folder, "annotate", "a.jsonl", *args)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert not (folder / "a.notes.jsonl").exists()


def test_rows_are_noted_by_id_and_by_task(folder: Path) -> None:
    given = rows(
        folder,
        {"id": "a1", "reward": 1, "rewards": {"style": 0.5}, "metadata": {"label": "good"}},
        {"task": "sum/2", "rollout_index": 1, "reward": 0.25, "metrics": {"m": 1}},
        {"task": "sum/1", "rollout_index": 1, "reward": 0.75},
        {"id": "a1", "reward": None, "steps": [{"index": 0, "reward": 2}, {"id": "s", "trainable": False}]},
    )
    done = command(folder, "annotate", "*.jsonl*", "--from", given)
    assert done == (0, "4 rows read, 4 noted, 0 not noted\n", "")
    found = runs(folder)
    assert (found["a1"].reward, found["a1"].rewards, found["a1"].metadata) == (1, {"style": 0.5}, {"label": "good"})
    assert (found["a1"].steps[0].reward, found["a1"].steps[0].trainable) == (2, False)
    assert (found["a21"].reward, found["a21"].metrics, found["b1"].reward) == (0.25, {"m": 1}, 0.75)
    assert [found[name].reward for name in ("a20", "a22")] == [None, None]


BAD_ROWS: dict[str, tuple[Any, str]] = {
    "no-id": ({"id": "no\x1b[2J", "reward": 1}, "no trajectory has the id 'no\\x1b[2J'."),
    "id-type": ({"id": 7, "reward": 1}, "id is 7; expected text."),
    "no-task": ({"task": "no", "reward": 1}, "no trajectory has the task 'no'."),
    "no-index": (
        {"task": "sum/2", "rollout_index": 9, "reward": 1},
        "no trajectory has the task 'sum/2' and the rollout_index 9.",
    ),
    "several": (
        {"task": "sum/2", "reward": 1},
        "3 trajectories have the task 'sum/2': give its rollout_index, or its id.",
    ),
    "index-type": (
        {"task": "sum/2", "rollout_index": "1", "reward": 1},
        "rollout_index is '1'; expected a whole number.",
    ),
    "neither": ({"reward": 1}, "expected the id of a trajectory, or its task (and rollout_index), got neither."),
    "no-value": ({"id": "a1", "rewrad": 1}, "expected a value to note, got none: give any of reward, rewards,"),
    "null": ({"id": "a1", "reward": None}, "expected a value to note, got none"),
    "text": ({"id": "a1", "reward": "1"}, "reward is '1' (str); give one finite number"),
    "nan": ('{"id": "a1", "reward": NaN}', "reward is nan; give a finite number"),
    "step": ({"id": "a1", "steps": [{"reward": 1}]}, "a step is {'reward': 1}; expected an object with its id"),
    "not-json": ("id,reward", "expected a line of JSON, got something else: Expecting value"),
    "list": ([1], 'expected an object, such as {"id": "...", "reward": 1.0}, got [1].'),
}


@pytest.mark.parametrize(("row", "said"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_a_bad_row_is_named_and_the_others_are_applied(row: Any, said: str, folder: Path) -> None:
    given = rows(folder, {"id": "a20", "reward": 1}, row, {"id": "a21", "reward": 1})
    done = command(folder, "annotate", "a.jsonl", "--from", given)
    assert (done.code, done.out) == (1, "3 rows read, 2 noted, 1 not noted\n")
    assert done.err.startswith(f"{given}, line 2: {said}")
    assert len(done.err.splitlines()) == 1
    found = runs(folder)
    assert [found[name].reward for name in ("a1", "a20", "a21")] == [None, 1, 1]


def test_json_names_every_bad_row_and_unused_fields(folder: Path) -> None:
    bad = [{"id": f"no{at}", "reward": 1} for at in range(30)]
    given = rows(folder, *bad, {"id": "a1", "reward": 1, "why\x1b": "x"})
    done = command(folder, "annotate", "a.jsonl", "--from", given, "--json")
    assert (done.code, done.err) == (1, "")
    assert (done.json["rows"], done.json["applied"], len(done.json["problems"])) == (31, 1, 30)
    assert done.json["unused_fields"] == {"why\x1b": 1}
    plain = command(folder, "annotate", "a.jsonl", "--from", given)
    assert plain.out == "31 rows read, 1 noted, 30 not noted\nthese fields were not used: 'why\\x1b' in 1 rows\n"
    assert len(plain.err.splitlines()) == 21
    assert plain.err.splitlines()[-1] == "and 10 more; --json lists them all"


def test_rows_come_from_stdin_and_packed_files_too(folder: Path) -> None:
    row = json.dumps({"id": "a1", "reward": 0.5})
    assert command(folder, "annotate", "a.jsonl", "--from", "-", stdin=f"\n{row}\nx\n").err.startswith(
        "stdin, line 3: "
    )
    assert runs(folder)["a1"].reward == 0.5
    (folder / "scores.gz").write_bytes(gzip.compress(row.replace("0.5", "0.75").encode()))
    assert command(folder, "annotate", "a.jsonl", "--from", "scores.gz").code == 0
    assert runs(folder)["a1"].reward == 0.75


def test_lines_of_the_file_that_cannot_be_read_are_named(folder: Path) -> None:
    with (folder / "a.jsonl").open("a") as file:
        file.write('{"schema": "rollout-trace/1", "id": 3, "\x1b[2J": 1}\n')
    done = command(folder, "annotate", "a.jsonl", "a1", "--reward", "1")
    assert (done.code, done.out) == (1, "noted in a.notes.jsonl\n")
    assert done.err.startswith("a.jsonl, line 6, $.id: expected str, got ")
    assert "\x1b" not in done.err
    assert next(rt.read(folder / "a.jsonl", on_error="skip")).reward == 1
