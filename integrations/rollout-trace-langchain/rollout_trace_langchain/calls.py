"""A model's run as a frame: LangChain's part of a step."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from uuid import UUID

from langchain_core.messages import BaseMessage
from langchain_core.outputs import LLMResult

from rollout_trace.integration import Frame, ModelFrame, warn_once
from rollout_trace_langchain import passages, runs, told
from rollout_trace_langchain.run import Run

if TYPE_CHECKING:
    from rollout_trace.integration import Call as WireCall
    from rollout_trace.integration import Step

_batch: ContextVar[Batch | None] = ContextVar("rollout_trace_langchain_batch", default=None)
"""The batch that this context began last."""


class Batch:
    """Prompts that LangChain tells one after the other before it calls the model."""

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        self.parameters = parameters
        self.latest: Run | None = None
        self.texts: list[TextCall] = []


class Call(ModelFrame):
    """A call of a model. What LangChain says of it is kept as LangChain has it, and read only if it is needed."""

    model: str | None = None
    """The model's name, for a call without it among its parameters."""
    message_id: str | None = None
    """LangChain's id of the answer."""
    is_agents = False
    """Made by the node of an agent that calls its model; the prompt is kept until the node ends."""

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
        self.prompt = prompt
        self.parameters = parameters

    @property
    def is_seen(self) -> bool:
        """Whether there is a call on the wire that answers it."""
        return bool(self.calls)

    def told(self, result: LLMResult) -> None:
        """LangChain has the answer."""
        message = told.message_of(result)
        is_cached = told.is_cached(message)
        self.message_id = None if message is None else message.id
        # A cached answer has the id of the call that it comes from.
        response_id = None if is_cached else told.response_id(message, result)
        is_seen = self.is_seen and not is_cached
        self.answered(*(() if is_seen else told.answers(result)), response_id=response_id, cached=is_cached)

    def _ended(self, error: BaseException | None) -> None:
        if not self.is_seen:
            self.tell(**told.asked(self.prompt, self.parameters, self.model))
        if not self.is_agents:
            self.drop_prompt()
        super()._ended(error)

    def drop_prompt(self) -> None:
        """Lets go of what was asked."""
        self.prompt, self.parameters = (), {}

    def forget(self) -> None:
        """Of the prompt, too."""
        super().forget()
        self.drop_prompt()


class TextCall(Call):
    """One prompt of a text model's batch. The model is asked for all of them at once, or for some: the frame of the
    first prompt has the calls of the whole batch, and deals out their steps."""

    def __init__(
        self, batch: Batch, metadata: Mapping[str, Any], prompt: str, parameters: Mapping[str, Any], *,
        parent: Frame | None,
    ) -> None:  # fmt: skip
        self._batch = batch.texts
        self._batch.append(self)
        super().__init__(None, metadata, prompt, parameters, parent=parent)

    @property
    def is_seen(self) -> bool:
        """Whether there is a call on the wire for the batch."""
        return bool(self._batch[0].calls)

    @property
    def step_id(self) -> str:
        """Id of the batch's first step, where the wire has it."""
        first = self._batch[0]
        return first.step_id if first is not self and first.calls else super().step_id

    def join(self, call: WireCall) -> None:
        """A call begins: it is the batch's."""
        self._batch[0].calls.append(call)

    def mark_all(self, seen: Sequence[list[Step]]) -> None:
        """Deals out the steps in order, to each prompt as many."""
        steps = [step for steps in seen for step in steps]
        size, rest = divmod(len(steps), len(self._batch))
        if not rest:
            for place, frame in enumerate(self._batch):
                frame.mark(steps[place * size : (place + 1) * size])
        elif not any(frame.is_open for frame in self._batch):
            self.mark(steps)  # Some calls failed; whose the steps are is not sure.

    def steps(self) -> list[Step]:
        """None of its own where the batch's are on the wire."""
        return [] if self.is_seen else super().steps()


def begin(
    prompt: Sequence[BaseMessage] | str,
    parameters: Mapping[str, Any],
    *,
    run_id: UUID,
    parent_run_id: UUID | None,
    tags: list[str] | None,
    metadata: Mapping[str, Any] | None,
    batch_size: int,
    name: str,
) -> None:
    """A model is called with one prompt; those of a batch are told one after the other, and called after that."""
    passage = passages.entered() if isinstance(prompt, str) else None
    run = runs.begin(run_id, parent_run_id, tags, metadata)
    if run is None:
        return
    batch = _batch_of(parameters, passage) if batch_size > 1 else None
    before = None if batch is None else batch.latest
    opened = runs.lift(run, before)
    about = {"run_id": str(run_id)}
    if run.node is not None:
        about["langgraph_node"] = run.node
    frame: Call
    if batch is not None and isinstance(prompt, str):
        frame = runs.made(TextCall, run.frame, batch, about, prompt, parameters)
    else:
        after = None if before is None or not isinstance(before.own, ModelFrame) else before.own
        frame = runs.made(Call, run.frame, after, about, prompt, parameters)
    frame.is_agents = run.parent is not None and run.parent.is_model_node
    frame.model = (metadata or {}).get("ls_model_name")
    if batch is not None:
        batch.latest = run
    run.put(frame.enter())
    run.asked.append(frame)
    if passage is not None:
        passage.parent = frame
    if opened is not None:
        _say_alone(name)
        _end_with_task(opened, frame)


def _batch_of(parameters: Mapping[str, Any], passage: passages.Passage | None) -> Batch:
    """The batch of a prompt: it has the same object of parameters as the prompts before."""
    batch = _batch.get() if passage is None else passage.batch
    if batch is None or batch.parameters is not parameters:
        batch = Batch(parameters)
        if passage is None:
            _batch.set(batch)
        else:
            passage.batch = batch
    return batch


def _say_alone(name: str) -> None:
    warn_once(
        "langchain:alone",
        f"RolloutCallbackHandler was given to a model alone ({name}): it sees no agent, and each call is recorded as a "
        'trajectory of its own. Pass it where the agent is invoked, config={"callbacks": [RolloutCallbackHandler()]}, '
        "or run the agent inside `with rt.trajectory()`.",
    )


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
