"""What exports of tokens do not give is counted, and what a row holds is its own: the same for every exporter."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace import export
from rollout_trace.data.model import Completion, Step
from rollout_trace.export import CHAT_COLUMNS, ExportReport
from tests.consumers.traces import trajectory_of
from tests.unchecked import unchecked

TRACE = [([1, 2], [3, 4], [-0.5, -0.25]), ([1, 2, 3, 4, 5], [6], [-1.0])]
TOKENS = (
    "areal", "nemo_gym", "nemo_rl", "openrlhf", "skyrl", "slime", "tinker", "trl", "trl_rollout", "verifiers", "verl",
)  # fmt: skip
CALLS = ("agent_lightning", "art", "openenv", "rllm", "turns")
TEXTS = ("chat", "exchanges", "steps")
PROMPTS = {"data_source": "a", "ability": "b"}


def given(name: str, trajectories: Any, **options: Any) -> tuple[Any, dict[str, int]]:
    """What an exporter gives, and what it counts."""
    report = ExportReport()
    if name == "tinker":
        options = {"advantages": None, **options}
    elif name == "trl_kto":
        options = {"threshold": 0.5, **options}
    elif name == "verl_prompts":
        options = {**PROMPTS, **options}
    return getattr(export, name)(trajectories, report=report, **options), report.dropped


def talk() -> rt.Trajectory:
    """One call with everything that can be shared: messages of parts, tools, columns."""
    sent = [{"role": "user", "content": "Add."}, {"role": "user", "content": [{"type": "text", "text": "1"}]}]
    tokens: Any = {"prompt_token_ids": [1], "completion_token_ids": [2], "logprobs": [-1.0], "token_source": "engine"}
    step = Step(
        id="a", call_id="a", protocol="openai.chat", messages=sent, sampling={"stop": ["x"]}, metadata={"turn": [0]},
        tools=[{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}],
        completion=Completion(content=[{"type": "text", "text": "1"}]), **tokens,
    )  # fmt: skip
    return rt.Trajectory(
        id="talk", group_id="g", steps=[step], reward=1.0, rewards={"sum": 1.0}, metrics={"turns": 1.0},
        metadata={"split": ["train"]}, task=rt.Task(id="t", data={"numbers": [1]}),
    )  # fmt: skip


def spoil(value: Any) -> None:
    """Changes every dict and list inside."""
    if isinstance(value, dict):
        for item in value.values():
            spoil(item)
        value["spoiled"] = True
    elif isinstance(value, list):
        for item in value:
            spoil(item)
        value.append("spoiled")


@pytest.mark.parametrize("name", [*TOKENS, *CALLS, *TEXTS, "atif", "trl_kto", "trl_dpo", "verl_prompts"])
def test_a_row_is_its_own(name: str) -> None:
    """Editing rows, as every user does, changes nothing that was recorded."""
    run, worse = talk(), talk()
    worse.reward, worse.id = 0.0, "worse"
    before = copy.deepcopy(run)
    columns: Any = {"columns": tuple(CHAT_COLUMNS)} if name == "chat" else {}
    if name == "verl_prompts":
        for one in (run, before):
            one.steps[0] = replace(one.steps[0], messages=(one.steps[0].messages or [])[:-1])
    found, _ = given(name, [run, worse], **columns)
    assert found
    spoil(found)
    assert run == before


def test_rows_with_arrays_are_their_own_too() -> None:
    run = talk()
    before = copy.deepcopy(run)
    spoil(export.steps(run, arrays=True))
    assert run == before


@pytest.mark.parametrize("name", TOKENS)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_rewards_that_are_not_finite_are_none_and_counted(name: str, value: float) -> None:
    run = trajectory_of(TRACE)
    unchecked(run, reward=value, rewards={"sum": value})
    unchecked(run.steps[0], reward=value)
    before = (run.reward, run.rewards, run.steps)
    found, dropped = given(name, run)
    json.dumps(found, allow_nan=False, default=lambda array: array.tolist())
    assert dropped["rewards that are not finite numbers"] == 2
    assert dropped["step rewards that are not finite numbers"] == 1
    assert (run.reward, run.rewards, run.steps) == before
    with pytest.raises(rt.ExportError, match="rewards that are not finite numbers"):
        given(name, run, strict=True)


def test_a_file_of_rows_has_null_for_such_a_reward(tmp_path: Path) -> None:
    run, report = unchecked(trajectory_of(TRACE), reward=math.nan), ExportReport()
    assert export.write_trl(tmp_path / "rows.jsonl", run, report=report) == 1
    assert json.loads((tmp_path / "rows.jsonl").read_text())["reward"] is None
    assert report.dropped == {"rewards that are not finite numbers": 1}


def test_skyrl_leaves_such_a_run_out_as_not_scored() -> None:
    found, dropped = given("skyrl", unchecked(trajectory_of(TRACE), reward=math.nan))
    assert found["rewards"] == []
    assert dropped == {"rewards that are not finite numbers": 1, "trajectories without a reward": 1}


@pytest.mark.parametrize(
    "name", ["areal", "chat", "nemo_gym", "openenv", "skyrl", "steps", "tinker", "trl", "turns", "verl"]
)
def test_a_trajectory_without_steps_is_counted(name: str) -> None:
    _, dropped = given(name, rt.Trajectory(reward=1.0))
    assert dropped == {"trajectories without steps": 1, "scored trajectories without a row": 1}
    assert given(name, rt.Trajectory())[1] == {"trajectories without steps": 1}


UNUSED = {
    "agent_lightning": {"step advantages", "rewards of last steps, in whose place the run's stands"},
    "areal": {"step rewards", "step advantages", "rewards by name"},
    "art": {"step rewards", "step advantages"},
    "chat": {"step rewards", "step advantages"},
    "nemo_gym": {"step rewards", "step advantages", "policy versions"},
    "nemo_rl": {"step rewards", "step advantages"},
    "openenv": {"step advantages", "rewards by name"},
    "openrlhf": {"step rewards", "step advantages", "policy versions"},
    "rllm": set(),
    "skyrl": {"step rewards", "step advantages", "policy versions", "rewards by name"},
    "slime": {"step advantages"},
    "tinker": {"step rewards", "step advantages", "policy versions", "rewards by name"},
    "trl": {"step rewards", "step advantages", "policy versions", "rewards by name"},
    "trl_kto": {"step rewards", "step advantages"},
    "trl_rollout": {"step advantages"},
    "turns": {
        "step advantages",
        "policy versions",
        "rewards by name",
        "rewards of last steps, in whose place the run's stands",
    },
    "verifiers": set(),
    "verl": {"step advantages"},
}


@pytest.mark.parametrize("name", UNUSED)
def test_what_was_set_and_has_no_field_is_counted(name: str) -> None:
    run = talk()
    (step,) = run.steps
    assert not set(given(name, run)[1]) - {"rewards by name"}
    step.reward, step.advantage, step.policy_version = 0.5, 1.0, 7
    _, dropped = given(name, run)
    assert dropped == dict.fromkeys(UNUSED[name], 1)


@pytest.mark.parametrize("name", ["verifiers", "trl", "verl"])
def test_an_advantage_beside_a_step_without_one_is_counted(name: str) -> None:
    """The row has none then."""
    run = trajectory_of(TRACE)
    run.steps[0].advantage = 1.0
    assert given(name, run)[1] == {"step advantages": 1}


# OpenEnv refuses such a call: tests/export/test_openenv.py.
@pytest.mark.parametrize("name", [*TOKENS, *(name for name in CALLS if name != "openenv")])
def test_a_token_that_nothing_stands_before_is_counted(name: str) -> None:
    _, dropped = given(name, trajectory_of([([], [3, 4], [-0.5, -0.25])]))
    assert dropped == {"sampled tokens with no token before them": 1}


@pytest.mark.parametrize("name", TOKENS)
def test_options_are_checked_before_there_is_a_trajectory(name: str) -> None:
    with pytest.raises(TypeError, match="no option on_drft"):
        given(name, [], on_drft="drop")
    with pytest.raises(ValueError, match="max_length=0"):
        given(name, [], max_length=0)


@pytest.mark.parametrize("name", [*TOKENS, *CALLS, "atif", "chat", "steps"])
def test_a_text_is_no_set_of_reasons(name: str) -> None:
    """Any part of it would be one: "abandoned or retokenized"."""
    with pytest.raises(TypeError, match="allow='retokenized': expected a set of reasons"):
        given(name, [], allow="retokenized")


EXPORTERS = [*TOKENS, *CALLS, *TEXTS, "atif", "trl_kto", "trl_dpo", "verl_prompts"]


@pytest.mark.parametrize("name", EXPORTERS)
@pytest.mark.parametrize("path", ["y.jsonl", Path("y.jsonl"), b"y.jsonl", ["y.jsonl"]], ids=repr)
def test_a_path_in_the_place_of_trajectories_is_told(name: str, path: Any) -> None:
    with pytest.raises(TypeError, match=r"^expected .*, got the path 'y\.jsonl'; give what rt\.read\('y\.jsonl'\) yi"):
        list(given(name, path)[0])


@pytest.mark.parametrize("name", EXPORTERS)
@pytest.mark.parametrize("other", [None, 3, [None], [{"id": "a"}]], ids=repr)
def test_what_is_no_trajectory_is_told(name: str, other: Any) -> None:
    with pytest.raises(TypeError, match=r"^expected (trajectories|a trajectory), got .* \((NoneType|int|dict)\)\.$"):
        list(given(name, other)[0])


@pytest.mark.parametrize("name", [*TOKENS, *CALLS, "atif", "chat", "steps"])
def test_a_reason_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"^allow: 'retokenised' is not a reason .*. Did you mean retokenized\?"):
        given(name, [], allow={"retokenised"})


@pytest.mark.parametrize("name", [*TOKENS, "steps"])
@pytest.mark.parametrize("advantage", [[0.5], 1e300, math.nan, "high", [[1.0, 2.0]], [1.0, None]])
def test_an_advantage_that_does_not_fit_is_refused(name: str, advantage: Any) -> None:
    run = trajectory_of(TRACE)
    unchecked(run.steps[0], advantage=advantage)
    with pytest.raises(ValueError, match=r"step 'step0': .*advantage"):
        given(name, run)
