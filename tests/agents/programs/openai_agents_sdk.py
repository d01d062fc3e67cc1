"""openai-agents; `API` is the model's (`responses` or `chat`), `STREAM` asks for a stream."""

import asyncio
import os
import sys

from agents import Agent, Runner, function_tool, set_default_openai_api, set_tracing_disabled

set_tracing_disabled(True)
set_default_openai_api("chat_completions" if os.environ["API"] == "chat" else "responses")


@function_tool
def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return f"The sum is {a + b}."


AGENT = Agent(name="calculator", instructions="Use the tool.", model=os.environ["MODEL"], tools=[add])


async def run(question: str) -> str:
    if "STREAM" not in os.environ:
        return (await Runner.run(AGENT, question)).final_output
    result = Runner.run_streamed(AGENT, question)
    async for _ in result.stream_events():
        pass
    return result.final_output


if __name__ == "__main__":
    print(asyncio.run(run(sys.argv[1])))
