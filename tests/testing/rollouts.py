"""Agents with one tool that they run themselves, one for each protocol of an SDK, against a scripted server.

Each imports its SDK itself: a process that needs one of them takes seconds to import all.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import rollout_trace as rt
from rollout_trace.testing import RecordedRollout, Reply, ScriptedServer

PARAMETERS: Any = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
QUESTION = "Is it warmer in Paris or in Rome?"
CALLS = [("weather", '{"city": "Paris"}'), ("weather", '{"city": "Rome"}')]
ANSWER = "In Rome."


def script(request: Any) -> Reply:
    """Two calls of the tool, then the answer."""
    text = json.dumps(request)
    return Reply(ANSWER) if "degrees" in text else Reply("Let me look.", CALLS)


def weather(city: str) -> str:
    """The tool."""
    return f"{len(city)} degrees in {city}"


def chat(server: ScriptedServer, engine: Any = "vllm") -> None:
    from openai import OpenAI

    tool: Any = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    with rt.wrap_openai(OpenAI(base_url=server.base_url, api_key="none"), engine=engine) as client:
        while True:
            message = client.chat.completions.create(model="m", messages=messages, tools=[tool]).choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return
            for call in message.tool_calls:
                given: Any = call
                result = weather(**json.loads(given.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


def responses(server: ScriptedServer) -> None:
    from openai import OpenAI

    tool: Any = {"type": "function", "name": "weather", "parameters": PARAMETERS, "strict": False}
    items: list[Any] = [{"role": "user", "content": QUESTION}]
    with rt.wrap_openai(OpenAI(base_url=server.base_url, api_key="none")) as client:
        while True:
            answer = client.responses.create(model="m", input=items, tools=[tool])
            items += [item.model_dump(exclude_none=True) for item in answer.output]
            calls: list[Any] = [item for item in answer.output if item.type == "function_call"]
            if not calls:
                return
            for call in calls:
                result = weather(**json.loads(call.arguments))
                items.append({"type": "function_call_output", "call_id": call.call_id, "output": result})


def messages(server: ScriptedServer) -> None:
    from anthropic import Anthropic

    tool: Any = {"name": "weather", "input_schema": PARAMETERS}
    sent: list[Any] = [{"role": "user", "content": QUESTION}]
    with rt.wrap_anthropic(Anthropic(base_url=server.url, api_key="none")) as client:
        while True:
            answer = client.messages.create(model="m", max_tokens=500, messages=sent, tools=[tool])
            sent.append({"role": "assistant", "content": [block.model_dump() for block in answer.content]})
            calls: list[Any] = [block for block in answer.content if block.type == "tool_use"]
            if not calls:
                return
            results = [
                {"type": "tool_result", "tool_use_id": call.id, "content": weather(**call.input)} for call in calls
            ]
            sent.append({"role": "user", "content": results})


def google(server: ScriptedServer) -> None:
    from google import genai

    declared: Any = {"function_declarations": [{"name": "weather", "parameters": PARAMETERS}]}
    contents: list[Any] = [{"role": "user", "parts": [{"text": QUESTION}]}]
    options: Any = {"base_url": server.url}
    client = rt.wrap_google(genai.Client(api_key="none", http_options=options))
    try:
        while True:
            answer: Any = client.models.generate_content(model="m", contents=contents, config={"tools": [declared]})
            contents.append(answer.candidates[0].content)
            if not answer.function_calls:
                return
            parts = [
                {"function_response": {"name": one.name, "response": {"result": weather(**one.args)}}}
                for one in answer.function_calls
            ]
            contents.append({"role": "user", "parts": parts})
    finally:
        client.close()


AGENTS: dict[str, Callable[[ScriptedServer], None]] = {
    "chat": chat,
    "responses": responses,
    "messages": messages,
    "google": google,
}


def run(protocol: str) -> RecordedRollout:
    """The rollout of one of the agents."""
    with ScriptedServer(script) as server, rt.trajectory(protocol) as trajectory:
        AGENTS[protocol](server)
    return RecordedRollout(lambda: [trajectory])
