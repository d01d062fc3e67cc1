"""The callback handler: LangChain's events become frames."""

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
from rollout_trace_langchain import calls, middleware, passages, runs
from rollout_trace_langchain.results import put_result, snapshot


class RolloutCallbackHandler(BaseCallbackHandler):
    """Records what LangChain and LangGraph run: pass it as ``config={"callbacks": [RolloutCallbackHandler()]}``.

    Inside ``with rt.trajectory()`` nothing needs to be passed. Outside, every run that it is passed to is a trajectory.
    Pass it where the agent is invoked: a model that alone has it gives a trajectory for every call, and a warning. It
    holds no state: one handler or several, shared or not, record the same.
    """

    # In the context of what is called, also where that is async; otherwise the wire call could not be told.
    run_inline = True
    # Only under pytest is there anything to raise.
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
            middleware.settle(run, outputs)
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
        _model(serialized, messages[0], run_id, parent_run_id, tags, metadata, kwargs)

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
        _model(serialized, prompts[0], run_id, parent_run_id, tags, metadata, kwargs)

    @guarded
    def on_llm_new_token(self, token: str | list[str | dict[str, Any]], *, run_id: UUID, **kwargs: Any) -> None:
        run = runs.find(run_id)
        if run is not None and isinstance(run.own, calls.Call):
            run.own.is_arriving = True

    @guarded
    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        run = runs.find(run_id)
        if run is not None and isinstance(run.own, calls.Call):
            run.own.told(response)
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
        runs.lift(run, None)
        frame = runs.made(
            ToolFrame,
            run.frame,
            (serialized or {}).get("name"),
            tool_call_id=kwargs.get("tool_call_id"),
            arguments=input_str if inputs is None else snapshot(inputs, input_str),
        )
        run.put(frame.enter())

    @guarded
    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        run = runs.find(run_id)
        if run is not None and isinstance(run.own, ToolFrame):
            put_result(run.own.run, output)
            runs.end(run_id)

    @guarded
    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        runs.end(run_id, error)


def _model(
    serialized: Mapping[str, Any] | None,
    prompt: Sequence[BaseMessage] | str,
    run_id: UUID,
    parent_run_id: UUID | None,
    tags: list[str] | None,
    metadata: Mapping[str, Any] | None,
    more: Mapping[str, Any],
) -> None:
    calls.begin(
        prompt,
        more.get("invocation_params") or {},
        run_id=run_id,
        parent_run_id=parent_run_id,
        tags=tags,
        metadata=metadata,
        batch_size=more.get("batch_size") or 1,
        name=(serialized or {}).get("name") or "of a class without a name",
    )


class _Ambient:
    """In the place of a context variable: the handler, where the context is in a trajectory."""

    name = "rollout_trace_langchain"

    def __init__(self) -> None:
        self._handler = RolloutCallbackHandler()

    def get(self) -> RolloutCallbackHandler | None:
        """The handler that LangChain should call in this context; asked for twice by everything that runs."""
        if _get_running_loop() is not None:  # Without an event loop there are no tasks, and this is a hot path.
            passages.enter()
        scope = current_scope.get()
        if scope is not None and scope.is_open:
            return self._handler
        return None if current() is None else self._handler


# By its class: where a handler is passed, that one is called alone.
register_configure_hook(_Ambient(), True, RolloutCallbackHandler)  # type: ignore[arg-type]
