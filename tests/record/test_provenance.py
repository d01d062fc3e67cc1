"""What a trajectory holds of the process that recorded it."""

from __future__ import annotations

import json
import math
import os
import pickle
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import openai
import pytest

import rollout_trace as rt
from rollout_trace import credentials
from rollout_trace.data.trajectory import environment_so_far
from rollout_trace.record import provenance
from rollout_trace.record.provenance import command_line, git_state, start_of_process, without_secrets
from rollout_trace.testing import ScriptedServer

ROOT = Path(__file__).parents[2]
MASK = "[redacted]"
needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
PATIENT = 60.0
"""Seconds for `git status`: no test depends on the machine's speed."""


@pytest.fixture(autouse=True)
def _nothing_added(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(provenance, "_own", {})
    yield
    credentials.forget_all()


def closed(**options: Any) -> rt.Trajectory:
    trajectory: rt.Trajectory
    with rt.trajectory(**options) as trajectory:
        pass
    return trajectory


def environment_of(trajectory: rt.Trajectory) -> dict[str, Any]:
    assert trajectory.environment is not None
    return trajectory.environment


def test_it_names_versions_and_process() -> None:
    found = environment_of(closed())
    assert found["rollout_trace"] == rt.__version__
    assert found["python"] == platform.python_version()
    assert found["platform"] == platform.platform()
    assert found["implementation"] == platform.python_implementation()
    assert (found["host"], found["pid"]) == (socket.gethostname(), os.getpid())
    assert found["packages"]["openai"] == openai.__version__
    assert "crewai" not in found["packages"]
    assert json.loads(json.dumps(found)) == found


def test_a_file_holds_it(tmp_path: Path) -> None:
    rt.environment(policy_version="v1", seed=3)
    with rt.recording(tmp_path / "r.jsonl"):
        trajectory = closed()
    (kept,) = rt.read(tmp_path / "r.jsonl")
    assert kept.environment == trajectory.environment
    assert environment_of(kept)["policy_version"] == "v1"
    assert environment_of(kept)["seed"] == 3


def test_it_is_collected_when_it_is_read_not_when_a_trajectory_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "_collected", None)
    trajectory = closed()
    assert provenance._collected is None
    collected = environment_of(trajectory)
    assert provenance._collected is not None
    assert trajectory.environment is collected


def test_what_is_known_before_it_is_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "_collected", None)
    rt.environment(seed=1)
    trajectory = closed()
    assert environment_so_far(trajectory) == {**provenance.versions(), "pid": os.getpid(), "seed": 1}
    assert provenance._collected is None
    assert environment_so_far(closed()) != environment_of(trajectory)
    assert environment_so_far(closed()) == trajectory.environment
    assert environment_so_far(trajectory) is trajectory.environment
    assert environment_so_far(rt.Trajectory()) is None


def test_a_copy_and_a_pickle_have_it() -> None:
    trajectory = closed()
    assert pickle.loads(pickle.dumps(trajectory.environment)) == trajectory.environment
    assert rt.Trajectory().environment is None
    assert rt.Trajectory(environment={"a": 1}).environment == {"a": 1}


def test_packages_that_are_imported_later_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    module = type(sys)("crewai")
    module.__dict__["__version__"] = "9.8.7"
    assert "crewai" not in provenance.provenance()["packages"]
    monkeypatch.setattr(provenance, "_versions", dict(provenance._versions))
    monkeypatch.setitem(sys.modules, "crewai", module)
    assert provenance.provenance()["packages"]["crewai"] == "9.8.7"


def test_a_user_s_own_module_called_agents_is_not_the_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    module = type(sys)("agents")
    module.__dict__["__version__"] = "1"
    monkeypatch.setattr(provenance, "_versions", {})
    monkeypatch.setitem(sys.modules, "agents", module)
    assert "openai-agents" not in provenance.provenance()["packages"]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux has it at hand")
def test_the_start_of_the_process() -> None:
    started = start_of_process()
    assert started is not None
    now = datetime.now(timezone.utc)
    assert datetime.fromisoformat(started) <= now
    code = "from rollout_trace.record.provenance import start_of_process as s; print(s())"
    child = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    # The clock of the kernel ticks every 10 ms.
    assert datetime.fromisoformat(child.stdout.strip()).timestamp() >= now.timestamp() - 0.1


# What users add


def test_what_is_added_holds_for_trajectories_opened_later() -> None:
    before = closed()
    rt.environment(policy_version="v1")
    with rt.trajectory() as during:
        rt.environment(policy_version="v2")
    after = closed()
    assert [environment_of(one).get("policy_version") for one in (before, during, after)] == [None, "v1", "v2"]


