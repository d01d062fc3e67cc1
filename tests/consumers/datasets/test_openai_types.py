"""Messages are what OpenAI's own types say that chat messages are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolUnionParam
from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError

import rollout_trace as rt
from rollout_trace.export import chat, steps
from tests.consumers import recorded

MESSAGES: TypeAdapter[Any] = TypeAdapter(list[ChatCompletionMessageParam])
TOOLS: TypeAdapter[Any] = TypeAdapter(list[ChatCompletionToolUnionParam])


def check(messages: Any) -> None:
    """Parts and tool calls are validated when they are iterated over, which writing them does."""
    MESSAGES.dump_json(MESSAGES.validate_python(messages), warnings="error")


@pytest.mark.parametrize("made", [*recorded.EVERY, recorded.anthropic_agent])
@pytest.mark.parametrize("per", ["conversation", "step"])
def test_messages_and_tools_are_valid(made: Callable[[], list[rt.Trajectory]], per: Any) -> None:
    """Of every protocol, of real servers too."""
    rows = chat(made(), arguments="json", per=per)
    for row in rows:
        check(row["messages"])
        TOOLS.dump_json(TOOLS.validate_python(row.get("tools") or []), warnings="error")
    for step in steps(made(), tokens=False):
        check([*(step["messages"] or ()), step["completion"]])


def test_the_types_would_tell() -> None:
    """Arguments as dicts are for templates, not for OpenAI's format."""
    with pytest.raises(PydanticSerializationError, match="Input should be a valid string"):
        check(chat(recorded.tool_agent())[0]["messages"])
