"""Messages between a process and the workers of its ``ProcessExecutor``: pickled tuples, each after its length."""

from __future__ import annotations

import pickle
import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, BinaryIO

from rollout_trace import guard
from rollout_trace.collection.job import Job, Work

LENGTH = struct.Struct(">Q")
"""Bytes of the message that follows."""


def packed(message: tuple[Any, ...]) -> bytes:
    """A message as it is sent."""
    payload = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(payload)) + payload


def receive(stream: BinaryIO) -> Any:
    """Waits for a message.

    Raises:
        EOFError: the other process has ended.
    """
    head = _read(stream, LENGTH.size)
    return pickle.loads(_read(stream, LENGTH.unpack(head)[0]))


def _read(stream: BinaryIO, size: int) -> bytes:
    try:
        data = stream.read(size)
    except OSError:
        data = b""
    if len(data) < size:
        raise EOFError
    return data


def pickled_work(work: Work) -> bytes:
    """What the rollouts of a run share.

    Raises:
        TypeError: a part of it cannot be pickled; the message names the part and says what to do.
    """
    try:
        return pickle.dumps(work, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        for what, value in _parts(work):
            try:
                pickle.dumps(value)
            except Exception as reason:
                raise _refused(what, reason) from None
        raise _refused("what collect was given", error) from None


def _parts(work: Work) -> Iterator[tuple[str, Any]]:
    yield "the agent", work.agent
    yield "the reward", work.rewards
    yield "engine", work.engine
    for name, value in work.recording.items():
        yield f"recording={{{name!r}: ...}}", value


def _refused(what: str, error: Exception) -> TypeError:
    return TypeError(
        f"{what} cannot be sent to another process ({guard.describe(error)}). Define it at the top level of a module, "
        'not as a lambda nor inside a function; agents and rewards can be given by their place, "module:name"; or make '
        "the rollouts in this process (executor=None)."
    )


def pickled_job(job: Job) -> bytes:
    """A job without its work.

    Raises:
        TypeError: the task cannot be pickled.
    """
    try:
        return pickle.dumps(replace(job, work=None), pickle.HIGHEST_PROTOCOL)  # type: ignore[arg-type]
    except Exception as error:
        raise TypeError(
            f"the task {guard.printable(job.task.id, 200)} cannot be sent to another process "
            f"({guard.describe(error)}). Give tasks of plain values (dicts, texts, numbers), or make the rollouts in "
            "this process (executor=None)."
        ) from None


def unpickled_job(payload: bytes, work: Work) -> Job:
    """The job that ``pickled_job`` made, with its work."""
    job: Job = replace(pickle.loads(payload), work=work)
    return job


def portable(error: BaseException) -> BaseException:
    """An exception that can be pickled: itself, or one with its class and message as text."""
    try:
        # Some cannot be made again from what they are pickled as.
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(guard.describe(error))
    return error


def finish_all(works: Sequence[Work]) -> list[str]:
    """Completes what this process wrote in these runs; returns why some of it could not be written."""
    # Looked up, not imported: without it no rollout was made here.
    serving: Any = sys.modules.get("rollout_trace.collection.serving")
    failures = []
    for work in () if serving is None else works:
        try:
            serving.finish(work)
        except Exception as error:
            failures.append(guard.describe(error))
    return failures
