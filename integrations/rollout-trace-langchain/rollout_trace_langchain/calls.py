"""Frames of model runs: what LangChain's callbacks add to a step."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from uuid import UUID

from langchain_core.messages import BaseMessage
from langchain_core.outputs import LLMResult

from rollout_trace.integration import ModelFrame, enter, warn_once
from rollout_trace_langchain import fallback, runs, slots
from rollout_trace_langchain.run import Run
from rollout_trace_langchain.slots import Batch

if TYPE_CHECKING:
    from rollout_trace.integration import Call, Step

_batch: ContextVar[Batch | None] = ContextVar("rollout_trace_langchain_batch", default=None)
"""The batch that began last in this context."""


class CallFrame(ModelFrame):
    """One model call. LangChain's objects are kept, and converted to fields of a step only if no bytes were seen."""

    model: str | None = None
    """Name of the model, for calls whose parameters do not have it."""
    message_id: str | None = None
    """LangChain's id of the answer."""
    is_in_model_node = False
    """Whether it was made in the model node of a ``create_agent`` agent; its prompt is kept until the node ends."""

    def __init__(
        self,
        run: Run,
        prompt: Sequence[BaseMessage] | str,
        parameters: Mapping[str, Any],
        *,
        after: ModelFrame | None = None,
    ) -> None:
        super().__init__("langchain", parent=run.frame, after=after)
        self.prompt = prompt
        self.parameters = parameters
        self._run_id = run.id
        self._node = run.node

    @property
    def is_seen(self) -> bool:
        """Whether its bytes were recorded."""
        return bool(self.calls)

    def set_result(self, result: LLMResult) -> None:
        """Sets the answer as LangChain reports it, and how to match it with a recorded call."""
        message = fallback.message_of(result)
        is_cached = fallback.is_cached(message)
        self.message_id = None if message is None else message.id
        # A cached answer has the id of the call that it comes from.
        response_id = None if is_cached else fallback.response_id(message, result)
        is_seen = self.is_seen and not is_cached
        self.answered(*(() if is_seen else fallback.answer_fields(result)), response_id=response_id, cached=is_cached)

    def _metadata_of_steps(self) -> dict[str, Any]:
        facts = {**self.metadata, "run_id": str(self._run_id)}
        return facts if self._node is None else {**facts, "langgraph_node": self._node}

    def _ended(self, error: BaseException | None) -> None:
        if not self.is_seen:
            self.tell(**fallback.request_fields(self.prompt, self.parameters, self.model))
        if not self.is_in_model_node:
            self.drop_prompt()
        super()._ended(error)

    def drop_prompt(self) -> None:
        """Drops the prompt and the parameters."""
        self.prompt, self.parameters = (), {}

    def forget(self) -> None:
        """Drops references to recorded data, the prompt included."""
        super().forget()
        self.drop_prompt()


class PromptFrame(CallFrame):
    """One prompt of a text model's batch.

    One request may hold all prompts of the batch, or some. So the frame of the first prompt collects the calls of the
    whole batch and distributes their steps over the frames.
    """

    def __init__(self, batch: Batch, run: Run, prompt: str, parameters: Mapping[str, Any]) -> None:
        self._batch_frames = batch.frames
        self._batch_frames.append(self)
        super().__init__(run, prompt, parameters)

    @property
    def is_seen(self) -> bool:
        """Whether bytes of the batch were recorded."""
        return bool(self._batch_frames[0].calls)

    @property
    def step_id(self) -> str:
        """Id of the batch's first step, if it was recorded from bytes; else of the prompt's own."""
        first = self._batch_frames[0]
        return first.step_id if first is not self and first.calls else super().step_id

    def join(self, call: Call) -> None:
        """Assigns a call that begins in its context to the batch."""
        self._batch_frames[0].calls.append(call)

    def mark_all(self, seen: Sequence[list[Step]]) -> None:
        """Adds each frame's metadata to its share of the steps: in order, the same number for each prompt."""
        steps = [step for steps in seen for step in steps]
        # Several, for a model with `n` choices.
        size, rest = divmod(len(steps), len(self._batch_frames))
        if not rest:
            for position, frame in enumerate(self._batch_frames):
                frame.mark(steps[position * size : (position + 1) * size])
        elif not any(frame.is_open for frame in self._batch_frames):
            self.mark(steps)  # Some calls failed: which prompt a step belongs to is not certain.

    def steps(self) -> list[Step]:
        """Steps made from LangChain's data; none if bytes of the batch were recorded."""
        return [] if self.is_seen else super().steps()


