"""LangChain's ChatOllama with one tool; `STREAM` asks for a stream."""

import os
import sys

from langchain_core.tools import tool
from langchain_ollama import ChatOllama


@tool
def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return f"The sum is {a + b}."


MODEL = ChatOllama(model=os.environ["MODEL"]).bind_tools([add])


def complete(messages: list):
    if not os.environ.get("STREAM"):
        return MODEL.invoke(messages)
    whole = None
    for chunk in MODEL.stream(messages):
        whole = chunk if whole is None else whole + chunk
    return whole


def run(question: str) -> str:
    messages: list = [("user", question)]
    while True:
        message = complete(messages)
        messages.append(message)
        if not message.tool_calls:
            return message.content
        messages += [add.invoke(call) for call in message.tool_calls]


if __name__ == "__main__":
    print(run(sys.argv[1]))
