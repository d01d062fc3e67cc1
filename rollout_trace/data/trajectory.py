"""One agent's run of one task."""

from __future__ import annotations

import os
from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Protocol

from rollout_trace._field_docs import document_fields
from rollout_trace.data import costs, user_values
from rollout_trace.data.model import Cost, ErrorInfo, Step, Task, ToolRun, new_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import datetime

    from typing_extensions import Unpack

    from rollout_trace.train.checks import Finding
    from rollout_trace.train.retokenize import RetokenizeReport
    from rollout_trace.train.selection import SequenceOptions
    from rollout_trace.train.sequence import Sequences


class StepSource(Protocol):
    """The calls of an open trajectory."""

    @property
    def is_ours(self) -> bool:
        """False in a process that was forked from the one that opened it: what it records would be lost."""

    def steps(self) -> list[Step]:
        """The steps so far."""


class Recorder(Protocol):
    """What records into a trajectory. It knows the trajectory; the trajectory knows it by this alone."""

    @property
    def log(self) -> StepSource | None:
        """Where the steps come from while the trajectory is open; None when it has closed."""

    def was_set(self, trajectory: Trajectory, name: str, value: Any) -> None:
        """A public field was set."""

    def was_written(self, trajectory: Trajectory, target: object) -> None:
        """The closed trajectory was written to ``target``."""


class _Referable:
    """Gives a slotted dataclass room for weak references (an option of its own only from Python 3.11 on)."""

    __slots__ = ("__weakref__",)


@document_fields
@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Trajectory(_Referable):
    """The steps of one agent in one run of one task, in the order their calls began, and what is known of the run."""

    id: str = field(default_factory=new_id)
    name: str = "agent"
    episode_id: str | None = None
    """Shared by all trajectories of one run; the outermost one's own id."""
    parent_id: str | None = None
    """The trajectory inside which this one was opened."""
    parent_step_id: str | None = None
    """The parent's latest step at that moment."""
    group_id: str | None = None
    """Shared by the runs of one task that are compared with each other."""
    rollout_index: int | None = None
    """Position within the group, counted from 0."""
    task: Task | None = None
    """Its id alone, or a mapping or an object with its data, becomes a ``Task`` when it is assigned."""
    steps: list[Step] = field(default_factory=list)
    tool_runs: list[ToolRun] = field(default_factory=list)
    reward: float | None = None
    """A finite number (a numpy or torch scalar too; True is 1.0). None: not scored, never a stand-in for zero."""
    rewards: dict[str, float] | None = None
    """Parts of the reward by name, finite numbers as well. What is assigned is copied."""
    metrics: dict[str, float] | None = None
    """Measurements by name, finite numbers. What is assigned is copied."""
    status: str = "completed"
    """``running``, ``completed``, ``failed`` (the agent raised), ``aborted`` (cancelled), or the user's own word."""
    stop_reason: str | None = None
    error: ErrorInfo | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    environment: dict[str, Any] | None = None
    """Versions of what ran."""
    metadata: dict[str, Any] | None = None
    """The user's own. Pydantic objects, dataclasses, paths, enums and dates are written as what they hold."""
    _children: list[Trajectory] = field(default_factory=list, init=False, repr=False)
    """Those opened inside, at any depth, that have closed: they are written with it."""
    _recorder: Recorder | None = field(default=None, init=False, repr=False)
    """None where nothing was ever recorded into it: one that a file holds, or that was made by hand."""

    def __post_init__(self) -> None:
        if self.episode_id is None:
            self.episode_id = self.id

    def __setattr__(self, name: str, value: Any) -> None:
        check = _CHECKS.get(name)
        if check is not None and value is not None:
            value = check(value, name)
        object.__setattr__(self, name, value)
        recorder = getattr(self, "_recorder", None)
        if recorder is not None and name[0] != "_":
            recorder.was_set(self, name, value)

    def __repr__(self) -> str:
        held = "open" if self._log is not None else f"{len(self.steps)} steps"
        task = "" if self.task is None else f", task={user_values.brief(self.task.id)}"
        return f"Trajectory({self.id!r}, name={self.name!r}{task}, {self.status}, {held}, reward={self.reward!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trajectory):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in TRAJECTORY_FIELDS)

    __hash__ = object.__hash__

    def sequences(self, **options: Unpack[SequenceOptions]) -> Sequences:
        """The training sequences of the steps: token ids, loss mask, logprobs; its ``report`` says what was left out.

        Args:
            **options: ``linear``, ``on_drift``, ``max_length``, ``reward``, ``include``, ``allow``: see
                ``rollout_trace.SequenceOptions``.

        Raises:
            DriftError: there is drift, and ``on_drift="raise"``.
            ValueError: an option has no such value, or a step's ``advantage`` does not fit its completion.
        """
        from rollout_trace.train.sequences import sequences

        return sequences(self, **options)

    def retokenize(self, tokenizer: Any, *, chat_template_kwargs: Mapping[str, Any] | None = None) -> RetokenizeReport:
        """Makes ids from text, in place, for the steps that have none, and reports what became of each step.

        The prompt is the request's messages and tools through the chat template, the completion what the template adds
        for the answer. The steps then have ``token_source="retokenized"`` and no logprobs.

        Args:
            tokenizer: anything with ``apply_chat_template(messages, tools=, add_generation_prompt=, tokenize=)`` and
                ``encode(text, add_special_tokens=)``, as those of ``transformers``.
            chat_template_kwargs: further arguments of the template, such as ``{"enable_thinking": False}``.

        Raises:
            ValueError: the trajectory is open.
        """
        from rollout_trace.train.retokenize import retokenize

        return retokenize(self, tokenizer, chat_template_kwargs=chat_template_kwargs)

    def check(self, *, vocab_size: int | None = None) -> list[Finding]:
        """Findings that a trainer should know of before it trains on this trajectory, each with a stable code.

        Args:
            vocab_size: of the model; ids from it on are findings.
        """
        from rollout_trace.train.checks import check

        return check(self, vocab_size=vocab_size)

    @property
    def n_input_tokens(self) -> int | None:
        """Prompt tokens of all calls, cached ones included; None where those of a call are not known.

        Of each call the provider's usage counts, or where there is none its token ids. Calls that failed without usage
        and answers from a framework's cache add nothing.
        """
        return costs.total_tokens(self.steps, "input")

    @property
    def n_output_tokens(self) -> int | None:
        """Sampled tokens of all calls, of all their choices; None where those of a call are not known."""
        return costs.total_tokens(self.steps, "output")

    @property
    def n_cache_read_tokens(self) -> int | None:
        """Those prompt tokens that came from the provider's cache; None where a call's usage does not say."""
        return costs.total_tokens(self.steps, "cache_read")

    @property
    def n_cache_write_tokens(self) -> int | None:
        """Those prompt tokens that were written to the provider's cache; None where a call's usage does not say."""
        return costs.total_tokens(self.steps, "cache_write")

    @property
    def cost(self) -> Cost | None:
        """What all calls cost; None where there are none, one's cost is not known, or their currencies differ.

        Of its own steps alone: trajectories opened inside this one have costs of their own. ``source`` is that of all
        calls, or ``unknown`` where they have several.
        """
        return costs.total_cost(self.steps)

    @property
    def is_open(self) -> bool:
        """True while calls can still be recorded, in the process that opened it."""
        log = self._log
        return log is not None and log.is_ours

    @property
    def _log(self) -> StepSource | None:
        recorder: Recorder | None = getattr(self, "_recorder", None)
        return None if recorder is None else recorder.log


