"""Every command that reads files, over files that were made to break readers: a message, no traceback, and it ends."""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
import zlib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from rollout_trace.cli.commands import COMMANDS
from tests.file.defects import GOOD_LINE

LINE = GOOD_LINE + b"\n"
DEEP = b'{"schema":"rollout-trace/1","id":"d","metadata":{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}}\n"


def _zstd(data: bytes) -> bytes:
    zstandard = pytest.importorskip("zstandard")
    return bytes(zstandard.ZstdCompressor().compress(data))


def _with(text: str) -> bytes:
    return LINE.replace(b"2 + 2?", json.dumps(text)[1:-1].encode())


FILES: dict[str, tuple[str, Callable[[], bytes]]] = {
    "empty": ("a.jsonl", lambda: b""),
    "blank": ("a.jsonl", lambda: b"\n \r\n\t\n"),
    "random": ("a.jsonl", lambda: random.Random(0).randbytes(100_000)),
    "nul": ("a.jsonl", lambda: b"\0" * 5000 + b"\n" + LINE + b"\0"),
    "half": ("a.jsonl", lambda: LINE + GOOD_LINE[:700]),
    "latin-1": ("a.jsonl", lambda: LINE + LINE.replace(b"2 + 2?", b"caf\xe9 \xff")),
    "crlf-and-mark": ("a.jsonl", lambda: b"\xef\xbb\xbf" + GOOD_LINE + b"\r\n" + GOOD_LINE + b"\r\n"),
    "utf-16": ("a.jsonl", lambda: LINE.decode().encode("utf-16")),
    "deep": ("a.jsonl", lambda: LINE + DEEP),
    "deep-and-wrong": ("a.jsonl", lambda: DEEP.replace(b'"d"', b"4")),
    "deep-message": ("a.jsonl", lambda: LINE.replace(b'"2 + 2?"', b"[" * 900 + b"]" * 900)),
    "deep-alternatives": (
        "a.jsonl",
        lambda: LINE.replace(b'"top_logprobs": [[', b'"top_logprobs": [[' + b"[" * 50_000 + b"]" * 50_000 + b","),
    ),
    "scalar": ("a.jsonl", lambda: b'1\nnull\n"a"\n[]\n{}\n'),
    "surrogates": ("a.jsonl", lambda: _with("cut \ud83d and \udc0d")),
    "terminal": (
        "a.jsonl",
        lambda: _with("\x1b[2J\x1b]0;t\x07 \u202egnp.exe \x9b31m </script><script>alert(1)</script>"),
    ),
    "long-text": ("a.jsonl", lambda: _with("x" * 3_000_000)),
    "long-number": ("a.jsonl", lambda: LINE.replace(b'"input": 1', b'"input": 1' + b"0" * 20_000)),
    "many-keys": ("a.jsonl", lambda: LINE.replace(b'{"role"', b"{" + b'"a":1,' * 50_000 + b'"role"')),
    "no-gzip": ("a.jsonl.gz", lambda: b"hello" * 100),
    "cut-gzip": ("a.jsonl.gz", lambda: gzip.compress(LINE) + gzip.compress(LINE)[:-9]),
    "flipped-gzip": ("a.jsonl.gz", lambda: gzip.compress(LINE)[:50] + b"\xff" * 20 + gzip.compress(LINE) * 2),
    "magic-alone": ("a.jsonl.gz", lambda: b"\x1f\x8b\x08" * 2000),
    "bomb": ("a.jsonl.gz", lambda: _bomb(64)),
    "no-zstd": ("a.jsonl.zst", lambda: b"hello" * 100),
    "cut-zstd": ("a.jsonl.zst", lambda: _zstd(LINE) + _zstd(LINE * 3)[:-9]),
    "zstd-bomb": ("a.jsonl.zst", lambda: _zstd(b"0" * (64 << 20))),
    "suffix": ("a.jsonl", lambda: gzip.compress(LINE)),
}


