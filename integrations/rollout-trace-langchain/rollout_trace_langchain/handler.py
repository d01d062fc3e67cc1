"""The callback handler: opens and ends frames at LangChain's events."""

from __future__ import annotations

from asyncio import _get_running_loop
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import BaseMessage
from langchain_core.outputs import LLMResult
from langchain_core.tracers.context import register_configure_hook

from rollout_trace.integration import ToolFrame, current, current_scope, guarded
from rollout_trace_langchain import calls, middleware, runs, slots
from rollout_trace_langchain.results import copy_arguments, set_tool_result


class RolloutCallbackHandler(BaseCallbackHandler):
    """Records what LangChain and LangGraph run: pass it as ``config={"callbacks": [RolloutCallbackHandler()]}``.

    Inside ``with rt.trajectory()`` it need not be passed. Outside, every run that it is passed to opens a trajectory.
    Pass it where the agent is invoked: passed to a model alone, it records each call as a trajectory of its own, and a
    warning is logged. It holds no state: one handler or several, shared or not, record the same.
    """

    # Called in the context of the run, also of an async one: only there a frame is seen by the calls of the run.
    run_inline = True
    # The hooks raise under pytest alone; there LangChain must not swallow it.
    raise_error = True
    ignore_retriever = True
    ignore_retry = True
    ignore_custom_event = True

    @guarded
    def on_chain_start(
        self,
        serialized: dict[str, Any],
        inputs: dict[str, Any],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        run = runs.begin(run_id, parent_run_id, tags, metadata, kwargs.get("name"))
        if run is not None:
            runs.open_root(run)

    @guarded
    def on_chain_end(self, outputs: dict[str, Any], *, run_id: UUID, **kwargs: Any) -> None:
        run = runs.find(run_id)
        if run is not None and run.is_model_node:
            middleware.supersede_discarded(run, outputs)
        runs.end(run_id)

    @guarded
    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        runs.end(run_id, error)

    @guarded
    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        _begin_call(serialized, messages[0], run_id, parent_run_id, tags, metadata, kwargs)

    @guarded
    def on_llm_start(
        self,
        serialized: dict[str, Any],
        prompts: list[str],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        _begin_call(serialized, prompts[0], run_id, parent_run_id, tags, metadata, kwargs)

    @guarded
    def on_llm_new_token(self, token: str | list[str | dict[str, Any]], *, run_id: UUID, **kwargs: Any) -> None:
        run = runs.find(run_id)
        if run is not None and isinstance(run.own_frame, calls.CallFrame):
            run.own_frame.is_arriving = True

    @guarded
    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        run = runs.find(run_id)
        if run is not None and isinstance(run.own_frame, calls.CallFrame):
            run.own_frame.set_result(response)
            runs.end(run_id)

    @guarded
    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        runs.end(run_id, error)

    @guarded
    def on_tool_start(
        self,
        serialized: dict[str, Any],
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        inputs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        run = runs.begin(run_id, parent_run_id, tags, metadata)
        if run is None:
            return
        runs.ensure_root(run, None)
        frame = runs.new_frame(
            ToolFrame,
            run.frame,
            (serialized or {}).get("name"),
            tool_call_id=kwargs.get("tool_call_id"),
            arguments=input_str if inputs is None else copy_arguments(inputs, input_str),
        )
        run.set_frame(frame.enter())

    @guarded
    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        run = runs.find(run_id)
        if run is not None and isinstance(run.own_frame, ToolFrame):
            set_tool_result(run.own_frame.run, output)
            runs.end(run_id)

    @guarded
    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        runs.end(run_id, error)


def _begin_call(
    serialized: Mapping[str, Any] | None,
    prompt: Sequence[BaseMessage] | str,
    run_id: UUID,
    parent_run_id: UUID | None,
    tags: list[str] | None,
    metadata: Mapping[str, Any] | None,
    event: Mapping[str, Any],
) -> None:
    calls.begin(
        prompt,
        event.get("invocation_params") or {},
        run_id=run_id,
        parent_run_id=parent_run_id,
        tags=tags,
        metadata=metadata,
        batch_size=event.get("batch_size") or 1,
        name=(serialized or {}).get("name") or "of a class without a name",
    )


class _AmbientHandler:
    """Stands in for the context variable that LangChain reads a handler from: set inside trajectories."""

    name = "rollout_trace_langchain"

    def __init__(self) -> None:
        self._handler = RolloutCallbackHandler()

    def get(self) -> RolloutCallbackHandler | None:
        """The handler for this context: inside a trajectory. LangChain calls it twice for everything that runs."""
        if _get_running_loop() is not None:  # Without an event loop there are no tasks, and this is a hot path.
            slots.enter()
        scope = current_scope.get()
        if scope is not None and scope.is_open:
            return self._handler
        return None if current() is None else self._handler


# With the class: where the user passes a handler of this class, LangChain does not add another.
register_configure_hook(_AmbientHandler(), True, RolloutCallbackHandler)  # type: ignore[arg-type]
