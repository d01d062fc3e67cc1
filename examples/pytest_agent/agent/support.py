"""The agent: it asks the model and runs the tools that the model calls, until the model answers.

Its client is the openai SDK's and made from the environment: OPENAI_BASE_URL, OPENAI_API_KEY; SUPPORT_MODEL names the
model.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from openai import AsyncOpenAI, LengthFinishReasonError, OpenAI

from agent.shop import Shop
from agent.tools import TOOLS, run_tool

SYSTEM = "You are the support agent of a small shop. Look an order up before you refund it. Answer in one sentence."
MOST_STEPS = 6
MOST_TOKENS = 300


def model() -> str:
    """The model that is asked."""
    return os.environ.get("SUPPORT_MODEL", "qwen3-8b")


def answer(question: str, shop: Shop | None = None) -> str:
    """Answers a customer's question. Raises RuntimeError if the model never stops calling tools."""
    shop, messages = shop or Shop(), beginning(question)
    with OpenAI() as client:
        for _ in range(MOST_STEPS):
            message = client.chat.completions.create(**asked(messages)).choices[0].message
            if not message.tool_calls:
                return message.content or ""
            messages += [sent_back(message), *results(shop, message.tool_calls)]
    raise RuntimeError(f"no answer after {MOST_STEPS} steps")


async def answer_async(question: str, shop: Shop | None = None) -> str:
    """As `answer`, for asyncio."""
    shop, messages = shop or Shop(), beginning(question)
    async with AsyncOpenAI() as client:
        for _ in range(MOST_STEPS):
            done = await client.chat.completions.create(**asked(messages))
            message = done.choices[0].message
            if not message.tool_calls:
                return message.content or ""
            messages += [sent_back(message), *results(shop, message.tool_calls)]
    raise RuntimeError(f"no answer after {MOST_STEPS} steps")


def answer_in_pieces(question: str, shop: Shop | None = None) -> Iterator[str]:
    """As `answer`, piece by piece as the model writes it."""
    shop, messages = shop or Shop(), beginning(question)
    with OpenAI() as client:
        for _ in range(MOST_STEPS):
            with client.chat.completions.stream(**asked(messages), stream_options={"include_usage": True}) as events:
                yield from (event.delta for event in events if event.type == "content.delta")
                message = whole(events)
            if not message.tool_calls:
                return
            messages += [sent_back(message), *results(shop, message.tool_calls)]
    raise RuntimeError(f"no answer after {MOST_STEPS} steps")


def beginning(question: str) -> list[Any]:
    """The messages of a new conversation."""
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]


def results(shop: Shop, calls: Any) -> list[Any]:
    """Runs the tools, and gives the messages with what they returned, in the order of the calls."""
    return [
        {
            "role": "tool",
            "tool_call_id": call.id,
            "content": run_tool(shop, call.function.name, call.function.arguments),
        }
        for call in calls
    ]


def asked(messages: list[Any]) -> Any:
    """The arguments of a call."""
    return {"model": model(), "messages": messages, "tools": TOOLS, "max_tokens": MOST_TOKENS}


def whole(events: Any) -> Any:
    """The message of a stream that has ended; one that was cut at MOST_TOKENS too, as without a stream."""
    try:
        return events.get_final_completion().choices[0].message
    except LengthFinishReasonError as error:
        return error.completion.choices[0].message


def sent_back(message: Any) -> Any:
    """The model's message as it is sent back: its text and its tool calls."""
    calls = [{"id": call.id, "type": "function", "function": function_of(call)} for call in message.tool_calls]
    return {"role": "assistant", "content": message.content, "tool_calls": calls}


def function_of(call: Any) -> dict[str, str]:
    """The function of a tool call, without what a stream's parser adds to it."""
    return {"name": call.function.name, "arguments": call.function.arguments}
