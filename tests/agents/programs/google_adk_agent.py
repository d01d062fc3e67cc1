"""Google's ADK; `API` is litellm's prefix, or `gemini` for its own model class; `STREAM` asks for a stream."""

import asyncio
import os
import sys

from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types

CONFIG = RunConfig(streaming_mode=StreamingMode.SSE if "STREAM" in os.environ else StreamingMode.NONE)


def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return f"The sum is {a + b}."


def model():
    if os.environ["API"] == "gemini":
        return "gemini-2.5-flash"
    return LiteLlm(model=os.environ["API"] + os.environ["MODEL"])


async def run(question: str) -> str:
    agent = LlmAgent(name="calculator", model=model(), instruction="Use the tool.", tools=[add])
    runner = InMemoryRunner(agent, app_name="calculator")
    session = await runner.session_service.create_session(app_name="calculator", user_id="user")
    message = types.Content(role="user", parts=[types.Part(text=question)])
    async for event in runner.run_async(user_id="user", session_id=session.id, new_message=message, run_config=CONFIG):
        if event.is_final_response():
            answer = event.content.parts[0].text
    return answer


if __name__ == "__main__":
    print(asyncio.run(run(sys.argv[1])))
