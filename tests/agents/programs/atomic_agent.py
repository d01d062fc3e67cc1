"""Atomic Agents: the schema of a tool's arguments, then the answer's; `STREAM` asks for a stream."""

import os
import sys

import instructor
import openai
from atomic_agents import AgentConfig, AtomicAgent, BaseIOSchema, BasicChatInputSchema


class Add(BaseIOSchema):
    """Adds two numbers."""

    a: int
    b: int


class Answer(BaseIOSchema):
    """The answer."""

    text: str


def run(question: str) -> str:
    client = instructor.from_openai(openai.OpenAI(base_url=os.environ["MODEL_URL"]))

    def ask(agent, text):
        given = BasicChatInputSchema(chat_message=text)
        return list(agent.run_stream(given))[-1] if "STREAM" in os.environ else agent.run(given)

    config = AgentConfig(client=client, model=os.environ["MODEL"])
    numbers = ask(AtomicAgent[BasicChatInputSchema, Add](config), question)
    writer = AtomicAgent[BasicChatInputSchema, Answer](config)
    return ask(writer, f"{question} The sum is {numbers.a + numbers.b}.").text


if __name__ == "__main__":
    print(run(sys.argv[1]))
