"""What the tests share: agents and models of ADK, and how they are run."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode  # type: ignore[attr-defined]
from google.adk.events.event import Event
from google.adk.models.google_llm import Gemini
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types

from rollout_trace.testing import Reply, ScriptedServer
from rollout_trace_google_adk import record

Script = Callable[[dict[str, Any], list[Any]], Any]

SSE = RunConfig(streaming_mode=StreamingMode.SSE)


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def fail(reason: str) -> str:
    """Fails."""
    raise RuntimeError(reason)


def results(messages: list[Any]) -> list[Any]:
    """The tool results that a request has."""
    return [message["content"] for message in messages if message["role"] == "tool"]


def system_of(messages: list[Any]) -> str:
    """The system prompt of a request, without what ADK adds of the agent's name."""
    return str(messages[0]["content"]).partition("\n")[0] if messages[0]["role"] == "system" else ""


def adding(turns: int = 2) -> Script:
    """A model that calls ``add`` so many times, then answers."""

    def script(request: dict[str, Any], messages: list[Any]) -> Reply:
        done = len(results(messages))
        if done < turns:
            return Reply(f"adding {done}", tool_calls=[("add", json.dumps({"a": done, "b": 2}))])
        return Reply("The sum is known.")

    return script


def by_system(**answers: Any) -> Script:
    """A model that answers by the system prompt of the agent that asks: an answer, or a function of the messages."""

    def script(request: dict[str, Any], messages: list[Any]) -> Any:
        answer = answers[system_of(messages)]
        return answer(messages) if callable(answer) else answer

    return script


def once(name: str, **arguments: Any) -> Callable[[list[Any]], Reply]:
    """Calls a tool once, then answers."""
    return lambda messages: Reply("done") if results(messages) else Reply(tool_calls=[(name, json.dumps(arguments))])


def litellm(server: ScriptedServer, route: str = "openai", **options: Any) -> LiteLlm:
    return LiteLlm(f"{route}/scripted", **{"api_base": server.base_url, "api_key": "none", "max_retries": 0, **options})


def gemini(server: ScriptedServer) -> Gemini:
    return Gemini(model="gemini-scripted", base_url=server.url)


def agent_of(model: Any, name: str = "adder", **options: Any) -> LlmAgent:
    return LlmAgent(**{"name": name, "model": model, "instruction": name, "tools": [add, fail], **options})


def runner_of(agent: Any, *, engine: Any = "vllm", is_recorded: bool = True) -> InMemoryRunner:
    runner = InMemoryRunner(agent, app_name="tests")
    return record(runner, engine=engine) if is_recorded else runner


async def session_of(runner: Any, user: str = "user") -> str:
    session = await runner.session_service.create_session(app_name=runner.app_name, user_id=user)
    return str(session.id)


def content_of(message: Any) -> types.Content:
    part = message if isinstance(message, types.Part) else types.Part(text=message)
    return types.Content(role="user", parts=[part])


async def events_of(
    runner: Any, message: Any = "Add.", *, session: str | None = None, config: RunConfig | None = None, **options: Any
) -> AsyncIterator[Event]:
    """The events of one run, which ends when the reader leaves."""
    session = session or await session_of(runner)
    events = runner.run_async(
        user_id="user", session_id=session, new_message=content_of(message), run_config=config, **options
    )
    async with aclosing(events):
        async for event in events:
            yield event


async def run(runner: Any, message: Any = "Add.", **options: Any) -> list[Event]:
    """Reads a run to its end."""
    return [event async for event in events_of(runner, message, **options)]


def text_of(events: list[Event]) -> str:
    """The text of the last event that has any."""
    texts = ["".join(p.text or "" for p in event.content.parts or ()) for event in events if event.content]
    return next(text for text in reversed(texts) if text)
