"""The handler in an instrumented process: the model needs no ``record``."""

from __future__ import annotations

from langchain_openai import ChatOpenAI
from pydantic import SecretStr

import rollout_trace as rt
from rollout_trace.testing import ScriptedServer
from rollout_trace_langchain import RolloutCallbackHandler


def test_a_model_that_nobody_recorded() -> None:
    with ScriptedServer("fine") as server, rt.instrument(engine="vllm"), rt.trajectory() as trajectory:
        llm = ChatOpenAI(model="m", base_url=server.base_url, api_key=SecretStr("none"))
        handler = RolloutCallbackHandler()
        llm.invoke("hi", config={"callbacks": [handler]})
        assert [chunk for chunk in llm.stream("hi", config={"callbacks": [handler]}) if chunk.content]
    assert len(server.requests) == len(trajectory.steps) == 2
    for step in trajectory.steps:
        assert (step.status, step.token_issue) == ("ok", None)
        assert step.completion_token_ids is not None
        assert (step.metadata or {})["framework"] == "langchain"
