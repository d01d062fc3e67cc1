"""litellm in an event loop; `LITELLM_ROUTE` is the provider's prefix, `STREAM` asks for a stream."""

import asyncio
import json
import os
import sys

import litellm

MODEL = os.environ["LITELLM_ROUTE"] + os.environ["MODEL"]
STREAM = bool(os.environ.get("STREAM"))
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds two numbers.",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                "required": ["a", "b"],
            },
        },
    }
]


def add(a: int, b: int) -> str:
    return f"The sum is {a + b}."


async def complete(messages: list) -> litellm.Message:
    response = await litellm.acompletion(MODEL, messages, tools=TOOLS, stream=STREAM)
    if STREAM:
        response = litellm.stream_chunk_builder([chunk async for chunk in response], messages=messages)
    return response.choices[0].message


async def run(question: str) -> str:
    messages: list = [{"role": "user", "content": question}]
    while True:
        message = await complete(messages)
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return message.content
        for call in message.tool_calls:
            result = add(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


if __name__ == "__main__":
    print(asyncio.run(run(sys.argv[1])))
