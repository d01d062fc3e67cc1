"""A task as users of Inspect write it, in a file that ``inspect eval`` and ``eval_retry`` load."""

from inspect_ai import Task, task
from inspect_ai.agent import react
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.tool import Tool, tool


@tool
def add() -> Tool:
    async def execute(a: int, b: int) -> str:
        """Adds two numbers.

        Args:
            a: The first number.
            b: The second number.
        """
        return f"The sum is {a + b}."

    return execute


@task
def sums(samples: int = 3) -> Task:
    dataset = [Sample(id=f"s{n}", input=f"Question {n}?", target="known") for n in range(samples)]
    return Task(dataset=dataset, solver=react(tools=[add()], submit=False), scorer=includes())
