"""Records LangChain and LangGraph agents, token for token.

    from rollout_trace_langchain import record

    llm = record(ChatOpenAI(base_url="http://localhost:8000/v1", model="m"), engine="vllm")
    with rt.trajectory() as trajectory:
        create_agent(llm, tools).invoke({"messages": [("user", "What is 2 + 2?")]})

Inside ``with rt.trajectory()`` everything that LangChain runs is recorded, without a handler. Elsewhere, only runs that
a ``RolloutCallbackHandler`` is passed to are recorded. LangChain is imported when one of these names is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollout_trace.integration import lazy_package
from rollout_trace_langchain._about import ABOUT, __version__

if TYPE_CHECKING:
    from rollout_trace_langchain.clients import record
    from rollout_trace_langchain.handler import RolloutCallbackHandler
else:
    _NAMES = {"clients": ("record",), "handler": ("RolloutCallbackHandler",)}
    __getattr__, __dir__ = lazy_package(__name__, _NAMES, ABOUT)

__all__ = ["RolloutCallbackHandler", "__version__", "record"]
