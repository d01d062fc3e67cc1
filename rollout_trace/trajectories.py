"""One agent's run of one task."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import MISSING, dataclass, field, fields
from datetime import datetime, timezone
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from rollout_trace import costs, given, guard, silence
from rollout_trace._version import __version__
from rollout_trace.call import new_id
from rollout_trace.field_docs import document_fields
from rollout_trace.model import Cost, ErrorInfo, Step, Task, ToolCall, ToolRun, amend, error_info

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from typing_extensions import Unpack

    from rollout_trace.findings import Finding
    from rollout_trace.retokenizing import RetokenizeReport
    from rollout_trace.selection import SequenceOptions
    from rollout_trace.sequences import Sequences
    from rollout_trace.steplog import StepLog


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
    _log: StepLog | None = field(default=None, init=False, repr=False)
    _children: list[Trajectory] = field(default_factory=list, init=False, repr=False)
    _opened_inside: int = field(default=0, init=False, repr=False)
    _opened_at: str | None = field(default=None, init=False, repr=False)
    _for_children: dict[str | None, tuple[float, str]] = field(default_factory=dict, init=False, repr=False)
    """Rewards for the trajectories inside, and the id of the one that gives them; None names the reward itself."""
    _given: dict[str | None, tuple[float, str]] = field(default_factory=dict, init=False, repr=False)
    """Rewards that it has of a trajectory around it."""
    _written_to: str | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.episode_id is None:
            self.episode_id = self.id

    def __setattr__(self, name: str, value: Any) -> None:
        if getattr(self, "_written_to", None) is not None and not name.startswith("_"):
            guard.warn_once(
                "set-after-write",
                f"Trajectory.{name} was set after the trajectory had been written to {self._written_to}: the file does "
                "not have it. Set it inside the `with rt.trajectory()` block.",
            )
        check = _CHECKS.get(name)
        if check is not None and value is not None:
            value = check(value, name)
        object.__setattr__(self, name, value)
        if name in ("reward", "rewards") and value is not None and getattr(self, "_opened_at", None) is not None:
            silence.warn_if_scored(self, value)

    def __repr__(self) -> str:
        held = "open" if self._log is not None else f"{len(self.steps)} steps"
        task = "" if self.task is None else f", task={given.brief(self.task.id)}"
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
        from rollout_trace.sequences import sequences

        return sequences(self, **options)

    def retokenize(self, tokenizer: Any, *, chat_template_kwargs: Mapping[str, Any] | None = None) -> RetokenizeReport:
        """Makes ids from text for the steps that have none. See ``rollout_trace.retokenizing``."""
        from rollout_trace.retokenizing import retokenize

        return retokenize(self, tokenizer, chat_template_kwargs=chat_template_kwargs)

    def check(self, *, vocab_size: int | None = None) -> list[Finding]:
        """What a trainer should know of this trajectory before it trains on it. See ``rollout_trace.findings``.

        Args:
            vocab_size: of the model; ids from it on are findings.
        """
        from rollout_trace.findings import check

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
        return self._log is not None and self._log.is_ours


def task_of(value: Any) -> Task | None:
    """The task that a user named by its id, or gave as a mapping or an object: its ``id`` names it.

    Raises:
        TypeError: it is something else, or its id cannot be a text.
    """
    if value is None:
        return None
    if isinstance(value, Task):
        is_sound = value.id is None or isinstance(value.id, str)
        return value if is_sound else Task(id=given.text_id(value.id, "the id of a task"), data=value.data)
    data = given.held(value)
    if not isinstance(data, dict):
        return Task(id=given.text_id(data, "task"))
    own = data.get("id")
    return Task(id=None if own is None else given.text_id(own, 'task["id"]'), data=data)


_CHECKS: dict[str, Callable[[Any, str], Any]] = {
    "reward": lambda value, name: given.finite_number(value, f"Trajectory.{name}"),
    "rewards": lambda value, _: given.named_numbers(value, given.Rewards),
    "metrics": lambda value, _: given.named_numbers(value, given.Metrics),
    "task": lambda value, _: task_of(value),
    "group_id": given.text_id,
    "rollout_index": given.position,
    "metadata": given.metadata,
}

_FIELDS = tuple((item.name, item.default, item.default_factory) for item in fields(Trajectory))
TRAJECTORY_FIELDS = tuple(item.name for item in fields(Trajectory) if not item.name.startswith("_"))


def _steps_from_the_log() -> None:
    slot = Trajectory.__dict__["steps"]

    def get(trajectory: Trajectory) -> list[Step]:
        log = getattr(trajectory, "_log", None)
        steps: list[Step] = slot.__get__(trajectory, Trajectory) if log is None else log.steps()
        return steps

    def put(trajectory: Trajectory, steps: list[Step]) -> None:
        if getattr(trajectory, "_log", None) is not None:
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
    for name, kind in (("rewards", given.Rewards), ("metrics", given.Metrics)):
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
        path = os.fsdecode(found)
        return f"expected {expected}, got the path {given.brief(path)}; give what rt.read({given.brief(path)}) yields."
    return f"expected {expected}, got {given.brief(found)} ({type(found).__name__})."


def open_trajectory(trajectory: Trajectory) -> None:
    """Makes a new trajectory ready to record."""
    from rollout_trace.steplog import StepLog

    trajectory.status = "running"
    trajectory.started_at = datetime.now(timezone.utc)
    trajectory.environment = dict(_environment())
    trajectory._opened_at = silence.place_of_caller()
    trajectory._log = StepLog()


def close_trajectory(trajectory: Trajectory, error: BaseException | None) -> None:
    """Decodes and completes a trajectory; nothing is recorded into it any more. What fails costs its own part alone."""
    log = trajectory._log
    if log is None:
        return
    guard.each(
        "close",
        partial(_take_steps, trajectory, log),
        partial(_conclude, trajectory, error),
        partial(_name_agent, trajectory),
        lambda: costs.fill_provider_costs(trajectory.steps),
        partial(_link_tool_runs, trajectory),
        partial(_say_if_no_ids, trajectory),
    )


def _take_steps(trajectory: Trajectory, log: StepLog) -> None:
    try:
        steps = log.close()
    except Exception:
        _hold(trajectory, [])
        raise
    _hold(trajectory, steps)


def _hold(trajectory: Trajectory, steps: list[Step]) -> None:
    trajectory._log = None
    trajectory.steps = steps


def _conclude(trajectory: Trajectory, error: BaseException | None) -> None:
    trajectory.ended_at = datetime.now(timezone.utc)
    if error is not None:
        trajectory.error = error_info(error)
    if trajectory.status == "running":
        failed = "failed" if isinstance(error, Exception) else "aborted"
        trajectory.status = "completed" if error is None else failed


def _name_agent(trajectory: Trajectory) -> None:
    for step in trajectory.steps:
        if step.agent is None:
            amend(step, agent=trajectory.name)


def _link_tool_runs(trajectory: Trajectory) -> None:
    asked: dict[str, list[tuple[Step, ToolCall]]] = {}
    for step in trajectory.steps:
        for call in step.completion.tool_calls if step.completion is not None else ():
            if isinstance(call.id, str):
                asked.setdefault(call.id, []).append((step, call))
    for run in trajectory.tool_runs:
        if run.step_id is None and isinstance(run.tool_call_id, str) and run.tool_call_id in asked:
            run.step_id = _asker(run, asked[run.tool_call_id]).id


def _asker(run: ToolRun, askers: list[tuple[Step, ToolCall]]) -> Step:
    """The step that asked for a run. Servers may give the calls of every turn the same ids (``call_0``): of those that
    asked for this tool, with these arguments if some did, it is the last that was being answered when the run began."""
    tests: tuple[Callable[[Step, ToolCall], bool], ...] = (
        lambda step, call: call.name == run.name,
        lambda step, call: _are_arguments(run.arguments, call.arguments),
        lambda step, call: step.status not in ("superseded", "error"),
        lambda step, call: _is_before(step, 0.0, run),
        # A tool may run while the stream that asked for it is still open.
        lambda step, call: _is_before(step, step.time_to_first_token or step.latency or 0.0, run),
    )
    for is_right in tests if len(askers) > 1 else ():
        askers = [asker for asker in askers if is_right(*asker)] or askers
    return askers[-1][0]


def _are_arguments(given: Any, written: str | None) -> bool:
    """A tool got what the model wrote, as it is or decoded."""
    if written is None or isinstance(given, str):
        return bool(given == written)
    try:
        decoded: object = json.loads(written)
        return bool(decoded == given)
    except ValueError:
        return False


def _is_before(step: Step, seconds: float, run: ToolRun) -> bool:
    """The run began so many seconds after the step did, or later."""
    if step.started_at is None or run.started_at is None:
        return False
    return step.started_at.timestamp() + seconds <= run.started_at.timestamp()


def _say_if_no_ids(trajectory: Trajectory) -> None:
    bare = [
        step
        for step in trajectory.steps
        if step.engine is None
        and step.status == "ok"
        and step.completion_token_ids is None
        # Others cannot be asked for ids.
        and (step.protocol or "").startswith("openai.")
    ]
    if bare:
        guard.warn_once(
            "no-ids",
            f"{len(bare)} of {len(trajectory.steps)} steps of trajectory {trajectory.name!r} hold no token ids: the "
            "server was not asked for them. If it can send them, wrap the client with its engine, e.g. "
            'rt.wrap_openai(client, engine="vllm").',
        )


@lru_cache(maxsize=1)
def _environment() -> dict[str, str]:
    return {"rollout_trace": __version__, "python": platform.python_version(), "platform": platform.platform()}
