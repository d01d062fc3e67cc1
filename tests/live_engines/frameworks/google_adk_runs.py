"""Runs of an agent of Google's ADK that is asked to call its tool: ``BASE_URL MODEL FILE RUNS``."""

import asyncio
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # Else litellm fetches its list of prices.

from google.adk.agents import LlmAgent, RunConfig
from google.adk.agents.run_config import StreamingMode
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types

import rollout_trace as rt
from rollout_trace_google_adk import record

BASE_URL, MODEL, FILE, RUNS = sys.argv[1:]


def add() -> str:
    """Adds two numbers. Without arguments: a random model would write endless ones."""
    return "The sum is 3."


def choose(callback_context, llm_request):
    """The first turn has to call the tool."""
    is_first = len(llm_request.contents) == 1
    mode = types.FunctionCallingConfigMode.ANY if is_first else types.FunctionCallingConfigMode.NONE
    calling = types.FunctionCallingConfig(mode=mode, allowed_function_names=["add"] if is_first else None)
    llm_request.config.tool_config = types.ToolConfig(function_calling_config=calling)


async def main() -> None:
    model = LiteLlm(f"openai/{MODEL}", api_base=BASE_URL, api_key="none", num_retries=0)
    agent = LlmAgent(
        name="adder",
        model=model,
        instruction="Add.",
        tools=[add],
        before_model_callback=choose,
        generate_content_config=types.GenerateContentConfig(max_output_tokens=24, temperature=1.0),
    )
    runner = record(InMemoryRunner(agent=agent, app_name="sums"), engine="vllm")

    async def run(number: int) -> None:
        with rt.trajectory(task=f"sum/{number}"):
            session = await runner.session_service.create_session(app_name="sums", user_id=str(number))
            said = types.Content(role="user", parts=[types.Part(text=f"Add {number}.")])
            mode = StreamingMode.SSE if number % 2 else StreamingMode.NONE
            async for _ in runner.run_async(
                user_id=str(number), session_id=session.id, new_message=said, run_config=RunConfig(streaming_mode=mode)
            ):
                pass

    await asyncio.gather(*map(run, range(int(RUNS))))


if __name__ == "__main__":
    with rt.recording(FILE):
        asyncio.run(main())
