"""magentic's prompt chain with a tool; `STREAM` asks for a streamed answer. It asks its model for streams alone."""

import os
import sys

from magentic import OpenaiChatModel, StreamedStr, prompt_chain


def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return f"The sum is {a + b}."


MODEL = OpenaiChatModel(os.environ["MODEL"], base_url=os.environ["MODEL_URL"])


@prompt_chain("{question}", functions=[add], model=MODEL)
def whole(question: str) -> str: ...


@prompt_chain("{question}", functions=[add], model=MODEL)
def streamed(question: str) -> StreamedStr: ...


def run(question: str) -> str:
    return "".join(streamed(question)) if "STREAM" in os.environ else whole(question)


if __name__ == "__main__":
    print(run(sys.argv[1]))
