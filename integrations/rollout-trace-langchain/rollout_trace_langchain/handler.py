"""The callback handler: opens and ends frames at LangChain's events."""

from __future__ import annotations

from asyncio import _get_running_loop
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import BaseMessage
from langchain_core.outputs import LLMResult
from langchain_core.tracers.context import register_configure_hook

from rollout_trace.integration import ToolFrame, current, current_scope, guarded, report_failure
from rollout_trace_langchain import calls, middleware, runs, slots
from rollout_trace_langchain.results import copy_arguments, set_tool_result


class RolloutCallbackHandler(BaseCallbackHandler):
    """Records LangChain and LangGraph runs: pass it as ``config={"callbacks": [RolloutCallbackHandler()]}``.

    Inside ``with rt.trajectory()`` it need not be passed. Outside, every run to which it is passed opens a trajectory.
    Pass it where the agent is invoked: if passed only to a model, each call becomes its own trajectory, and a warning
    is logged. It has no state, so handlers can be shared or not.
    """

    # Called in the context of the run, also of an async one: only there a frame is seen by the calls of the run.
    run_inline = True
    # The hooks raise under pytest alone; there LangChain must not swallow it.
    raise_error = True
    ignore_retriever = True
    ignore_retry = True
    ignore_custom_event = True

    # Most hooks catch their failures themselves: the wrapper of `guarded` would pack and unpack all keywords once more.

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
        """Begins a run; outside of every run and trajectory it opens one."""
        try:
            run = runs.begin(run_id, parent_run_id, tags, metadata, kwargs.get("name"))
            if run is not None and run.parent is None:
                runs.open_root(run)
        except Exception as failure:
            report_failure("on_chain_start", failure)

    def on_chain_end(self, outputs: dict[str, Any], *, run_id: UUID, **kwargs: Any) -> None:
        """Ends a run."""
        try:
            run = runs.find(run_id.int)
            if run is not None:
                if run.is_model_node:
                    middleware.supersede_discarded(run, outputs)
                runs.end(run_id)
        except Exception as failure:
            report_failure("on_chain_end", failure)

    @guarded
    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Ends a run that failed."""
        runs.end(run_id, error)

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
        """Begins a call of a chat model."""
        try:
            calls.begin(messages[0], kwargs, serialized, run_id, parent_run_id, tags, metadata)
        except Exception as failure:
            report_failure("on_chat_model_start", failure)

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
        """Begins a call of a text model."""
        calls.begin(prompts[0], kwargs, serialized, run_id, parent_run_id, tags, metadata)

    def on_llm_new_token(self, token: str | list[str | dict[str, Any]], *, run_id: UUID, **kwargs: Any) -> None:
        """Marks a call whose answer arrives. LangChain calls it for every chunk of a stream."""
        try:
            run = runs.find(run_id.int)
            if run is not None and isinstance(run.own_frame, calls.CallFrame):
                run.own_frame.is_arriving = True
        except Exception as failure:
            report_failure("on_llm_new_token", failure)

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        """Ends a call of a model with its answer."""
        try:
            run = runs.find(run_id.int)
            if run is not None and isinstance(run.own_frame, calls.CallFrame):
                run.own_frame.set_result(response)
                runs.end(run_id)
        except Exception as failure:
            report_failure("on_llm_end", failure)

    @guarded
    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Ends a call of a model that failed."""
        runs.end(run_id, error)

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
        """Begins a run of a tool."""
        try:
            run = runs.begin(run_id, parent_run_id, tags, metadata)
            if run is not None:
                name = serialized.get("name") if serialized else None
                arguments = input_str if inputs is None else copy_arguments(inputs, input_str)
                runs.begin_tool(run, name, kwargs.get("tool_call_id"), arguments)
        except Exception as failure:
            report_failure("on_tool_start", failure)

    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """Ends a run of a tool with its result."""
        try:
            run = runs.find(run_id.int)
            if run is not None and isinstance(run.own_frame, ToolFrame):
                set_tool_result(run.own_frame.run, output)
                runs.end(run_id)
        except Exception as failure:
            report_failure("on_tool_end", failure)

    @guarded
    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Ends a run of a tool that failed."""
        runs.end(run_id, error)


everywhere: list[object] = []
"""If not empty, all runs are recorded, including those outside trajectories without the handler."""


class _AmbientHandler:
    """Stands in for the context variable that LangChain reads a handler from: set inside trajectories."""

    name = "rollout_trace_langchain"

    def __init__(self) -> None:
        self._handler = RolloutCallbackHandler()

    def get(self) -> RolloutCallbackHandler | None:
        """The handler for this context: inside a trajectory, or everywhere. Called twice for everything that runs."""
        if _get_running_loop() is not None:  # Without an event loop there are no tasks, and this is a hot path.
            slots.enter()
        scope = current_scope.get()
        is_inside = everywhere or (scope is not None and scope.is_open) or current() is not None
        return self._handler if is_inside else None


# With the class: where the user passes a handler of this class, LangChain does not add another.
register_configure_hook(_AmbientHandler(), True, RolloutCallbackHandler)  # type: ignore[arg-type]
