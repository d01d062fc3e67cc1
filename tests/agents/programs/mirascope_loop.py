"""mirascope with a tool; `STREAM` asks for a stream, `API` is the model's provider."""

import os
import sys

from mirascope import llm


@llm.tool
def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return f"The sum is {a + b}."


def run(question: str) -> str:
    provider, _, api = os.environ["API"].partition(":")
    model = llm.Model(f"{provider}/{os.environ['MODEL']}" + (f":{api}" if api else ""))
    response = model.stream(question, tools=[add]) if "STREAM" in os.environ else model.call(question, tools=[add])
    while True:
        if "STREAM" in os.environ:
            response.finish()
        if not response.tool_calls:
            return response.text()
        response = response.resume(response.execute_tools())


if __name__ == "__main__":
    print(run(sys.argv[1]))
