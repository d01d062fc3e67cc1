"""Settings of a collection: from TOML, from ``key=value``, and what of them is refused."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace.collection.settings import GROUPS, SETTINGS, Settings, SettingsError, ungrouped


def settings(text: str, folder: Path, *overrides: str, **options: Any) -> dict[str, Any]:
    (folder / "run.toml").write_text(text)
    found = Settings()
    found.read(str(folder / "run.toml"))
    for one in overrides:
        found.override(one)
    found.set(options, lambda name: f"--{name}")
    return found.arguments()


def test_every_setting_is_an_argument_of_collect() -> None:
    """By its name, or, where that was an argument once, as a key of a group."""
    arguments = inspect.signature(rt.collect).parameters
    grouped = {name for group in GROUPS.values() for name in group.values()}
    assert set(arguments) - {"progress", "earlier"} == (set(SETTINGS) - grouped) | set(GROUPS)
    assert grouped <= set(SETTINGS)
    for name in set(arguments) & set(SETTINGS) - {"agent", "tasks", "output"}:
        assert arguments[name].default == SETTINGS[name].default


def test_groups_and_the_names_before_them(tmp_path: Path) -> None:
    """Each key of a group is the setting that was an argument by its own name."""
    groups: dict[str, Any] = {
        "retries": {"times": 2, "on": ["OSError"], "wait": 0.5, "wait_max": 9.0, "failed": True},
        "timeout": {"rollout": 60, "reward": 10.5},
        "limits": {"tasks": 1, "task_ids": ["b"], "failures": 0},
    }
    names: dict[str, Any] = {
        "retries": 2, "retry_on": ["OSError"], "retry_wait": 0.5, "retry_wait_max": 9.0, "retry_failed": True,
        "timeout": 60, "reward_timeout": 10.5, "limit": 1, "task_ids": ["b"], "max_consecutive_failures": 0,
    }  # fmt: skip
    assert ungrouped(groups) == ungrouped(names)
    text = "[collect]\nretries = { times = 2, on = ['OSError'], wait = 0.5, wait-max = 9.0, failed = true }\n"
    text += "timeout = { rollout = 60, reward = 10.5 }\nlimits = { tasks = 1, task_ids = ['b'] }\n"
    assert settings(text, tmp_path, "limits.failures=0") == names
    assert settings(text, tmp_path, retries=3)["retries"] == 3


def test_a_run_with_groups_is_that_with_the_names_before_them(tmp_path: Path) -> None:
    def fails(task: Any) -> None:
        raise OSError("no")

    usual: dict[str, Any] = {"progress": False, "concurrency": 1}
    groups: dict[str, Any] = {
        "retries": {"times": 1, "on": ["OSError"], "wait": 0},
        "limits": {"task_ids": ["b", "c"], "failures": 1},
    }
    names: dict[str, Any] = {
        "retries": 1, "retry_on": OSError, "retry_wait": 0, "task_ids": ["b", "c"], "max_consecutive_failures": 1
    }  # fmt: skip
    every = {}
    for place, given in (("groups", groups), ("names", names)):
        summary = rt.collect(fails, ["a", "b", "c"], output=tmp_path / f"{place}.jsonl", **given, **usual)
        every[place] = (summary.planned, summary.attempts, summary.retried, summary.by_status, summary.stopped)
    assert every["groups"] == every["names"] == (2, 2, 1, {"failed": 1}, "1 rollout failed; the last: OSError: no")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"retries": {"tries": 1}}, "retries has the key 'tries'. Did you mean times"),
        ({"retries": {"on": OSError}, "retry_on": ValueError}, "retry_on is given twice, also as 'on' of retries"),
        ({"limits": 5}, r"limits is 5 \(int\); give a mapping with any of tasks, task_ids, failures"),
        ({"reties": 5}, r"collect\(\) has no argument 'reties'. Did you mean retries"),
        ({"executor": {"kind": "process", "proceses": 1}}, "executor has no argument 'proceses'. Did you mean proc"),
        ({"executor": {"kind": "threads"}}, "executor is {'kind': 'threads'}; give \"local\""),
    ],
)
def test_groups_that_are_refused(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        rt.collect(print, ["a"], output=tmp_path / "x.jsonl", **given)
    with pytest.raises(SettingsError, match="retries: retries has the key 'tries'"):
        settings("[collect]\nretries = { tries = 1 }\n", tmp_path)


def test_all_settings_in_a_file(tmp_path: Path) -> None:
    text = """