def task_of(value: Any) -> Task | None:
    """The task that a user named by its id, or gave as a mapping or an object: its ``id`` names it.

    Raises:
        TypeError: it is something else, or its id cannot be a text.
    """
    if value is None:
        return None
    if isinstance(value, Task):
        is_sound = value.id is None or isinstance(value.id, str)
        return value if is_sound else Task(id=user_values.text_id(value.id, "the id of a task"), data=value.data)
    data = user_values.held(value)
    if not isinstance(data, dict):
        return Task(id=user_values.text_id(data, "task"))
    own = data.get("id")
    return Task(id=None if own is None else user_values.text_id(own, 'task["id"]'), data=data)


_CHECKS: dict[str, Callable[[Any, str], Any]] = {
    "reward": lambda value, name: user_values.finite_number(value, f"Trajectory.{name}"),
    "rewards": lambda value, _: user_values.named_numbers(value, user_values.Rewards),
    "metrics": lambda value, _: user_values.named_numbers(value, user_values.Metrics),
    "task": lambda value, _: task_of(value),
    "group_id": user_values.text_id,
    "rollout_index": user_values.position,
    "metadata": user_values.metadata,
}

_FIELDS = tuple((item.name, item.default, item.default_factory) for item in fields(Trajectory))
TRAJECTORY_FIELDS = tuple(item.name for item in fields(Trajectory) if not item.name.startswith("_"))


def _steps_from_the_log() -> None:
    slot = Trajectory.__dict__["steps"]

    def get(trajectory: Trajectory) -> list[Step]:
        log = trajectory._log
        steps: list[Step] = slot.__get__(trajectory, Trajectory) if log is None else log.steps()
        return steps

    def put(trajectory: Trajectory, steps: list[Step]) -> None:
        if trajectory._log is not None:
            raise AttributeError(
                "the steps of an open trajectory are what is recorded: change them when it has closed."
            )
        slot.__set__(trajectory, steps)

    setattr(Trajectory, "steps", property(get, put))  # noqa: B010 - a plain assignment is a type error


_steps_from_the_log()


def new_trajectory(facts: dict[str, Any]) -> Trajectory:
    """A trajectory with these fields, as they are. For the reader: old files may hold what is refused today."""
    trajectory = object.__new__(Trajectory)
    for name, default, factory in _FIELDS:
        value = facts[name] if name in facts else default if factory is MISSING else factory()
        object.__setattr__(trajectory, name, value)
    for name, kind in (("rewards", user_values.Rewards), ("metrics", user_values.Metrics)):
        if facts.get(name) is not None:
            dict.update(numbers := kind(), facts[name])
            object.__setattr__(trajectory, name, numbers)
    if trajectory.episode_id is None:
        object.__setattr__(trajectory, "episode_id", trajectory.id)
    return trajectory


def each_trajectory(trajectories: Trajectory | Iterable[Trajectory]) -> Iterator[Trajectory]:
    """One trajectory, or those of an iterable, in order.

    Raises:
        TypeError: at once, it is a path or something else; or while iterating, one of them is no trajectory.
    """
    if isinstance(trajectories, Trajectory):
        return iter((trajectories,))
    if isinstance(trajectories, (str, bytes, os.PathLike)) or not hasattr(trajectories, "__iter__"):
        raise TypeError(_no_trajectory(trajectories, "trajectories"))
    return map(_checked, trajectories)


def _checked(one: Any) -> Trajectory:
    if not isinstance(one, Trajectory):
        raise TypeError(_no_trajectory(one, "a trajectory"))
    return one


def _no_trajectory(found: Any, expected: str) -> str:
    if isinstance(found, (str, bytes, os.PathLike)):
        path = user_values.brief(os.fsdecode(found))
        return f"expected {expected}, got the path {path}; give what rt.read({path}) yields."
    return f"expected {expected}, got {user_values.brief(found)} ({type(found).__name__})."
