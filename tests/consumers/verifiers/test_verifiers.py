"""What verifiers itself reads from our traces is what was recorded: ids, masks, logprobs, rewards, messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from verifiers.v1 import WireEpisode

import rollout_trace as rt
from rollout_trace import importing
from rollout_trace.export import verifiers, write_verifiers
from rollout_trace.file.plain import dumps
from rollout_trace.report import ExportReport
from rollout_trace.wire import PROTOCOLS
from tests.consumers import exact_runs, recorded, vllm_extras
from tests.consumers.traces import Trace, traces, trajectory_of
from tests.strategies import PROFILE, trajectories

Row = tuple[list[int], list[bool], list[float]]


def read_back(path: Path, made: Iterable[rt.Trajectory], **options: Any) -> dict[str, Any]:
    """What verifiers reads from the file of some trajectories: traces by their ids."""
    episodes = write_verifiers(path, made, **options)
    found = [WireEpisode.model_validate_json(line) for line in path.read_bytes().splitlines()]
    assert len(found) == episodes
    return {trace.id: trace for episode in found for trace in episode.traces}


def rows_of(trajectory: rt.Trajectory, **options: Any) -> list[Row]:
    return sorted(
        (row.token_ids.tolist(), row.loss_mask.astype(bool).tolist(), row.logprobs.tolist())
        for row in trajectory.sequences(**options)
        if row.logprobs is not None
    )


def branches_of(trace: Any) -> list[Row]:
    found = [branch for branch in trace.branches if branch.token_ids]
    # What verifiers holds in a float64 must be the float32 that was recorded, to the bit.
    return sorted((branch.token_ids, branch.sampled_mask, branch.logprobs) for branch in found)


@pytest.mark.parametrize("make", recorded.EVERY, ids=lambda make: make.__name__)
def test_branches_are_the_sequences(make: Callable[[], list[rt.Trajectory]], tmp_path: Path) -> None:
    """Every kind of recording: ids and masks exactly, logprobs as the same float32, the reward."""
    made = make()
    found = read_back(tmp_path / "traces.jsonl", made)
    assert list(found) == [trajectory.id for trajectory in made]
    for trajectory in made:
        assert branches_of(found[trajectory.id]) == rows_of(trajectory)
        assert found[trajectory.id].reward == (trajectory.reward or 0.0)


def test_branches_are_what_exact_turns_were_served(tmp_path: Path) -> None:
    runs, served = exact_runs.record()
    path = tmp_path / "traces.jsonl"
    found = read_back(path, runs)
    for run in runs:
        rows = [(row.ids, list(map(bool, row.mask)), row.logprobs) for row in served[str(run.name)]]
        assert branches_of(found[run.id]) == sorted(rows)
        assert found[run.id].reward == run.reward
    back = {one.id: [step.exact_turn for step in one.steps] for one in importing.verifiers(path)}
    assert back == {run.id: [step.exact_turn for step in run.steps] for run in runs}
    (edited,) = [run for run in runs if run.name == "edited"]
    assert [turn and turn.reason for turn in back[edited.id]] == [None, None, "history_changed", None]


@given(traces(), st.sampled_from([{}, {"linear": True}, {"max_length": 5}]))
@PROFILE
def test_any_tokens(trace: Trace, options: dict[str, Any]) -> None:
    """Prompts that go on, fork, drift and repeat; without messages, and cut at a length."""
    trajectory = trajectory_of(trace)
    (episode,) = verifiers(trajectory, **options)
    read = WireEpisode.model_validate_json(dumps(episode)).traces[0]
    assert branches_of(read) == rows_of(trajectory, **options)


@given(st.booleans().flatmap(lambda live: trajectories(live=live)), st.lists(st.sampled_from(PROTOCOLS), min_size=4))
@PROFILE
def test_anything_is_read(trajectory: rt.Trajectory, protocols: list[str]) -> None:
    """Whatever a trajectory holds (requests of no known shape, half characters, other types), verifiers reads it."""
    steps = zip(trajectory.steps, protocols, strict=False)
    trajectory.steps = [replace(step, protocol=protocol, advantage=0.5) for step, protocol in steps]
    (episode,) = verifiers(trajectory, report=ExportReport())
    read = WireEpisode.model_validate_json(dumps(episode)).traces[0]
    assert branches_of(read) == rows_of(trajectory)


def test_messages_follow_the_tokens() -> None:
    """A branch is the whole conversation: what was read, and what was sampled, each message once."""
    (trajectory, *_) = recorded.tool_agent()
    (episode,) = verifiers(trajectory)
    (branch,) = WireEpisode.model_validate(episode).traces[0].branches
    roles = [(node.message.role, node.sampled) for node in branch.nodes]
    turn = [("assistant", True), ("tool", False)]
    assert roles == [("system", False), ("user", False), *turn, *turn, ("assistant", True)]
    calls = [call for message in branch.messages for call in getattr(message, "tool_calls", None) or ()]
    completions = [step.completion for step in trajectory.steps]
    assert [call.arguments for call in calls] == [
        call.arguments for completion in completions if completion is not None for call in completion.tool_calls
    ]
    assert [tool.name for tool in branch.tools] == ["add"]
    assert len(branch.calls) == 3
    assert branch.usage is not None
    assert branch.usage.completion_tokens == trajectory.n_output_tokens


def test_an_answer_is_trained_on_in_one_branch_alone() -> None:
    """Where two branches go on from one answer, the second reads it: verifiers' masks count each sampled token once."""
    (trajectory,) = recorded.forked()
    (episode,) = verifiers(trajectory)
    branches = WireEpisode.model_validate(episode).traces[0].branches
    sampled = sum(sum(branch.sampled_mask) for branch in branches)
    ids = [step.completion_token_ids for step in trajectory.steps]
    assert sampled == sum(len(one) for one in ids if one is not None)
    assert [message.content for message in branches[1].messages][:3] == [
        message.content for message in branches[0].messages
    ][:3]
    assert [node.sampled for node in branches[1].nodes].count(True) == 1


