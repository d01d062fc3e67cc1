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
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rollout_trace.cli.app import COMMANDS, OLD
from tests.amount import amount, some
from tests.file.defects import GOOD_LINE

LINE = GOOD_LINE + b"\n"
DEEP = b'{"schema":"rollout-trace/1","id":"d","metadata":{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}}\n"


def _zstd(data: bytes) -> bytes:
    zstandard = pytest.importorskip("zstandard")
    return bytes(zstandard.ZstdCompressor().compress(data))


HOSTILE = "a\x1b[31m\x1b]8;;http://e\x07\u202e\u2066\x9b31m\x00\r\n\tz\ud83d \u6f22</script>" + "y" * 3000


def _with(text: str) -> bytes:
    return LINE.replace(b"2 + 2?", json.dumps(text)[1:-1].encode())


AS_THEY_ARE = {"schema", "id", "call_id", "step_id", "protocol", "started_at", "ended_at", "type", "role", "texts"}


def _everywhere(value: Any, field: str = "") -> Any:
    """A line's values, with a hostile text in place of each text that nothing refers to."""
    if isinstance(value, dict):
        return {name: _everywhere(one, name) for name, one in value.items()}
    if isinstance(value, list) and field not in AS_THEY_ARE:
        return [_everywhere(one, field) for one in value]
    return HOSTILE if isinstance(value, str) and field not in AS_THEY_ARE else value


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
    "hostile-everywhere": ("a.jsonl", lambda: json.dumps(_everywhere(json.loads(GOOD_LINE))).encode() + b"\n"),
    "long-text": ("a.jsonl", lambda: _with("x" * 3_000_000)),
    "long-number": ("a.jsonl", lambda: LINE.replace(b'"input": 1', b'"input": 1' + b"0" * 20_000)),
    "many-keys": ("a.jsonl", lambda: LINE.replace(b'{"role"', b"{" + b'"a":1,' * 50_000 + b'"role"')),
    "no-gzip": ("a.jsonl.gz", lambda: b"hello" * 100),
    "cut-gzip": ("a.jsonl.gz", lambda: gzip.compress(LINE) + gzip.compress(LINE)[:-9]),
    "flipped-gzip": ("a.jsonl.gz", lambda: gzip.compress(LINE)[:50] + b"\xff" * 20 + gzip.compress(LINE) * 2),
    "magic-alone": ("a.jsonl.gz", lambda: b"\x1f\x8b\x08" * 2000),
    "bomb": ("a.jsonl.gz", lambda: _bomb(amount(8, 32, 32))),
    "no-zstd": ("a.jsonl.zst", lambda: b"hello" * 100),
    "cut-zstd": ("a.jsonl.zst", lambda: _zstd(LINE) + _zstd(LINE * 3)[:-9]),
    "zstd-bomb": ("a.jsonl.zst", lambda: _zstd(bytes(amount(8, 32, 32) << 20))),
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
    "mismatch": ["{file}"],
    "show": ["{file}"],
    "split": ["{file}", "-o", "out-folder", "-n", "2"],
    "stats": ["{file}"],
    "tail": ["{file}"],
    "validate": ["{file}"],
}
BOMBS = {"bomb", "zstd-bomb"}
UNSAFE = {"\x1b", "\x9b", "\u202e", "\x07"}
OTHERS = {"collect", "completion", "fork", "import", "query", "recover", "run", "schema", "serve", "versions", "view"}
"""They read no files of trajectories, or serve them until they are stopped. `import` has hostile files of its own."""


def test_every_command_is_in_the_list() -> None:
    assert set(ARGUMENTS) | OTHERS == {*COMMANDS, *OLD}


# One process for all, which forks for each list of calls: importing what commands need takes longer than most of the
# files. Each list has a process of its own, with few addresses.
PROGRAM = """
import json, os, resource, signal, sys
from importlib import import_module
from pkgutil import iter_modules
from rollout_trace.cli.app import run

def call_all(name, calls):
    signal.alarm(120)
    resource.setrlimit(resource.RLIMIT_AS, (3 << 28, 3 << 28))
    for arguments in calls:
        print("BEGIN", flush=True)
        try:
            code = run(arguments)
        except SystemExit as error:
            code = error.code
        print("\\nCODE", code, flush=True)

for room in ("cli", "data", "file", "train", "view"):
    for module in iter_modules(import_module(f"rollout_trace.{room}").__path__):
        import_module(f"rollout_trace.{room}.{module.name}")
running, ended = 0, 0
for name, calls in json.load(sys.stdin).items():
    if running == min(4, os.cpu_count() or 1):
        running, ended = running - 1, os.wait()[1] or ended
    running += 1
    if not os.fork():
        for number, suffix in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{name}.{suffix}", os.O_WRONLY | os.O_CREAT), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        try:
            call_all(name, calls)
            os._exit(0)
        finally:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
for _ in range(running):
    ended = os.wait()[1] or ended
sys.exit(bool(ended))
"""


