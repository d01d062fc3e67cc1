"""Recording clients for LiteLLM, which makes its own and shares them in the process: those cannot be wrapped.

For integrations of frameworks that pass keyword arguments on to ``litellm.acompletion``: its ``client=`` takes a client
of ours. LiteLLM is imported with the first call of ``litellm_client``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Hashable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rollout_trace import guard
from rollout_trace.clients.httpx import http_kind, wrap_httpx
from rollout_trace.integration.clients import is_left_to_process, record_client

if TYPE_CHECKING:
    from rollout_trace.wire.engine import Engine
    from rollout_trace.wire.profiles import EngineName

_OF_ANOTHER_CLIENT = (
    "ssl_verify",
    "shared_session",
    "mock_response",
    "fallbacks",
    "context_window_fallback_dict",
)
"""Arguments that LiteLLM builds a client of its own from, that need none, or that lead to other models: LiteLLM passes
the client on to those as well, which may be on another server."""

_SET_ON_CLIENT = ("organization", "max_retries")
"""Arguments that LiteLLM sets on the client it is given, where they stay for later calls."""

_kept: dict[tuple[asyncio.AbstractEventLoop, Hashable], tuple[Any, AsyncGenerator[None, None]]] = {}
"""Clients by event loop and settings, each with the generator that closes it when its loop shuts down."""


def litellm_route(model: str, arguments: Mapping[str, Any]) -> str:
    """Returns LiteLLM's name of the provider that a call goes to, such as ``openai`` or ``hosted_vllm``.

    Args:
        model: LiteLLM's name of the model: the provider is its first part.
        arguments: arguments of the call; ``custom_llm_provider`` overrides the model's provider.
    """
    return str(arguments.get("custom_llm_provider") or model.partition("/")[0])


def record_litellm_client(
    client: Any, route: str, *, engine: EngineName | Engine | None, keep_bytes: bool = False
) -> bool:
    """Starts recording a client that the user passed to LiteLLM. Returns whether this route's calls are recorded."""
    if route == "hosted_vllm":
        return _record_http(getattr(client, "client", None), engine, keep_bytes)
    # On other routes LiteLLM makes no use of a client of OpenAI's.
    return record_client(client, engine=engine, keep_bytes=keep_bytes) and route == "openai"


def _record_http(client: Any, engine: EngineName | Engine | None, keep_bytes: bool) -> bool:
    """Wraps an httpx client of a ``hosted_vllm/`` route; False if it is none.

    The route determines the engine. Its capture fields are only added if the user passed an ``engine``.
    """
    if http_kind(client) is None:
        return False
    if is_left_to_process(engine):
        return True
    named = "vllm" if isinstance(engine, str) else None if engine is None else replace(engine, name="vllm")
    wrap_httpx(client, engine=named, keep_bytes=keep_bytes)
    return True


def litellm_client(
    model: str, arguments: Mapping[str, Any], *, engine: EngineName | Engine | None, keep_bytes: bool = False
) -> Any | None:
    """Returns a recording client for a call of LiteLLM, to pass as its ``client=``.

    Call it in the event loop of the call. Calls of one loop with equal settings share a client, which is closed when
    the loop shuts down its generators, as ``asyncio.run`` does.

    Args:
        model: LiteLLM's name of the model, with the provider.
        arguments: arguments of the call.
        engine: the server behind it, see ``rollout_trace.wrap_openai``; on ``hosted_vllm/`` routes it is vLLM.
        keep_bytes: keep request and response bodies on the steps.

    Returns:
        The client; None for a route that takes no client (all but ``openai/`` with an address, and ``hosted_vllm/``),
        for a call that may fall back to other models, and without an API key, where LiteLLM raises.
    """
    import litellm

    route = litellm_route(model, arguments)
    address = arguments.get("base_url") or arguments.get("api_base")
    if any(arguments.get(name) is not None for name in _OF_ANOTHER_CLIENT) or litellm.model_fallbacks:
        return None
    if route != "hosted_vllm" and (route != "openai" or address is None):
        return None
    loop = asyncio.get_running_loop()
    settings: tuple[Hashable, ...] = (route, engine, keep_bytes)
    secret = None
    if route == "openai":
        secret = _secret(arguments)
        if secret is None:
            return None
        settings = (*settings, address, secret, *(arguments.get(name) for name in _SET_ON_CLIENT))
    found = _kept.get((loop, settings))
    if found is not None:
        return found[0]
    client = _vllm_handler(engine, keep_bytes) if route == "hosted_vllm" else _openai_client(address, secret)
    record_litellm_client(client, route, engine=engine, keep_bytes=keep_bytes)
    _keep_until_shutdown((loop, settings), client)
    return client


def _secret(arguments: Mapping[str, Any]) -> Any | None:
    """The API key that LiteLLM would use; it may be replaced while the process runs."""
    import litellm
    from litellm.secret_managers.main import get_secret_str

    return arguments.get("api_key") or litellm.api_key or litellm.openai_key or get_secret_str("OPENAI_API_KEY")


def _openai_client(address: Any, secret: Any) -> Any:
    """A client as LiteLLM would make it: its own settings for TLS and proxies are those of its HTTP client."""
    from litellm.llms.openai.common_utils import BaseOpenAILLM
    from openai import AsyncOpenAI

    http_client: Any = BaseOpenAILLM._get_async_http_client()
    return AsyncOpenAI(api_key=secret, base_url=address, http_client=http_client)


def _vllm_handler(engine: Any, keep_bytes: bool) -> Any:
    """A client of LiteLLM's own class, which has the HTTP clients record that it makes later."""
    from litellm.llms.custom_httpx.http_handler import AsyncHTTPHandler

    handler: Any = AsyncHTTPHandler()
    make_client = handler.create_client

    def create_client(*args: Any, **kwargs: Any) -> Any:
        # LiteLLM makes another HTTP client to retry after a connection error.
        client = make_client(*args, **kwargs)
        _record_http(client, engine, keep_bytes)
        return client

    handler.create_client = create_client
    return handler


def _keep_until_shutdown(key: tuple[asyncio.AbstractEventLoop, Hashable], client: Any) -> None:
    for other in list(_kept):
        if other[0].is_closed():
            # It was closed without the shutdown of its generators.
            _kept.pop(other, None)
    keeper = _close_at_shutdown(key, client)
    _kept[key] = (client, keeper)
    # Run to its `yield`: from then on the loop closes it.
    with contextlib.suppress(StopIteration):
        keeper.__anext__().send(None)


async def _close_at_shutdown(
    key: tuple[asyncio.AbstractEventLoop, Hashable], client: Any
) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        _kept.pop(key, None)
        try:
            import litellm

            # A session that the user has set for all of LiteLLM is the user's to close.
            if litellm.aclient_session is None or getattr(client, "_client", None) is not litellm.aclient_session:
                await client.close()
        except Exception as failure:
            guard.failed("close", None, failure)