def test_what_a_user_added_arrives() -> None:
    """Rewards by name (which do not count twice), metrics, advantages, the group, policy versions, the task."""
    for trajectory in recorded.annotated():
        (episode,) = verifiers(trajectory)
        read = WireEpisode.model_validate(episode)
        (trace,) = read.traces
        assert trace.reward == trajectory.reward
        assert {name: reward.score for name, reward in trace.rewards.items() if reward is not None} == {
            **(trajectory.rewards or {}),
            "reward": trajectory.reward,
        }
        assert trace.metrics == trajectory.metrics
        assert read.group is not None
        assert read.group.id == trajectory.group_id
        assert trajectory.task is not None
        assert read.task.data.id == trajectory.task.id
        assert read.task.data.model_extra == {"data": trajectory.task.data}
        (row,), (branch,) = trajectory.sequences(), trace.branches
        assert row.advantages is not None
        assert branch.advantages == row.advantages.tolist()
        assert {step["policy_version"] for step in trace.info["rollout_trace"]["steps"]} == {7}


def test_not_scored_is_not_zero() -> None:
    """A trajectory without a reward has the reward None, which is how verifiers says that nothing was scored."""
    for trajectory in recorded.unscored():
        (episode,) = verifiers(trajectory)
        (trace,) = WireEpisode.model_validate(episode).traces
        assert (trace.rewards["reward"] is None) == (trajectory.reward is None)


def test_one_episode_for_each_run() -> None:
    """A coordinator and its workers are the traces of one episode, whatever stands between their lines."""
    made = recorded.two_agents()
    mixed = [made[0], made[3], made[1], made[4], made[5], made[2]]
    episodes = [WireEpisode.model_validate(episode) for episode in verifiers(mixed)]
    assert [episode.id for episode in episodes] == [made[0].id, made[3].id]
    assert [[trace.agent.name for trace in episode.traces] for episode in episodes] == [
        ["coordinator", "worker", "worker"]
    ] * 2
    assert {episode.group.id for episode in episodes if episode.group is not None} == {"pair/1"}


