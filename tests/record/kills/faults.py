"""Ends this process by SIGKILL in the middle of one of its own system calls."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable
from typing import Any

plain_write = os.write


def arm(spec: str) -> None:
    """Arms one fault: ``name:number:share``, or nothing for an empty text.

    The call number ``number`` of ``os.name`` (from 1) is made with ``share`` of its bytes (a write; else it is made or
    not, by ``share``), and the process is gone.
    """
    if not spec:
        return
    name, number, share = spec.split(":")
    real, calls = getattr(os, name), itertools.count(1)
    partly = _PARTLY.get(name, _maybe)

    def faulty(*args: Any, **kwargs: Any) -> Any:
        if next(calls) < int(number):
            return real(*args, **kwargs)
        partly(real, args, kwargs, float(share))
        os.kill(os.getpid(), signal.SIGKILL)
        return None

    setattr(os, name, faulty)


def _write(real: Callable[..., Any], args: Any, kwargs: Any, share: float) -> None:
    real(args[0], bytes(args[1])[: int(len(args[1]) * share)])


def _writev(real: Callable[..., Any], args: Any, kwargs: Any, share: float) -> None:
    data = b"".join(args[1])
    real(args[0], [data[: int(len(data) * share)]])


def _maybe(real: Callable[..., Any], args: Any, kwargs: Any, share: float) -> None:
    if share >= 0.5:
        real(*args, **kwargs)


_PARTLY = {"write": _write, "writev": _writev}