class Called(NamedTuple):
    """What came of a list of calls."""

    calls: list[list[str]]
    outputs: list[str]
    """What each printed, and its exit code at the end."""
    errors: str
    """All that went to stderr."""

    @property
    def codes(self) -> list[str]:
        return [output.rpartition("CODE ")[2].strip() for output in self.outputs]


def _run(folder: Path, jobs: dict[str, list[list[str]]]) -> dict[str, Called]:
    """The results of lists of calls, by their names."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        cwd=folder,
        input=json.dumps(jobs).encode(),
        capture_output=True,
        timeout=300,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"},
    )
    found = {}
    for name, calls in jobs.items():
        out, errors = ((folder / f"{name}.{suffix}").read_text("utf-8") for suffix in ("out", "err"))
        found[name] = Called(calls, out.split("BEGIN\n")[1:], errors)
    assert done.returncode == 0, [one.errors[-3000:] for one in found.values() if len(one.outputs) < len(one.calls)]
    return found


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Called]:
    """Each command, over its files."""
    folder = tmp_path_factory.mktemp("hostile")
    data = {kind: (name, make()) for kind, (name, make) in FILES.items()}
    jobs: dict[str, list[list[str]]] = {name: [] for name in ARGUMENTS}
    for first, name in enumerate(ARGUMENTS):
        # In `make test` a third of them: each file is read by every third command.
        for kind, (file, content) in list(data.items())[first % amount(3, 1, 1) :: amount(3, 1, 1)]:
            # Of what is unpacked for long, the message is the same with --json as of what is not.
            for options in ([], ["--json"])[: 1 if kind in BOMBS else amount(1, 2, 2)]:
                place = folder / name / f"{kind}{len(options)}"
                place.mkdir(parents=True)
                (place / file).write_bytes(content)
                given = [one.replace("{file}", str(place / file)) for one in ARGUMENTS[name]]
                given = [str(place / one) if one.startswith("out") else one for one in given]
                jobs[name].append([name, *given, *options])
    return _run(folder, jobs)


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Called]:
    """Each command, over what is no file."""
    folder = tmp_path_factory.mktemp("refused")
    os.mkfifo(folder / "pipe.jsonl")
    (folder / "folder").mkdir()
    (folder / "locked.jsonl").write_bytes(LINE)
    (folder / "locked.jsonl").chmod(0)
    places = ["pipe.jsonl", "folder", "/dev/zero", "none.jsonl", "no*.jsonl"]
    if os.getuid():
        places.append("locked.jsonl")
    return _run(
        folder,
        {
            name: [[name, *(one.replace("{file}", place) for one in arguments)] for place in places]
            for name, arguments in ARGUMENTS.items()
        },
    )


@pytest.mark.amount
@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory")
@pytest.mark.parametrize("name", some(sorted(ARGUMENTS), *sorted(ARGUMENTS)[::3]))
def test_hostile_files_give_a_message(name: str, hostile: dict[str, Called]) -> None:
    called = hostile[name]
    assert len(called.outputs) == len(called.calls)
    assert "Traceback" not in called.errors
    for call, output, code in zip(called.calls, called.outputs, called.codes, strict=True):
        assert code in ("0", "1", "2"), call
        assert not UNSAFE & set(output), call
    assert not UNSAFE & set(called.errors)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes")
@pytest.mark.parametrize("name", sorted(ARGUMENTS))
def test_what_is_no_file_is_refused(name: str, refused: dict[str, Called]) -> None:
    called = refused[name]
    assert called.codes == ["2"] * len(called.calls)
    assert "Traceback" not in called.errors
    assert sum(line.startswith("Error: ") for line in called.errors.splitlines()) == len(called.calls)
