"""The rewards of a rollout: functions of its task, its result and its trajectory."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rollout_trace.collection.objects import load_object
from rollout_trace.data import user_values
from rollout_trace.data.model import error_info
from rollout_trace.data.user_values import brief
from rollout_trace.file.score import result_values

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory

_LONGEST_MESSAGE = 500
"""Characters of an exception's message that are kept."""
_TAKES = "a reward function takes the task, what the agent returned, and the trajectory"


@dataclass(slots=True)
class RewardPart:
    """One function. Picklable where its function is."""

    name: str
    given: Any
    """A function, or its place as text: ``module:name``."""
    weight: float = 1.0
    _function: Callable[..., Any] | None = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> tuple[Any, ...]:
        return self.name, self.given, self.weight

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.name, self.given, self.weight = state
        self._function = None

    @property
    def function(self) -> Callable[..., Any]:
        """The function; imported on first use in a process."""
        if self._function is None:
            self._function = load_object(self.given) if isinstance(self.given, str) else self.given
        return self._function

    @property
    def is_async(self) -> bool:
        """Whether calling it only makes a coroutine."""
        return user_values.is_async(self.function)

    def check(self) -> None:
        """Raises TypeError unless it is a function of three arguments that is not a generator function."""
        function = self.function
        if not callable(function):
            raise TypeError(f"reward {self.name!r} is {brief(function)}; give a function: {_TAKES}.")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"reward {self.name!r} is a generator function; give a function that returns the reward.")
        try:
            inspect.signature(function).bind(None, None, None)
        except ValueError:  # Of a function in C, whose arguments are not known.
            return
        except TypeError as error:
            raise TypeError(
                f"reward {self.name!r} cannot be called with three arguments ({error}); {_TAKES}."
            ) from None


@dataclass(frozen=True, slots=True)
class Rewards:
    """The functions of one run, and how their results become a reward."""

    parts: tuple[RewardPart, ...]
    timeout: float | None = None
    """Seconds for each function."""
    is_single: bool = True
    """One function: what it returns is the reward, and has no name."""

    def check(self) -> None:
        """Raises TypeError where one of the functions cannot be called as rewards are."""
        for part in self.parts:
            part.check()


def rewards_of(given: Any, timeout: float | None) -> Rewards | None:
    """The rewards for what ``rt.collect(reward=...)`` was given. Raises TypeError or ValueError."""
    if given is None:
        return None
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], (int, float)):
        raise TypeError(f"reward is {brief(given)}; give a function with its weight in a list: [(function, weight)].")
    if isinstance(given, str) or callable(given):
        return Rewards((RewardPart(_name(given), given),), timeout)
    if isinstance(given, Mapping):
        parts = tuple(_part(value, str(name)) for name, value in given.items())
    elif isinstance(given, Sequence):
        parts = tuple(_part(value, None) for value in given)
    else:
        raise TypeError(
            f"reward is {brief(given)}; give a function, a list of functions, or a mapping of names to them."
        )
    if not parts:
        raise ValueError("reward is empty; give at least one function, or leave it out.")
    names = [part.name for part in parts]
    doubled = next((name for name in names if names.count(name) > 1), None)
    if doubled is not None:
        raise ValueError(f"two rewards have the name {doubled!r}; give a mapping of distinct names to functions.")
    return Rewards(parts, timeout, is_single=False)


def _part(value: Any, name: str | None) -> RewardPart:
    weight = 1.0
    if isinstance(value, tuple) and len(value) == 2:
        value, given = value
        weight = user_values.finite_number(given, f"the weight of the reward {name or _name(value)!r}")
    if not (isinstance(value, str) or callable(value)):
        raise TypeError(f"reward {name or brief(value)!r} is {brief(value)}; give a function, or (function, weight).")
    return RewardPart(_name(value) if name is None else name, value, weight)


def _name(given: Any) -> str:
    if isinstance(given, str):
        return given.rpartition(":")[2]
    return str(getattr(given, "__name__", None) or type(given).__name__)


Call = Callable[[RewardPart, "tuple[Any, ...]", "float | None"], Awaitable[Any]]
"""Calls a reward function with arguments, and waits for its result at most so many seconds."""


async def score(rewards: Rewards, task: Any, result: Any, trajectory: Trajectory, call: Call) -> tuple[str, ...]:
    """Sets the rewards of a trajectory; returns why some are missing.

    Of several functions ``rewards`` has each one's number, and ``reward`` is their weighted sum; where one fails or
    gives None there is no sum: a part that is missing is not zero.
    """
    scores = _Scores(trajectory, rewards, has_result=result is not None)
    for part in rewards.parts:
        try:
            values = result_values(await call(part, (task, result, trajectory), rewards.timeout))
            scores.add(part, {} if values is None else values)
        except Exception as error:
            scores.failed(part, error)
    return scores.set()


class _Scores:
    """Rewards from the functions called so far."""

    def __init__(self, trajectory: Trajectory, rewards: Rewards, *, has_result: bool) -> None:
        self._trajectory = trajectory
        self._has_result = has_result
        self._is_single = rewards.is_single
        self._total: float | None = 0.0
        self._has_number = False
        self._errors: dict[str, str] = {}

    def add(self, part: RewardPart, values: Mapping[str, Any]) -> None:
        """Sets what one function returned. If that is not a reward, raises and sets nothing."""
        trajectory = self._trajectory
        number = values.get("reward")
        checked = None if number is None else user_values.finite_number(number, f"the reward {part.name!r}")
        own = user_values.named_numbers(values.get("rewards") or {}, user_values.Rewards)
        if checked is not None and not self._is_single:
            own = user_values.named_numbers({**own, part.name: checked}, user_values.Rewards)
        total = self._total
        if checked is not None and total is not None:
            total = user_values.finite_number(total + part.weight * checked, "the weighted sum of the rewards")
        metrics = user_values.named_numbers(values.get("metrics") or {}, user_values.Metrics)
        metadata = user_values.metadata(values.get("metadata") or {}, "the metadata of a reward")
        if own:
            trajectory.rewards = _merged(trajectory.rewards, own)
        if metrics:
            trajectory.metrics = _merged(trajectory.metrics, metrics)
        if metadata:
            trajectory.metadata = {**(trajectory.metadata or {}), **metadata}
        if checked is not None:
            self._has_number, self._total = True, total
        elif not own:
            self._total = None

    def failed(self, part: RewardPart, error: Exception) -> None:
        """Notes that a function raised, or returned an invalid reward."""
        info = error_info(error)
        # The usual reason, which the exception does not name: "argument of type 'NoneType' is not iterable".
        returned = "" if self._has_result else " (the agent returned None)"
        self._errors[part.name] = f"{info.type}: {info.message[:_LONGEST_MESSAGE]}{returned}"
        self._total = None

    def set(self) -> tuple[str, ...]:
        """Sets the reward and the failures; returns these as text."""
        trajectory = self._trajectory
        if self._has_number and self._total is not None:
            trajectory.reward = self._total
        if self._errors:
            # Also one that the agent set: it would stand among the rewards of these functions as if it were theirs.
            trajectory.reward = None
            trajectory.metadata = {**(trajectory.metadata or {}), "reward_errors": dict(self._errors)}
        return tuple(f"{name}: {text}" for name, text in self._errors.items())


def _merged(before: Mapping[str, Any] | None, further: Mapping[str, Any]) -> dict[str, Any]:
    return {**(before or {}), **further}
