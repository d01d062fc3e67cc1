"""A model's run as a frame: LangChain's part of a step."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any
from uuid import UUID

from langchain_core.messages import BaseMessage
from langchain_core.outputs import LLMResult

from rollout_trace.frames import Frame, ModelFrame
from rollout_trace_langchain import runs, told
from rollout_trace_langchain.run import Run

_batch: ContextVar[tuple[Any, Run] | None] = ContextVar("rollout_trace_langchain_batch", default=None)
"""The parameters of the batch that this context began, and the run of its latest call."""


class Call(ModelFrame):
    """A call of a model. What LangChain says of it is kept as LangChain has it, and read only if it is needed."""

    def __init__(
        self,
        after: ModelFrame | None,
        metadata: Mapping[str, Any],
        prompt: Sequence[BaseMessage] | str,
        parameters: Mapping[str, Any],
        *,
        parent: Frame | None,
    ) -> None:
        super().__init__("langchain", parent=parent, after=after, metadata=metadata)
        self._prompt = prompt
        self._parameters = parameters

    def told(self, result: LLMResult) -> None:
        """LangChain has the answer."""
        message = told.message_of(result)
        is_cached = told.is_cached(message)
        # A cached answer has the id of the call that it comes from.
        response_id = None if is_cached else told.response_id(message, result)
        is_seen = bool(self.calls) and not is_cached
        self.answered(*(() if is_seen else told.answers(result)), response_id=response_id, cached=is_cached)

    def _ended(self, error: BaseException | None) -> None:
        if not self.calls:
            self.tell(**told.asked(self._prompt, self._parameters))
        self._prompt, self._parameters = (), {}
        super()._ended(error)


def begin(
    prompt: Sequence[BaseMessage] | str,
    parameters: Mapping[str, Any],
    *,
    run_id: UUID,
    parent_run_id: UUID | None,
    tags: list[str] | None,
    metadata: Mapping[str, Any] | None,
    batch_size: int,
) -> None:
    """A model is called with one prompt; those of a batch are told one after the other, and called after that."""
    run = runs.begin(run_id, parent_run_id, tags, metadata)
    if run is None:
        return
    before = _batch.get() if batch_size > 1 else None
    beside = before[1] if before is not None and before[0] is parameters else None
    opened = runs.lift(run, beside)
    if batch_size > 1:
        _batch.set((parameters, run))
    after = None if beside is None else beside.own
    about = {"run_id": str(run_id)}
    if run.node is not None:
        about["langgraph_node"] = run.node
    after = after if isinstance(after, ModelFrame) else None
    frame = runs.made(Call, run.frame, after, about, prompt, parameters)
    run.put(frame.enter())
    run.asked.append(frame)
    if opened is not None:
        _end_with_task(opened, frame)


def _end_with_task(root: Run, frame: ModelFrame) -> None:
    """A model whose task is cancelled is told of no end; with nothing around it, nobody else would end it."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return
    if task is None:
        return

    def end(task: asyncio.Task[Any]) -> None:
        if frame.is_open and task.cancelled():
            runs.end_run(root, asyncio.CancelledError())
        elif frame.is_open and frame.calls and all(call.ended is not None for call in frame.calls):
            runs.end_run(root, None)

    task.add_done_callback(end)
