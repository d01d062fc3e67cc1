"""dspy's ReAct agent with one tool; `DSPY_ENGINE` chooses the client below it, the default where it is not set."""

import os
import sys

import dspy

OPTIONS = {"engine": os.environ["DSPY_ENGINE"]} if "DSPY_ENGINE" in os.environ else {}
LM = dspy.LM(
    f"openai/{os.environ['MODEL']}",
    api_base=os.environ["MODEL_URL"],
    api_key="none",
    cache=False,
    **OPTIONS,
)


def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return f"The sum is {a + b}."


def run(question: str) -> str:
    with dspy.context(lm=LM):
        return dspy.ReAct("question -> answer", tools=[add])(question=question).answer


if __name__ == "__main__":
    print(run(sys.argv[1]))