def _bomb(megabytes: int) -> bytes:
    member = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join([member.compress(bytes(1 << 20)) for _ in range(megabytes)]) + member.flush()


# What each command is given beside the file. Those that write take a new name; `view` serves and does not end.
ARGUMENTS: dict[str, list[str]] = {
    "annotate": ["{file}", "t", "--reward", "1"],
    "check": ["{file}"],
    "convert": ["{file}", "--to", "trl", "-o", "out"],
    "diff": ["{file}", "{file}"],
    "filter": ["reward == 1", "{file}"],
    "head": ["{file}"],
    "ls": ["{file}"],
    "merge": ["{file}", "-o", "out.jsonl"],
    "query": ["select count(*) from trajectories", "{file}"],
    "show": ["{file}"],
    "split": ["{file}", "-o", "out-folder", "-n", "2"],
    "stats": ["{file}"],
    "tail": ["{file}"],
    "validate": ["{file}"],
}
PRESENT = sorted(name for name in ARGUMENTS if find_spec(f"rollout_trace.cli.{name}") is not None)
"""Commands that are built."""
OTHERS = {"collect", "completion", "recover", "run", "schema", "view"}
"""They read no files of trajectories, or serve them until they are stopped."""


def test_every_command_is_in_the_list() -> None:
    assert set(ARGUMENTS) | OTHERS == set(COMMANDS)


# In one process for a command: starting one takes longer than most of the files. 1.5 GB of addresses are enough.
PROGRAM = """
import json, resource, sys
from rollout_trace.cli.app import run
resource.setrlimit(resource.RLIMIT_AS, (3 << 29, 3 << 29))
for arguments in json.loads(sys.argv[1]):
    print("BEGIN", flush=True)
    try:
        code = run(arguments)
    except SystemExit as error:
        code = error.code
    print("\\nCODE", code, flush=True)
"""


def _run(folder: Path, calls: list[list[str]]) -> tuple[list[str], str]:
    """The output of each call, and all that went to stderr."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, json.dumps(calls)],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=300,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.decode().split("BEGIN\n")[1:], done.stderr.decode()


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory")
@pytest.mark.parametrize("name", PRESENT)
def test_hostile_files_give_a_message(name: str, tmp_path: Path) -> None:
    calls = []
    for kind, (suffix, make) in FILES.items():
        for options in ([], ["--json"]):
            place = tmp_path / f"{kind}{len(options)}"
            place.mkdir()
            (place / suffix).write_bytes(make())
            given = [one.replace("{file}", str(place / suffix)) for one in ARGUMENTS[name]]
            given = [str(place / one) if one.startswith("out") else one for one in given]
            calls.append([name, *given, *options])
    outputs, errors = _run(tmp_path, calls)
    assert len(outputs) == len(calls)
    assert "Traceback" not in errors
    for call, output in zip(calls, outputs, strict=True):
        code = output.rpartition("CODE ")[2].strip()
        assert code in ("0", "1", "2"), call
        assert not {"\x1b", "\x9b", "\u202e", "\x07"} & set(output), call
    assert not {"\x1b", "\x9b", "\u202e", "\x07"} & set(errors)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes")
@pytest.mark.parametrize("name", PRESENT)
def test_what_is_no_file_is_refused(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "folder").mkdir()
    (tmp_path / "locked.jsonl").write_bytes(LINE)
    (tmp_path / "locked.jsonl").chmod(0)
    places = ["pipe.jsonl", "folder", "/dev/zero", "none.jsonl", "no*.jsonl"]
    if os.getuid():
        places.append("locked.jsonl")
    calls = [[name, *(one.replace("{file}", place) for one in ARGUMENTS[name])] for place in places]
    outputs, errors = _run(tmp_path, calls)
    assert [output.rpartition("CODE ")[2].strip() for output in outputs] == ["2"] * len(calls)
    assert "Traceback" not in errors
    assert sum(line.startswith("Error: ") for line in errors.splitlines()) == len(calls)
