"""``secret_headers=``: keys in headers that are not known to hold any."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import requests

import rollout_trace as rt
from rollout_trace import credentials
from rollout_trace.testing import ScriptedServer

TOKEN = "tok-Ab3_dEf6hIj9"
MASK = credentials.MASK


@pytest.fixture(autouse=True)
def _no_keys_of_other_tests() -> Iterator[None]:
    credentials.forget_all()
    yield
    credentials.forget_all()


HEADERS = [
    ("X-My-Authorization", TOKEN, [TOKEN]),
    ("X-My-Authorization", f"Bearer {TOKEN}", [TOKEN]),
    ("Cookie", f"theme=dark; session={TOKEN}; lang=en", [TOKEN]),
    ("Cookie", f'session="{TOKEN}"', [TOKEN]),
    ("Cookie", "session=a%2Fb%2BC9d8e7f6", ["a/b+C9d8e7f6", "a%2Fb%2BC9d8e7f6"]),
]


@pytest.mark.parametrize(("name", "value", "keys"), HEADERS)
def test_what_a_named_header_holds_is_cut(name: str, value: str, keys: list[str], tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with ScriptedServer(f"you sent {', '.join(keys)}") as server:
        made = openai.OpenAI(base_url=server.base_url, api_key="none", default_headers={name: value})
        with rt.recording(path, secret_headers=[name]), rt.trajectory() as trajectory, rt.wrap_openai(made) as client:
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    (step,) = trajectory.steps
    assert step.completion is not None
    assert step.completion.content == f"you sent {', '.join([MASK] * len(keys))}"
    assert all(key not in path.read_text() for key in keys)


def test_other_http_libraries_send_them_too(tmp_path: Path) -> None:
    with ScriptedServer(f"you sent {TOKEN}") as server, rt.instrument(), requests.Session() as session:
        with rt.recording(tmp_path / "r.jsonl", secret_headers="cookie"), rt.trajectory() as trajectory:
            session.cookies.set("session", TOKEN)
            session.post(f"{server.base_url}/chat/completions", json={"model": "m", "messages": []})
    (step,) = trajectory.steps
    assert step.completion is not None
    assert step.completion.content == f"you sent {MASK}"


def test_without_it_such_a_header_is_no_key(tmp_path: Path) -> None:
    with ScriptedServer(f"you sent {TOKEN}") as server:
        made = openai.OpenAI(base_url=server.base_url, api_key="none", default_headers={"X-My-Authorization": TOKEN})
        with rt.recording(tmp_path / "r.jsonl"), rt.trajectory() as trajectory, rt.wrap_openai(made) as client:
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    assert not credentials.any_known()
    assert trajectory.steps[0].trainable


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (3, TypeError, "secret_headers is 3"),
        ({"cookie": "x"}, TypeError, "secret_headers is {'cookie'"),
        ([b"cookie"], TypeError, "secret_headers has b'cookie'"),
        (["Cookie: a=b"], ValueError, "secret_headers has 'Cookie: a=b', which is not the name of a header"),
        ([""], ValueError, "secret_headers has ''"),
    ],
)
def test_what_names_no_header_is_refused(given: Any, error: type[Exception], message: str, tmp_path: Path) -> None:
    with pytest.raises(error, match="secret_headers") as caught:
        rt.recording(tmp_path / "r.jsonl", secret_headers=given)
    assert message in str(caught.value)


def test_a_child_process_has_the_names(tmp_path: Path) -> None:
    program = "from rollout_trace import credentials; print(credentials.secret_headers())"
    with rt.recording(tmp_path / "r.jsonl", secret_headers=["Cookie", "x-mine"]):
        environment = {**os.environ, **rt.child_environment()}
        done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True)
    assert done.stdout.decode().strip() == "cookie,x-mine"
