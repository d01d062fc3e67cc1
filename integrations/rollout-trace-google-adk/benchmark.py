"""What the hook adds to a model call: CPU time of the process, beside the bare framework in the same process.

    make bench-rollout-trace-google-adk            or, with benchmarks/shared on the path:
    python benchmark.py [--rounds 60]

Both ask the server for the same; runs of the two alternate. The budget is 1.03.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from typing import Any

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # Else litellm fetches its list of prices.

from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode  # type: ignore[attr-defined]
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types
from openai import AsyncOpenAI
from paired import Case, adding_server, report

import rollout_trace as rt
from rollout_trace_google_adk import record

TURNS = 3
ASKED = {"logprobs": True, "top_logprobs": 0, "extra_body": {"return_token_ids": True}}


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def runner_of(model: LiteLlm) -> InMemoryRunner:
    return InMemoryRunner(LlmAgent(name="adder", model=model, instruction="You add.", tools=[add]), app_name="bench")


async def run(runner: InMemoryRunner, mode: StreamingMode) -> None:
    session = await runner.session_service.create_session(app_name="bench", user_id="user")
    message = types.Content(role="user", parts=[types.Part(text="Add.")])
    events = runner.run_async(
        user_id="user", session_id=session.id, new_message=message, run_config=RunConfig(streaming_mode=mode)
    )
    async for _ in events:
        pass


def case(name: str, mode: StreamingMode, bare: LiteLlm, recorded: LiteLlm) -> Case:
    plain, hooked = runner_of(bare), record(runner_of(recorded), engine="vllm")

    async def run_bare() -> None:
        with rt.trajectory():
            await run(plain, mode)

    async def run_recorded() -> None:
        with rt.trajectory():
            await run(hooked, mode)

    return Case(name, run_bare, run_recorded)


async def main(rounds: int) -> None:
    with adding_server(TURNS) as url:
        address: dict[str, Any] = {"api_base": f"{url}/v1", "api_key": "none"}
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
            models: dict[str, tuple[str, dict[str, Any]]] = {
                "": ("openai/scripted", address),
                " with a client given": ("openai/scripted", {"client": client}),
                " of hosted_vllm": ("hosted_vllm/scripted", address),
            }
            modes = {"stream": StreamingMode.SSE, "unstreamed": StreamingMode.NONE}
            cases = [
                case(f"{mode}{name}", modes[mode], LiteLlm(model, **options, **ASKED), LiteLlm(model, **options))
                for name, (model, options) in models.items()
                for mode in modes
            ]
            await report("google-adk", cases, calls=TURNS, rounds=rounds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="What the hook adds to a model call.")
    parser.add_argument("--rounds", type=int, default=60)
    asyncio.run(main(parser.parse_args().rounds))
