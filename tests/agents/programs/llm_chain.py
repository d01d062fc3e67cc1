"""The library of the `llm` command, with a tool; `STREAM` asks for a stream."""

import os
import sys

import llm
from llm.default_plugins.openai_models import Chat


def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return f"The sum is {a + b}."


def run(question: str) -> str:
    model = Chat("scripted", model_name=os.environ["MODEL"], api_base=os.environ["MODEL_URL"], supports_tools=True)
    response = model.chain(question, tools=[add], stream="STREAM" in os.environ, key="none")
    return "".join(response) if "STREAM" in os.environ else response.text()


if __name__ == "__main__":
    assert llm.get_key
    print(run(sys.argv[1]))
