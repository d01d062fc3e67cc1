"""``load_tasks``: where tasks come from, their ids and digests, and what is refused."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow
import pyarrow.parquet
import pydantic
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

import rollout_trace as rt
from rollout_trace.collection.task_files import read_tasks
from rollout_trace.collection.tasks import digest, load_tasks, recorded_task

ROWS = [{"id": "a", "question": "1+1"}, {"id": "b", "question": "2+2"}, {"id": "c", "question": "3+3"}]


@dataclass
class Question:
    id: str
    text: str


class Item(pydantic.BaseModel):
    task_id: int
    text: str


class Row(NamedTuple):
    id: str
    text: str


class Plain:
    """Has an id, and no form in JSON."""

    def __init__(self, id: str) -> None:
        self.id = id


class Level(Enum):
    EASY = "easy"


def ids(tasks: Any, **options: Any) -> list[str]:
    return [item.id for item in load_tasks(tasks, **options)]


def test_ids_are_taken_from_fields_and_attributes() -> None:
    assert ids(ROWS) == ["a", "b", "c"]
    assert ids(iter(ROWS)) == ["a", "b", "c"]
    assert ids([{"task_id": 7}, {"id": 8, "task_id": 9}, {"id": None, "task_id": 10}]) == ["7", "8", "10"]
    tasks = [Question("q", "?"), Item(task_id=3, text="?"), Row("r", "?"), Plain("p"), rt.Task(id="t", data=1)]
    assert ids(tasks) == ["q", "3", "r", "p", "t"]
    one = uuid.uuid4()
    assert ids([{"id": one}, {"id": np.int64(4)}, {"id": Level.EASY}]) == [str(one), "4", "easy"]


def test_the_agent_gets_the_task_itself() -> None:
    tasks = [Question("q", "?"), Plain("p")]
    assert all(item.value is task for item, task in zip(load_tasks(tasks), tasks, strict=True))


def test_keys_of_a_mapping_are_ids_whatever_the_tasks_have() -> None:
    items = load_tasks({"x": {"id": "inner"}, 2: "text"})
    assert [(item.id, item.value) for item in items] == [("x", {"id": "inner"}), ("2", "text")]


def test_tasks_without_ids_are_numbered_by_content() -> None:
    items = load_tasks([["one"], ["two"], ["one"], ["one"]])
    first, second = items[0].id, items[1].id
    assert len(first) == 12
    assert int(first, 16) >= 0
    assert [item.id for item in items] == [first, second, f"{first}-2", f"{first}-3"]
    assert ids([["two"], ["one"]]) == [second, first]


def test_short_tasks_are_their_own_ids() -> None:
    assert ids(range(3)) == ["0", "1", "2"]
    assert ids(["What is 2 + 2?", 2, "2", "2-2", "2"]) == ["What is 2 + 2?", "2", "2-2", "2-2-2", "2-3"]
    for long in ("x" * 61, "two\nlines", " padded", "", True, 2.0):
        assert [len(one) for one in ids([long])] == [12]


def test_an_id_by_content_is_the_same_in_every_process() -> None:
    task: dict[str, Any] = {"b": {1, 2, "three"}, "a": [1.5, None, True], "e": Level.EASY, "p": Path("x")}
    program = (
        "from enum import Enum; from pathlib import Path\n"
        "from rollout_trace.collection.tasks import load_tasks\n"
        "task = {'p': Path('x'), 'e': 'easy', 'a': [1.5, None, True], 'b': {'three', 2, 1}}\n"
        "print(load_tasks([task])[0].id)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ids([task]) == [done.stdout.strip()]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_a_digest_is_that_of_the_content_as_it_is_read_from_a_file(value: Any) -> None:
    assert digest(json.loads(json.dumps(value))) == digest(value)
    assert digest(value, lenient=True) == digest(value)


@given(st.lists(st.dictionaries(st.text(max_size=2), st.integers(0, 3), max_size=2), min_size=1, max_size=20))
def test_ids_by_content_are_distinct_and_do_not_depend_on_later_tasks(tasks: list[dict[str, int]]) -> None:
    tasks = [{name: one for name, one in task.items() if name not in ("id", "task_id")} for task in tasks]
    every = ids(tasks)
    assert len(set(every)) == len(tasks)
    half = len(tasks) // 2 + 1
    assert ids(tasks, limit=half) == every[:half]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1}, {"a": 1.0}),
        ({"a": 1}, {"a": "1"}),
        ({"a": True}, {"a": 1}),
        (b"x", b"y"),
        (np.arange(3), np.arange(4)),
        ([1, [2]], [[1], 2]),
        (10**30, 10**30 + 1),
    ],
)
def test_different_contents_have_different_digests(one: Any, other: Any) -> None:
    assert digest(one) != digest(other)


def test_a_digest_of_arrays_objects_and_strange_text() -> None:
    assert digest({"x": np.arange(3), "y": np.float64(0.5)}) == digest({"y": 0.5, "x": [0, 1, 2]})
    assert digest(Question("q", "?")) == digest({"text": "?", "id": "q"})
    assert digest(Item(task_id=1, text="?")) == digest({"task_id": 1, "text": "?"})
    assert digest("\ud800") != digest("\ud801")


def test_an_object_without_a_form_in_json_needs_an_id() -> None:
    with pytest.raises(TypeError, match=r"tasks\[1\] has no id.*its image is <object.*builtins.object.*field `id`"):
        load_tasks([{"image": 1}, {"image": object()}])
    one, two = load_tasks([Plain("a"), Plain("b")])
    # No address in memory is in it.
    assert one.digest == load_tasks([Plain("a")])[0].digest
    assert (one.id, two.id) == ("a", "b")


def test_a_task_that_contains_itself_needs_an_id() -> None:
    task: dict[str, Any] = {}
    task["self"] = task
    with pytest.raises(TypeError, match="nested deeper than"):
        load_tasks([task])
    task["id"] = "loop"
    assert ids([task]) == ["loop"]


def test_what_is_recorded_of_a_task() -> None:
    tasks = {"d": {"q": 1}, "t": "text", "o": Plain("p"), "n": Question("q", "?"), "k": rt.Task(id="x", data=[1])}
    recorded = [recorded_task(item) for item in load_tasks(tasks)]
    assert [task.id for task in recorded] == list(tasks)
    assert [task.data for task in recorded] == [{"q": 1}, "text", None, {"id": "q", "text": "?"}, [1]]


@pytest.mark.parametrize(
    ("tasks", "kind", "message"),
    [
        ([], ValueError, "there are no tasks in the list"),
        ({}, ValueError, "there are no tasks in the dict"),
        ([{"id": 1}, {"q": 2}], ValueError, r"tasks\[1\], {'q': 2}, has no id, and tasks\[0\] has one"),
        ([{"q": 2}, {"id": 1}], ValueError, r"tasks\[0\] has no id, and tasks\[1\] has one"),
        ([{"id": 1}, {"id": 2}, {"id": "1"}], ValueError, r"the id '1': tasks\[0\] and tasks\[2\]"),
        ({1: "a", "1": "b"}, ValueError, r"the id '1': tasks\[1\] and tasks\['1'\]"),
        ([{"id": ""}], ValueError, r"the id of tasks\[0\] is ''"),
        ([{"id": " \n"}], ValueError, "not blank"),
        ([{"id": 1.5}], ValueError, r"is 1.5 \(float\); give a text or a whole number"),
        ([{"id": True}], ValueError, r"is True \(bool\)"),
        ([{"id": np.True_}], ValueError, "a text or a whole number"),
        ([{"id": [1]}], ValueError, r"is \[1\] \(list\)"),
        ({None: 1}, ValueError, r"the id of tasks\[None\] is None"),
        (5, TypeError, r"the tasks are 5 \(int\); give an iterable"),
        (b"tasks", TypeError, "give a list, or the path of a file"),
        (lambda: [], TypeError, "give what it returns"),
        (list, TypeError, "give what it returns"),
    ],
)
def test_what_is_refused(tasks: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        load_tasks(tasks)


def test_an_async_iterable_is_refused() -> None:
    async def tasks() -> AsyncIterator[int]:
        yield 1

    with pytest.raises(TypeError, match=r"async iterable\. Make a list"):
        load_tasks(tasks())


def test_limit_takes_no_more_than_it_needs() -> None:
    taken: list[int] = []

    def endless() -> Iterator[int]:
        for number in count():
            taken.append(number)
            yield number

    assert [item.value for item in load_tasks(endless(), limit=3)] == [0, 1, 2]
    assert taken == [0, 1, 2]
    for limit, kind in ((0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)):
        with pytest.raises(kind, match="limit is"):
            load_tasks(ROWS, limit=limit)  # type: ignore[arg-type]


def test_task_ids_choose_in_the_order_of_the_tasks() -> None:
    assert ids(ROWS, task_ids=["c", "a", "c"]) == ["a", "c"]
    assert ids(ROWS, task_ids=["c", "a"], limit=1) == ["a"]
    assert ids({1: "x", 2: "y"}, task_ids=[2]) == ["2"]
    with pytest.raises(ValueError, match=r"none of the 2 tasks has the id 'task-11', 'zz'\. Did you mean task-1\?"):
        load_tasks({"task-1": 1, "other": 2}, task_ids=["task-11", "zz", "other"])
    with pytest.raises(ValueError, match="and 4 more"):
        load_tasks({"one": 1}, task_ids=[f"x{number}" for number in range(9)])
    with pytest.raises(TypeError, match="task_ids is 'a'"):
        load_tasks(ROWS, task_ids="a")
    with pytest.raises(ValueError, match="task_ids is empty"):
        load_tasks(ROWS, task_ids=[])
    with pytest.raises(ValueError, match=r"task_ids\[1\] is 1.5"):
        load_tasks(ROWS, task_ids=["a", 1.5])


def test_tables_are_read_by_rows() -> None:
    table = pyarrow.table({"id": ["a", "b"], "question": ["1+1", "2+2"]})
    assert [(item.id, item.value) for item in load_tasks(table)] == [(row["id"], row) for row in ROWS[:2]]


def test_a_sequence_without_iter_is_read_by_position() -> None:
    class Dataset:
        def __len__(self) -> int:
            return 2

        def __getitem__(self, at: int) -> str:
            return "xyz"[at]  # Has more than its length says, as those of torch may.

    assert [item.value for item in load_tasks(Dataset())] == ["x", "y"]


def test_items_stay_what_they_are() -> None:
    items = load_tasks(["x", "x"])
    assert load_tasks(items) == items


LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def files_with_the_same_tasks(folder: Path) -> Iterator[Path]:
    contents = {
        "tasks.jsonl": LINES + b"\n\n",
        "with-mark.jsonl": b"\xef\xbb\xbf" + LINES,
        "tasks.jsonl.gz": gzip.compress(LINES),
        "tasks.jsonl.zst": zstandard.compress(LINES),
        "tasks.json": json.dumps(ROWS).encode(),
        "tasks.csv": b"id,question\r\na,1+1\r\nb,2+2\r\nc,3+3\r\n",
    }
    for name, data in contents.items():
        path = folder / name
        path.write_bytes(data)
        yield path
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), folder / "tasks.parquet")
    yield folder / "tasks.parquet"


def test_files_of_every_kind_hold_the_same_tasks(tmp_path: Path) -> None:
    expected = load_tasks(ROWS)
    for path in files_with_the_same_tasks(tmp_path):
        assert load_tasks(path) == expected, path
        assert load_tasks(str(path)) == expected, path


def test_a_json_object_holds_tasks_by_id(tmp_path: Path) -> None:
    (tmp_path / "tasks.json").write_text(json.dumps({"x": "one", "y": "two"}))
    assert [(item.id, item.value) for item in load_tasks(tmp_path / "tasks.json")] == [("x", "one"), ("y", "two")]


def test_json_columns_of_parquet_hold_values(tmp_path: Path) -> None:
    path = tmp_path / "tasks.parquet"
    column = pyarrow.array(['{"a": [1, "x"]}', None], pyarrow.json_())
    pyarrow.parquet.write_table(pyarrow.table({"id": ["1", "2"], "data": column}), path)
    assert [item.value["data"] for item in load_tasks(path)] == [{"a": [1, "x"]}, None]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        (
            "x.jsonl",
            b'{"id": 1}\n\n{"id": }\n',
            r"x.jsonl, line 3, column 8: not valid JSON .*one JSON value on each line",
        ),
        ("x.jsonl", b'{"id": "\xff"}\n', r"x.jsonl, line 1: byte 9 is not UTF-8"),
        ("x.jsonl", b'{"id": 1}\n{"id": 1}\n', r"the id '1': .*x.jsonl, line 1 and .*x.jsonl, line 2"),
        ("x.jsonl", b'"text"\n{"id": 1}\n', r"x.jsonl, line 1 has no id, and .*x.jsonl, line 2 has one"),
        ("x.jsonl", b"\n", "there are no tasks in .*x.jsonl"),
        ("x.jsonl.gz", gzip.compress(LINES, mtime=0)[:-20], r"x.jsonl.gz, line \d: expected compressed data"),
        ("x.json", b'[\n{"id": 1},\n]', r"x.json, line 3, column 1: not valid JSON"),
        ("x.json", b'"text"', "x.json holds a str; expected a list of tasks"),
        ("x.json", b"[" * 100_000, "cannot be read as JSON"),
        ("x.csv", b"id,q\n1,2,3\n", r"x.csv, line 2: the row does not have 2 fields, as the first line does"),
        ("x.csv", b"id,q\n1\n", "x.csv, line 2: the row does not have 2 fields"),
        ("x.csv", b'id,q\n1,"2\n', "not valid CSV"),
        ("x.parquet", b"PAR1 and no more", "x.parquet cannot be read as parquet"),
        ("x.yaml", b"- id: 1", r"x.yaml are in a file of an unknown kind; give .jsonl"),
    ],
)
def test_bad_files_are_refused_with_the_place(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=message):
        load_tasks(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("task.jsonl", "there is no file of tasks .*task.jsonl. Did you mean tasks.jsonl"),
        ("no/tasks.jsonl", "there is no folder .*no"),
        ("s3://bucket/tasks.jsonl", "is an address: download it"),
    ],
)
def test_a_missing_file(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "tasks.jsonl").write_bytes(LINES)
    with pytest.raises(FileNotFoundError, match=message):
        load_tasks(name if "://" in name else str(tmp_path / name))


def test_texts_that_are_no_path() -> None:
    with pytest.raises(FileNotFoundError, match=r"datasets.load_dataset\('openai/gsm8k', split"):
        load_tasks("openai/gsm8k")
    with pytest.raises(FileNotFoundError, match=r"the tasks are one text.*give a list of tasks"):
        load_tasks("What is 1 + 1?")


def test_folders(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is a folder that Dataset.save_to_disk did not make"):
        load_tasks(tmp_path)
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(ValueError, match=r"with the splits train, test: give one of them, such as .*train"):
        load_tasks(tmp_path)


@pytest.mark.parametrize(
    ("module", "name", "message"),
    [
        ("pyarrow", "x.parquet", "pip install 'pyarrow>=19'"),
        ("zstandard", "x.jsonl.zst", "pip install zstandard"),
        ("datasets", "saved", "pip install 'datasets>=4.7'"),
    ],
)
def test_a_missing_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, name: str, message: str
) -> None:
    if name == "saved":
        (tmp_path / name).mkdir()
        for part in ("state.json", "dataset_info.json"):
            (tmp_path / name / part).write_text("{}")
    else:
        (tmp_path / name).write_bytes(zstandard.compress(LINES))
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=message.replace(">", ".").replace(".", r".")):
        list(read_tasks(str(tmp_path / name)))