def begin(
    prompt: Sequence[BaseMessage] | str,
    event: Mapping[str, Any],
    serialized: Mapping[str, Any] | None,
    run_id: UUID,
    parent_run_id: UUID | None,
    tags: list[str] | None,
    metadata: Mapping[str, Any] | None,
) -> None:
    """Begins the run and the frame of a model call with one prompt.

    LangChain reports all prompts of a batch first, one after the other, and calls the model after that.

    Args:
        prompt: messages of a chat model, or the text of a completion model.
        event: what else LangChain reports. Of it, ``invocation_params``, the same object for all prompts of a batch,
            and ``batch_size``, the number of prompts in the batch.
        serialized: LangChain's description of the model.
        run_id: LangChain's id of the run.
        parent_run_id: id of the enclosing run.
        tags: LangChain's tags of the run.
        metadata: LangChain's metadata of the run.
    """
    # Before `runs.begin`, which enters a frame over it. Only text models are reported in tasks of their own.
    slot = slots.current() if isinstance(prompt, str) else None
    run = runs.begin(run_id, parent_run_id, tags, metadata)
    if run is None:
        return
    parameters = event.get("invocation_params") or {}
    batch = _batch_of(parameters, slot) if (event.get("batch_size") or 1) > 1 else None
    opened = None if run.parent is not None else runs.ensure_root(run, None if batch is None else batch.latest)
    frame = _new_frame(run, prompt, parameters, batch)
    if metadata is not None:
        frame.model = metadata.get("ls_model_name")
    parent = run.parent
    frame.is_in_model_node = parent is not None and parent.is_model_node
    # Not `set_frame`: the frame opens no trajectory.
    run.frame = run.own_frame = frame
    run.model_calls.append(frame)
    enter(frame)
    if slot is not None:
        # The model is called in another context: that shares the slot, but does not see what was entered here.
        slot.parent = frame
    if opened is not None:
        _warn_model_alone((serialized or {}).get("name") or "of a class without a name")
        _end_with_task(opened, frame)


def _new_frame(
    run: Run, prompt: Sequence[BaseMessage] | str, parameters: Mapping[str, Any], batch: Batch | None
) -> CallFrame:
    if run.frame is None:
        # Without a parent, the frame would take the active one of the context.
        enter(None)
    if batch is None:
        return CallFrame(run, prompt, parameters)
    previous, batch.latest = batch.latest, run
    if isinstance(prompt, str):
        return PromptFrame(batch, run, prompt, parameters)
    after = None if previous is None or not isinstance(previous.own_frame, ModelFrame) else previous.own_frame
    return CallFrame(run, prompt, parameters, after=after)


def _batch_of(parameters: Mapping[str, Any], slot: slots.ContextSlot | None) -> Batch:
    """The batch of a prompt: the latest one if its prompts share this ``parameters`` object, else a new one."""
    batch = _batch.get() if slot is None else slot.batch
    # By identity: two batches in a row may have equal parameters.
    if batch is None or batch.parameters is not parameters:
        batch = Batch(parameters)
        if slot is None:
            _batch.set(batch)
        else:
            slot.batch = batch
    return batch


def _warn_model_alone(name: str) -> None:
    warn_once(
        "langchain:alone",
        f"RolloutCallbackHandler was given to a model alone ({name}): it sees no agent, so each call becomes a "
        'trajectory of its own. Pass it where you invoke the agent, config={"callbacks": [RolloutCallbackHandler()]}, '
        "or run the agent inside `with rt.trajectory()`.",
    )


def _end_with_task(root: Run, frame: ModelFrame) -> None:
    """Ends a model's run when its task is done: LangChain calls no handler for a cancelled model.

    Only for a model without an enclosing run, whose end would end it.
    """
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
