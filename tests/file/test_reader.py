"""The reader: which files, which lines, and what it says about lines that are not what the format says."""

from __future__ import annotations

import gzip
import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace import JSONLWriter, read

LINE: dict[str, Any] = {
    "schema": "rollout-trace/1",
    "id": "t",
    "messages": [{"role": "user", "content": "2 + 2?"}],
    "segments": [{"ids": [5, 6, 7]}, {"from": [0, 2], "ids": [8]}],
    "steps": [
        {"id": "a.0", "messages": [0], "tokens": {"segment": 0, "prompt": 1, "end": 3, "logprobs": [-0.5, -0.25]}},
        {"id": "b.0", "tokens": {"segment": 1, "prompt": 2, "end": 3}},
    ],
}


def line_with(path: str, value: Any) -> str:
    """The line with one value put in the place of another (``...``: taken out)."""
    line = json.loads(json.dumps(LINE))
    *above, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    place = line
    for part in above:
        place = place[part]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return json.dumps(line)


def test_the_line_that_is_damaged_below_is_good(tmp_path: Path) -> None:
    (tmp_path / "rollouts.jsonl").write_text(json.dumps(LINE))
    (trajectory,) = read(tmp_path / "rollouts.jsonl")
    first, second = trajectory.steps
    assert first.prompt_token_ids is not None
    assert first.prompt_token_ids.tolist() == [5]
    assert first.completion_token_ids is not None
    assert first.completion_token_ids.tolist() == [6, 7]
    assert first.messages == LINE["messages"]
    assert (first.call_id, first.index, second.index, second.messages) == ("a.0", 0, 1, None)
    assert second.prompt_token_ids is not None
    assert second.prompt_token_ids.tolist() == [5, 6]


