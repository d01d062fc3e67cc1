"""An agent without a framework, on aiohttp, in an event loop; `STREAM` asks for a stream."""

import asyncio
import json
import os
import sys

import aiohttp

URL = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
HEADERS = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


async def complete(session: aiohttp.ClientSession, messages: list) -> dict:
    body = {"model": os.environ["MODEL"], "messages": messages, "tools": [TOOL]}
    if not os.environ.get("STREAM"):
        async with session.post(URL, json=body, raise_for_status=True) as answer:
            return (await answer.json())["choices"][0]["message"]
    async with session.post(URL, json={**body, "stream": True}) as answer:
        return merged(
            [json.loads(line[6:]) async for line in answer.content if line[6:].strip() not in (b"", b"[DONE]")]
        )


def merged(events) -> dict:
    message = {"role": "assistant", "content": ""}
    for event in events:
        delta = event["choices"][0]["delta"]
        message["content"] += delta.get("content") or ""
        for call in delta.get("tool_calls", []):
            if "id" in call:
                message["tool_calls"] = [
                    {"id": call["id"], "type": "function", "function": {"name": "", "arguments": ""}}
                ]
            for key, text in call["function"].items():
                message["tool_calls"][-1]["function"][key] += text
    return message


def add(a: int, b: int) -> str:
    return f"The sum is {a + b}."


async def run(question: str) -> str:
    messages: list = [{"role": "user", "content": question}]
    async with aiohttp.ClientSession(headers=HEADERS) as session:
        while True:
            message = await complete(session, messages)
            messages.append(message)
            if not message.get("tool_calls"):
                return message["content"]
            for call in message["tool_calls"]:
                result = add(**json.loads(call["function"]["arguments"]))
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


if __name__ == "__main__":
    print(asyncio.run(run(sys.argv[1])))
