"""An agent of Swarms with a tool; `STREAM` asks for a stream."""

import os
import sys

from swarms import Agent


def add(a: int, b: int) -> str:
    """
    Adds two numbers.

    Args:
        a (int): the first.
        b (int): the second.

    Returns:
        str: the sum.
    """
    return f"The sum is {a + b}."


def run(question: str) -> str:
    agent = Agent(
        agent_name="calculator",
        model_name=f"openai/{os.environ['MODEL']}",
        llm_base_url=os.environ["MODEL_URL"],
        llm_api_key="none",
        max_loops=2,
        tools=[add],
        streaming_on="STREAM" in os.environ,
        print_on=False,
        output_type="final",
    )
    return str(agent.run(question))


if __name__ == "__main__":
    print(run(sys.argv[1]))
