"""litellm's Router, asked asynchronously, over two deployments of one model."""

import asyncio
import json
import os
import sys

from litellm import Router

MODEL = os.environ["LITELLM_ROUTE"] + os.environ["MODEL"]
ROUTER = Router(
    model_list=[
        {"model_name": "agent", "litellm_params": {"model": MODEL}, "model_info": {"id": name}}
        for name in ("first", "second")
    ]
)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            },
        },
    }
]


def add(a: int, b: int) -> str:
    return f"The sum is {a + b}."


async def run(question: str) -> str:
    messages: list = [{"role": "user", "content": question}]
    while True:
        response = await ROUTER.acompletion("agent", messages, tools=TOOLS)
        message = response.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return message.content
        for call in message.tool_calls:
            result = add(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


if __name__ == "__main__":
    print(asyncio.run(run(sys.argv[1])))
