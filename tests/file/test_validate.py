"""What ``validate`` finds: each rule broken once, with its line and place; and nothing in files that are good."""

from __future__ import annotations

import base64
import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

import rollout_trace as rt
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.file import compression
from rollout_trace.file import lines as lines_module
from rollout_trace.file.decode import decode
from rollout_trace.file.encode import encode
from rollout_trace.file.line_format import BadLine
from rollout_trace.file.validate import RULES, Problem, Report, validate
from rollout_trace.file.validate_line import PER_LINE, check_line
from tests.file.defects import DEFECTS, GOOD_LINE, OTHER_LINE, with_value
from tests.fuzz.run import corpus
from tests.strategies import PROFILE, trajectories

DATA = Path(__file__).parent / "data"


def problems_of(*paths: Path, **options: Any) -> tuple[Report, list[Problem]]:
    found: list[Problem] = []
    return validate(list(map(str, paths)), found.append, **options), found


def test_the_line_that_is_damaged_below_is_good(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_bytes(GOOD_LINE + b"\r\n\n" + OTHER_LINE)
    report, found = problems_of(path)
    assert (found, report.lines, report.trajectories) == ([], 2, 2)


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_found_with_its_code_line_and_place(name: str, tmp_path: Path) -> None:
    line, code, place = DEFECTS[name]
    path = tmp_path / "rollouts.jsonl"
    path.write_bytes(b"\n".join([OTHER_LINE, b"", line, OTHER_LINE.replace(b'"u"', b'"v"', 1)]))
    report, found = problems_of(path)
    assert [(one.code, one.line, one.path) for one in found] == [(code, 3, place)]
    assert found[0].file == str(path)
    assert any(one in found[0].message for one in (", got ", "the required field is missing"))
    assert found[0].advice
    assert report.codes == {code: 1}
    assert problems_of(path, ignore=[code])[1] == []


@pytest.mark.parametrize("name", DEFECTS)
def test_what_the_reader_refuses_is_found_and_the_rest_is_read(name: str) -> None:
    """One truth: whatever ``rt.read`` refuses is a problem, in the same words where it is of the line's values."""
    line = DEFECTS[name][0]
    refused: str | None = None
    try:
        decode(line)
    except BadLine as error:
        refused = str(error)
    except RecursionError:
        pass
    if DEFECTS[name][1] == "json-constant":
        assert str(refused).startswith("expected a line of JSON, got something else: JSON is malformed")
    else:
        assert refused is None or refused in [str(one) for one in check_line(line, None)[1]]


def test_all_problems_of_a_line_are_found() -> None:
    line = json.loads(GOOD_LINE)
    line["steps"][0]["tokens"].update(logprobs=[-1], prompt_logprobs=[[9, 0, 1]], top_tokens=None)
    line["steps"][0]["messages"] = [7]
    line["steps"][1]["tokens"]["end"] = 9
    line["tool_runs"][0]["step_id"] = "z"
    line["exchanges"][0]["chunk_sizes"] = [1, 2, 3]
    line["exchanges"][1]["request"]["from"] = [0, 15, 2]
    found = check_line(json.dumps(line).encode(), None)[1]
    codes = {"logprobs-length", "array-runs", "table-rows", "step-range", "tool-run-step"}
    codes |= {"chunk-sizes", "exchange-base", "chunk-times"}
    assert {one.code for one in found} == codes


def test_all_types_of_a_line_are_checked() -> None:
    line = json.loads(GOOD_LINE)
    line.update(id=5, rewards={"a": "1", "b": 2, "c": []}, started_at="now")
    line["segments"][0]["ids"] = ["a", 1, -1]
    line["steps"].append({"usage": {"input": "1"}})
    found = check_line(json.dumps(line).encode(), None)[1]
    places = [
        "$.id", "$.rewards['a']", "$.rewards['c']", "$.started_at", "$.segments[0].ids[0]", "$.segments[0].ids[2]",
        "$.steps[2].id", "$.steps[2].usage.input",
    ]  # fmt: skip
    assert [one.path for one in found] == places


def test_the_problems_of_a_line_are_bounded() -> None:
    line = with_value("segments.0.ids", [-1] * 10_000)
    assert len(check_line(line, None)[1]) == PER_LINE
    steps = [{"id": str(at), "messages": [at + 1]} for at in range(100)]
    assert len(check_line(with_value("steps", steps), None)[1]) == PER_LINE


def test_files_of_every_released_version_are_good() -> None:
    report, found = problems_of(*sorted(path for path in DATA.glob("*.jsonl") if "note" not in path.name))
    assert found == []
    assert report.trajectories >= 5


# Values that strategies make at random, and no recorder does: ids twice, times in any order, lengths that do not fit.
RANDOM = frozenset(
    (
        *("index-order", "duplicate-step-id", "duplicate-choice", "negative-number", "time-order", "tool-run-step"),
        *("parent-step", "top-logprobs-length", "advantage-length", "usage-output"),
    )
)


@PROFILE
@given(trajectories())
def test_what_the_writer_writes_is_good(trajectory: Trajectory) -> None:
    record, found = check_line(encode(trajectory), None)
    assert record is not None
    assert [one for one in found if one.code not in RANDOM] == []


def test_what_is_recorded_is_good() -> None:
    """Every recorded exchange of every protocol."""
    count = 0
    for protocol, exchange in corpus():
        kind = exchange.content_type or None
        steps = rt.wire.decode(
            protocol, exchange.request, exchange.response, content_type=kind, status=exchange.status or 0
        )
        for at, step in enumerate(steps):
            object.__setattr__(step, "index", at)  # As a recording does.
        assert [str(one) for one in check_line(encode(rt.Trajectory(steps=steps)), None)[1]] == [], exchange.name
        count += len(steps)
    assert count > 500


# Files


def test_what_lies_between_lines(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    rows = [
        {"id": "child", "parent_id": "t", "parent_step_id": "a.0"},
        {"id": "lost", "parent_id": "t", "parent_step_id": "z"},
        {"id": "elsewhere", "parent_id": "not here", "parent_step_id": "z"},
        {"id": "child"},
    ]
    lines = [json.dumps({"schema": "rollout-trace/1", **row}).encode() for row in rows]
    path.write_bytes(b"\n".join([*lines, GOOD_LINE]))
    assert [(one.line, one.code, one.path) for one in problems_of(path)[1]] == [
        (4, "duplicate-trajectory-id", "$.id"),
        (2, "parent-step", "$.parent_step_id"),
    ]


def test_an_empty_file_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b" \n\n")
    (found,) = problems_of(tmp_path / "a.jsonl")[1]
    assert (found.code, found.line, found.path) == ("empty-file", None, None)


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_damaged_compression_is_found_and_what_is_behind_it_read(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"rollouts.jsonl.{suffix}"
    ends = []
    for name in "abc":
        with rt.JSONLWriter(path) as out:
            out.write(rt.Trajectory(id=name, metadata={"text": "abcdefgh" * 20}))
        ends.append(path.stat().st_size)
    data = bytearray(path.read_bytes())
    data[(ends[0] + ends[1]) // 2] ^= 0xFF
    path.write_bytes(data[: ends[2] - 4])
    report, found = problems_of(path)
    assert {one.code for one in found} == {"damaged-compression"}
    assert report.trajectories >= 1


def test_notes_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_bytes(GOOD_LINE)
    note = {"schema": "rollout-trace-note/1", "id": "t"}
    notes: list[dict[str, Any]] = [
        {**note, "reward": 1.0, "steps": [{"id": "a.0", "reward": 1}, {"index": 1, "trainable": False}]},
        {**note, "steps": [{"id": "z"}, {"index": 7}]},
        {**note, "id": "u"},
        {**note, "reward": "1", "steps": [{"id": 5}]},
        {**note, "steps": [{"reward": 1}]},
        {**note, "at": "now"},
    ]
    beside = tmp_path / "rollouts.notes.jsonl"
    beside.write_text("\n".join(map(json.dumps, notes)) + '\nx\n{"schema":"rollout-trace-note/1","id":"t","id":"t"}')
    report, found = problems_of(path)
    assert {one.file for one in found} == {str(beside)}
    assert sorted((one.line or 0, one.code, one.path) for one in found) == [
        (2, "note-step", "$.steps[0]"),
        (2, "note-step", "$.steps[1]"),
        (3, "note-trajectory", "$.id"),
        (4, "wrong-type", "$.reward"),
        (4, "wrong-type", "$.steps[0].id"),
        (5, "missing-field", "$.steps[0]"),
        (6, "bad-time", "$.at"),
        (7, "not-json", None),
        (8, "duplicate-key", "$.id"),
    ]
    assert report.notes == 4


def test_notes_of_files_that_share_them(tmp_path: Path) -> None:
    for name, run in (("a.jsonl", "1"), ("a.jsonl.gz", "2")):
        with rt.JSONLWriter(tmp_path / name) as out:
            out.write(rt.Trajectory(id=run))
    note = '{"schema":"rollout-trace-note/1","id":"%s"}\n'
    (tmp_path / "a.notes.jsonl").write_text(note % 1 + note % 2)
    assert problems_of(tmp_path / "a.jsonl", tmp_path / "a.jsonl.gz")[1] == []
    assert [one.code for one in problems_of(tmp_path / "a.jsonl")[1]] == ["note-trajectory"]


def test_media_are_checked_each(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    texts = [base64.b64encode(bytes([at]) * 2000).decode() for at in range(3)]
    with rt.JSONLWriter(path, media="folder") as out:
        out.write(rt.Trajectory(metadata={"urls": [f"data:image/png;base64,{text}" for text in texts]}))
    assert problems_of(path)[1] == []
    first, second, _ = sorted((tmp_path / "rollouts.jsonl.media").iterdir())
    first.unlink()
    second.write_bytes(b"other")
    assert Counter(one.code for one in problems_of(path)[1]) == {"media-missing": 1, "media-differs": 1}


def test_a_line_that_is_too_long_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "LONGEST_LINE", 4 << 20)
    monkeypatch.setattr(compression, "_BURST", 1 << 20)
    path = tmp_path / "rollouts.jsonl"
    path.write_bytes(b'{"a":"' + b"x" * (5 << 20) + b'"}\n' + b"x" * (3 << 20) + b"\n" + GOOD_LINE)
    report, found = problems_of(path)
    assert [(one.line, one.code) for one in found] == [(1, "line-too-long"), (2, "not-json")]
    assert report.trajectories == 1
    with gzip.open(tmp_path / "a.jsonl.gz", "wb") as file:
        file.write(path.read_bytes())
    assert [(one.line, one.code) for one in problems_of(tmp_path / "a.jsonl.gz")[1]] == [
        (1, "line-too-long"),
        (2, "not-json"),
    ]


# Rules


def test_every_rule_is_broken_by_a_test_above() -> None:
    found = {code for _, code, _ in DEFECTS.values()}
    elsewhere = {"empty-file", "damaged-compression", "line-too-long", "duplicate-trajectory-id", "media-differs"}
    assert found | elsewhere | {"note-trajectory", "note-step"} == set(RULES)


def test_every_rule_is_on_its_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "file-format.md").read_text().partition("### The rules")[2]
    rows = [line.split("|")[1].strip() for line in page.splitlines() if line.startswith("| `")]
    assert sorted(rows) == sorted(f"`{code}`" for code in RULES)


@pytest.mark.parametrize("escaped", [rb"\u0022:", rb"\"\u003a", rb"\"\u003A"])
def test_an_escaped_quote_or_colon_hides_no_name_that_is_there_twice(escaped: bytes) -> None:
    line = b'{"schema":"rollout-trace/1","id":"a","metadata":{"a":1,"a":2,"b":"%s"}}' % escaped
    assert [one.code for one in check_line(line, None)[1]] == ["duplicate-key"]
