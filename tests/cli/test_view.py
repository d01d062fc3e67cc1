"""``rollout-trace view`` as a process."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.command import command
from tests.view.files import run, write

DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
pytestmark = pytest.mark.skipif(os.name != "posix", reason="it is ended with signals")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with runs in it, where nothing but these are."""
    write(tmp_path / "work/x.jsonl", map(run, range(3)))
    return tmp_path / "work"


@contextmanager
def started(folder: Path, *args: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """The command, in a folder, with its caches in the folder above, and more variables of the environment."""
    environment = {name: value for name, value in os.environ.items() if name not in DISPLAYS}
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "rollout_trace", "view", *args],
        cwd=folder,
        env={**environment, "XDG_CACHE_HOME": str(folder.parent / "cache"), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def got(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=60) as answer:
        found: bytes = answer.read()
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_it_is_ended(folder: Path, number: signal.Signals) -> None:
    with started(folder, "x.jsonl") as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first.startswith("The page is at http://127.0.0.1:")
        assert process.stdout.readline() == "Ctrl-C ends it.\n"
        address = first.split()[-1]
        assert b"<title>" in got(address)
        assert json.loads(got(f"{address}api/info"))["title"] == "x.jsonl"
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "", "")
    assert [path.name for path in folder.iterdir()] == ["x.jsonl"]
    assert list((folder.parent / "cache/rollout-trace").glob("*.sqlite"))


def test_options(folder: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    options = ("--json", "--port", str(port), "--read-only", "--no-cache", "--no-open")
    with started(folder, ".", *options, TMPDIR=str(temporary), BROWSER="false") as process:
        assert process.stdout is not None
        address = json.loads(process.stdout.readline())["address"]
        assert address.startswith(f"http://127.0.0.1:{port}/")
        assert json.loads(got(f"{address}api/info"))["writable"] is False
        again = command(folder, "view", "x.jsonl", "--port", str(port), "--no-cache")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert again.code == 2
    assert f"port {port} is not available" in again.err
    assert not (tmp_path / "cache").exists()
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["nothing.jsonl"], "there is no file"),
        (["-"], "Write it to a file first"),
        (["x.jsonl", "--cache", "c", "--no-cache"], "cannot be used together"),
        (["x.jsonl", "--port", "99999"], "99999"),
        (["x.jsonl", "--tokenizer", "nothing"], "there is no tokenizer"),
        ([], "Missing argument"),
    ],
)
def test_wrong_use(folder: Path, args: list[str], said: str) -> None:
    done = command(folder, "view", *args)
    assert done.code == 2
    assert said in done.err
    assert "Traceback" not in done.err


def test_token_texts_of_a_tokenizer(folder: Path) -> None:
    pytest.importorskip("tokenizers")
    model = Path(__file__).parent.parent / "data/tiny-model"
    with started(folder, "x.jsonl", "--tokenizer", str(model)) as process:
        assert process.stdout is not None
        address = process.stdout.readline().split()[-1]
        key = first_key(address)
        (step,) = json.loads(got(f"{address}api/steps?key={key}"))
        assert json.loads(got(f"{address}api/info"))["tokenizer"] == str(model)
    assert len(step["tokens"]["texts"]) == 2


def first_key(address: str) -> str:
    """The key of the first trajectory, when the index has come to it."""
    while True:
        rows = json.loads(got(f"{address}api/rows"))["rows"]
        if rows:
            key: str = rows[0]["key"]
            return key


def test_a_browser_is_opened_where_there_is_a_display(folder: Path, tmp_path: Path) -> None:
    opened, browser = tmp_path / "opened", tmp_path / "browser"
    os.mkfifo(opened)
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}\n')
    browser.chmod(0o755)
    with started(folder, "x.jsonl", BROWSER=str(browser)) as process:
        assert process.stdout is not None
        address = process.stdout.readline().split()[-1]
        assert opened.read_text().strip() == address
