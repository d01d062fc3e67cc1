"""The hook provider: opens and ends frames for Strands' agents, graphs and swarms."""

from __future__ import annotations

import dataclasses
import math
import sys
import weakref
from collections.abc import AsyncGenerator
from typing import Any, TypeVar

from strands.hooks import (
    AfterInvocationEvent,
    AfterModelCallEvent,
    AfterMultiAgentInvocationEvent,
    AfterToolCallEvent,
    AgentInitializedEvent,
    BeforeInvocationEvent,
    BeforeModelCallEvent,
    BeforeMultiAgentInvocationEvent,
    HookProvider,
    HookRegistry,
    MultiAgentInitializedEvent,
)

from rollout_trace.integration import Engine, ModelFrame, ToolFrame, check_engine, guarded
from rollout_trace_strands import chat
from rollout_trace_strands.middleware import (
    ExecuteToolContext,
    ExecuteToolStage,
    InvokeModelContext,
    InvokeModelStage,
    TypedEvent,
    add_middleware,
)
from rollout_trace_strands.models import Clients, restore_classes
from rollout_trace_strands.runs import Run, Runs
from rollout_trace_strands.stages import ModelCall, ToolCall
from rollout_trace_strands.unhooked import install_hook

T = TypeVar("T")

_LAST = math.inf
"""Order of a hook that runs after every other: their decisions (to cancel, to retry) are recorded."""

_FIRST = -math.inf
"""Order of a hook that runs before every other: the run ends even if one of them raises."""

_ASKED = ("id", "name", "reason")
"""What an interrupt says of what it waits for."""

_registries: weakref.WeakKeyDictionary[HookRegistry, object] = weakref.WeakKeyDictionary()
"""Hook registries of all agents, graphs and swarms that a provider records: none is recorded twice."""


