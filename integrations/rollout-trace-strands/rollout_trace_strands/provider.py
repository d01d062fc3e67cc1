"""The hook provider: what an agent, graph or swarm of Strands does, as frames."""

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

from rollout_trace.integration import ModelFrame, ToolFrame, check_engine, guarded
from rollout_trace_strands import chat
from rollout_trace_strands.clients import Clients
from rollout_trace_strands.middleware import (
    ExecuteToolContext,
    ExecuteToolStage,
    InvokeModelContext,
    InvokeModelStage,
    TypedEvent,
    add_middleware,
)
from rollout_trace_strands.runs import Run, Runs
from rollout_trace_strands.stages import ModelCall, ToolCall
from rollout_trace_strands.unhooked import watch

T = TypeVar("T")

_LAST = math.inf
"""After every other hook: what they decide (to cancel, to ask again) is what is recorded."""

_FIRST = -math.inf
"""Before every other hook: one that raises ends the run all the same."""

_recorded: weakref.WeakKeyDictionary[HookRegistry, object] = weakref.WeakKeyDictionary()
"""The hooks of all agents, graphs and swarms that a provider records: none is recorded twice."""


class RolloutHookProvider(HookProvider):
    """Records agents, graphs and swarms: ``Agent(hooks=[RolloutHookProvider(engine="vllm")])``.

    One provider may serve many agents. Whatever runs inside a recorded run is recorded with it: agents that are tools
    or that a tool makes, the nodes of a graph or swarm, agents that make summaries.

    Args:
        engine: the server behind ``OpenAIModel`` and ``LiteLLMModel``, asked for ids and logprobs: see
            ``rollout_trace.wrap_openai``. None asks for nothing, and leaves a client that its user wrapped as it is.
        keep_bytes: keep request and response bodies on the steps.

    Raises:
        ValueError: the engine is not known.
    """

    def __init__(self, *, engine: str | None = None, keep_bytes: bool = False) -> None:
        self._clients = Clients(check_engine(engine), keep_bytes)
        self._runs = Runs(self.attach)
        watch()

    def attach(self, recorded: T) -> T:
        """Records an agent, graph or swarm that was made without this hook, and the agents inside it. Gives it back.

        Raises:
            TypeError: it has no hooks: not an agent, graph or swarm that runs here.
        """
        hooks = getattr(recorded, "hooks", None)
        if not isinstance(hooks, HookRegistry):
            raise TypeError(f"attach() needs an agent, a graph or a swarm of Strands, got {recorded!r:.80}.")
        if self._claims(hooks):
            self._follow(recorded)
        return recorded

    def register_hooks(self, registry: HookRegistry, **kwargs: Any) -> None:
        """Called by Strands."""
        self._claims(registry)

    def _claims(self, registry: HookRegistry) -> bool:
        """Registers the hooks; False where a provider has done so before."""
        claim = object()
        # In one step: an agent may begin runs in two threads at once.
        if _recorded.setdefault(registry, claim) is not claim:
            return False
        registry.add_callback(AgentInitializedEvent, self._agent_made)
        registry.add_callback(BeforeInvocationEvent, self._agent_begins, order=_LAST)
        registry.add_callback(AfterInvocationEvent, self._agent_ends, order=_FIRST)
        registry.add_callback(BeforeModelCallEvent, self._turn_begins, order=_LAST)
        registry.add_callback(AfterModelCallEvent, self._turn_ends, order=_LAST)
        registry.add_callback(AfterToolCallEvent, self._tool_over, order=_LAST)
        registry.add_callback(MultiAgentInitializedEvent, self._group_made)
        registry.add_callback(BeforeMultiAgentInvocationEvent, self._group_begins, order=_LAST)
        registry.add_callback(AfterMultiAgentInvocationEvent, self._group_ends, order=_FIRST)
        return True

    @guarded
    def _agent_made(self, event: AgentInitializedEvent) -> None:
        self._follow(event.agent)

    @guarded
    def _group_made(self, event: MultiAgentInitializedEvent) -> None:
        self._follow(event.source)

    def _follow(self, recorded: Any) -> None:
        """Into what an agent's hooks do not see: its model, its tools; into the nodes of a graph or swarm."""
        nodes = getattr(recorded, "nodes", None)
        if isinstance(nodes, dict):
            inner = [node.executor for node in nodes.values()]
        else:
            add_middleware(recorded, InvokeModelStage, self._invoke_model)
            add_middleware(recorded, ExecuteToolStage, self._execute_tool)
            self._reach(recorded)
            inner = [getattr(tool, "agent", None) for tool in recorded.tool_registry.registry.values()]
        for one in inner:
            if isinstance(getattr(one, "hooks", None), HookRegistry):
                self.attach(one)

    def _reach(self, agent: Any) -> None:
        """Its models: Strands calls them past the loop too, and before 1.58 it had but one."""
        for model in (agent.model, getattr(agent, "aux_model", None)):
            if model is not None:
                self._clients.reach(model)

    @guarded
    def _agent_begins(self, event: BeforeInvocationEvent) -> None:
        agent = event.agent
        self._reach(agent)
        # `structured_output` alone gives no messages, and may run beside an invocation.
        alone = event.messages is not None and agent.concurrent_invocation_mode == "throw"
        self._runs.begin(agent, event.invocation_state, agent.name, alone=alone)

    @guarded
    def _agent_ends(self, event: AfterInvocationEvent) -> None:
        self._runs.end(event.agent, event.invocation_state, None if event.result is not None else sys.exc_info()[1])

    @guarded
    def _group_begins(self, event: BeforeMultiAgentInvocationEvent) -> None:
        self._runs.begin(event.source, event.invocation_state, getattr(event.source, "id", None), alone=False)

    @guarded
    def _group_ends(self, event: AfterMultiAgentInvocationEvent) -> None:
        self._runs.end(event.source, event.invocation_state, sys.exc_info()[1])

    @guarded
    def _turn_begins(self, event: BeforeModelCallEvent) -> None:
        run = self._runs.of(event.agent, event.invocation_state)
        if run is not None:
            run.calls, run.is_denied = [], bool(event.cancel)

    @guarded
    def _turn_ends(self, event: AfterModelCallEvent) -> None:
        """What Strands makes of the answers that the turn's calls gave."""
        run = self._runs.of(event.agent, event.invocation_state)
        if run is None:
            return
        taken = None if event.retry or event.stop_response is None else event.stop_response.message
        thrown_away = [call for call in run.calls if call.message is not taken]
        # A message that none of the calls gave was made of them, by a middleware.
        if event.retry or len(thrown_away) < len(run.calls):
            for call in thrown_away:
                call.frame.supersede()
        elif not run.calls and not run.is_denied and event.stop_response is not None:
            self._answered_elsewhere(run, event)

    def _answered_elsewhere(self, run: Run, event: AfterModelCallEvent) -> None:
        """A middleware around ours answered in the model's place."""
        agent, stop = event.agent, event.stop_response
        assert stop is not None
        tools = agent.tool_registry.get_all_tool_specs()
        asked = chat.asked(agent.messages, agent.system_prompt, tools, agent.model)
        frame = ModelFrame("strands", parent=run.frame)
        frame.answered({**asked, **chat.answered(stop.message, stop.stop_reason, {})}, cached=True)
        frame.end()

    def _invoke_model(self, context: InvokeModelContext, next_fn: Any) -> AsyncGenerator[TypedEvent, None]:
        call = self._model_called(context)
        events: AsyncGenerator[TypedEvent, None] = next_fn(context) if call is None else call.run(next_fn)
        return events

    @guarded
    def _model_called(self, context: InvokeModelContext) -> ModelCall | None:
        model, is_reached, client = self._clients.prepare(context.model)
        if model is not context.model:
            context = dataclasses.replace(context, model=model)
        run = self._runs.of(context.agent, context.invocation_state)
        frame = ModelFrame("strands", parent=None if run is None else run.frame, agent=context.agent.name)
        call = ModelCall(frame, context, is_reached, client)
        if run is not None:
            run.calls.append(call)
            run.model_reads(context.messages)
        return call

    def _execute_tool(self, context: ExecuteToolContext, next_fn: Any) -> AsyncGenerator[TypedEvent, None]:
        call = self._tool_called(context)
        events: AsyncGenerator[TypedEvent, None] = next_fn(context) if call is None else call.run(next_fn)
        return events

    @guarded
    def _tool_called(self, context: ExecuteToolContext) -> ToolCall | None:
        run = self._runs.of(context.agent, context.invocation_state)
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
    def _tool_over(self, event: AfterToolCallEvent) -> None:
        """What the hooks make of a result; one that is thrown away stays as the tool gave it."""
        run = self._runs.of(event.agent, event.invocation_state)
        if run is not None and not event.retry:
            run.tool_gave(event.result)
