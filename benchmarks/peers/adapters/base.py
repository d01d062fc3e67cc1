"""What each peer's adapter gives to the worker: how it is set up, and what it has recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class Record:
    """One model call as the peer has it."""

    trace: str | None
    """Name of the trace that the peer puts it into; None if in none."""
    content: Any
    """All that is stored of the call: JSON values, or anything whose `str` has it."""
    failed: bool = False
    """Whether the peer's own field for it marks the call as failed or unfinished."""

    def to_json(self) -> dict[str, Any]:
        """For the way to the process that compares it with what was sent."""
        return {"trace": self.trace, "text": text_of(self.content), "failed": self.failed}


class Adapter:
    """A peer in this process. This one is the bare client: nothing is recorded."""

    imports: ClassVar[str] = ""
    """What a user of the peer imports beside openai."""
    keeps_in_memory: ClassVar[bool] = True
    """False: records leave the process, so that its memory does not have them."""
    one_trace: ClassVar[bool] = False
    """True: a process has one trace at a time, in which all of its tasks are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def wrap(self, client: Any) -> Any:
        """The client that is used: wrapped, or as it was where the peer has patched the process."""
        return client

    @contextmanager
    def trace(self, name: str) -> Iterator[None]:
        """What the peer has to hold the calls of one agent together."""
        yield

    def flush(self) -> None:
        """Waits until all that was recorded is where it is kept."""

    def count(self) -> int:
        """Number of calls recorded since the last `clear`."""
        return len(self.records())

    def records(self) -> list[Record]:
        """The calls recorded since the last `clear`, after `flush`."""
        return []

    def clear(self) -> None:
        """Forgets them."""

    def reward(self) -> Any:
        """The reward of a trace that was given none; NotImplemented where a peer has no such thing."""
        return NotImplemented


def text_of(value: Any) -> str:
    """JSON, with what JSON has no form for in Python's."""
    return value if isinstance(value, str) else json.dumps(value, default=_plain, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: getattr(value, item.name) for item in fields(value)}
    for name in ("model_dump", "to_dict", "tolist"):
        method = getattr(value, name, None)
        if callable(method) and not isinstance(value, type):
            try:
                return method()
            except Exception:  # of a model whose values do not fit its types: its text has them
                break
    return str(value)