def test_text_without_ids_is_kept() -> None:
    """A hosted model gives no ids: the conversation is there, its agent is marked as not to be trained."""
    report = ExportReport()
    (episode, *_) = verifiers(recorded.without_ids(), report=report)
    (trace,) = WireEpisode.model_validate(episode).traces
    (branch,) = trace.branches
    assert [message.role for message in branch.messages][-3:] == ["assistant", "tool", "assistant"]
    assert branch.token_ids == []
    assert not trace.agent.trainable
    assert report.dropped == {"steps left out: ids_missing": 18}
    with pytest.raises(rt.ExportError, match="ids_missing"):
        verifiers(recorded.without_ids(), strict=True)


def test_a_missing_logprob_is_not_read_as_certainty() -> None:
    """Verifiers fills logprobs that are not there with 0.0, probability one: such a sequence is text alone."""
    (trajectory, *_) = recorded.tool_agent()
    trajectory.steps[1] = replace(trajectory.steps[1], logprobs=None)
    report = ExportReport()
    (episode,) = verifiers(trajectory, report=report)
    (branch,) = WireEpisode.model_validate(episode).traces[0].branches
    assert branch.token_ids == []
    assert len(branch.messages) == 7
    assert [what for what in report.dropped if "without logprobs" in what]


def test_failures_are_said() -> None:
    """A failed run is not ok; calls that failed stand among the calls, with their errors."""
    (episode,) = verifiers(recorded.failed_steps(), report=ExportReport())
    read = WireEpisode.model_validate(episode)
    (trace,) = read.traces
    assert not read.ok
    assert not trace.ok
    assert trace.errors[0].message == "the agent gave up"
    assert [call.error.status_code for call in trace.calls if call.error is not None] == [500]
    assert len(trace.calls) == 8
    assert [call.finish_reason for call in trace.calls].count("length") == 1


def test_other_protocols() -> None:
    """Anthropic's blocks and Responses' items become the same messages as chat's."""
    (episode,) = verifiers(recorded.anthropic_agent(), report=ExportReport())
    (branch,) = WireEpisode.model_validate(episode).traces[0].branches
    assert [message.role for message in branch.messages] == ["system", "user", "assistant", "tool", "assistant"]
    asked: Any = branch.messages[2]
    assert (asked.content, asked.reasoning_content) == ("Adding.", "Add them.")
    assert json.loads(asked.tool_calls[0].arguments) == {"a": 1, "b": 2}
    assert branch.messages[3].content == "3"
    assert [node.sampled for node in branch.nodes] == [False, False, True, False, True]
    (episode,) = verifiers(recorded.responses_agent(), report=ExportReport())
    (branch,) = WireEpisode.model_validate(episode).traces[0].branches
    assert [message.role for message in branch.messages] == ["system", "user", "assistant", "user", "assistant"]


def test_a_tool_of_other_types_is_read() -> None:
    """A request that no server would take; the step failed."""
    inner = {"name": "f", "parameters": [], "strict": "no", "description": 3}
    odd: list[Any] = [{"type": "function", "function": inner}]
    made = rt.Trajectory(steps=[rt.Step(id="a", call_id="a", tools=odd, status="error")])
    (episode,) = verifiers(made, report=ExportReport())
    (tool,) = WireEpisode.model_validate_json(dumps(episode)).traces[0].tools
    assert (tool.name, tool.parameters) == ("f", {})


