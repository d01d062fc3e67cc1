"""A small agent framework, in place of yours: no line of it is about recording."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import uuid4

from openai import OpenAI


@dataclass
class ToolCall:
    """A tool call that a model requests. Every tool has one argument, a text."""

    id: str
    name: str
    arguments: str


@dataclass
class Answer:
    """A model's answer."""

    id: str
    content: str | None
    tool_calls: list[ToolCall]


class Listener(Protocol):
    """Called as agents run. Each run of an agent, a model or a tool has an id, and the id of the enclosing run."""

    def agent_begins(self, run_id: str, parent_id: str | None, agent: Agent) -> None: ...
    def model_begins(self, run_id: str, parent_id: str, model: Model, messages: list[Any]) -> None: ...
    def model_answers(self, run_id: str, answer: Answer, is_cached: bool) -> None: ...
    def answer_dropped(self, run_id: str) -> None: ...
    def tool_begins(self, run_id: str, parent_id: str, call: ToolCall) -> None: ...
    def tool_returns(self, run_id: str, result: str) -> None: ...
    def ends(self, run_id: str, error: BaseException | None) -> None: ...


@dataclass
class Model:
    """A model behind an API of OpenAI's shape. A request whose answer was accepted is answered from the cache later."""

    client: OpenAI
    name: str
    stream: bool = False
    cache: dict[str, Answer] = field(default_factory=dict)

    def ask(self, messages: list[Any], tools: list[Any]) -> Answer:
        """Calls the model."""
        request: dict[str, Any] = {"model": self.name, "messages": messages, **({"tools": tools} if tools else {})}
        if self.stream:
            with self.client.chat.completions.stream(**request) as events:
                completion: Any = events.get_final_completion()
        else:
            completion = self.client.chat.completions.create(**request)
        message = completion.choices[0].message
        calls = [ToolCall(c.id, c.function.name, c.function.arguments) for c in message.tool_calls or ()]
        return Answer(completion.id, message.content, calls)


class Agent:
    """Calls its model, and runs the tools that the model requests, until it answers without a tool.

    Args:
        name: its name, also as another agent's tool.
        model: its model.
        tools: functions from a text to a text, and other agents.
        accepts: whether an answer can be used; if not, it is discarded and the model is called again.
    """

    def __init__(
        self,
        name: str,
        model: Model,
        tools: Sequence[Callable[[str], str] | Agent] = (),
        *,
        accepts: Callable[[Answer], bool] = lambda answer: True,
    ) -> None:
        self.name = name
        self.model = model
        self.tools = {tool.name if isinstance(tool, Agent) else tool.__name__: tool for tool in tools}
        self.accepts = accepts
        self.listeners: list[Listener] = []

    def family(self) -> Iterator[Agent]:
        """The agent, and those among its tools, at any depth."""
        yield self
        for tool in self.tools.values():
            if isinstance(tool, Agent):
                yield from tool.family()

    def run(self, task: str, parent_id: str | None = None) -> str:
        """Returns the answer to a task."""
        messages: list[Any] = [{"role": "user", "content": task}]
        with self._run("agent_begins", parent_id, self) as run_id:
            while (answer := self._ask(run_id, messages)).tool_calls:
                tool_calls = [
                    {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
                    for c in answer.tool_calls
                ]
                messages.append({"role": "assistant", "content": answer.content, "tool_calls": tool_calls})
                for call in answer.tool_calls:
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": self._use(run_id, call)})
            return answer.content or ""

    def _ask(self, parent_id: str, messages: list[Any]) -> Answer:
        key = json.dumps(messages)
        while True:
            with self._run("model_begins", parent_id, self.model, messages) as run_id:
                cached = self.model.cache.get(key)
                answer = cached or self.model.ask(messages, [_tool_schema(name) for name in self.tools])
                self._notify("model_answers", run_id, answer, cached is not None)
                if self.accepts(answer):
                    self.model.cache[key] = answer
                    return answer
                self._notify("answer_dropped", run_id)

    def _use(self, parent_id: str, call: ToolCall) -> str:
        with self._run("tool_begins", parent_id, call) as run_id:
            tool, text = self.tools[call.name], json.loads(call.arguments)["text"]
            result = tool.run(text, run_id) if isinstance(tool, Agent) else tool(text)
            self._notify("tool_returns", run_id, result)
            return result

    @contextmanager
    def _run(self, begins: str, parent_id: str | None, *facts: Any) -> Iterator[str]:
        run_id = uuid4().hex
        self._notify(begins, run_id, parent_id, *facts)
        try:
            yield run_id
        except BaseException as error:
            self._notify("ends", run_id, error)
            raise
        self._notify("ends", run_id, None)

    def _notify(self, event: str, run_id: str, *facts: Any) -> None:
        for listener in self.listeners:
            getattr(listener, event)(run_id, *facts)


def _tool_schema(name: str) -> dict[str, Any]:
    text = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    parameters = {**text, "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "strict": True, "parameters": parameters}}
