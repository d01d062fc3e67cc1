"""What cannot be written to is refused when it is opened, and nothing is changed in it."""

from __future__ import annotations

import gzip
import io
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt

OPENERS: dict[str, Callable[[Any], Any]] = {"recording": rt.recording, "writer": rt.JSONLWriter}


def refused(opener: str, target: Any) -> str:
    with pytest.raises((TypeError, ValueError)) as found:
        with OPENERS[opener](target):
            pass
    return str(found.value)


@pytest.fixture(params=OPENERS)
def opener(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.mark.parametrize("target", [None, 3, b"rollouts.jsonl", ["a.jsonl"], io.StringIO(), io.BytesIO()])
def test_what_is_no_path_is_refused(opener: str, target: Any) -> None:
    assert "path of a file" in refused(opener, target)


def test_an_open_file_is_told_as_one(tmp_path: Path) -> None:
    with open(tmp_path / "a.jsonl", "w") as file, tempfile.NamedTemporaryFile("w") as other:
        for target in (file, other):
            assert "(an open file); give the path of a file" in refused("recording", target)


@pytest.mark.parametrize("name", ["a.bz2", "a.jsonl.xz", "a.parquet", "a.csv.gz", "a.zstd", "a.jsonl.GZ", ""])
def test_a_name_of_another_format_is_refused(opener: str, name: str, tmp_path: Path) -> None:
    said = refused(opener, str(tmp_path / name) if name else "")
    assert ("give a name that ends with .jsonl, .jsonl.gz or .jsonl.zst" if name else "path of a file") in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a", "a.json", "a.ndjson", "a.gz", "a.ndjson.gz", ".hidden", "qwen2.5", "2.5.jsonl"])
def test_other_names_are_taken(name: str, tmp_path: Path) -> None:
    with rt.recording(tmp_path / name), rt.trajectory("agent"):
        pass
    assert [one.name for one in rt.read(tmp_path / name)] == ["agent"]


LINE = b'{"schema": "rollout-trace/1", "id": "a"}\n'


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", gzip.compress(LINE, mtime=0), "holds gzip (its first bytes: b'\\x1f\\x8b"),
        ("a.jsonl", b"\x28\xb5\x2f\xfd....", "holds zstd"),
        ("a.jsonl.gz", LINE, "holds JSON lines (its first bytes: b'{\"sc'), but its name says gzip"),
        ("a.jsonl.zst", LINE, "but its name says zstd"),
        ("a.jsonl.zst", gzip.compress(LINE, mtime=0), "holds gzip"),
        ("a.jsonl", b"PAR1....", "holds another format (its first bytes: b'PAR1'), but its name says JSON lines"),
        ("a.jsonl", b"[]", "holds another format"),
    ],
)
def test_a_file_of_another_format_than_its_name_is_refused(
    opener: str, name: str, content: bytes, said: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    assert said in refused(opener, tmp_path / name)
    assert (tmp_path / name).read_bytes() == content


@pytest.mark.parametrize("content", [b"", b"\n", b"\xef\xbb\xbf" + LINE, LINE, LINE[:20]])
def test_a_file_of_lines_is_appended_to(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with rt.recording(path), rt.trajectory("agent"):
        pass
    assert path.read_bytes().startswith(content)
    assert [one.name for one in rt.read(path, on_error="skip")][-1] == "agent"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"id,name\n1,2\n", "line 1: expected a line of JSON"),
        (b'{"id": "a", "text": "a"}\n', "line 1, $.schema: the required field is missing"),
        (b'{"schema": "atif/1", "id": "a"}\n', "line 1, $.schema: expected 'rollout-trace/1', got 'atif/1'"),
        (b"[1, 2]\n", "line 1, $: expected object, got array"),
        (b"\x89PNG\r\n\x1a\n\x00", "line 1: expected a line of JSON"),
    ],
)
def test_a_file_that_holds_no_rollouts_is_told_so(content: bytes, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    expected = f"{path} is not a rollout file: {path}, {problem}"
    with pytest.raises(rt.FormatError) as found:
        list(rt.read(path))
    assert str(found.value).startswith(expected)
    reader = rt.read(path, on_error="skip")
    assert list(reader) == []
    assert str(reader.skipped[0]).startswith(expected)


def test_a_file_whose_first_line_is_bad_is_not_told_to_hold_no_rollouts(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"hello\n" + LINE)
    reader = rt.read([path, path], on_error="skip")
    assert len(list(reader)) == 2
    assert all(str(error).startswith(f"{path}, line 1: expected a line of JSON") for error in reader.skipped)


def test_a_damaged_rollout_file_is_still_one(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for content in (LINE[:35], LINE + b"hello\n"):
        path.write_bytes(content)
        with pytest.raises(rt.FormatError, match=r"^\S*a\.jsonl, line [12]: expected"):
            list(rt.read(path))