[collect]
agent = "agents.solver:solve"
tasks = "tasks.jsonl"
output = "runs/"
samples = 4
concurrency = 64
timeout = 600
retries = 2
retry-on = ["APIError", "TimeoutError"]
retry_wait = 0.5
retry-wait-max = 30
retry-failed = true
reward = "rewards:exact"
reward-timeout = 10.5
max-consecutive-failures = 0
instrument = true
engine = "vllm"
seed = 7
name = "small"
executor = "process"
logs = "logs"
resume = false
limit = 10
task-ids = ["a", 2]
recording = { fsync = true }
"""
    assert settings(text, tmp_path) == {
        "agent": "agents.solver:solve",
        "tasks": "tasks.jsonl",
        "output": "runs/",
        "samples": 4,
        "concurrency": 64,
        "timeout": 600,
        "retries": 2,
        "retry_on": ["APIError", "TimeoutError"],
        "retry_wait": 0.5,
        "retry_wait_max": 30,
        "retry_failed": True,
        "reward": "rewards:exact",
        "reward_timeout": 10.5,
        "max_consecutive_failures": 0,
        "instrument": True,
        "engine": "vllm",
        "seed": 7,
        "name": "small",
        "executor": "process",
        "logs": "logs",
        "resume": False,
        "limit": 10,
        "task_ids": ["a", "2"],
        "recording": {"fsync": True},
    }


def test_what_is_given_later_wins(tmp_path: Path) -> None:
    text = "[collect]\nsamples = 1\nseed = 1\nname = 'a'\nrecording = { fsync = true, lock_timeout = 5 }\n"
    overrides = ["samples=2", "collect.seed = 2", "recording.fsync=false", "retry-on=OSError, ValueError"]
    assert settings(text, tmp_path, *overrides, seed=3, limit=None) == {
        "samples": 2,
        "seed": 3,
        "name": "a",
        "recording": {"fsync": False, "lock_timeout": 5},
        "retry_on": ["OSError", "ValueError"],
    }


def test_values_of_overrides_are_toml_or_text(tmp_path: Path) -> None:
    given = ["name=01-a b", "output=s3://bucket/x", "resume=false", 'agent="a:b"', "task_ids=[1, 'x']", "timeout=2.5"]
    assert settings("", tmp_path, *given) == {
        "name": "01-a b",
        "output": "s3://bucket/x",
        "resume": False,
        "agent": "a:b",
        "task_ids": ["1", "x"],
        "timeout": 2.5,
    }


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ('"rewards:exact"', "rewards:exact"),
        ('["rewards:exact"]', "rewards:exact"),
        ('"rewards:exact*0.5"', {"exact": ("rewards:exact", 0.5)}),
        ('"same=rewards:Exact.score"', {"same": ("rewards:Exact.score", 1.0)}),
        ('["rewards:exact*2", "style=a.b:c*-1e-1"]', {"exact": ("rewards:exact", 2.0), "style": ("a.b:c", -0.1)}),
        ('{ same = "rewards:exact" }', {"same": ("rewards:exact", 1.0)}),
        ('{ same = "rewards:exact*3" }', {"same": ("rewards:exact", 3.0)}),
        ('{ same = { function = "rewards:exact", weight = 2 } }', {"same": ("rewards:exact", 2.0)}),
        ('["a:same", "b:same"]', [("a:same", 1.0), ("b:same", 1.0)]),
    ],
)
def test_rewards(tmp_path: Path, value: str, expected: Any) -> None:
    assert settings(f"[collect]\nreward = {value}\n", tmp_path) == {"reward": expected}


def test_rewards_in_files_have_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = settings('[collect]\nreward = ["one=x/my rewards.py:exact*0.5", "y.py:style"]', tmp_path)
    assert found["reward"] == {
        "one": (f"{tmp_path}/x/my rewards.py:exact", 0.5),
        "style": (f"{tmp_path}/y.py:style", 1.0),
    }


def test_engines_and_executors_with_arguments(tmp_path: Path) -> None:
    text = "[collect]\nengine = { name = 'vllm', top_logprobs = 5 }\nexecutor = { kind = 'process', processes = 3 }\n"
    found = settings(text, tmp_path)
    assert found["engine"] == rt.Engine("vllm", top_logprobs=5)
    assert isinstance(found["executor"], rt.ProcessExecutor)
    assert found["executor"].processes == 3
    # Another engine keeps what is asked for, another executor has arguments of its own.
    assert settings(text, tmp_path, executor="local")["executor"] == "local"
    assert settings(text, tmp_path, engine="sglang")["engine"] == rt.Engine("sglang", top_logprobs=5)
    assert settings("", tmp_path, "executor=process", "executor.processes=2")["executor"].processes == 2
    assert settings("", tmp_path, "executor.processes=2", executor="process")["executor"].processes == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[collect]\nsample = 4\n", r"run.toml, \[collect\] sample: there is no setting 'sample'. Did you mean s"),
        ("[collect]\nzzz = 4\n", r"there is no setting 'zzz'. There are agent, .*timeout\."),
        ("[colect]\nsamples = 4\n", r"run.toml: unknown key 'colect'; expected the table \[collect\]"),
        ("samples = 4\n", "run.toml: unknown key 'samples'; expected the table"),
        ("collect = 4\n", r"collect is 4; expected a table"),
        ("[collect]\nsamples = \n", r"run.toml: not valid TOML: .*line 2"),
        ("[collect]\nsamples = 'four'\n", r"run.toml, \[collect\] samples: expected a whole number of 1 .* got 'four'"),
        ("[collect]\nsamples = 0\n", "expected a whole number of 1 or more, got 0"),
        ("[collect]\nsamples = true\n", "expected a whole number of 1 or more, got True"),
        ("[collect]\nsamples = 1.0\n", "expected a whole number of 1 or more, got 1.0"),
        ("[collect]\ntimeout = nan\n", "expected a number of seconds"),
        ("[collect]\ntimeout = '10'\n", "expected a number of seconds above 0, got '10'"),
        ("[collect]\nresume = 'yes'\n", "resume: expected true or false, got 'yes'"),
        ("[collect]\nname = ''\n", "name: expected text, got ''"),
        ("[collect]\ntask-ids = []\n", r"task-ids: expected ids of tasks, in a list, got \[\]"),
        ("[collect]\ntask-ids = [1.5]\n", "expected ids of tasks"),
        ("[collect]\nreward = 'exact'\n", r"reward: expected \"\[name=\]module:function\[\*weight\]\""),
        ("[collect]\nreward = 'a:exact*x'\n", "reward: expected"),
        ("[collect]\nreward = { a = { fn = 'a:b' } }\n", "reward: expected"),
        ("[collect]\nreward = { a = { function = 'a:b', weight = 'x' } }\n", "reward: expected"),
        ("[collect]\nreward = { a = { function = 'b' } }\n", "reward: 'b' does not name an object"),
        ("[collect]\nexecutor = 'cloud'\n", "executor: expected one of"),
        ("[collect]\nexecutor = { kind = 'process', proceses = 1 }\n", r"executor: .*no argument 'proceses'. Did you"),
        ("[collect]\nengine = { name = 'vllm', top_logprobs = 99 }\n", r"engine: Engine\(top_logprobs=99\)"),
        ("[collect]\nengine = { name = 'vllm', top_logprob = 9 }\n", "no argument 'top_logprob'. Did you mean"),
        ("[collect]\nrecording = true\n", "recording: expected a table"),
    ],
)  # fmt: skip
def test_what_is_refused_in_a_file(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        settings(text, tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("samples", "--set samples: expected key=value"),
        ("=4", "expected key=value"),
        ("reward..x=4", "expected key=value"),
        ("sample=4", "--set sample: there is no setting 'sample'. Did you mean samples"),
        ("samples=four", "--set samples: expected a whole number of 1 or more, got 'four'"),
        ("retries.times=x", "--set retries.times: expected a whole number of 0 or more, got 'x'"),
        ("samples.x=4", "--set samples.x: 1 is not a table"),
        ("recordings.x=4", "there is no setting 'recordings'. Did you mean recording"),
    ],
)
def test_what_is_refused_in_an_override(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        settings("[collect]\nsamples = 1\n", tmp_path, text)


def test_an_option_is_named_in_its_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"^--executor: expected one of"):
        settings("", tmp_path, executor="cloud")


def test_without_a_package_for_toml_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("tomllib", "tomli"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=r"settings in TOML need the package tomli.*pip install 'tomli'"):
        settings("", tmp_path)
