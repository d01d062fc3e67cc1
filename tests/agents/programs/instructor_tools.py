"""instructor over the openai SDK: the model chooses the numbers, then phrases the answer."""

import os
import sys

import instructor
from openai import OpenAI
from pydantic import BaseModel

CLIENT = instructor.from_openai(OpenAI())
MODEL = os.environ["MODEL"]


class Add(BaseModel):
    """Adds two numbers."""

    a: int
    b: int


class Answer(BaseModel):
    """The answer to the user's question."""

    text: str


def run(question: str) -> str:
    messages = [{"role": "user", "content": question}]
    numbers = CLIENT.chat.completions.create(model=MODEL, messages=messages, response_model=Add)
    messages.append({"role": "user", "content": f"The sum is {numbers.a + numbers.b}."})
    return CLIENT.chat.completions.create(model=MODEL, messages=messages, response_model=Answer).text


if __name__ == "__main__":
    print(run(sys.argv[1]))
