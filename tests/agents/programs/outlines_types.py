"""outlines over a client of OpenAI's: an object of a type, then a text; `STREAM` asks for streams."""

import json
import os
import sys

import openai
import outlines
from outlines.inputs import Chat
from pydantic import BaseModel


class Add(BaseModel):
    a: int
    b: int


def run(question: str) -> str:
    model = outlines.from_openai(openai.OpenAI(base_url=os.environ["MODEL_URL"]), os.environ["MODEL"])

    def ask(chat, kind=None):
        return "".join(model.stream(chat, kind)) if "STREAM" in os.environ else model(chat, kind)

    chat = Chat([{"role": "user", "content": question}])
    found = ask(chat, Add)
    numbers = Add(**json.loads(found))
    chat.add_assistant_message(found)
    chat.add_user_message(f"The sum is {numbers.a + numbers.b}.")
    return ask(chat)


if __name__ == "__main__":
    print(run(sys.argv[1]))
