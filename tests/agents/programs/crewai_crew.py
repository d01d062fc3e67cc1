"""CrewAI, a crew of one; `API` is the model's prefix (`openai/`, `hosted_vllm/`, …), `STREAM` asks for a stream."""

import os
import sys

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool


@tool("add")
def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return f"The sum is {a + b}."


def run(question: str) -> str:
    anthropic = os.environ["API"] == "anthropic/"
    llm = LLM(
        model=os.environ["API"] + os.environ["MODEL"],
        base_url=os.environ["ANTHROPIC_BASE_URL" if anthropic else "OPENAI_BASE_URL"],
        api_key="none",
        stream="STREAM" in os.environ,
    )
    agent = Agent(role="calculator", goal="Give the sum.", backstory="Good at sums.", llm=llm, tools=[add])
    task = Task(description=question, expected_output="The sum.", agent=agent)
    return str(Crew(agents=[agent], tasks=[task]).kickoff())


if __name__ == "__main__":
    print(run(sys.argv[1]))
