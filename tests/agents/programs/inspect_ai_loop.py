"""inspect_ai's tool loop by itself; `API` is the provider's prefix, `STREAM` asks for a stream."""

import asyncio
import os
import sys

from inspect_ai.model import GenerateConfig, get_model
from inspect_ai.tool import tool

# Of more, Anthropic's SDK asks for a stream.
CONFIG = GenerateConfig(max_tokens=1000)
OPTIONS = {"streaming": "STREAM" in os.environ}
if os.environ["API"] == "openai/":
    # Of a model that it does not know it would use the Responses API, after a test question about summaries.
    OPTIONS["responses_api"] = False
if os.environ["API"].startswith("openai-api/"):
    OPTIONS = {"stream": OPTIONS["streaming"], "base_url": os.environ["OPENAI_BASE_URL"], "api_key": "none"}


@tool
def add():
    async def execute(a: int, b: int) -> str:
        """Adds two numbers.

        Args:
            a: The first number.
            b: The second number.
        """
        return f"The sum is {a + b}."

    return execute


async def run(question: str) -> str:
    model = get_model(os.environ["API"] + os.environ["MODEL"], config=CONFIG, **OPTIONS)
    _, output = await model.generate_loop(question, tools=[add()])
    return output.completion


if __name__ == "__main__":
    print(asyncio.run(run(sys.argv[1])))
