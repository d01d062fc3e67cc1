"""The files of trajectories beside Inspect's logs."""

from __future__ import annotations

from contextlib import AsyncExitStack

from rollout_trace.integration import recording, recording_here, set_current_recording, warn_once

SUFFIX = ".rollouts"


def beside(location: str) -> str:
    """The file of a log's trajectories: ``<name of the log>.rollouts.jsonl``; at an address a folder of shards."""
    stem = location.removesuffix(".eval").removesuffix(".json")
    is_address = "://" in location and not location.startswith("file://")
    return f"{stem}{SUFFIX}" if is_address else f"{stem}{SUFFIX}.jsonl"


class Files:
    """The recordings that are opened for evaluations."""

    def __init__(self) -> None:
        self._open: dict[str, recording] = {}
        """By evaluation; those of a file that the user named by its path."""

    def use(self, eval_id: str, location: str, path: str | None) -> bool:
        """Makes the recording of an evaluation that of this context, and opens it if need be.

        Args:
            eval_id: Inspect's id of the evaluation.
            location: of its log.
            path: the user's file; None: the user's own recording, and without one a file beside the log.

        Returns:
            False if the file cannot be opened; that is logged.
        """
        if path is None:
            here = recording_here()
            if here is not None and here not in self._open.values():
                return True
        key = eval_id if path is None else path
        try:
            if key not in self._open:
                opened = recording(beside(location) if path is None else path)
                opened.__enter__()
                self._open[key] = opened
        except (OSError, ValueError, ImportError) as error:
            warn_once(f"inspect:{key}", f"the evaluation {eval_id} is not recorded: {error}")
            return False
        set_current_recording(self._open[key])
        return True

    async def close(self, eval_id: str | None) -> None:
        """Closes the file beside the log of one evaluation; without one, all files. Waits until all is written.

        Raises:
            WriteError: trajectories could not be written.
        """
        keys = [*self._open] if eval_id is None else [eval_id]
        async with AsyncExitStack() as stack:
            for key in keys:
                if (opened := self._open.pop(key, None)) is not None:
                    # All are closed, whatever one of them raises.
                    stack.push_async_exit(opened)
