"""An evaluation of inspect_ai: one task of one sample, solved by its ReAct agent."""

import os
import sys
import threading

from inspect_ai import Task, eval
from inspect_ai.agent import react
from inspect_ai.dataset import Sample
from inspect_ai.tool import tool

MODEL = f"openai/{os.environ['MODEL']}"
CHAT = {"responses_api": False}
# inspect_ai has one evaluation a process at a time.
ONE = threading.Lock()


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


def run(question: str) -> str:
    task = Task(dataset=[Sample(input=question)], solver=react(tools=[add()], submit=False))
    with ONE:
        (log,) = eval(task, model=MODEL, model_args=CHAT, display="none", log_dir="logs")
    (sample,) = log.samples
    return sample.output.completion


if __name__ == "__main__":
    print(run(sys.argv[1]))
