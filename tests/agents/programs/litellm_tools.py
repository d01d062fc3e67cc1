"""litellm, synchronously; `LITELLM_ROUTE` is the provider's prefix, `STREAM` asks for a stream."""

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


def complete(messages: list) -> litellm.Message:
    response = litellm.completion(MODEL, messages, tools=TOOLS, stream=STREAM)
    if STREAM:
        response = litellm.stream_chunk_builder(list(response), messages=messages)
    return response.choices[0].message


def run(question: str) -> str:
    messages: list = [{"role": "user", "content": question}]
    while True:
        message = complete(messages)
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return message.content
        for call in message.tool_calls:
            result = add(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


if __name__ == "__main__":
    print(run(sys.argv[1]))
