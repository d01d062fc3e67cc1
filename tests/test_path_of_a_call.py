"""The path of one call, from the client's ``request`` to a row of ``sequences()``: what it passes is counted.

    python -m tests.test_path_of_a_call

prints the files, with the Python functions that were called in each.
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import pytest
from openai import OpenAI

import rollout_trace as rt
from rollout_trace.testing import ScriptedServer
from tests import house

PACKAGE = str(house.ROOT / house.PACKAGE) + "/"


@contextmanager
def counted() -> Iterator[Counter[tuple[str, str]]]:
    """Counts the calls of the package's functions in all threads, by file and name."""
    calls: Counter[tuple[str, str]] = Counter()

    def count(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            calls[code.co_filename.removeprefix(PACKAGE), code.co_name] += 1

    threading.setprofile(count)
    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def one_call(client: OpenAI, path: Path) -> None:
    with rt.recording(path), rt.trajectory(task="t", group="g") as trajectory:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
        trajectory.reward = 1.0
    ((row,),) = [trajectory.sequences() for trajectory in rt.read(path)]
    assert row.loss_mask.sum() > 0


def path_of_a_call(folder: Path) -> Counter[tuple[str, str]]:
    """What a call passes once everything is imported and warm; without the server's part."""
    with ScriptedServer(["yes"] * 3) as server:
        client = rt.wrap_openai(OpenAI(base_url=server.base_url, api_key="-"), engine="vllm")
        one_call(client, folder / "first.jsonl")
        one_call(client, folder / "second.jsonl")
        with counted() as calls:
            one_call(client, folder / "third.jsonl")
    return Counter({key: count for key, count in calls.items() if not key[0].startswith("testing/")})


def shown(calls: Counter[tuple[str, str]]) -> str:
    """The files and their functions, those with the most calls first."""
    files = Counter[str]()
    for (file, _), count in calls.items():
        files[file] += count
    lines = [f"{count:5} {file}: {', '.join(sorted({name for of, name in calls if of == file}))}"
             for file, count in files.most_common()]  # fmt: skip
    return "\n".join([f"{calls.total()} calls in {len(files)} files", *lines])


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="other Pythons count comprehensions differently")
@pytest.mark.processes
def test_a_call_passes_no_more_than_its_budget() -> None:
    # In a process of its own: what other tests leave (watched imports, remembered headers) would be counted, too.
    program = [sys.executable, "-m", "tests.test_path_of_a_call"]
    printed = subprocess.run(program, cwd=house.ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    calls, files = map(int, re.findall(r"\d+", printed.partition("\n")[0]))
    assert files <= house.PATH_FILES, printed
    assert calls <= house.PATH_CALLS, printed


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        print(shown(path_of_a_call(Path(folder))))
