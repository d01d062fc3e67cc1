"""litellm's routes, the frameworks that are built on it, and agents on plain HTTP libraries."""

from __future__ import annotations

from tests.agents import models
from tests.agents.harness import Agent, EachAgent, Order, each

ROUTES = {"openai/": "openai.chat", "hosted_vllm/": "openai.chat", "anthropic/": "anthropic.messages"}
STREAM = {"STREAM": "1"}
# With one of these set, dspy takes litellm instead of its own client.
NO_GATEWAY = {"OPENAI_BASE_URL": "", "OPENAI_API_BASE": ""}


def routes(program: str, order: Order) -> list[Agent]:
    """A program with each of litellm's routes, streamed and not."""
    return [
        Agent(
            program,
            protocol,
            streams=bool(stream),
            engine="vllm" if protocol == "openai.chat" else "",
            environment={"LITELLM_ROUTE": route, **stream},
            order=order,
        )
        for route, protocol in ROUTES.items()
        for stream in ({}, STREAM)
    ]


def both(program: str, **options: object) -> list[Agent]:
    """A program with streamed answers, and with whole ones."""
    return [Agent(program, **options), Agent(program, streams=True, environment=STREAM, **options)]  # type: ignore[arg-type]


@each(
    *routes("litellm_tools", "before"),
    *routes("litellm_async", "after"),
    Agent("litellm_responses", "openai.responses", engine=""),
    # Of a model that it does not have in its list, litellm asks for no stream.
    Agent("litellm_responses", "openai.responses", engine="", streams=True, environment={**STREAM, "MODEL": "gpt-4o"}),
    Agent("litellm_router", environment={"LITELLM_ROUTE": "openai/"}),
    Agent("litellm_router", environment={"LITELLM_ROUTE": "hosted_vllm/"}),
    Agent("instructor_tools", model=models.structured, launch_with_engine=True),
    Agent("instructor_partial", model=models.structured, streams=True, order="after"),
    Agent("dspy_react", model=models.react, turns=3, environment=NO_GATEWAY),
    Agent("dspy_react", model=models.react, turns=3, environment={"DSPY_ENGINE": "litellm"}),
    *both("smolagents_litellm", model=models.final_answer_tool),
    *both("smolagents_inference", model=models.final_answer_tool, launch_with_engine=True),
    Agent("mini_swe_agent", model=models.shell, environment={"LITELLM_ROUTE": "openai/"}),
    Agent("mini_swe_agent", model=models.shell, environment={"LITELLM_ROUTE": "hosted_vllm/"}),
    *both("chat_groq", order="after"),
    # It asks for streams alone.
    Agent("chat_ollama", "ollama.chat", streams=True, engine=""),
    Agent("litellm_tools", "ollama.chat", engine="", environment={"LITELLM_ROUTE": "ollama_chat/"}),
    Agent(
        "litellm_async", "ollama.chat", streams=True, engine="", environment={"LITELLM_ROUTE": "ollama_chat/", **STREAM}
    ),
    Agent(
        "litellm_tools", "ollama.generate", engine="", model=models.json_tools, environment={"LITELLM_ROUTE": "ollama/"}
    ),
    *both("plain_requests", launch_with_engine=True),
    *both("plain_httpx"),
    *both("plain_aiohttp", order="after", launch_with_engine=True),
)
class TestAgents(EachAgent):
    """Recorded, unmodified."""
