"""``Trajectory``: the record of one agent's run of one task, and the interface of what records into it."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

from rollout_trace._field_docs import document_fields
from rollout_trace._lazy import registered
from rollout_trace.data import costs, user_values
from rollout_trace.data.model import Cost, ErrorInfo, Step, Task, ToolRun, maker, new_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import datetime

    from typing_extensions import Unpack

    from rollout_trace.data.exchange import Exchange
    from rollout_trace.train.checks import Finding
    from rollout_trace.train.retokenize import RetokenizeReport
    from rollout_trace.train.selection import SequenceOptions
    from rollout_trace.train.sequence import Sequences


class _Referable:
    """Makes a slotted dataclass weakly referenceable; ``dataclass(weakref_slot=True)`` needs Python 3.11."""

    __slots__ = ("__weakref__",)


@document_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class ForkedFrom:
    """The recorded run that a fork continues."""

    id: str
    """Id of the recorded trajectory."""
    step: int
    """Number of model calls that were answered from the recording."""
    difference: str | None = None
    """Where the agent's requests differed from the recording; None if they did not."""


@document_fields
@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Trajectory(_Referable):
    """A run of one task by one agent: its steps in the order their calls began, rewards, tool runs and metadata."""

    # First: from then on `__setattr__` can read it.
    _recorder: Any = field(default=None, init=False, repr=False)
    """What records into it; None where it was read from a file, or made by hand. It has

    - ``log``: the recorded calls while the trajectory is open, with ``is_ours`` (False in a forked process) and
      ``steps()``; None once it is closed;
    - ``complete(trajectory)``: decodes the calls of a closed trajectory and completes its fields, the first time that
      nothing runs any more; returns the recorded calls where that is not possible yet, else None;
    - ``was_set(trajectory, name, value)`` and ``was_written(trajectory, target)``, which are called afterwards.
    """
    _later: dict[str, Any] | None = field(default=None, init=False, repr=False)
    """What the fields are completed from whose slots are empty: functions that make them, or their values so far."""
    id: str = field(default_factory=new_id)
    """Unique id of the trajectory."""
    name: str = "agent"
    """Name of the agent."""
    episode_id: str | None = None
    """Id shared by all trajectories of one run; it is the id of the outermost one."""
    parent_id: str | None = None
    """Id of the trajectory inside which this one was opened."""
    parent_step_id: str | None = None
    """Id of the parent's latest step at that moment."""
    group_id: str | None = None
    """Id shared by the runs of one task that are compared with each other."""
    rollout_index: int | None = None
    """Position within the group, from 0."""
    task: Task | None = None
    """The task. Assigning an id, a mapping or an object with the task's data converts it to a ``Task``."""
    steps: list[Step] = field(default_factory=list)
    """The steps, in the order in which their calls began."""
    tool_runs: list[ToolRun] = field(default_factory=list)
    """The tools that were run."""
    reward: float | None = None
    """A finite number (numpy and torch scalars too; True is 1.0). None means not scored, never zero."""
    rewards: dict[str, float] | None = None
    """Named parts of the reward, finite numbers. Assignment copies the mapping."""
    metrics: dict[str, float] | None = None
    """Named measurements, finite numbers. Assignment copies the mapping."""
    status: str = "completed"
    """``running``, ``completed``, ``failed`` (the agent raised), ``aborted`` (cancelled), or a text set by the user."""
    stop_reason: str | None = None
    """Why the agent stopped."""
    error: ErrorInfo | None = None
    """The exception that ended the run."""
    started_at: datetime | None = None
    """When the trajectory was opened."""
    ended_at: datetime | None = None
    """When the trajectory was closed; None while it is open."""
    environment: dict[str, Any] | None = None
    """The program that ran: versions (``rollout_trace``, ``python``, ``platform``, ``packages``), ``host``, ``pid``,
    ``process_started``, ``command`` (without its secrets), ``git`` (``commit``, ``branch``, ``dirty``), the ``prices``
    of its costs, and what ``rt.environment(...)`` had added before it was opened. Collected when it is read or written.
    """
    metadata: dict[str, Any] | None = None
    """User metadata. Pydantic objects, dataclasses, paths, enums and dates are written as the values they hold."""
    forked_from: ForkedFrom | None = None
    """The recorded run that this one continues (``rt.fork``); steps answered from it are ``cached`` here."""
    exchanges: tuple[Exchange, ...] = ()
    """The HTTP exchanges behind the steps, byte for byte, in the order they began. Present only in a cassette, which
    the pytest plugin records and ``replay`` answers from."""
    _children: list[Trajectory] = field(default_factory=list, init=False, repr=False)
    """Closed trajectories that were opened inside this one, at any depth: they are written with it."""

    def __post_init__(self) -> None:
        if self.episode_id is None:
            self.episode_id = self.id

    def __setattr__(self, name: str, value: Any) -> None:
        check = _CHECKS.get(name)
        if check is not None and value is not None:
            value = check(value, name)
        recorder = value if name == "_recorder" else self._recorder
        if recorder is not None and name == "steps" and recorder.complete(self) is not None:
            raise AttributeError(
                "the steps of an open trajectory cannot be changed. Change them after it has closed and the streams "
                "that began in it have been read."
            )
        (_set if name in _COMPLETED else object.__setattr__)(self, name, value)
        if recorder is not None and name == "_recorder":
            complete_later(self, steps=self.steps, tool_runs=self.tool_runs)
        elif recorder is not None and name[0] != "_":
            recorder.was_set(self, name, value)

    if not TYPE_CHECKING:  # With it every name would be an attribute.

        def __getattr__(self, name: str) -> Any:
            """Completes a field whose slot is empty."""
            if name in _COMPLETED and self._later and name in self._later:
                return _completed(self, name, self._later)
            return object.__getattribute__(self, name)

    def __setstate__(self, state: tuple[None, dict[str, Any]]) -> None:
        for name, value in {**state[1], "_later": None}.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        is_closed = self._recorder is None or self._recorder.log is None
        extent = f"{len(self.steps)} steps" if is_closed else "open"
        task = "" if self.task is None else f", task={user_values.brief(self.task.id)}"
        return f"Trajectory({self.id!r}, name={self.name!r}{task}, {self.status}, {extent}, reward={self.reward!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trajectory):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in TRAJECTORY_FIELDS)

    # By identity, since fields change. Without this line `__eq__` would make it unhashable.
    __hash__ = object.__hash__

    def sequences(self, **options: Unpack[SequenceOptions]) -> Sequences:
        """Returns the steps' training sequences: token ids, loss mask, logprobs. ``.report`` counts what was left out.

        Args:
            **options: ``linear``, ``on_drift``, ``max_length``, ``reward``, ``include``, ``allow``: see
                ``rollout_trace.train.SequenceOptions``.

        Raises:
            DriftError: with ``on_drift="raise"``, if there is drift.
            ValueError: an option has an invalid value, or a step's ``advantage`` does not fit its completion.
        """
        from rollout_trace.train.sequences import sequences

        rows = sequences(self, **options)
        if not rows and "ids_missing" in rows.report.left_out:
            from rollout_trace.train.selection import warn_without_rows

            warn_without_rows(self)
        return rows

    def retokenize(self, tokenizer: Any, *, chat_template_kwargs: Mapping[str, Any] | None = None) -> RetokenizeReport:
        """Tokenizes the text of steps without token ids, in place, and returns a report of what was done for each step.

        The prompt ids are the request's messages and tools, rendered by the chat template; the completion ids are what
        the template adds for the answer. These steps then have ``token_source="retokenized"`` and no logprobs.

        Args:
            tokenizer: an object with ``apply_chat_template(messages, tools=, add_generation_prompt=, tokenize=)`` and
                ``encode(text, add_special_tokens=)``, such as those of ``transformers``.
            chat_template_kwargs: further arguments for the template, such as ``{"enable_thinking": False}``.

        Raises:
            ValueError: the trajectory is open.
        """
        from rollout_trace.train.retokenize import retokenize

        return retokenize(self, tokenizer, chat_template_kwargs=chat_template_kwargs)

    def check(self, *, vocab_size: int | None = None) -> list[Finding]:
        """Checks the trajectory for training and returns the findings, each with a stable code.

        Args:
            vocab_size: size of the model's vocabulary; an id at or above it is a finding.
        """
        from rollout_trace.train.checks import check

        return check(self, vocab_size=vocab_size)

    def show(
        self,
        *,
        tokens: bool = False,
        color_by: Literal["logprob", "entropy", "mask", "ratio"] = "logprob",
        full: bool = False,
        step: int | None = None,
        theme: Literal["dark", "light"] | None = None,
        width: int | None = None,
        color: bool | None = None,
    ) -> None:
        """Prints the trajectory to standard output as a conversation, as ``rollout-trace show`` does.

        Args:
            tokens: show completions as their tokens, coloured.
            color_by: what the colours of tokens show. ``ratio``: the trainer's probability divided by the engine's.
            full: show long texts in full.
            step: index of a single step to show, with everything recorded about it; -1 is the last.
            theme: background of the terminal; None: taken from ``COLORFGBG``, otherwise dark.
            width: width in columns; None: the terminal's, otherwise ``COLUMNS``, otherwise 80.
            color: True: use colours even if standard output is not a terminal; False: no colours; None: colours on a
                terminal, unless ``NO_COLOR`` is set.

        Raises:
            ImportError: rich is not installed.
            ValueError: an option has an unknown value.
            IndexError: there is no such step.
        """
        options = {"tokens": tokens, "color_by": color_by, "full": full, "step": step}
        registered("show")(self, theme=theme, width=width, color=color, **options)

    def to_json(self) -> str:
        """Returns the trajectory as a line of a file (docs/file-format.md), without the newline.

        Raises:
            ValueError: the trajectory is open, or a step has more or fewer logprobs than completion ids.
        """
        line: bytes = registered("encode")(self)
        return line[:-1].decode()

    def to_dict(self) -> dict[str, Any]:
        """Returns the contents of ``to_json`` as dicts, lists, strings and numbers. Raises as ``to_json`` does."""
        found: dict[str, Any] = json.loads(self.to_json())
        return found

    def _repr_html_(self) -> str:
        """The picture of the trajectory in a notebook."""
        html: str = registered("trajectory_html")(self)
        return html

    @property
    def n_input_tokens(self) -> int | None:
        """Prompt tokens of all calls, including cached ones; None if a call's count is unknown.

        A call's count is taken from the provider's usage, otherwise from its token ids. Failed calls without usage, and
        answers from a framework's cache, count nothing.
        """
        return costs.total_tokens(self.steps, "input")

    @property
    def n_output_tokens(self) -> int | None:
        """Sampled tokens of all choices of all calls; None if a call's count is unknown."""
        return costs.total_tokens(self.steps, "output")

    @property
    def n_cache_read_tokens(self) -> int | None:
        """Prompt tokens read from the provider's cache; None if a call's usage lacks this count."""
        return costs.total_tokens(self.steps, "cache_read")

    @property
    def n_cache_write_tokens(self) -> int | None:
        """Prompt tokens written to the provider's cache; None if a call's usage lacks this count."""
        return costs.total_tokens(self.steps, "cache_write")

    @property
    def cost(self) -> Cost | None:
        """Cost of all calls; None if there are no calls, a call's cost is unknown, or currencies differ.

        Trajectories opened inside this one are not included. ``source`` is the source shared by all calls, otherwise
        ``unknown``.
        """
        return costs.total_cost(self.steps)

    @property
    def is_open(self) -> bool:
        """True while calls can still be recorded, in the process that opened the trajectory."""
        log = None if self._recorder is None else self._recorder.log
        return log is not None and bool(log.is_ours)


