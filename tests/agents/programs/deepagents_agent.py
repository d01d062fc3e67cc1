"""A deep agent; `API` is the model's provider (`openai`, `anthropic`), `STREAM` asks for a stream."""

import os
import sys

from deepagents import create_deep_agent
from langchain.chat_models import init_chat_model


def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return f"The sum is {a + b}."


def run(question: str) -> str:
    model = init_chat_model(f"{os.environ['API']}:{os.environ['MODEL']}", streaming="STREAM" in os.environ)
    agent = create_deep_agent(model=model, tools=[add], system_prompt="You add numbers.")
    asked = {"messages": [{"role": "user", "content": question}]}
    if "STREAM" not in os.environ:
        return str(agent.invoke(asked)["messages"][-1].text)
    last = None
    for mode, part in agent.stream(asked, stream_mode=["messages", "values"]):
        last = part if mode == "values" else last
    return str(last["messages"][-1].text)


if __name__ == "__main__":
    print(run(sys.argv[1]))
