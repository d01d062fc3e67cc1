"""Records the agents of myframework: ``record(agent, engine="vllm")``. This is the whole integration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollout_trace.integration import (
    About,
    AgentFrame,
    Completion,
    Frame,
    ModelFrame,
    ToolCall,
    ToolFrame,
    guarded,
    record_client,
    snapshot,
)

if TYPE_CHECKING:  # `rt.integrations()` reads ABOUT where the framework is slow to import, or missing
    import myframework

    from rollout_trace.integration import EngineName

ABOUT = About(framework="myframework", tested=("1.0", "1.4"))


def record(agent: myframework.Agent, *, engine: EngineName | None = None) -> myframework.Agent:
    """Records every run of an agent, and of the agents among its tools. Returns the same agent."""
    for one in agent.family():
        record_client(one.model.client, engine=engine)  # without an engine, it keeps the settings of its user
        if _hooks not in one.listeners:
            one.listeners.append(_hooks)
    return agent


class Hooks:
    """The listener. Many agents run at once: frames are found by the id of the run, never as the latest one."""

    def __init__(self) -> None:
        self._frames: dict[str | None, Any] = {}

    def _begin(self, run_id: str, frame: Frame) -> None:
        self._frames[run_id] = frame.enter()  # model calls made in this context from here on are the frame's

    @guarded  # an exception in here is logged, and never reaches the agent
    def agent_begins(self, run_id: str, parent_id: str | None, agent: myframework.Agent) -> None:
        self._begin(run_id, AgentFrame(agent.name, parent=self._frames.get(parent_id)))

    @guarded
    def model_begins(self, run_id: str, parent_id: str, model: myframework.Model, messages: list[Any]) -> None:
        # A step is made from the bytes of its call; model and messages are only used if the call sends none.
        parent, asked = self._frames.get(parent_id), list(messages)
        self._begin(run_id, ModelFrame("myframework", parent=parent, model=model.name, messages=asked))

    @guarded
    def model_answers(self, run_id: str, answer: myframework.Answer, is_cached: bool) -> None:
        calls = tuple(ToolCall(id=one.id, name=one.name, arguments=one.arguments) for one in answer.tool_calls)
        completion = Completion(content=answer.content, tool_calls=calls)
        # A cached answer has the id of the call that it comes from, which is another step.
        response_id = None if is_cached else answer.id
        self._frames[run_id].answered({"completion": completion}, response_id=response_id, cached=is_cached)

    @guarded
    def answer_dropped(self, run_id: str) -> None:
        self._frames[run_id].supersede()  # kept, and not trained on

    @guarded
    def tool_begins(self, run_id: str, parent_id: str, call: myframework.ToolCall) -> None:
        parent, arguments = self._frames.get(parent_id), snapshot(call.arguments)
        self._begin(run_id, ToolFrame(call.name, tool_call_id=call.id, arguments=arguments, parent=parent))

    @guarded
    def tool_returns(self, run_id: str, result: str) -> None:
        self._frames[run_id].run.result = snapshot(result)

    @guarded
    def ends(self, run_id: str, error: BaseException | None) -> None:
        self._frames.pop(run_id).end(error)


_hooks = Hooks()
