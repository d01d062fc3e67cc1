"""Records the clients that LiteLLM makes for ``LitellmModel``: on its ``openai/`` routes, those of OpenAI's SDK."""

from __future__ import annotations

import functools
import sys
from typing import Any

from rollout_trace.integration import ClassSwap, active, guarded, record_client
from rollout_trace_openai_agents.frames import CallFrame

_classes: ClassSwap[None] = ClassSwap("_rollout_trace_openai_agents_litellm")


@guarded
def install() -> None:
    """Has LiteLLM's handler of OpenAI's API give recorded clients to recorded model calls. May be called repeatedly."""
    main = sys.modules.get("litellm.main")
    handler = getattr(main, "openai_chat_completions", None)
    if handler is not None and hasattr(handler, "_get_openai_client"):
        _classes.put_on(handler, None, _methods)


def _methods(base: Any, _: None) -> dict[str, Any]:
    @functools.wraps(base._get_openai_client)
    def _get_openai_client(self: Any, *args: Any, **kwargs: Any) -> Any:
        client = base._get_openai_client(self, *args, **kwargs)
        return _recorded(client) or client

    return {"_get_openai_client": _get_openai_client}


@guarded
def _recorded(client: Any) -> Any:
    """A recording copy of a client, which shares its connections; None outside a recorded model call.

    A copy, because LiteLLM shares its clients in the process.
    """
    frame = active()
    if not isinstance(frame, CallFrame) or client is None:
        return None
    copy = client.copy()
    settings = frame.settings
    return copy if record_client(copy, engine=settings.engine, keep_bytes=settings.keep_bytes) else None
