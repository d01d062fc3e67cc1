"""The SDK of OpenHands with a tool of its own; `LITELLM_ROUTE` is the provider's prefix, `STREAM` asks for a stream."""

import os
import sys
import tempfile

from openhands.sdk import LLM, Agent, Conversation, Tool
from openhands.sdk.conversation.response_utils import get_agent_final_response
from openhands.sdk.tool import Action, Observation, ToolDefinition, ToolExecutor, register_tool


class AddAction(Action):
    a: int
    b: int


class AddObservation(Observation):
    pass


class AddExecutor(ToolExecutor):
    def __call__(self, action: AddAction, conversation=None) -> AddObservation:
        return AddObservation.from_text(text=f"The sum is {action.a + action.b}.")


class AddTool(ToolDefinition[AddAction, AddObservation]):
    @classmethod
    def create(cls, conv_state=None, **params):
        return [
            cls(
                description="Adds two numbers.",
                action_type=AddAction,
                observation_type=AddObservation,
                executor=AddExecutor(),
            )
        ]


register_tool("add", AddTool)


def run(question: str) -> str:
    stream = bool(os.environ.get("STREAM"))
    llm = LLM(
        model=os.environ["LITELLM_ROUTE"] + os.environ["MODEL"],
        base_url=os.environ["MODEL_URL"],
        api_key="none",
        stream=stream,
    )
    agent = Agent(llm=llm, tools=[Tool(name="add")])
    with tempfile.TemporaryDirectory() as workspace:
        conversation = Conversation(
            agent, workspace=workspace, visualizer=None, token_callbacks=[lambda chunk: None] if stream else None
        )
        conversation.send_message(question)
        conversation.run()
        answer = get_agent_final_response(conversation.state.events)
        conversation.close()
    return answer


if __name__ == "__main__":
    print(run(sys.argv[1]))
