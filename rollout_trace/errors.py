"""The exceptions of rollout_trace."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

from rollout_trace.guard import describe

Lost: TypeAlias = "list[tuple[Any, BaseException]]"
"""Trajectories that could not be written, each with the exception."""
OpenWriter: TypeAlias = "Callable[[str | os.PathLike[str]], AbstractContextManager[Any]]"
"""Opens a writer of trajectories; ``JSONLWriter`` is one. This module is below the one that has it."""


class RolloutTraceError(Exception):
    """Base class of this library's errors."""


class FormatError(RolloutTraceError, ValueError):
    """A file does not match the format. The message says where (file, line, path), and what was expected and found."""


class ForkDifference(RolloutTraceError):
    """An agent in ``rt.fork`` sent a request that differs from the recorded one."""


class WriteError(RolloutTraceError, OSError):
    """Trajectories could not be written. They are in ``lost``; ``write`` appends them to another file.

    Args:
        args: the message.
        lost: the list to use as ``lost``. It is not copied, so that its owner sees what ``write`` has written.
        open_writer: opens the file passed to ``write``.
        is_in_file: see the attribute.
    """

    def __init__(
        self,
        *args: object,
        lost: Lost | None = None,
        open_writer: OpenWriter | None = None,
        is_in_file: bool = False,
    ) -> None:
        super().__init__(*args)
        self.lost: Lost = [] if lost is None else lost
        """The trajectories, each with the exception that kept it from being written."""
        self.is_in_file = is_in_file
        """Whether the line is complete in the file but may not be on the disk (``fsync`` failed). Writing the
        trajectory to the same file again would duplicate it."""
        self._open_writer = open_writer

    @classmethod
    def summary(cls, lost: Lost, target: object, open_writer: OpenWriter | None = None) -> WriteError:
        """Builds the error for all trajectories missing in ``target``; ``lost`` must not be empty."""
        (first, cause), count = lost[0], len(lost)
        subject = "1 trajectory" if count == 1 else f"{count} trajectories"
        which = f"it is {first.id}" if count == 1 else f"the first is {first.id}"
        advice = "" if open_writer is None else ' error.write("other.jsonl") appends them to another file.'
        return cls(
            f"{subject} could not be written to {target}; {which} ({describe(cause)}). `lost` of this error holds "
            f"each with its cause.{advice}",
            lost=lost,
            open_writer=open_writer,
        )

    def write(self, path: str | os.PathLike[str]) -> int:
        """Appends the trajectories in ``lost`` to a file, and removes the written ones from ``lost``.

        If ``lost`` is empty, the file is not touched.

        Args:
            path: as for ``JSONLWriter``. The options of the first file (media, permissions) apply here too.

        Returns:
            How many were written.

        Raises:
            WriteError: some could not be written to this file either. They stay in ``lost``, which both errors share.
            OSError: the file cannot be opened.
            RuntimeError: the recording used your own writer, so there is no file format to write.
        """
        if not self.lost:
            return 0
        if self._open_writer is None:
            raise RuntimeError(
                "these trajectories were not meant for a file. Give each one in `lost` to a writer, such as "
                "rt.JSONLWriter(path).write(trajectory)."
            )
        count = len(self.lost)
        with self._open_writer(path) as writer:
            _write_each(self.lost, writer)
        if self.lost:
            raise type(self).summary(self.lost, path, self._open_writer) from self.lost[0][1]
        return count

    def __reduce__(self) -> tuple[Any, ...]:
        # A cause of another library may not be picklable, or not loadable, and would take the trajectories with it.
        lost = [(trajectory, _portable(cause)) for trajectory, cause in self.lost]
        return type(self), self.args, {**self.__dict__, "lost": lost}

    def __copy__(self) -> WriteError:
        # With the same list: what one of them writes, the other must not write again.
        same = type(self)(*self.args)
        same.__dict__.update(self.__dict__)
        return same


def _write_each(lost: Lost, writer: Any) -> None:
    """Writes each trajectory once; those that fail stay in the list, with the new exception."""
    failed: Lost = []
    try:
        while lost:
            trajectory, cause = lost[0]
            try:
                writer.write(trajectory)
            except Exception as error:
                cause = error
                failed.append((trajectory, cause))
            del lost[0]
    finally:  # Also after Ctrl-C, with the rest behind them.
        lost[:0] = failed


def _portable(cause: BaseException) -> BaseException:
    is_known = isinstance(cause, RolloutTraceError) or type(cause).__module__ == "builtins"
    return cause if is_known else RolloutTraceError(describe(cause))


class DriftError(RolloutTraceError, ValueError):
    """A prompt repeats an earlier completion with other token ids. The message names both steps, position and kind."""


class ExportError(RolloutTraceError, ValueError):
    """A strict export would leave something out. The message says what and where."""