class RolloutHookProvider(HookProvider):
    """Records agents, graphs and swarms: ``Agent(hooks=[RolloutHookProvider(engine="vllm")])``.

    One provider may record many agents, even at the same time. Everything inside a recorded run is recorded with it:
    agents used as tools or made by a tool, the nodes of a graph or swarm, agents that write summaries.

    Args:
        engine: the server behind ``OpenAIModel`` and ``LiteLLMModel`` (``vllm``, ``sglang``, ...): its requests then
            ask for token ids and logprobs, see ``rollout_trace.wrap_openai``. None adds nothing to requests, and
            clients wrapped before keep their settings. An ``rollout_trace.Engine`` asks for more than ids and logprobs;
            ``LlamaCppModel`` is asked for what llama-server supports.
        keep_bytes: keep request and response bodies on the steps.

    Raises:
        ValueError: the engine is unknown.
    """

    def __init__(self, *, engine: str | Engine | None = None, keep_bytes: bool = False) -> None:
        self._clients = Clients(check_engine(engine), keep_bytes)
        self._runs = Runs(self.attach)
        self._attached: weakref.WeakSet[HookRegistry] = weakref.WeakSet()
        self._is_detached = False
        install_hook()

    def attach(self, recorded: T) -> T:
        """Records an agent, graph or swarm that was made without this hook, and the agents inside it. Returns it.

        Raises:
            TypeError: the object is not an agent, graph or swarm of this process, so it has no hooks.
        """
        hooks = getattr(recorded, "hooks", None)
        if not isinstance(hooks, HookRegistry):
            raise TypeError(f"attach() needs an agent, a graph or a swarm of Strands, got {recorded!r:.80}.")
        if self._register(hooks):
            self._attach_inner(recorded)
        return recorded

    def detach(self) -> None:
        """Stops recording. Agents, graphs and swarms that it recorded can then get another provider."""
        # Strands takes no hook back: those that are registered do nothing.
        self._is_detached = True
        for registry in list(self._attached):
            _registries.pop(registry, None)
        self._attached.clear()
        restore_classes(self._clients)

    def register_hooks(self, registry: HookRegistry, **kwargs: Any) -> None:
        """Called by Strands for each agent, graph or swarm that is made with this provider."""
        self._register(registry)

    def _register(self, registry: HookRegistry) -> bool:
        """Registers the hooks; returns False if a provider has registered its own before."""
        claim = object()
        # One atomic operation: an agent may begin runs in two threads at once.
        if _registries.setdefault(registry, claim) is not claim:
            return False
        self._attached.add(registry)
        registry.add_callback(AgentInitializedEvent, self._agent_initialized)
        registry.add_callback(BeforeInvocationEvent, self._agent_begins, order=_LAST)
        registry.add_callback(AfterInvocationEvent, self._agent_ends, order=_FIRST)
        registry.add_callback(BeforeModelCallEvent, self._turn_begins, order=_LAST)
        registry.add_callback(AfterModelCallEvent, self._turn_ends, order=_LAST)
        registry.add_callback(AfterToolCallEvent, self._tool_ended, order=_LAST)
        registry.add_callback(MultiAgentInitializedEvent, self._group_initialized)
        registry.add_callback(BeforeMultiAgentInvocationEvent, self._group_begins, order=_LAST)
        registry.add_callback(AfterMultiAgentInvocationEvent, self._group_ends, order=_FIRST)
        return True

    @guarded
    def _agent_initialized(self, event: AgentInitializedEvent) -> None:
        self._attach_inner(event.agent)

    @guarded
    def _group_initialized(self, event: MultiAgentInitializedEvent) -> None:
        self._attach_inner(event.source)

    def _attach_inner(self, recorded: Any) -> None:
        """Records what the hooks do not cover: an agent's models, tools and agents; the nodes of a graph or swarm."""
        nodes = getattr(recorded, "nodes", None)
        if isinstance(nodes, dict):
            inner = [node.executor for node in nodes.values()]
        else:
            add_middleware(recorded, InvokeModelStage, self._invoke_model)
            add_middleware(recorded, ExecuteToolStage, self._execute_tool)
            self._record_models(recorded)
            inner = [getattr(tool, "agent", None) for tool in recorded.tool_registry.registry.values()]
        for one in inner:
            if isinstance(getattr(one, "hooks", None), HookRegistry):
                self.attach(one)

    def _record_models(self, agent: Any) -> None:
        """Makes the models of an agent record; Strands also calls them outside the agent's loop."""
        # Before 1.58 an agent has no `aux_model`.
        for model in (agent.model, getattr(agent, "aux_model", None)):
            if model is not None:
                self._clients.record_model(model)

    @guarded
    def _agent_begins(self, event: BeforeInvocationEvent) -> None:
        agent = event.agent
        if self._is_detached:
            return
        self._record_models(agent)
        # Only `structured_output` has no messages; it may run beside an invocation of the same agent.
        exclusive = event.messages is not None and agent.concurrent_invocation_mode == "throw"
        session = getattr(getattr(agent, "_session_manager", None), "session_id", None)
        self._runs.begin(agent, event.invocation_state, agent.name, exclusive=exclusive, session=session)

    @guarded
    def _agent_ends(self, event: AfterInvocationEvent) -> None:
        interrupts = getattr(event.result, "interrupts", None)
        run = self._runs.find(event.agent, event.invocation_state)
        if interrupts and run is not None:
            run.frame.interrupt(
                [{name: chat.snapshot(getattr(one, name, None)) for name in _ASKED} for one in interrupts]
            )
        # The event has no error, but it fires while the exception is being handled.
        self._runs.end(event.agent, event.invocation_state, None if event.result is not None else sys.exc_info()[1])

    @guarded
    def _group_begins(self, event: BeforeMultiAgentInvocationEvent) -> None:
        if self._is_detached:
            return
        name = getattr(event.source, "id", None)
        session = getattr(getattr(event.source, "session_manager", None), "session_id", None)
        self._runs.begin(event.source, event.invocation_state, name, exclusive=False, session=session)

    @guarded
    def _group_ends(self, event: AfterMultiAgentInvocationEvent) -> None:
        self._runs.end(event.source, event.invocation_state, sys.exc_info()[1])

    @guarded
    def _turn_begins(self, event: BeforeModelCallEvent) -> None:
        run = self._runs.find(event.agent, event.invocation_state)
        if run is not None:
            run.calls, run.is_denied = [], bool(event.cancel)

    @guarded
    def _turn_ends(self, event: AfterModelCallEvent) -> None:
        """Marks the answers of the turn that Strands discarded, and records one that came from a middleware."""
        run = self._runs.find(event.agent, event.invocation_state)
        if run is None:
            return
        kept = None if event.retry or event.stop_response is None else event.stop_response.message
        discarded = [call for call in run.calls if call.message is not kept]
        # If none of the calls returned the kept message, a middleware made it from theirs: none was discarded then.
        if event.retry or len(discarded) < len(run.calls):
            for call in discarded:
                call.frame.supersede()
        elif not run.calls and not run.is_denied and event.stop_response is not None:
            self._add_middleware_answer(run, event)

    def _add_middleware_answer(self, run: Run, event: AfterModelCallEvent) -> None:
        """Adds a ``cached`` step for an answer that a middleware outside ours returned without calling the model."""
        agent, stop = event.agent, event.stop_response
        assert stop is not None
        tools = agent.tool_registry.get_all_tool_specs()
        request = chat.request_fields(agent.messages, agent.system_prompt, tools, agent.model)
        frame = ModelFrame("strands", parent=run.frame)
        frame.answered({**request, **chat.answer_fields(stop.message, stop.stop_reason, {})}, cached=True)
        frame.end()

    def _invoke_model(self, context: InvokeModelContext, next_fn: Any) -> AsyncGenerator[TypedEvent, None]:
        call = self._begin_model_call(context)
        events: AsyncGenerator[TypedEvent, None] = next_fn(context) if call is None else call.run(next_fn)
        return events

    @guarded
    def _begin_model_call(self, context: InvokeModelContext) -> ModelCall | None:
        if self._is_detached:
            return None
        model, is_client_recorded = self._clients.prepare(context.model)
        if model is not context.model:
            context = dataclasses.replace(context, model=model)
        run = self._runs.find(context.agent, context.invocation_state)
        frame = ModelFrame("strands", parent=None if run is None else run.frame, agent=context.agent.name)
        call = ModelCall(frame, context, is_client_recorded)
        if run is not None:
            run.calls.append(call)
            run.update_tool_results(context.messages)
        return call

    def _execute_tool(self, context: ExecuteToolContext, next_fn: Any) -> AsyncGenerator[TypedEvent, None]:
        call = self._begin_tool_call(context)
        events: AsyncGenerator[TypedEvent, None] = next_fn(context) if call is None else call.run(next_fn)
        return events

    @guarded
    def _begin_tool_call(self, context: ExecuteToolContext) -> ToolCall | None:
        if self._is_detached:
            return None
        run = self._runs.find(context.agent, context.invocation_state)
        use = context.tool_use
        frame = ToolFrame(
            use["name"],
            tool_call_id=use["toolUseId"],
            arguments=chat.snapshot(use["input"]),
            parent=None if run is None else run.frame,
        )
        if run is not None:
            run.tools[use["toolUseId"]] = frame.run
        return ToolCall(frame, context)

    @guarded
    def _tool_ended(self, event: AfterToolCallEvent) -> None:
        """Sets a tool run's result as hooks have edited it, unless a hook discards it to run the tool again."""
        run = self._runs.find(event.agent, event.invocation_state)
        if run is not None and not event.retry:
            run.set_tool_result(event.result)
