"""Takes the answers of each request from a script, and puts faults in their place."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ._messages import RequestRecord
from .script import Answer, AnyScript, Fault, Faults, Reply, Script, ScriptFunction, reply_of

_BY_NAME = ("record", "messages")
"""Parameters of a script that are given by their names."""


class FaultPlan:
    """Which request, counted from 1, goes wrong.

    A fault that hides the whole answer takes none from the script. An answer that a fault broke off is kept, and given
    to the next request that is equal: a client that tries again gets what it would have got.
    """

    def __init__(self, faults: Faults | None) -> None:
        self.faults = checked_faults(faults)
        self._count = 0
        self._kept: dict[bytes, list[Reply | Fault]] = {}
        self._guard = threading.Lock()

    def answers(self, key: bytes, take: Callable[[], list[Reply | Fault]]) -> list[Reply | Fault]:
        """The answers to the next request. `key`: what equal requests have in common; `take`: takes its answers."""
        with self._guard:
            self._count += 1
            number = self._count
        fault = self._fault(number)
        if fault is not None and fault.hides_reply:
            return [fault]
        with self._guard:
            kept = self._kept.pop(key, None)
        answers = take() if kept is None else kept
        if fault is None:
            return answers
        if fault.breaks_reply:
            with self._guard:
                self._kept[key] = answers
        return [replace(fault, reply=reply_of(answer)) for answer in answers]

    def _fault(self, number: int) -> Fault | None:
        if self.faults is None:
            return None
        found = self.faults(number) if callable(self.faults) else self.faults.get(number)
        if found is not None and not isinstance(found, Fault):
            raise TypeError(f"`faults` gave {found!r} for request {number}: use a Fault, or None")
        return found


def checked_faults(faults: Faults | None) -> Faults | None:
    """Faults as they were given. Raises TypeError or ValueError for those that would never happen."""
    if faults is None or callable(faults):
        return faults
    if not isinstance(faults, Mapping):
        raise TypeError(f"faults={faults!r:.80}: use a dict by number, {{2: Fault(...)}}, or a function of the number")
    for number in faults:
        if isinstance(number, bool) or not isinstance(number, int):
            raise TypeError(f"`faults` has {number!r}: use numbers, {{2: Fault(...)}}")
        if number < 1:
            raise ValueError(f"`faults` has {number}: they are counted from 1")
    return faults


class Director:
    """Calls a script for each choice of a request, with the arguments that its signature has."""

    def __init__(self, script: AnyScript) -> None:
        self.script = script
        self._function = _as_function(script)
        parameters = inspect.signature(self._function).parameters
        self._names = [name for name in _BY_NAME if name in parameters]
        positional = [
            p.name
            for p in parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.name not in _BY_NAME
        ]
        self._takes_choice = len(positional) > 1
        self._attempts: dict[bytes, int] = {}
        self._guard = threading.Lock()

    @property
    def left(self) -> int:
        """Number of answers of lists that no request has got yet; 0 for other scripts."""
        return int(getattr(self._function, "left", 0))

    def add(self, answers: Sequence[Answer]) -> bool:
        """Add answers to the script. False: it is no list."""
        if isinstance(self._function, Script):
            self._function.add(answers)
        return isinstance(self._function, Script)

    def answers(
        self, request: Any, record: RequestRecord, count: int, messages: Callable[[], Any]
    ) -> list[Reply | Fault]:
        """One answer for each choice. `messages` gives those of the request as chat messages."""
        given = {"record": lambda: record, "messages": messages}
        keywords = {name: given[name]() for name in self._names}
        choices = range(count if self._takes_choice else 1)
        raw = [self._function(request, *([at] if self._takes_choice else []), **keywords) for at in choices]
        if any(not isinstance(answer, (str, Reply, Fault)) for answer in raw):
            attempt = self._count_attempt(record)
            raw = [_attempt_of(answer, attempt) for answer in raw]
        answers = [as_reply(answer) for answer in raw]
        return answers if self._takes_choice else answers * count

    def _count_attempt(self, record: RequestRecord) -> int:
        key = key_of(record)
        with self._guard:
            attempt = self._attempts.get(key, 0)
            self._attempts[key] = attempt + 1
        return attempt


def key_of(record: RequestRecord) -> bytes:
    """What equal requests have in common."""
    return record.path.encode() + b"\n" + record.body


def _as_function(script: AnyScript) -> ScriptFunction:
    if callable(script):
        return script
    if isinstance(script, (str, Reply, Fault)):
        constant = script
        return lambda request: constant
    if isinstance(script, Mapping):
        raise TypeError("the script is a dict: give it to by_conversation(), or use a list or a function")
    if not isinstance(script, Sequence):
        raise TypeError(f"the script is {script!r}: use a function of the request, a list of answers, or one answer")
    return Script(script)


def _attempt_of(answer: Answer, attempt: int) -> str | Reply | Fault:
    if isinstance(answer, (str, Reply, Fault)):
        return answer
    if not isinstance(answer, Sequence) or not answer:
        raise TypeError(f"the script gave {answer!r}: return a str, a Reply, a Fault, or a list of them")
    return answer[min(attempt, len(answer) - 1)]


def as_reply(answer: object) -> Reply | Fault:
    """An answer of a script, checked. Raises TypeError for anything else."""
    if isinstance(answer, str):
        return Reply(answer)
    if not isinstance(answer, (Reply, Fault)):
        raise TypeError(f"the script gave {answer!r} as one answer: use a str, a Reply or a Fault")
    for call in reply_of(answer).tool_calls:
        if isinstance(call, str) or len(call) != 2:
            raise TypeError(f"the script gave the tool call {call!r}: use a pair of name and arguments, or a ToolCall")
    return answer
