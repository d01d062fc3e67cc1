"""An agent of Griptape with a tool; `STREAM` asks for a stream."""

import logging
import os
import sys

from griptape.artifacts import TextArtifact
from griptape.drivers.prompt.openai import OpenAiChatPromptDriver
from griptape.structures import Agent
from griptape.tools import BaseTool
from griptape.utils.decorators import activity
from schema import Schema

logging.getLogger("griptape").setLevel(logging.WARNING)


class Calculator(BaseTool):
    @activity(config={"description": "Adds two numbers.", "schema": Schema({"a": int, "b": int})})
    def add(self, a: int, b: int) -> TextArtifact:
        return TextArtifact(f"The sum is {a + b}.")


def run(question: str) -> str:
    driver = OpenAiChatPromptDriver(
        model=os.environ["MODEL"], base_url=os.environ["MODEL_URL"], stream="STREAM" in os.environ
    )
    agent = Agent(prompt_driver=driver, tools=[Calculator()])
    if "STREAM" not in os.environ:
        return str(agent.run(question).output.value)
    for _ in agent.run_stream(question):
        pass
    return str(agent.output.value)


if __name__ == "__main__":
    print(run(sys.argv[1]))
