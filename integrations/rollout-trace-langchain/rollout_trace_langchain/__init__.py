"""Records LangChain and LangGraph agents, token for token.

    from rollout_trace_langchain import record

    llm = record(ChatOpenAI(base_url="http://localhost:8000/v1", model="m"), engine="vllm")
    with rt.trajectory() as trajectory:
        create_agent(llm, tools).invoke({"messages": [("user", "What is 2 + 2?")]})

Inside ``with rt.trajectory()`` everything that LangChain runs is recorded; elsewhere, and in place of it, what a
``RolloutCallbackHandler`` is passed to. LangChain is imported when one of these names is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollout_trace_langchain.clients import record
    from rollout_trace_langchain.handler import RolloutCallbackHandler

_HOMES = {"RolloutCallbackHandler": "handler", "record": "clients"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        # Also for `record` alone: who records a client means what its framework does with it.
        import_module(f"{__name__}.handler")
    except ImportError as error:
        from rollout_trace.integration.installed import framework_missing

        raise framework_missing("rollout-trace-langchain", "langchain-core", error) from error
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


__all__ = ["RolloutCallbackHandler", "record"]
