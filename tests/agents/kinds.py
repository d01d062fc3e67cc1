"""The same program with several APIs of its model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.agents.harness import Agent

STREAM = {"STREAM": "1"}


def apis(program: str, protocols: Mapping[str, str], *, streams: bool = True, **options: Any) -> list[Agent]:
    """A case for each value of the program's variable `API` (value to protocol), and where it `streams`, one more.

    Only vLLM's chat API takes the fields that ask for ids and for logprobs. Where the answers are streamed, the
    launcher asks for them, and the process is instrumented after the program is imported. Where they are not, the
    launcher leaves the requests as they are, and the process is instrumented before.
    """
    return [
        Agent(
            program,
            protocol,
            streams=bool(more),
            engine="vllm" if protocol == "openai.chat" else "",
            launch_with_engine=bool(more) and protocol == "openai.chat",
            order="after" if more else "before",
            environment={"API": api, **more},
            **options,
        )
        for api, protocol in protocols.items()
        for more in ([{}, STREAM] if streams else [{}])
    ]