def test_dicts_are_added_to_and_none_removes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one")
    (tmp_path / "b").write_bytes(b"")
    rt.environment(files={"a": rt.file_sha256(tmp_path / "a")}, seed=1, note=["x", {"y": None}])
    found = rt.environment(files={"b": rt.file_sha256(str(tmp_path / "b"))}, seed=None)
    assert found == {
        "files": {
            "a": "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed",
            "b": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        },
        "note": ["x", {"y": None}],
    }
    found["files"].clear()
    environment = environment_of(closed())
    assert len(environment["files"]) == 2
    environment["files"].clear()
    assert len(environment_of(closed())["files"]) == 2


@dataclass
class Config:
    rate: float
    path: Path


def test_objects_are_taken_as_what_they_hold() -> None:
    given = {"rate": 0.5}
    assert rt.environment(config=Config(0.5, Path("a")), given=given) == {
        "config": {"rate": 0.5, "path": "a"},
        "given": {"rate": 0.5},
    }
    given["rate"] = math.nan
    assert environment_of(closed())["given"] == {"rate": 0.5}


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"python": "4"}, ValueError, r"'python' is collected automatically. Give another name"),
        ({"seed": object()}, TypeError, r"seed is <object .*\(object\); give what JSON can hold"),
        ({"a": {"b": [1, {2}]}}, TypeError, r"a\['b'\]\[1\] is \{2\} \(set\)"),
        ({"a": {1: 2}}, TypeError, r"a has the key 1; give names as text"),
        ({"rate": math.nan}, ValueError, "rate is nan; give a finite number"),
        ({"data": b"x"}, TypeError, r"data is b'x' \(bytes\)"),
    ],
)
def test_a_mistake_raises_and_changes_nothing(values: dict[str, Any], error: type[Exception], message: str) -> None:
    rt.environment(seed=1)
    with pytest.raises(error, match=message):
        rt.environment(policy_version="v", **values)
    assert rt.environment() == {"seed": 1}


