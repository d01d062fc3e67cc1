"""langchain-tests' suites for chat models, on ``ChatOpenAI`` at a scripted server. Run by ``test_standard_suites.py``.

With ROLLOUTS in the environment the model is recorded, has the handler, and what is recorded goes to that file.
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests

import rollout_trace as rt
from rollout_trace.testing import Reply, ScriptedServer, ToolCall
from rollout_trace_langchain import RolloutCallbackHandler, record

ROLLOUTS = os.environ.get("ROLLOUTS")


def example(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Any:
    """A value of a JSON schema."""
    if "$ref" in schema:
        return example(root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    for name in ("anyOf", "allOf"):
        if name in schema:
            return example(schema[name][0], root)
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type", "object")
    if kind == "object":
        return {name: example(inner, root) for name, inner in schema.get("properties", {}).items()}
    if kind == "array":
        return [example(schema.get("items", {"type": "string"}), root)]
    return {"integer": 3, "number": 1.5, "boolean": True, "null": None}.get(kind, "text")


def answer(request: Mapping[str, Any]) -> Reply:
    """A call of the first tool, or JSON of the asked shape, or a text."""
    tools = request.get("tools") or []
    if tools and request["messages"][-1]["role"] != "tool":
        function = tools[0]["function"]
        arguments = example(function.get("parameters") or {}, function.get("parameters") or {})
        return Reply(tool_calls=[ToolCall(function["name"], json.dumps(arguments))])
    shape = (request.get("response_format") or {}).get("json_schema", {}).get("schema")
    if shape is not None:
        return Reply(json.dumps(example(shape, shape)))
    return Reply("Hello from here, a text of some length")


server = ScriptedServer(answer).start()
numbers = itertools.count()


@pytest.fixture(autouse=True, scope="session")
def _recorded() -> Iterator[None]:
    if ROLLOUTS is None:
        yield
        return
    with rt.recording(ROLLOUTS):
        yield


@atexit.register
def _say_how_many() -> None:
    generating = [one for one in server.requests if one.path.endswith("/chat/completions")]
    print(f"requests: {len(generating)}")
    server.close()


class _Parameters:
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": "m", "base_url": f"{server.url}/{next(numbers)}/v1", "api_key": "none", "stream_usage": True}


class TestUnit(_Parameters, ChatModelUnitTests):
    pass


class TestIntegration(_Parameters, ChatModelIntegrationTests):
    @pytest.fixture
    def model(self, request: Any) -> Any:
        extra = getattr(request, "param", None) or {}
        if ROLLOUTS is None:
            return self.chat_model_class(**{**self.standard_chat_model_params, **self.chat_model_params, **extra})
        handlers = {"callbacks": [RolloutCallbackHandler()]}
        made = self.chat_model_class(
            **{**self.standard_chat_model_params, **self.chat_model_params, **extra, **handlers}
        )
        return record(made, engine="vllm")
