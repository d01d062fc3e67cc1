"""Trajectories are found in files as if every line were decoded."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rollout_trace.file import find
from rollout_trace.file.find import LineIndex, at_position, of_episode, with_id

NAMES = st.text('ab/\\é"1', min_size=1, max_size=4)
ROWS = st.lists(st.tuples(NAMES, NAMES, st.sampled_from(["", "\n", "  \n", "broken\n"])), max_size=6)


def line(identity: str, task: str, *, ascii_only: bool) -> str:
    value = {"schema": "rollout-trace/1", "id": identity, "episode_id": task, "task": {"id": task}, "steps": []}
    return json.dumps(value, ensure_ascii=ascii_only)


@given(ROWS, NAMES, st.booleans(), st.booleans(), st.booleans())
def test_what_is_found_is_what_decoding_finds(
    rows: list[tuple[str, str, str]], wanted: str, packed: bool, ascii_only: bool, newline: bool
) -> None:
    text = "".join(f"{blank}{line(one, task, ascii_only=ascii_only)}\n" for one, task, blank in rows)
    data = ("\ufeff" + (text if newline else text.removesuffix("\n"))).encode()
    with TemporaryDirectory() as folder:
        path = str(Path(folder, "a.jsonl.gz" if packed else "a.jsonl"))
        Path(path).write_bytes(gzip.compress(data) if packed else data)
        ids = [one for one, _, _ in rows]
        begin = list(dict.fromkeys(one for one in ids if one.startswith(wanted)))
        of_task = list(dict.fromkeys(one for one, task, _ in rows if task == wanted))
        expected = [wanted] if wanted in ids else begin or of_task
        assert [one.head.id for one in with_id([path], wanted)] == expected
        assert [one.head.id for one in of_episode([path], wanted)] == [one for one, task, _ in rows if task == wanted]
        for at, one in enumerate(ids):
            for position in (at + 1, at - len(ids)):
                found = at_position([path], position)
                assert found is not None
                assert (found.head.id, found.load().id) == (one, one)
        assert at_position([path], len(ids) + 1) is None
        assert at_position([path], -len(ids) - 1) is None
        with LineIndex([path]) as index:
            assert [(one.head.id, one.load().id) for one in index.lines] == [(one, one) for one in ids]


def test_the_place_is_the_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f"\n{line('a', 't', ascii_only=True)}\n\n{line('b', 't', ascii_only=True)}\n")
    assert [one.place for one in with_id([str(path)], "t")] == [f"{path}, line 2", f"{path}, line 4"]


def test_an_id_is_found_by_the_beginnings_of_lines_as_by_a_search(tmp_path: Path, monkeypatch: Any) -> None:
    """In blocks that end anywhere, with media before ids, a line without its newline, and one that begins otherwise."""
    ids = ["ab1", "ab2", "c" * 30, "ab1", "é", "d"]
    lines = []
    for at, one in enumerate(ids):
        media = b'"media":{"mark":"rollout-trace-media2"},' if at % 2 else b""
        name = json.dumps(one, ensure_ascii=False).encode()
        lines.append(b'{"schema":"rollout-trace/1",%s"id":%s,"name":"%s","steps":[]}' % (media, name, b"n" * 50 * at))
    path = str(tmp_path / "rollouts.jsonl")
    monkeypatch.setattr(find, "_SHORT", 1)
    for odd in (None, b'{"id":"x","schema":"rollout-trace/1","steps":[]}', b"{", b"\n"):
        Path(path).write_bytes(b"\n".join(lines if odd is None else [*lines[:3], odd, *lines[3:]]))
        for wanted in ("ab1", "ab", "ab2", "c", "é", "d", "x", "e"):
            for block in (64, 100, 1 << 12):
                monkeypatch.setattr(find, "_BLOCK", block)
                quick = find._with_beginning([path], wanted)
                found = find.with_id([path], wanted)
                with monkeypatch.context() as plain:
                    plain.setattr(find, "_with_beginning", lambda paths, wanted: [])
                    slow = find.with_id([path], wanted)
                # Not the offset: where all lines are decoded, a line has a number instead.
                assert [(one.line, one.head) for one in found] == [(one.line, one.head) for one in slow]
                assert quick in ([], found)
                # The first of them, before the odd line, or in a file without one.
                assert quick or (odd is not None and wanted != "ab1") or wanted in ("x", "e")