def test_file_sha256_of_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        rt.file_sha256(tmp_path / "none")
    with pytest.raises(OSError):
        rt.file_sha256(tmp_path)
    with pytest.raises(TypeError, match=r"got 3 \(int\); give a file's path"):
        rt.file_sha256(3)  # type: ignore[arg-type]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_has_its_own_pid() -> None:
    rt.environment(seed=1)
    parent = environment_of(closed())
    child = os.fork()
    if not child:
        found = environment_of(closed())
        same = {name: value for name, value in found.items() if name not in ("pid", "process_started")}
        is_right = found["pid"] == os.getpid() and same == {name: parent[name] for name in same}
        os._exit(0 if is_right and found["seed"] == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# Prices


def test_the_prices_that_costs_were_made_of(tmp_path: Path) -> None:
    prices = rt.PriceTable({"m-*": rt.Price(2, 10, cache_read=1), "other": rt.Price(1, 1), "exact": rt.Price(3, 3)})
    with ScriptedServer("fine") as server, rt.recording(tmp_path / "r.jsonl", prices=prices), rt.trajectory():
        with rt.wrap_openai(openai.OpenAI(base_url=server.base_url, api_key="none")) as client:
            for model in ("m-1", "exact", "m-2", "unknown"):
                client.chat.completions.create(model=model, messages=[{"role": "user", "content": "hi"}])
    (kept,) = rt.read(tmp_path / "r.jsonl")
    assert environment_of(kept)["prices"] == {
        "exact": {"input": 3.0, "output": 3.0, "currency": "USD"},
        "m-*": {"input": 2.0, "output": 10.0, "cache_read": 1.0, "currency": "USD"},
    }


def test_without_costs_of_a_table_there_are_no_prices() -> None:
    trajectory = rt.Trajectory()
    rt.PriceTable({"m": rt.Price(1, 1)}).apply(trajectory)
    assert trajectory.environment is None


# The command line

SECRETS = {
    "an option": (["--api-key", "s3cret"], ["--api-key", MASK]),
    "with =": (["--openai-api-key=s3cret", "--hf_token=s3cret"], [f"--openai-api-key={MASK}", f"--hf_token={MASK}"]),
    "one dash": (["-token", "s3cret"], ["-token", MASK]),
    "a variable": (["OPENAI_API_KEY=s3cret", "run"], [f"OPENAI_API_KEY={MASK}", "run"]),
    "hydra": (["+model.api_key=s3cret"], [f"+model.api_key={MASK}"]),
    "an address": (["https://user:s3cret@host/x?q=1"], [f"https://{MASK}@host/x?q=1"]),
    "a query": (["https://host/x?api_key=s3cret&q=1"], [f"https://host/x?api_key={MASK}&q=1"]),
    "a header": (["-H", "Authorization: Bearer s3cret.s3cret"], ["-H", f"Authorization: Bearer {MASK}"]),
    "JSON": (['{"api_key": "s3cret s3cret", "n": 1}'], [f'{{"api_key": {MASK}, "n": 1}}']),
    "a program": (["-c", "f(api_key='s3cret', n=1)"], ["-c", f"f(api_key={MASK}, n=1)"]),
    "a key": (["use", "sk-proj-s3cretS3cretS3cret"], ["use", MASK]),
    "tokens of hosts": (["ghp_s3crets3crets3cret", "xoxb-s3crets3cret"], [MASK, MASK]),
    "a JWT": (["eyJhbGciOi.eyJzM2NyZXQi.s3cret"], [MASK]),
    "a flag without value": (["--token", "--verbose", "x"], ["--token", "--verbose", "x"]),
    "no secrets": (["--max-tokens=100", "--tokenizer", "gpt2", "--monkey=1", "a@b", "sk-1"],) * 2,
}


@pytest.mark.parametrize("name", SECRETS)
def test_a_command_line_has_no_secrets(name: str) -> None:
    given, kept = SECRETS[name]
    assert command_line(["python", *given]) == ["python", *kept]
    assert not any("s3cret" in one for one in command_line(given))


def test_long_arguments_are_cut_short() -> None:
    (kept,) = command_line(["x" * 10**6])
    assert kept == "x" * 999 + "…"
    assert "s3cret" not in without_secrets(" " * 1990 + "--password=s3cret")


def test_the_command_of_a_process_and_keys_that_are_learned_later(tmp_path: Path) -> None:
    code = (
        "import sys, rollout_trace as rt\n"
        "from rollout_trace import credentials\n"
        "with rt.trajectory() as first: pass\n"
        "before = list(first.environment['command'])\n"
        "credentials.remember('plain-1-word')\n"
        "with rt.trajectory() as second: pass\n"
        "print(before[3:], second.environment['command'][3:])\n"
    )
    command = [sys.executable, "-c", code, "--token", "s3cret", "plain-1-word"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"['--token', '{MASK}', 'plain-1-word'] ['--token', '{MASK}', '{MASK}']"


# git


def git(folder: Path, *arguments: str) -> str:
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    who = ["-c", "user.name=n", "-c", "user.email=e@x", "-c", "commit.gpgsign=false", "-c", "init.defaultBranch=main"]
    command = ["git", *who, *arguments]
    return subprocess.run(
        command, cwd=folder, env={**own, "GIT_CONFIG_GLOBAL": os.devnull}, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    (folder / "inside").mkdir(parents=True)
    git(folder, "init")
    (folder / "file").write_text("one")
    (folder / "inside" / "file").write_text("one")
    git(folder, "add", ".")
    git(folder, "commit", "-m", "first")
    return folder


def state(folder: Path) -> dict[str, Any] | None:
    return git_state(folder, timeout=PATIENT)


@needs_git
def test_commit_and_branch(repository: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    assert state(repository) == {"commit": commit, "branch": "main", "dirty": False}
    assert state(repository / "inside") == {"commit": commit, "branch": "main", "dirty": False}
    git(repository, "checkout", "-b", "some/branch")
    git(repository, "pack-refs", "--all")
    assert state(repository) == {"commit": commit, "branch": "some/branch", "dirty": False}


@needs_git
def test_changes_of_tracked_files_are_dirt(repository: Path) -> None:
    (repository / "untracked").write_text("x")
    assert (state(repository) or {})["dirty"] is False
    (repository / "file").write_text("two")
    assert (state(repository / "inside") or {})["dirty"] is True
    git(repository, "commit", "-am", "second")
    assert (state(repository) or {})["dirty"] is False


@needs_git
def test_a_detached_head(repository: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    git(repository, "checkout", "--detach")
    assert state(repository) == {"commit": commit, "dirty": False}


@needs_git
def test_a_worktree(repository: Path, tmp_path: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    git(repository, "worktree", "add", "-b", "other", str(tmp_path / "worktree"))
    (tmp_path / "worktree" / "file").write_text("three")
    assert state(tmp_path / "worktree") == {"commit": commit, "branch": "other", "dirty": True}
    git(repository, "pack-refs", "--all")
    assert (state(tmp_path / "worktree") or {})["commit"] == commit


@needs_git
def test_no_commit_yet_and_no_repository(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    git(tmp_path / "new", "init")
    assert state(tmp_path / "new") == {"branch": "main"}
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / ".git").mkdir()
    assert state(tmp_path / "none") is None


@needs_git
def test_what_is_not_known_in_time_is_missing(repository: Path) -> None:
    assert git_state(repository, timeout=0) == {"commit": git(repository, "rev-parse", "HEAD"), "branch": "main"}


@needs_git
def test_no_command_of_the_repository_is_run(repository: Path, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(f"#!/bin/sh\ntouch {tmp_path / 'was-run'}\n")
    script.chmod(0o755)
    git(repository, "config", "core.fsmonitor", str(script))
    assert (state(repository) or {})["dirty"] is False
    assert not (tmp_path / "was-run").exists()


def test_a_broken_repository_costs_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(provenance, "_collected", None)
    assert "git" not in environment_of(closed())
