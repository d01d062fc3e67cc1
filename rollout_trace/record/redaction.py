"""``redact=``: the user's rules for texts that are not to be written, and the keys of this process's clients."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from rollout_trace import credentials, guard
from rollout_trace.data import user_values
from rollout_trace.data.model import Step
from rollout_trace.data.trajectory import TRAJECTORY_FIELDS, set_final_steps, with_values

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory

Rule: TypeAlias = "str | re.Pattern[str] | Callable[[str, str], str]"
Redact: TypeAlias = "Rule | Iterable[Rule]"

FAILED = "[redaction failed]"
"""Stands for a text that a function raised on, or for which it returned no text."""
_EXAMPLE = 'give a regular expression (r"sk-[\\w-]{20,}"), a compiled one, a function (text, place) -> text, or a list'


class Redactor:
    """Changes the texts of trajectories by a user's rules; keys of this process's clients are cut in any case.

    Safe to use from several threads, if the user's functions are.
    """

    def __init__(self, redact: Redact | None = None) -> None:
        """Checks the rules.

        Args:
            redact: a regular expression (a text, or compiled), all of whose matches are replaced by ``[redacted]``; a
                function of a text and its place (``messages[2].content``) that returns the text to write; or a list of
                these, applied in order. None: no rules.

        Raises:
            TypeError: it is none of these, or a function does not take two arguments.
            ValueError: a text is no regular expression, or an expression matches the empty text.
        """
        rules: Any = [] if redact is None else redact
        if isinstance(rules, (str, re.Pattern)) or callable(rules):
            rules = [rules]
        elif isinstance(rules, (bytes, dict)) or not isinstance(rules, Iterable):
            raise TypeError(f"redact is {user_values.brief(rules)} ({type(rules).__name__}); {_EXAMPLE} of these.")
        self._rules = [_compiled(rule) for rule in rules]

    @property
    def has_rules(self) -> bool:
        """Whether the user gave any."""
        return bool(self._rules)

    def apply(self, trajectory: Trajectory) -> Trajectory:
        """A copy of a closed trajectory with its texts changed; the trajectory itself if nothing changes in it.

        The copy shares with the original what is unchanged. ``rollout_trace.data.redact`` has what is changed. With
        rules it has no exchanges: texts are in their bytes in pieces, escaped, and beside their ids.
        """
        if not self._rules:
            # Keys are cut when a trajectory is completed, and once more when it is encoded.
            return trajectory
        # Imported on use, here and below: most recordings have no rules, and most runs no key that comes back.
        from rollout_trace.data.redact import redacted

        if trajectory.exchanges:
            guard.warn_once(
                "redacted-exchanges",
                "a recording with redact= keeps no exchanges, because redacted bytes could not be replayed. "
                "Record a cassette without redact=.",
            )
            trajectory = with_values(trajectory, {"exchanges": ()})
        return redacted(trajectory, self.change)

    def apply_steps(self, steps: Iterable[Step]) -> list[Step]:
        """All steps of one trajectory as ``apply`` changes them. An unchanged step is the same object."""
        from rollout_trace.data.redact import redacted_steps

        return redacted_steps(steps, self.change if self._rules else None)

    def change(self, text: str, place: str) -> str:
        """One text as it may be written."""
        for rule in self._rules:
            text = _by_function(rule, text, place) if callable(rule) else rule.sub(credentials.MASK, text)
        return credentials.cut(text)


def cut_keys(trajectory: Trajectory) -> None:
    """Cuts the keys of this process's clients out of a closed trajectory, in place.

    For what did not come over the wire (tool runs, metadata, task data) and for keys that were learned after a step was
    decoded. The values that the user put there are not changed: copies take their place.
    """
    from rollout_trace.data.redact import redacted

    if trajectory.exchanges:
        from rollout_trace.file.exchanges import without_keys

        kept = [one for exchange in trajectory.exchanges if (one := without_keys(exchange)) is not None]
        object.__setattr__(trajectory, "exchanges", tuple(kept))
    clean = redacted(trajectory, None)
    for name in TRAJECTORY_FIELDS if clean is not trajectory else ():
        # Past `__setattr__`, which reports what a user sets, after the close with a warning.
        value = getattr(clean, name)
        if name == "steps":
            set_final_steps(trajectory, value)
        elif value is not getattr(trajectory, name):
            object.__setattr__(trajectory, name, value)


def _compiled(rule: Any) -> Any:
    if isinstance(rule, str):
        try:
            rule = re.compile(rule)
        except re.error as error:
            raise ValueError(f"redact has {rule!r}, which is not a regular expression: {error}; {_EXAMPLE}.") from None
    if isinstance(rule, re.Pattern):
        if not isinstance(rule.pattern, str):
            raise TypeError(f"redact has {rule!r}, an expression for bytes; {_EXAMPLE} of these.")
        if rule.match(""):
            raise ValueError(
                f"redact has {rule.pattern!r}, which matches the empty text, and so everywhere. Make it match at "
                "least one character: write + instead of *."
            )
        return rule
    if not callable(rule):
        raise TypeError(f"redact has {user_values.brief(rule)} ({type(rule).__name__}); {_EXAMPLE} of these.")
    name = getattr(rule, "__qualname__", type(rule).__name__)
    if inspect.iscoroutinefunction(rule):
        raise TypeError(f"redact has the async function {name}; give one that returns the text itself.")
    try:
        signature = inspect.signature(rule)
    except (TypeError, ValueError):  # A function of C's, such as `str.replace`, may have none.
        return rule
    try:
        signature.bind("text", "place")
    except TypeError:
        raise TypeError(
            f"redact has the function {name}{signature}; give one that takes a text and its place, (text, place), and "
            "returns the text to write."
        ) from None
    return rule


def _by_function(function: Callable[[str, str], Any], text: str, place: str) -> str:
    try:
        changed = function(text, place)
    except Exception as error:
        # Without its message, which may hold the text.
        _failed(f"raised {type(error).__name__}", place)
        return FAILED
    if not isinstance(changed, str):
        _failed(f"returned {type(changed).__name__}, not a text,", place)
        return FAILED
    return str.__str__(changed)


def _failed(what: str, place: str) -> None:
    guard.count("redaction_failures")
    # The place without what the user's own keys add to it.
    guard.warn_once(
        "redaction-failed",
        f"the function given as redact= {what} for {re.split(r'[.[]', place)[0]}: {FAILED!r} replaces the "
        "whole text, here and wherever it fails again (rt.stats().redaction_failures counts them).",
    )
