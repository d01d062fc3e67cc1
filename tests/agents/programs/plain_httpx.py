"""An agent without a framework, on httpx; `STREAM` asks for a stream."""

import json
import os
import sys

import httpx

URL = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
HEADERS = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def complete(messages: list) -> dict:
    body = {"model": os.environ["MODEL"], "messages": messages, "tools": [TOOL]}
    if not os.environ.get("STREAM"):
        answer = httpx.post(URL, json=body, headers=HEADERS, timeout=60)
        answer.raise_for_status()
        return answer.json()["choices"][0]["message"]
    with httpx.stream("POST", URL, json={**body, "stream": True}, headers=HEADERS, timeout=60) as answer:
        return merged(json.loads(line[6:]) for line in answer.iter_lines() if line[6:] not in ("", "[DONE]"))


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


def run(question: str) -> str:
    messages: list = [{"role": "user", "content": question}]
    while True:
        message = complete(messages)
        messages.append(message)
        if not message.get("tool_calls"):
            return message["content"]
        for call in message["tool_calls"]:
            result = add(**json.loads(call["function"]["arguments"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


if __name__ == "__main__":
    print(run(sys.argv[1]))
