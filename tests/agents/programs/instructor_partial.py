"""instructor with `create_partial`, in an event loop: objects that grow while the answer is streamed."""

import asyncio
import os
import sys

import instructor
from openai import AsyncOpenAI
from pydantic import BaseModel

MODEL = os.environ["MODEL"]


class Add(BaseModel):
    """Adds two numbers."""

    a: int
    b: int


class Answer(BaseModel):
    """The answer to the user's question."""

    text: str


async def last(stream):
    return [value async for value in stream][-1]


async def run(question: str) -> str:
    client = instructor.from_openai(AsyncOpenAI())
    messages = [{"role": "user", "content": question}]
    numbers = await last(client.chat.completions.create_partial(model=MODEL, messages=messages, response_model=Add))
    messages.append({"role": "user", "content": f"The sum is {numbers.a + numbers.b}."})
    answer = await last(client.chat.completions.create_partial(model=MODEL, messages=messages, response_model=Answer))
    return answer.text


if __name__ == "__main__":
    print(asyncio.run(run(sys.argv[1])))
