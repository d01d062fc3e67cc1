"""smolagents: a ToolCallingAgent whose model is litellm's."""

import os
import sys

from smolagents import LiteLLMModel, ToolCallingAgent, tool


@tool
def add(a: int, b: int) -> str:
    """Adds two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return f"The sum is {a + b}."


def run(question: str) -> str:
    model = LiteLLMModel(
        model_id=f"openai/{os.environ['MODEL']}",
        api_base=os.environ["OPENAI_BASE_URL"],
        api_key=os.environ["OPENAI_API_KEY"],
    )
    agent = ToolCallingAgent(tools=[add], model=model, verbosity_level=0, stream_outputs=bool(os.environ.get("STREAM")))
    return str(agent.run(question))


if __name__ == "__main__":
    print(run(sys.argv[1]))