def to_task(value: Any) -> Task | None:
    """The ``Task`` for an id, or for a mapping or an object with the task's data, whose ``id`` becomes the id.

    Raises:
        TypeError: the value is none of these, or its id cannot be written as text.
    """
    if value is None:
        return None
    if isinstance(value, Task):
        is_sound = value.id is None or isinstance(value.id, str)
        return value if is_sound else Task(id=user_values.text_id(value.id, "the id of a task"), data=value.data)
    data = user_values.to_builtin(value)
    if not isinstance(data, dict):
        return Task(id=user_values.text_id(data, "task"))
    own = data.get("id")
    return Task(id=None if own is None else user_values.text_id(own, 'task["id"]'), data=data)


_CHECKS: dict[str, Callable[[Any, str], Any]] = {
    "reward": lambda value, name: user_values.finite_number(value, f"Trajectory.{name}"),
    "rewards": lambda value, _: user_values.named_numbers(value, user_values.Rewards),
    "metrics": lambda value, _: user_values.named_numbers(value, user_values.Metrics),
    "task": lambda value, _: to_task(value),
    "group_id": user_values.text_id,
    "rollout_index": user_values.position,
    "metadata": user_values.metadata,
    "exchanges": lambda value, _: tuple(value),
}

_FIELDS = tuple(item.name for item in fields(Trajectory))
TRAJECTORY_FIELDS = tuple(name for name in _FIELDS if not name.startswith("_"))
_new_trajectory = maker(Trajectory)


