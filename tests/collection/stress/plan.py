"""What happens to which call: a function of task, sample, attempt and call, the same in every process."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Literal, NamedTuple

Kind = Literal["ok", "reset", "cut", "429", "500", "stall"]
"""Of one HTTP exchange: ``reset`` ends the connection before the answer, ``cut`` within it."""

CALLS = 3
SDK_RETRIES = 2
"""Of the openai client: a call has one exchange more at most."""
RETRIES = 2
"""Of ``collect``."""
STORM = 25
"""Tasks one after the other whose first call meets nothing but 429, or 500."""

_MIXED: tuple[tuple[int, tuple[Kind, ...]], ...] = (
    (30, ("reset", "ok")),
    (30, ("429", "ok")),
    (30, ("429", "500", "ok")),
    (30, ("cut", "ok")),
    (12, ("429", "429", "429")),
    (12, ("500", "500", "500")),
    (4, ("reset", "reset", "reset")),
)
"""Calls of 1,000, and what they meet."""


class Call(NamedTuple):
    """One call of an agent, as the messages of its requests name it."""

    task: int
    sample: int
    attempt: int
    call: int

    def __str__(self) -> str:
        return "/".join(map(str, self))

    @classmethod
    def of(cls, text: str) -> Call:
        """The call that a message begins with."""
        return cls(*map(int, text.split(maxsplit=1)[0].split("/")))


class Try(NamedTuple):
    """One attempt at a rollout."""

    attempt: int
    status: str
    calls: tuple[tuple[Call, tuple[Kind, ...]], ...]
    will_retry: bool


def number(*parts: object) -> int:
    """A number below 1,000 that looks random and is the same everywhere."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % 1000


def is_streamed(call: Call) -> bool:
    """Every other call, in a mixed order."""
    return number("streamed", call) < 500


def exchanges(call: Call) -> tuple[Kind, ...]:
    """What the exchanges of a call meet, in their order."""
    storm = call.task // STORM % 8
    if call.attempt == 1 and call.call == 0 and storm in (2, 5):
        return ("429",) * 3 if storm == 2 else ("500",) * 3
    if (
        call.attempt == 1
        and (7 * call.task + 3 * call.sample) % 61 == 5
        and (call.call == number("where", call.task, call.sample) % CALLS)
    ):
        return ("stall",)
    at = number("fault", call)
    for share, kinds in _MIXED:
        if at < share:
            # A stream that is cut is not tried again by the SDK: its agent has the beginning already.
            return ("cut",) if kinds[0] == "cut" and is_streamed(call) else kinds
        at -= share
    return ("ok",)


def tries(task: int, index: int) -> Iterator[Try]:
    """The attempts at one rollout."""
    for attempt in range(1, RETRIES + 2):
        made: list[tuple[Call, tuple[Kind, ...]]] = []
        status = "completed"
        for position in range(CALLS):
            call = Call(task, index, attempt, position)
            kinds = exchanges(call)
            made.append((call, kinds))
            if kinds[-1] != "ok":
                status = "timeout" if kinds[-1] == "stall" else "failed"
                break
        will_retry = status == "failed" and attempt <= RETRIES
        yield Try(attempt, status, tuple(made), will_retry)
        if not will_retry:
            return


def answer(call: Call) -> str:
    """What the model says."""
    return f"{call} is a naïve 🙂 answer" + " and more" * (number("length", call) % 12)


def reward(task: int, index: int, text: str) -> float | None:
    """Of a rollout by its last answer; None where the function fails."""
    return None if number("judge", task, index) < 40 else number("reward", text) / 1000
