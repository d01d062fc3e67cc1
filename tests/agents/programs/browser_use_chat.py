"""browser-use's chat models, asked as its agent asks them: an action as structured output, then what it brought."""

import asyncio
import os
import sys

from browser_use import ChatAnthropic, ChatOpenAI
from browser_use.llm.messages import AssistantMessage, SystemMessage, UserMessage
from pydantic import BaseModel

if os.environ["API"] == "anthropic":
    LLM = ChatAnthropic(model=os.environ["MODEL"], base_url=os.environ["ANTHROPIC_BASE_URL"])
else:
    LLM = ChatOpenAI(model=os.environ["MODEL"])


class Action(BaseModel):
    """Numbers to add."""

    a: int
    b: int


async def run(question: str) -> str:
    messages = [SystemMessage(content="Choose the numbers to add."), UserMessage(content=question)]
    action = (await LLM.ainvoke(messages, output_format=Action)).completion
    messages.append(AssistantMessage(content=action.model_dump_json()))
    messages.append(UserMessage(content=f"The sum is {action.a + action.b}."))
    return (await LLM.ainvoke(messages)).completion


if __name__ == "__main__":
    print(asyncio.run(run(sys.argv[1])))
