"""Keys of programs that are recorded from outside: they are in no list of processes, file or log that is made here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import rollout_trace as rt
from rollout_trace.credentials import MASK
from rollout_trace.testing import Fault, Reply, ScriptedServer

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are looked at in /proc"),
]

PROGRAM = """
import http.client, json, os, pathlib
from urllib.parse import urlsplit
key, url = os.environ["MINE"], urlsplit(os.environ["OPENAI_BASE_URL"])
def ask(path, **headers):
    connection = http.client.HTTPConnection(url.hostname, url.port)
    body = {"model": "m", "stream": path == "", "messages": [{"role": "user", "content": "x"}]}
    given = {"content-type": "application/json", **headers}
    connection.request("POST", url.path + "/chat/completions" + path, json.dumps(body), given)
    return connection.getresponse().read()
# The second answer has the key in it.
ask("", Authorization="Bearer " + key), ask("", Authorization="Bearer " + key), ask("?key=" + key)

def read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""
secret = url.path.split("/")[1]
def holders(word, places):
    return sorted(str(one) for one in places if word.encode() in read(one))
files = [one for one in pathlib.Path(os.environ["PLACE"]).rglob("*") if one.is_file()]
found = {
    "files": [str(one) for one in files if one.stat().st_size],
    "in files": holders(key, files) + holders(secret, files),
    "in commands": holders(key, pathlib.Path("/proc").glob("[0-9]*/cmdline"))
    + holders(secret, pathlib.Path("/proc").glob("[0-9]*/cmdline")),
    "in environments": holders(key, pathlib.Path("/proc").glob("[0-9]*/environ")),
    "in variables": [name for name, value in os.environ.items() if key in value],
    "own": [f"/proc/{one}/environ" for one in sorted((os.getpid(), os.getppid()), key=str)],
    "secret": secret,
}
print(json.dumps(found))
"""


def test_keys_are_in_no_process_list_file_or_log(tmp_path: Path) -> None:
    key = f"sk-{uuid4().hex}"
    variables = {"HOME": tmp_path / "home", "TMPDIR": tmp_path / "temporary", "PLACE": tmp_path}
    for one in ("home", "temporary"):
        (tmp_path / one).mkdir()
    wrong = {"error": {"message": f"Incorrect API key provided: {key}.", "code": "invalid_api_key"}}
    with ScriptedServer([Reply("hi"), Fault(status=401, body=wrong), f"you said {key}"]) as server:
        environ = {**os.environ, **{name: str(path) for name, path in variables.items()}}
        environ |= {"OPENAI_BASE_URL": server.base_url, "MINE": key}
        command = [sys.executable, "-m", "rollout_trace", "run", "-o", "out.jsonl", "--", sys.executable, "-I", "-c"]
        run = [*command, PROGRAM]
        done = subprocess.run(run, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60)
        assert [record.headers.get("authorization") for record in server.requests] == [f"Bearer {key}"] * 2 + [None]
    found: dict[str, Any] = json.loads(done.stdout)
    # While it runs: the journal is there.
    assert any("out.jsonl.journal" in one for one in found["files"])
    assert found["in files"] == found["in commands"] == []
    # The user's own variable is in the environment of the command and of the program, as the user gave it. Its name
    # tells nobody that it is a key.
    assert found["in variables"] == ["MINE"]
    assert found["in environments"] == found["own"]
    # When it has ended.
    (trajectory,) = rt.read(tmp_path / "out.jsonl")
    assert [step.status for step in trajectory.steps] == ["ok", "error", "ok"]
    assert trajectory.steps[1].error is not None
    assert trajectory.steps[1].error.message == f"Incorrect API key provided: {MASK}."
    kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    for word in (key, found["secret"]):
        assert not [text for text in (*kept, done.stderr.encode()) if word.encode() in text]
