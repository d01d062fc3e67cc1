"""litellm's `responses()`, with a tool; `STREAM` asks for a stream."""

import json
import os
import sys

import litellm

MODEL = "openai/" + os.environ["MODEL"]
STREAM = bool(os.environ.get("STREAM"))
TOOLS = [
    {
        "type": "function",
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    }
]


def add(a: int, b: int) -> str:
    return f"The sum is {a + b}."


def respond(items: list):
    answer = litellm.responses(model=MODEL, input=items, tools=TOOLS, stream=STREAM)
    if STREAM:
        answer = [event for event in answer if event.type == "response.completed"][-1].response
    return answer


def run(question: str) -> str:
    items: list = [{"role": "user", "content": question}]
    while True:
        answer = respond(items)
        calls = [item for item in answer.output if item.type == "function_call"]
        if not calls:
            return answer.output[-1].content[0].text
        for call in calls:
            items.append(
                {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments}
            )
            result = add(**json.loads(call.arguments))
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": result})


if __name__ == "__main__":
    print(run(sys.argv[1]))