DAMAGED = {
    "type": (line_with("steps.0.tokens.end", "3"), ", $.steps[0].tokens.end: expected int, got str"),
    "missing": (line_with("steps.1.id", ...), ", $.steps[1].id: the required field is missing"),
    "no-schema": (line_with("schema", ...), ", $.schema: the required field is missing"),
    "negative-id": (line_with("segments.0.ids.1", -6), ", $.segments[0].ids[1]: expected int >= 0, got -6"),
    "large-id": (
        line_with("segments.0.ids.1", 2**31),
        ", $.segments[0].ids[1]: expected int <= 2147483647, got 2147483648",
    ),
    "time": (
        line_with("started_at", "2026-11-21 00:31"),
        ', $.started_at: expected a time as in RFC 3339, got "2026-11-21 00:31"',
    ),
    "local-time": (
        line_with("steps.0.started_at", "2026-11-21T00:31:30"),
        ', $.steps[0].started_at: expected a time with a time zone, got "2026-11-21T00:31:30"',
    ),
    "later-base": (
        line_with("segments.1.from", [1, 2]),
        ", $.segments[1].from: expected an earlier segment, got segment 1",
    ),
    "base-length": (
        line_with("segments.1.from", [0, 4]),
        ", $.segments[1].from: expected a length of at most 3, which is that of segment 0, got 4",
    ),
    "base-shape": (line_with("segments.1.from", [0]), ", $.segments[1].from: expected array of length 2, got [0]"),
    "no-such-segment": (
        line_with("steps.1.tokens.segment", 2),
        ", $.steps[1].tokens.segment: expected one of the 2 segments of the line, got 2",
    ),
    "no-segment": (
        line_with("steps.1.tokens.segment", None),
        ", $.steps[1].tokens.segment: expected one of the 2 segments of the line, got null",
    ),
    "beyond-the-segment": (
        line_with("steps.1.tokens.end", 4),
        ", $.steps[1].tokens: expected prompt <= end <= 3, the length of segment 1, got prompt 2 and end 4",
    ),
    "prompt-after-end": (
        line_with("steps.1.tokens.prompt", 4),
        ", $.steps[1].tokens: expected prompt <= end <= 3, the length of segment 1, got prompt 4 and end 3",
    ),
    "logprobs": (
        line_with("steps.0.tokens.logprobs", [-0.5]),
        ", $.steps[0].tokens.logprobs: expected 2 numbers (end - prompt), got 1",
    ),
    "no-such-message": (
        line_with("steps.0.messages", [0, 1]),
        ", $.steps[0].messages: expected rows of $.messages, which has 1, got 1",
    ),
    "no-such-run": (
        line_with("steps.0.messages", [[0, 2]]),
        ", $.steps[0].messages: expected rows of $.messages, which has 1, got [0, 2]",
    ),
    "negative-row": (
        line_with("steps.0.messages", [-1]),
        ", $.steps[0].messages: expected rows of $.messages, which has 1, got -1",
    ),
    "run-shape": (
        line_with("steps.0.messages", [[0]]),
        ", $.steps[0].messages[0]: expected array of length >= 2, got [0]",
    ),
    "base64": (
        line_with("steps.0.request_bytes", {"base64": "a"}),
        ", $.steps[0].request_bytes.base64: expected base64, got something else: Invalid base64-encoded string: number "
        "of data characters (1) cannot be 1 more than a multiple of 4",
    ),
    "base64-not-ascii": (
        line_with("steps.0.request_bytes", {"base64": "\u00e9\u00e9\u00e9\u00e9"}),
        ", $.steps[0].request_bytes.base64: expected base64, got something else: string argument should contain only "
        "ASCII characters",
    ),
    "body-half-a-pair": (
        line_with("steps.0.request_bytes", {"text": "a\udc00"}),
        ", $.steps[0].request_bytes.text: expected the text of a body, got half a surrogate pair: 'utf-8' codec "
        "can't encode character '\\udc00' in position 1: surrogates not allowed",
    ),
    "time-half-a-pair": (
        line_with("steps.0.started_at", "a\udc00"),
        ": expected times as in RFC 3339, got text with half a surrogate pair: 'utf-8' codec can't encode character "
        "'\\udc00' in position 1: surrogates not allowed",
    ),
    "logprob-too-large": (
        line_with("steps.0.tokens.logprobs", [-0.5, -1e300]),
        ", $.steps[0].tokens.logprobs: expected numbers from -3.4028234663852886e+38 to 3.4028234663852886e+38, "
        "got -1e+300.",
    ),
    "logprobs-without-prompt": (
        line_with("steps.0.tokens", {"segment": 0, "prompt": None, "end": 3, "logprobs": [-0.5, -0.25]}),
        ", $.steps[0].tokens.logprobs: expected 3 numbers (end - prompt), got 2",
    ),
    "newer": (
        line_with("schema", "rollout-trace/2"),
        ", $.schema: expected 'rollout-trace/1', got 'rollout-trace/2': the line was written by a newer version. "
        "Upgrade in a newer checkout, with: pip install .",
    ),
    "newer-and-other": (
        json.dumps({"schema": "rollout-trace/12", "id": 1}),
        ", $.schema: expected 'rollout-trace/1', got 'rollout-trace/12': the line was written by a newer version. "
        "Upgrade in a newer checkout, with: pip install .",
    ),
    "another-format": (line_with("schema", "atif/1"), ", $.schema: expected 'rollout-trace/1', got 'atif/1'"),
    "array": ("[1, 2]", ", $: expected object, got array"),
    "half": (
        json.dumps(LINE)[:100],
        ": expected a whole line of JSON, got one that ends inside a value (its writer was stopped?)",
    ),
    "text": ("hello", ": expected a line of JSON, got something else: JSON is malformed: invalid character (byte 0)"),
    "surrogate-and-type": (
        '{"schema": "rollout-trace/1", "id": "\\ud83d", "name": 3}',
        ", $.name: expected str, got int",
    ),
    "surrogate-and-steps": (
        '{"schema": "rollout-trace/1", "id": "\\ud83d", "steps": 1}',
        ", $.steps: expected array, got int",
    ),
    "surrogate-and-half": (
        '{"schema": "rollout-trace/1", "id": "\\ud83d',
        ": expected a whole line of JSON, got one that ends inside a value (its writer was stopped?)",
    ),
}