_COMPLETED = frozenset({"steps", "tool_runs", "environment", "exchanges"})


def complete_later(trajectory: Trajectory, **values: Any) -> None:
    """Empties fields, which are completed when they are read.

    Args:
        trajectory: the trajectory.
        **values: the steps and tool runs so far, which its recorder completes; of ``environment`` and ``exchanges``,
            and of the steps of a line, a function that makes them, for several threads the same ones.
    """
    object.__setattr__(trajectory, "_later", {**(trajectory._later or {}), **values})
    for name in values:
        object.__delattr__(trajectory, name)


def _completed(trajectory: Trajectory, name: str, later: dict[str, Any]) -> Any:
    if name in ("steps", "tool_runs"):
        recorder = trajectory._recorder
        source = None if recorder is None else recorder.complete(trajectory)
        if source is not None:
            return source.steps() if name == "steps" else later[name]
    # What the recorder, or another thread, has set meanwhile is there no more.
    found = later.get(name)
    if callable(found):
        # Of several threads that make it at once, all get what the first one has made.
        found = later.setdefault(f"made {name}", found())
    if found is not None and name in later:
        _set(trajectory, name, found)
    later.pop(f"made {name}", None)
    return object.__getattribute__(trajectory, name)


def _set(trajectory: Trajectory, name: str, value: Any) -> None:
    """Sets a field past the checks. It is not completed any more."""
    object.__setattr__(trajectory, name, value)
    if trajectory._later:
        trajectory._later.pop(name, None)
        trajectory._later.pop(f"made {name}", None)


