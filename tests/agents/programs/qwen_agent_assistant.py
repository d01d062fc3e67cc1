"""Qwen-Agent's assistant, whose calls are written in its prompt's own form. It asks its model for streams alone."""

import json
import logging
import os
import sys

from qwen_agent.agents import Assistant
from qwen_agent.tools.base import BaseTool, register_tool

logging.getLogger("qwen_agent_logger").setLevel(logging.WARNING)


@register_tool("add")
class Add(BaseTool):
    description = "Adds two numbers."
    parameters = [  # noqa: RUF012
        {"name": "a", "type": "integer", "required": True},
        {"name": "b", "type": "integer", "required": True},
    ]

    def call(self, params: str, **kwargs) -> str:
        return f"The sum is {sum(json.loads(params).values())}."


def run(question: str) -> str:
    llm = {"model": os.environ["MODEL"], "model_server": os.environ["MODEL_URL"], "generate_cfg": {"seed": 1}}
    bot = Assistant(llm=llm, function_list=["add"])
    return list(bot.run(messages=[{"role": "user", "content": question}]))[-1][-1]["content"]


if __name__ == "__main__":
    print(run(sys.argv[1]))