def test_a_branch_has_the_recorded_experts_and_masks() -> None:
    """As vLLM sent them, read by hand: of every token but the last, which has those of the one before."""
    runs = vllm_extras.runs()
    found = [WireEpisode.model_validate(episode) for episode in verifiers(runs, report=ExportReport())]
    for episode, run in zip(found, runs, strict=True):
        (branch,) = episode.traces[0].branches
        names = [step.id for step in run.steps]
        experts = vllm_extras.experts(*names)
        assert branch.token_ids == vllm_extras.ids(*names)
        assert branch.routed_experts.tolist() == [*experts.tolist(), experts[-1].tolist()]
        assert branch.routed_experts.dtype == experts.dtype
        if run.steps[0].sampling_mask is None:
            assert branch.sampling_mask is None
            continue
        (name,) = names
        sampled = vllm_extras.mask(name)
        kept: list[list[int]] = [[] for _ in branch.token_ids[len(sampled) :]] + sampled
        assert branch.sampling_mask.counts.tolist() == [len(one) for one in kept]
        assert branch.sampling_mask.ids.tolist() == [token for one in kept for token in one]
        # As its environment server sends it to the trainer.
        sent = WireEpisode.model_validate(episode.model_dump(mode="python"))
        assert sent.traces[0].branches[0].routed_experts.tolist() == branch.routed_experts.tolist()


def test_a_file_is_read_without_them(tmp_path: Path) -> None:
    (trace,) = read_back(tmp_path / "traces.jsonl", [vllm_extras.trajectory(*vllm_extras.TURNS)]).values()
    (branch,) = trace.branches
    assert branch.token_ids == vllm_extras.ids(*vllm_extras.TURNS)
    assert branch.routed_experts is None


@pytest.mark.parametrize("make", recorded.EVERY, ids=lambda make: make.__name__)
def test_what_verifiers_writes_is_imported(make: Callable[[], list[rt.Trajectory]], tmp_path: Path) -> None:
    """Through verifiers' own models, and its own record: the branches, the rewards and the texts are the same."""
    made = make()
    write_verifiers(tmp_path / "ours.jsonl", made)
    episodes = [WireEpisode.model_validate_json(line) for line in (tmp_path / "ours.jsonl").read_bytes().splitlines()]
    records = [episode.to_record(float_decimals=None) for episode in episodes]
    (tmp_path / "theirs.jsonl").write_text("".join(json.dumps(record, default=str) + "\n" for record in records))
    traces = {trace.id: trace for episode in episodes for trace in episode.traces}
    found = {one.id: one for one in importing.verifiers(tmp_path / "theirs.jsonl")}
    assert sorted(found) == sorted(one.id for one in made)
    for trajectory in made:
        back = found[trajectory.id]
        assert rows_of(back) == rows_of(trajectory) == branches_of(traces[trajectory.id])
        assert (back.reward, back.rewards, back.metrics) == (trajectory.reward, trajectory.rewards, trajectory.metrics)


def test_its_files_round_and_that_is_said(tmp_path: Path) -> None:
    made = recorded.tool_agent()
    path = tmp_path / "traces.jsonl"
    episodes = [WireEpisode.model_validate(one) for one in verifiers(made)]
    path.write_text("".join(json.dumps(one.to_record(), default=str) + "\n" for one in episodes))
    found = importing.verifiers(path)
    for one, back in zip(made, found, strict=True):
        for (ids, mask, logprobs), (same, marks, rounded) in zip(rows_of(one), rows_of(back), strict=True):
            assert (ids, mask) == (same, marks)
            assert rounded == pytest.approx(logprobs, abs=6e-5)
    assert any("at most 4 decimals" in what for what in found.report.noted)


def test_our_fixture_is_of_its_shape() -> None:
    path = Path(__file__).parents[2] / "data" / "imports" / "verifiers" / "traces.jsonl"
    (trace,) = WireEpisode.model_validate_json(path.read_bytes()).traces
    (one,) = importing.verifiers(path)
    assert (trace.reward, trace.id) == (one.reward, one.id)
    first = next(branch for branch in trace.branches if branch.token_ids[:2] == [1, 2] and len(branch.token_ids) == 9)
    (row,) = one.sequences()
    assert (row.token_ids.tolist(), row.loss_mask.astype(bool).tolist()) == (first.token_ids, first.sampled_mask)
