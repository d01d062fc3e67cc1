"""Whatever moment a process is killed at, the calls that had ended are in the shards once, when it is recovered."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace.file.shards_upload import ROOT as SPOOL
from rollout_trace.file.shards_upload import spool_of
from rollout_trace.testing import RequestRecord, ScriptedServer
from tests.amount import some

_numbers = count()
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a bucket on a server of this machine."""
    server_module: Any = pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")
    fsspec: Any = pytest.importorskip("fsspec")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in (
        ("FSSPEC_S3_ENDPOINT_URL", f"http://{host}:{port}"),
        ("AWS_ACCESS_KEY_ID", "none"),
        ("AWS_SECRET_ACCESS_KEY", "none"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(name, value)
    # For this process, which has read the environment already.
    monkeypatch.setitem(fsspec.config.conf, "s3", {"endpoint_url": f"http://{host}:{port}"})
    # The servers of one process share what they hold.
    bucket = f"bucket-{next(_numbers)}"
    fsspec.filesystem("s3").mkdir(bucket)
    yield f"s3://{bucket}/run"
    server.stop()


class Killer:
    """The script of the server. It kills the program when a certain request comes."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.pid: int | None = None

    def __call__(self, request: Mapping[str, Any], record: RequestRecord) -> str:
        if record.index >= self.at and self.pid is not None:
            try:
                os.kill(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        return f"the answer to {request['messages'][-1]['content']}"


def run_and_kill(output: str, at: int) -> None:
    killer = Killer(at)
    with ScriptedServer(killer) as server:
        child = subprocess.Popen([sys.executable, "-m", "tests.file.shards.agent", server.base_url, output], cwd=ROOT)
        killer.pid = child.pid
        assert child.wait() == (-signal.SIGKILL if at < 48 else 0)


def assert_each_call_is_there_once(output: str, least: int) -> None:
    found = Counter(
        step.completion.content
        for trajectory in rt.read(output)
        for step in trajectory.steps
        if step.completion is not None and step.status == "ok"
    )
    assert set(found.values()) == {1}
    # Four rollouts at once: so many calls were in flight.
    assert len(found) >= least


@pytest.mark.parametrize("at", some([5, 17, 30, 46, 99], 46))
def test_a_folder(at: int, tmp_path: Path) -> None:
    output = f"{tmp_path}/out/"
    run_and_kill(output, at)
    report = rt.recover(output, write=True).report
    assert report.is_clean, str(report)
    assert not (tmp_path / "out" / ".journal").exists()
    assert_each_call_is_there_once(output, min(at, 48) - 4)
    before = sorted(os.listdir(tmp_path / "out"))
    assert list(rt.recover(output, write=True)) == []
    assert sorted(os.listdir(tmp_path / "out")) == before


@pytest.mark.parametrize("at", some([5, 30, 46, 99]))
def test_an_s3_server(at: int, s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SPOOL, str(tmp_path))
    run_and_kill(s3, at)
    report = rt.recover(s3, write=True).report
    assert report.is_clean, str(report)
    assert_each_call_is_there_once(s3, min(at, 48) - 4)
    assert not spool_of(s3, tmp_path).exists()
    assert list(rt.recover(s3, write=True)) == []


@pytest.mark.more
def test_an_s3_server_gives_what_a_file_gives(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SPOOL, str(tmp_path / "spool"))
    with ScriptedServer(Killer(999)) as server:
        for output in (s3, f"{tmp_path}/one.jsonl", f"{tmp_path}/many/"):
            options: dict[str, Any] = {} if output.endswith(".jsonl") else {"shard_bytes": 4000}
            with rt.recording(output, **options):
                for number in range(6):
                    with rt.trajectory(task=str(number)):
                        _ask(server.base_url, str(number))
    found = [[_facts(one) for one in rt.read(output)] for output in (s3, f"{tmp_path}/one.jsonl", f"{tmp_path}/many")]
    assert found[0] == found[1] == found[2]
    for pattern in (f"{s3}/", f"{s3}/part-*", s3.replace("/run", "/*/*.zst")):
        assert [_facts(one) for one in rt.read(pattern)] == found[0]
    assert [_facts(one) for one in rt.read(s3, workers=2)] == found[0]


def test_a_bucket_that_is_not_there(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SPOOL, str(tmp_path))
    said = "1 shard with 1 trajectory could not be uploaded to s3://no-such/run"
    with pytest.raises(rt.WriteError, match=said), rt.recording("s3://no-such/run"), rt.trajectory(task="kept"):
        pass
    with pytest.raises(FileNotFoundError, match="there is nothing at s3://no-such/run"):
        rt.read("s3://no-such/run")


def _ask(base_url: str, text: str) -> None:
    import openai

    with openai.OpenAI(base_url=base_url, api_key="none") as client:
        rt.wrap_openai(client)
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}])


def _facts(one: rt.Trajectory) -> Any:
    return one.task, [(step.messages, step.completion) for step in one.steps], one.status
