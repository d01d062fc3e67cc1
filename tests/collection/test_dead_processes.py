"""What dead processes left at an address, or at a folder, when ``collect`` goes on with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace.collection import resume, session
from rollout_trace.errors import WriteError
from rollout_trace.file import shards_upload
from rollout_trace.file.shards_upload import ROOT, spool_of
from rollout_trace.record import recovery
from rollout_trace.testing import ScriptedServer
from tests.collection import executor_agents as agents

OUT = "memory://dead-processes/collected"


@pytest.fixture(autouse=True)
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    memory: Any = pytest.importorskip("fsspec.implementations.memory")
    memory.MemoryFileSystem.store.clear()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(ROOT, str(tmp_path / "spools"))
    return tmp_path / "spools"


def collect(server: ScriptedServer, output: str, **options: Any) -> rt.CollectSummary:
    tasks = agents.tasks(server.base_url, 2)
    return rt.collect(agents.solve, tasks, output=output, progress=False, engine="vllm", **options)


def die_before_the_upload(server: ScriptedServer, root: Path | None = None) -> None:
    """Leaves what a process does that made the rollouts and was killed then: a shard in the spool."""
    collect(server, f"{spool_of(OUT, root)}/")


def rollouts() -> list[str]:
    return sorted(str(one.task and one.task.id) for one in rt.read(OUT))


def test_a_spool_is_held_by_the_output() -> None:
    with ScriptedServer(lambda request: "yes") as server:
        die_before_the_upload(server)
        with pytest.raises(FileExistsError, match="is not empty, and resume=False"):
            collect(server, OUT, resume=False)


def test_a_spool_of_an_own_place_is_found(tmp_path: Path) -> None:
    with ScriptedServer(lambda request: "yes") as server:
        die_before_the_upload(server, tmp_path / "own")
        made = len(server.requests)
        collect(server, OUT, recording={"spool": tmp_path / "own"})
        assert len(server.requests) == made
    assert rollouts() == ["t0", "t1"]


def test_what_cannot_be_recovered_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be in the output twice, once a recovery can write it."""

    def refuse(*_: object) -> None:
        raise OSError("503 slow down")

    with ScriptedServer(lambda request: "yes") as server:
        die_before_the_upload(server)
        made = len(server.requests)
        with monkeypatch.context() as patched:
            patched.setattr(recovery, "send", refuse)
            patched.setattr(shards_upload, "FIRST_RETRY", 0.0)
            with pytest.raises(WriteError, match=r"what killed processes had recorded for memory:.* 503 slow down"):
                collect(server, OUT)
        collect(server, OUT)
        assert len(server.requests) == made
    assert rollouts() == ["t0", "t1"]


@pytest.mark.more
def test_an_output_that_cannot_be_read_after_a_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether rollouts were lost with a worker is not known then: that is said."""
    looks, earlier = [], resume.earlier

    def away(*given: Any, **options: Any) -> Any:
        looks.append(given)
        if len(looks) > 1:
            raise OSError("the disk is away")
        return earlier(*given, **options)

    monkeypatch.setattr(session, "earlier", away)
    with ScriptedServer(lambda request: "yes") as server, pytest.raises(OSError, match="the disk is away"):
        rt.collect(
            agents.solve_or_die, agents.tasks(server.base_url, 1, folder=str(tmp_path)), output="runs/",
            executor=rt.ProcessExecutor(1), progress=False, engine="vllm",
        )  # fmt: skip