def set_final_steps(trajectory: Trajectory, steps: list[Step]) -> None:
    """Sets the steps of a trajectory that is being completed. For its recorder."""
    _set(trajectory, "steps", steps)


def stored_tool_runs(trajectory: Trajectory) -> list[ToolRun]:
    """The tool runs, without completing the trajectory: on its close nothing is decoded."""
    found: list[ToolRun] | None = (trajectory._later or {}).get("tool_runs")
    return trajectory.tool_runs if found is None else found


def with_values(trajectory: Trajectory, values: Mapping[str, Any]) -> Trajectory:
    """A copy of a complete trajectory with other values of some fields, unchecked. It has the same recorder."""
    fields_of = {name: getattr(trajectory, name) for name in _FIELDS if name not in values and name != "_later"}
    return new_trajectory({**fields_of, **values})


def environment_so_far(trajectory: Trajectory) -> dict[str, Any] | None:
    """The environment as far as it is known without collecting it. For the journal, on the path of a call."""
    make = (trajectory._later or {}).get("environment")
    known: dict[str, Any] | None = trajectory.environment if make is None else make.so_far()
    return known


def knows_environment(trajectory: Trajectory) -> bool:
    """Whether ``environment_so_far`` is all of it."""
    make = (trajectory._later or {}).get("environment")
    return make is None or bool(make.is_known)


def new_trajectory(values: dict[str, Any]) -> Trajectory:
    """A trajectory with these fields, unchecked. For the recorder, and the reader: old files may hold values that are
    refused today."""
    trajectory = _new_trajectory(**values)
    # In a file each request of the exchanges is whole, which in memory is the square of what the line has.
    for name in ("steps", "exchanges"):
        if callable(values.get(name)):
            complete_later(trajectory, **{name: values[name]})
    for name, kind in (("rewards", user_values.Rewards), ("metrics", user_values.Metrics)):
        if values.get(name) is not None:
            object.__setattr__(trajectory, name, kind.unchecked(values[name]))
    if trajectory.episode_id is None:
        object.__setattr__(trajectory, "episode_id", trajectory.id)
    return trajectory


def each_trajectory(trajectories: Trajectory | Iterable[Trajectory]) -> Iterator[Trajectory]:
    """Iterates over one trajectory, or over those of an iterable.

    Raises:
        TypeError: at once for a path or anything that is not iterable; while iterating for an item of another type.
    """
    if isinstance(trajectories, Trajectory):
        return iter((trajectories,))
    if isinstance(trajectories, (str, bytes, os.PathLike)) or not hasattr(trajectories, "__iter__"):
        _require_trajectory(trajectories, "trajectories")
    return map(_require_trajectory, trajectories)


def _require_trajectory(one: Any, expected: str = "a trajectory") -> Trajectory:
    if isinstance(one, Trajectory):
        return one
    if isinstance(one, (str, bytes, os.PathLike)):
        path = user_values.brief(os.fsdecode(one))
        raise TypeError(f"expected {expected}, got the path {path}; give what rt.read({path}) yields.")
    raise TypeError(f"expected {expected}, got {user_values.brief(one)} ({type(one).__name__}).")