@pytest.mark.parametrize(("damaged", "expected"), DAMAGED.values(), ids=DAMAGED)
def test_an_error_names_file_line_place_expected_and_found(damaged: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_text(f"{json.dumps(LINE)}\n\n{damaged}\n{json.dumps(LINE)}\n")
    reader = read(path)
    assert next(reader).id == "t"
    with pytest.raises(rt.FormatError) as found:
        next(reader)
    assert str(found.value) == f"{path}, line 3{expected}"


def test_bytes_that_are_no_utf8_are_an_error_of_their_line(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_bytes(b'{"schema": "rollout-trace/1", "id": "\xff"}')
    with pytest.raises(rt.FormatError, match=r"line 1: expected a line of JSON, got something else: .*utf-8.*0xff"):
        list(read(path))


def test_skip_yields_what_is_good_and_reports_the_rest(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "rollouts.jsonl"
    good = json.dumps(LINE)
    path.write_text("\n".join([good, "x", good, good[:50], good, ""]))
    reader = read(path, on_error="skip")
    with caplog.at_level(logging.WARNING, "rollout_trace"):
        assert len(list(reader)) == 3
    assert [str(error).partition(": ")[0] for error in reader.skipped] == [f"{path}, line 2", f"{path}, line 4"]
    assert [record.getMessage() for record in caplog.records] == [
        f"2 lines could not be read and were skipped; the first: {reader.skipped[0]}"
    ]


def nested(depth: int, **fields: str) -> bytes:
    """A line with a list in a list in a list, and so on."""
    inner = "[" * depth + "]" * depth
    more = "".join(f',"{name}":{value}' for name, value in fields.items())
    return f'{{"schema":"rollout-trace/1","id":"deep"{more},"messages":[{inner}]}}'.encode()


DEEP = {
    "lists": nested(200_000),
    "a-thousand-and-a-hundred": nested(1100),
    "unknown-field": nested(0, new="[" * 200_000 + "]" * 200_000),
    "with-a-wrong-type": nested(200_000, name="3"),
    "of-a-newer-version": nested(200_000).replace(b"trace/1", b"trace/2"),
    "half-a-surrogate-pair": nested(200_000, name='"\\ud83d"'),
    "media": nested(200_000, media='{"mark":"rollout-trace-media"}'),
}


def deeper(calls: int, function: Callable[[], Any]) -> Any:
    """The result of a function that is called so many calls deep."""
    return function() if not calls else deeper(calls - 1, function)


@pytest.mark.parametrize("calls", [0, 800])
@pytest.mark.parametrize("deep", DEEP.values(), ids=DEEP)
def test_skip_goes_on_after_values_nested_too_deeply(deep: bytes, calls: int, tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_bytes(json.dumps(LINE).encode() + b"\n" + deep + b"\n" + json.dumps(LINE).encode())
    reader = read(path, on_error="skip")
    # Before Python 3.12 decoders share their limit with the program's own calls.
    room = max(0, sys.getrecursionlimit() - 1000)
    found = deeper(room + calls if calls else 0, lambda: [trajectory.id for trajectory in reader])
    assert [name for name in found if name != "deep"] == ["t", "t"]
    if len(found) == 2:
        (error,) = reader.skipped
        assert str(error).startswith(f"{path}, line 2")


def test_what_a_line_may_hold_does_not_depend_on_how_deep_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_bytes(nested(500) + b"\n" + nested(500, name='"\\ud83d"'))
    room = max(0, sys.getrecursionlimit() - 1000)
    assert deeper(room + 800, lambda: [trajectory.id for trajectory in read(path)]) == ["deep", "deep"]


def test_an_unknown_way_with_errors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^on_error is 'ignore'; it can be \"raise\" or \"skip\"\.$"):
        read(tmp_path, on_error="ignore")  # type: ignore[arg-type]


def test_fields_of_the_future_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    line = json.loads(json.dumps(LINE))
    line["new"] = line["steps"][0]["new"] = line["segments"][0]["new"] = line["steps"][0]["tokens"]["new"] = {"a": 1}
    path.write_text(json.dumps(line) + "\n" + json.dumps(LINE))
    with_new, without = read(path)
    assert with_new == without


@pytest.mark.parametrize("content", ["", "\n", "\n \r\n\n"])
def test_an_empty_file_yields_nothing(content: str, tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_text(content)
    assert list(read(path)) == []


def test_a_file_of_another_editor_is_read(tmp_path: Path) -> None:
    """With a byte order mark, and lines that end as on Windows."""
    path = tmp_path / "rollouts.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + f"{json.dumps(LINE)}\r\n{json.dumps(LINE)}\r\n".encode())
    assert [trajectory.id for trajectory in read(path)] == ["t", "t"]


def test_a_path_a_pattern_and_a_list_name_files(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl", "c.jsonl.gz", "odd[1].jsonl"):
        with JSONLWriter(tmp_path / name) as out:
            out.write(rt.Trajectory(name=name))

    def names(*paths: Any) -> list[str]:
        return [trajectory.name for trajectory in read(*paths)]

    assert names(str(tmp_path / "b.jsonl")) == ["b.jsonl"]
    assert names(tmp_path / "[ab].jsonl") == ["a.jsonl", "b.jsonl"]
    assert names([tmp_path / "b.jsonl", tmp_path / "*.gz"]) == ["b.jsonl", "c.jsonl.gz"]
    assert names(tmp_path / "odd[1].jsonl") == ["odd[1].jsonl"]


def test_a_path_that_names_nothing_is_an_error_at_once(tmp_path: Path) -> None:
    for path, expected in [
        (tmp_path / "no.jsonl", f"there is no file {tmp_path / 'no.jsonl'}."),
        (tmp_path / "*.jsonl", f"no file matches the pattern {tmp_path / '*.jsonl'}."),
    ]:
        with pytest.raises(FileNotFoundError) as missing:
            read(path)
        assert str(missing.value) == expected
    with pytest.raises(FileNotFoundError, match=r"^the list of files to read is empty"):
        read([])
    with pytest.raises(FileNotFoundError, match=r"^there is no file of trajectories in .*: none ends with \.jsonl,"):
        read(tmp_path)


def test_lines_are_read_as_they_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_text(f"{json.dumps(LINE)}\n" * 2)
    reader = read(path)
    next(reader)
    with path.open("a") as file:
        file.write(json.dumps(LINE))
    assert len(list(reader)) == 2


@pytest.mark.parametrize("name", ["rollouts.jsonl", "rollouts.jsonl.gz"])
def test_compression_is_known_by_the_bytes_too(name: str, tmp_path: Path) -> None:
    """Files are packed and unpacked by hand: many lines in one member, gzip without its suffix, text with it."""
    text = f"{json.dumps(LINE)}\n".encode() * 3
    for content in (text, gzip.compress(text), gzip.compress(text) + gzip.compress(text.rstrip())):
        (tmp_path / name).write_bytes(content)
        assert {trajectory.id for trajectory in read(tmp_path / name)} == {"t"}
        assert len(list(read(tmp_path / name))) >= 3


def test_a_large_member_is_read_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl.gz"
    path.write_bytes(gzip.compress(b"".join(line_with("id", str(n)).encode() + b"\n" for n in range(4000)), 1))
    assert [trajectory.id for trajectory in read(path)] == [str(n) for n in range(4000)]


def test_a_damaged_member_is_one_error_and_the_rest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl.gz"
    members = [gzip.compress(line_with("id", str(n)).encode() + b"\n", mtime=0) for n in range(4)]
    members[1] = members[1][:40] + bytes(20) + members[1][60:]
    path.write_bytes(b"".join(members) + members[0][:30])
    with pytest.raises(
        rt.FormatError, match=r"line 2: expected compressed data, got bytes that cannot be decompressed"
    ):
        list(read(path))
    reader = read(path, on_error="skip")
    assert [trajectory.id for trajectory in reader] == ["0", "2", "3"]
    assert len(reader.skipped) == 2
    assert "the file ends inside of them (its writer was stopped?)" in str(reader.skipped[1])


def test_a_damaged_frame_without_checksum_does_not_swallow_the_next(tmp_path: Path) -> None:
    """Other tools write none: what comes out is then any bytes, perhaps without the newline at their end."""
    import zstandard

    path = tmp_path / "rollouts.jsonl.zst"
    pack = zstandard.ZstdCompressor(write_checksum=False).compress
    for damaged in (b"\x00" * 50, b'{"schema":"rollout-trace/1","id":"x"}\x00', b"\n\n\x00\n{\xff"):
        path.write_bytes(b"".join(map(pack, [line_with("id", "a").encode() + b"\n", damaged, *PARTS])))
        reader = read(path, on_error="skip")
        assert [trajectory.id for trajectory in reader] == ["a", "b", "c"]
        assert reader.skipped
        assert all(str(error).startswith(f"{path}, line ") for error in reader.skipped)


def test_a_damaged_first_frame_does_not_swallow_the_next(tmp_path: Path) -> None:
    import zstandard

    path = tmp_path / "rollouts.jsonl.zst"
    pack = zstandard.ZstdCompressor(write_checksum=False).compress
    path.write_bytes(b"".join(map(pack, [b'{"schema":"rollout-trace/1","id":"x"}\x00', *PARTS])))
    assert [trajectory.id for trajectory in read(path, on_error="skip")] == ["b", "c"]


@pytest.mark.parametrize("pieces", [[b'{"bad"', b"}\n"], [b'{"bad"}', b"\n"], [b'{"bad"}', b" ", b"\n"]])
def test_a_bad_line_that_goes_on_in_the_next_member_is_one_error(pieces: list[bytes], tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl.gz"
    path.write_bytes(b"".join(map(gzip.compress, [line_with("id", "a").encode() + b"\n", *pieces, *PARTS])))
    reader = read(path, on_error="skip")
    assert [trajectory.id for trajectory in reader] == ["a", "b", "c"]
    assert len(reader.skipped) == 1


PARTS = [line_with("id", "b").encode() + b"\n", line_with("id", "c").encode()[:40], line_with("id", "c").encode()[40:]]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_line_may_go_on_in_the_next_member(suffix: str, tmp_path: Path) -> None:
    import zstandard

    path = tmp_path / f"rollouts.jsonl{suffix}"
    pack: Any = gzip.compress if suffix == ".gz" else zstandard.ZstdCompressor(write_checksum=False).compress
    pieces = [b"\n", line_with("id", "a").encode(), b"\n", b"\n \n", *PARTS]
    path.write_bytes(b"".join(map(pack, pieces)))
    assert [trajectory.id for trajectory in read(path)] == ["a", "b", "c"]


def test_what_is_no_file_is_told_as_what_it_is(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    for path, kind in ((tmp_path / "pipe.jsonl", "a named pipe"), (Path("/dev/zero"), "a device")):
        with pytest.raises(OSError, match=rf"expected a file of lines, got {kind}: '{path}'$"):
            read(path)
    assert list(read(os.devnull)) == []
