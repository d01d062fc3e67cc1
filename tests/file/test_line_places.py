"""Where lines are in a file: each can be read alone, and reading goes on where an earlier one ended."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_trace.file.lines import Damaged, NumberedLines, Place, line_at

Found: TypeAlias = "list[tuple[int, bytes | str]]"

pieces = st.sampled_from(
    [
        b'{"a": 1}\n',
        b"{}\n",
        b'{"long": "%s"}\n' % (b"x" * 40),
        b"\n",
        b"  \n",
        b" {} \n",
        b'{"no": "newline"}',
        b"{",
        b"\r\n",
    ]
)
contents = st.lists(pieces, min_size=1, max_size=8)


def packed(parts: list[bytes], kind: str) -> bytes:
    """The parts as a file: plain, as members of gzip, or as frames of zstd."""
    if kind == "plain":
        return b"".join(parts)
    if kind == "zst":
        zstandard = pytest.importorskip("zstandard")
        return b"".join(map(zstandard.ZstdCompressor().compress, parts))
    return b"".join(gzip.compress(part, mtime=0) for part in parts)


def read(path: Path, start: Place | None = None) -> tuple[Found, dict[int, Place], Place]:
    """Lines by number, their places, and where to go on."""
    found: Found = []
    places = {}
    with path.open("rb") as file:
        lines = NumberedLines(file, str(path), start=start)
        for number, line in lines:
            found.append((number, "damaged" if isinstance(line, Damaged) else bytes(line)))
            if not isinstance(line, Damaged):
                places[number] = lines.place
                assert lines.place.number == number
    return found, places, lines.rest


@pytest.mark.parametrize("kind", ["plain", "gz", "zst"])
@given(contents, st.integers(0, 400), st.booleans())
def test_places(tmp_path_factory: pytest.TempPathFactory, kind: str, parts: list[bytes], cut: int, mark: bool) -> None:
    path = tmp_path_factory.mktemp("places") / f"x.jsonl{'' if kind == 'plain' else f'.{kind}'}"
    whole = packed([b"\xef\xbb\xbf" * mark + parts[0], *parts[1:]], kind)
    path.write_bytes(whole)
    every, places, _ = read(path)
    for number, line in every:
        if isinstance(line, bytes):
            assert line_at(str(path), places[number], len(line)) == line
    # The file as it was before its writer came to the end of it.
    path.write_bytes(whole[: min(cut, len(whole))])
    before, _, rest = read(path)
    path.write_bytes(whole)
    after, _, _ = read(path, rest)
    assert [one for one in before if one[0] < rest.number] + after == every


def test_a_line_that_went_away(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"{}\n")
    with pytest.raises(EOFError, match="line 1: the file was changed"):
        line_at(str(path), Place(0, 0, 1), 20)


def test_damage_in_the_middle(tmp_path: Path) -> None:
    members = [gzip.compress(b'{"n": %d}\n' % n, mtime=0) for n in range(5)]
    members[2] = members[2][:12] + b"\xff\xff\xff" + members[2][15:]
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(b"".join(members))
    found, places, rest = read(path)
    assert "damaged" in [line for _, line in found]
    last = found[-1]
    assert last[1] == b'{"n": 4}'
    assert line_at(str(path), places[last[0]], 8) == b'{"n": 4}'
    assert rest.number == last[0] + 1
