"""Triplets of Agent-lightning, and the rows of its datasets of turns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rollout_trace.data.model import Step, Task
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.importing.chat import chat_completion
from rollout_trace.importing.fields import Fields, as_float
from rollout_trace.importing.span_values import as_json
from rollout_trace.importing.steps import policy_version, token_fields
from rollout_trace.wire.steps import Stores
from rollout_trace.wire.tool_results import tool_runs_of

if TYPE_CHECKING:
    from rollout_trace.importing.imported import Job

_NO_IDS = "the triplet has no token ids of the response."


class Triplets:
    """Triplets and rows, by the run that they are of, in the order of the file."""

    def __init__(self, job: Job, name: str) -> None:
        self._job, self._name = job, name
        self._runs: dict[str, list[Fields]] = {}
        self._facts: dict[str, Fields] = {}
        self._turns: dict[str, int] = {}
        self._ids: set[str] = set()

    def add(self, record: Fields) -> None:
        """Adds a triplet, a rollout with a list of them, or a row of a turn."""
        if "triplets" in record.values:
            run = record.name("rollout_id") or record.name("id") or f"{self._name}.{len(self._runs)}"
            run = run if run not in self._facts else f"{run}.{len(self._runs)}"
            self._facts[run] = record
            self._runs.setdefault(run, []).extend(record.objects("triplets"))
            return
        self._runs.setdefault(self._run_of(record), []).append(record)

    def _run_of(self, record: Fields) -> str:
        metadata = record.object("metadata")
        own = record.name("rollout_id") or (None if metadata is None else metadata.name("rollout_id"))
        if own is not None:
            return own
        task = record.name("instance_id")
        if task is None:
            return self._name
        # Rows of turns have no run: where the number of the turn does not grow, another one begins.
        turn, key = record.count("turn"), f"{task}"
        runs = self._turns.get(f"runs of {key}", 0)
        if turn is not None and turn <= self._turns.get(key, -1):
            runs += 1
        self._turns[f"runs of {key}"], self._turns[key] = runs, -1 if turn is None else turn
        return f"{task}.{runs}"

    def trajectories(self) -> Iterator[Trajectory]:
        """The runs."""
        for run, records in self._runs.items():
            yield from self._job.guarded(lambda: [self._trajectory(run, records)])  # noqa: B023

    def _trajectory(self, run: str, records: list[Fields]) -> Trajectory:
        stores, name = Stores(), self._job.unique_id(run)
        steps = [self._step(record, stores, name, at) for at, record in enumerate(records)]
        stores.finish()
        facts = self._facts.get(run)
        reward = None if facts is None else facts.number("final_reward")
        for record in records:
            found = record.number("reward")
            # The reward of a run is on its last triplet.
            reward = reward if found is None or (facts is not None and facts.get("final_reward") is not None) else found
        if facts is None or facts.get("final_reward") is None:
            self._leave_rewards_of_the_run(records, steps)
        self._job.report.miss("rewards", reward is None)
        task = records[0].name("instance_id") if records else None
        more = None if facts is None else facts.object("metadata")
        trajectory = Trajectory(
            id=name,
            steps=steps,
            tool_runs=tool_runs_of(steps),
            reward=reward,
            rewards=None if more is None else more.named_numbers("rewards") or None,
            group_id=task if more is None else more.name("group_id"),
            rollout_index=None if more is None else more.count("rollout_index"),
            status="failed" if facts is not None and facts.get("rollout_state") == "failed" else "completed",
            metadata={"imported": {"source": "agent_lightning"}},
        )
        if more is not None and more.get("task_id") is not None:
            trajectory.task = Task(id=more.name("task_id"))
        if task is not None:
            repo = records[0].get("repo")
            trajectory.task = Task(id=task, data=None if repo is None else {"repo": repo})
        return trajectory

    def _leave_rewards_of_the_run(self, records: list[Fields], steps: list[Step]) -> None:
        """Takes from steps the rewards that are not their own: the last is the run's, and rows of turns repeat it.

        A row has the reward of the next one that has one, where its turn was given none.
        """
        after: float | None = None
        for at in reversed(range(len(steps))):
            own = steps[at].reward
            is_repeated = _is_row(records[at]) and own == after
            if own is not None and (at == len(steps) - 1 or is_repeated):
                steps[at].reward = None
                self._job.report.note("rewards of turns that are those of a later turn or the run", is_repeated)
            after = own

    def _step(self, record: Fields, stores: Stores, run: str, at: int) -> Step:
        if _is_row(record):
            prompt, completion = record.ids("prompt_ids"), record.ids("gold_completion_ids")
            sent, text, logprobs = record.get("messages") or record.get("prompt"), None, _logprobs(record)
        else:
            asked, answered = record.object("prompt"), record.object("response")
            prompt = None if asked is None else asked.ids("token_ids")
            completion = None if answered is None else answered.ids("token_ids")
            sent = None if asked is None else asked.get("raw_content")
            text = None if answered is None else answered.get("raw_content")
            logprobs = None if answered is None else _logprobs(answered)
        messages, answer = _conversation(sent, text)
        tokens = token_fields(
            stores.tokens,
            prompt=prompt or None,
            completion=completion or None,
            logprobs=logprobs or None,
            missing=_NO_IDS,
        )
        self._job.report.miss_tokens(tokens["completion_token_ids"], tokens["logprobs"])
        self._job.report.miss("messages as they were sent", not messages)
        metadata = record.object("metadata")
        name = (None if metadata is None else metadata.name("step_id")) or f"{run}.{at}"
        name = name if name not in self._ids else f"{run}.{at}"
        self._ids.add(name)
        return Step(
            **tokens,
            id=name,
            call_id=name,
            index=at,
            agent=None if metadata is None else metadata.text("agent_name"),
            protocol="openai.completions" if messages and isinstance(messages[0], str) else "openai.chat",
            response_id=None if metadata is None else metadata.name("response_id"),
            messages=messages or None,
            completion=None if answer is None else chat_completion(Fields(answer, record.place, record.path)),
            reward=record.number("reward"),
            policy_version=None if metadata is None else _version(metadata),
        )


def _is_row(record: Fields) -> bool:
    return "gold_completion_ids" in record.values or "prompt_ids" in record.values


def _version(metadata: Fields) -> str | int | None:
    return policy_version(metadata, "policy_version" if "policy_version" in metadata.values else "model_version")


def _logprobs(fields: Fields) -> list[float | None] | None:
    """One logprob for each token: numbers, or objects of OpenAI's with a ``logprob``."""
    name = "log_probs" if "log_probs" in fields.values else "logprobs"  # Those of 1.0, and of 0.3.
    values = fields.items(name)
    if values and all(isinstance(one, dict) for one in values):
        return [one.number("logprob") if _is_finite(one) else _wild(one) for one in fields.objects(name)]
    return fields.numbers(name)


def _is_finite(one: Fields) -> bool:
    value = one.get("logprob")
    return not isinstance(value, float) or abs(value) < float("inf")


def _wild(one: Fields) -> float:
    # NaN or an infinity: for the rules of logprobs, which withhold it with a reason.
    return as_float(one.get("logprob"))


def _conversation(sent: Any, answered: Any) -> tuple[list[Any], dict[str, Any] | None]:
    """The messages of a prompt, and the message of the answer, as far as a triplet has them."""
    sent, answered = as_json(sent), as_json(answered)
    answer: dict[str, Any] | None = None
    if isinstance(answered, list) and answered and isinstance(answered[-1], dict):
        answer = answered[-1]
    elif isinstance(answered, dict):
        answer = answered
    elif isinstance(answered, str):
        answer = {"role": "assistant", "content": answered}
    if isinstance(sent, str):
        return [sent], answer
    messages = [one for one in sent if isinstance(one, dict)] if isinstance(sent, list) else []
    if answer is None and messages and messages[-1].get("role") == "assistant":
        # Rows of turns have the answer behind the prompt.
        return messages[:-1], messages[-1]
    return messages, answer
