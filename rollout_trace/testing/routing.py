"""Decides which requests are for a model server, where they go instead, and child processes' addresses."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias
from urllib.parse import unquote, urlsplit

from rollout_trace.clients.loopback.addresses import OLLAMA_PORT, base_variables
from rollout_trace.clients.loopback.messages import ORIGIN_HEADER
from rollout_trace.process.redirect import Redirected
from rollout_trace.wire.protocols import protocol_of_path, protocol_of_request

_KEYS = {
    "OPENAI_API_KEY": ("OPENAI_API_KEY",),
    "ANTHROPIC_API_KEY": ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
    "GEMINI_API_KEY": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
}
"""Keys without which an SDK makes no client, and the variables of which one is enough."""
_NO_KEY = "replayed"


def child_environment(url: str, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables that send the model calls of child processes, in any language, to the loopback server of a test.

    They are those of ``base_variables``, and keys where there is none: without one an SDK makes no client.
    """
    environ = os.environ if environ is None else environ
    keys = {name: _NO_KEY for name, others in _KEYS.items() if not any(environ.get(one) for one in others)}
    return {**base_variables(url, environ), **keys}


_HOSTS = frozenset({
    "aiplatform.googleapis.com", "api-inference.huggingface.co", "api.ai21.com", "api.anthropic.com",
    "api.baseten.co", "api.cerebras.ai", "api.cohere.ai", "api.cohere.com", "api.deepinfra.com", "api.deepseek.com",
    "api.fireworks.ai", "api.githubcopilot.com", "api.groq.com", "api.hyperbolic.xyz", "api.inference.net",
    "api.kluster.ai", "api.lambda.ai", "api.minimax.io", "api.minimaxi.com", "api.mistral.ai", "api.moonshot.ai",
    "api.moonshot.cn", "api.novita.ai", "api.openai.com", "api.perplexity.ai", "api.sambanova.ai",
    "api.siliconflow.cn", "api.siliconflow.com", "api.studio.nebius.ai", "api.studio.nebius.com",
    "api.tokenfactory.nebius.com", "api.together.ai", "api.together.xyz", "api.upstage.ai", "api.voyageai.com",
    "api.x.ai", "api.z.ai", "ai-gateway.vercel.sh", "ark.cn-beijing.volces.com", "codestral.mistral.ai",
    "dashscope-intl.aliyuncs.com", "dashscope.aliyuncs.com", "generativelanguage.googleapis.com",
    "gateway.ai.cloudflare.com", "inference.baseten.co", "integrate.api.nvidia.com", "models.github.ai",
    "models.inference.ai.azure.com", "open.bigmodel.cn", "openrouter.ai", "qianfan.baidubce.com",
    "router.huggingface.co",
})  # fmt: skip
"""Hosts of which everything is an API for models."""

_DOMAINS = (
    ".openai.azure.com", ".services.ai.azure.com", ".inference.ai.azure.com", ".models.ai.azure.com", ".api.openai.com",
    "-aiplatform.googleapis.com", ".endpoints.huggingface.cloud", ".ml.cloud.ibm.com", ".api.baseten.co",
)  # fmt: skip
"""Ends of hosts, where the names before them are regions and customers."""

_POSTED = (
    "/chat/completions", "/v1/completions", ":generateContent",
    ":streamGenerateContent", "/inference/v1/generate", "/embeddings", "/v1/rerank", "/v1/moderations",
    "/v1/images/generations", "/v1/audio/speech", "/v1/audio/transcriptions", "/count_tokens", "/v1/responses/compact",
    "/v1/responses/input_tokens", "/v1/messages/batches", ":countTokens", ":embedContent", ":batchEmbedContents",
)  # fmt: skip
"""Ends of paths to which nothing but model servers is posted, no matter what the body holds."""

_POSTED_WITH_MODEL = ("/v1/responses", "/api/show", "/api/embed")
"""The same where the body names a model: other APIs have such paths, of surveys and of broadcasts."""

_LISTED = ("/v1/models", "/v1beta/models", "/openai/models")
_OLLAMA_LISTED = ("/api/tags", "/api/version", "/api/ps")

_Kind: TypeAlias = Literal["provider", "posted", "listed", "named", "maybe", "other"]


class _Place(NamedTuple):
    """The parts of an address, without its query."""

    origin: str
    """Scheme, host and port, without those of the scheme, and without user and password."""
    path: str
    """As it is in the address."""
    kind: _Kind
    """Of a known provider; of what is posted to model servers alone; of what is asked of them with GET (``listed``);
    of what is posted to one with the name of a model; of what may be a generation call, by its body (``maybe``)."""


class ModelTraffic:
    """Decides which requests are for model servers, for which one loopback server stands. One object for each test.

    Generation calls are, and the usual requests beside them (embeddings, lists of models, counts of tokens), whatever
    their address; and all that is sent to a known provider's API, or to an address to which such a request went before.
    """

    def __init__(self, server: str, addresses: Iterable[str] = ()) -> None:
        here = _place_of(server.rstrip("/"))
        if here is None:
            raise ValueError(f"ModelTraffic({server!r:.80}): expected the address of a server, http://127.0.0.1:PORT.")
        self._server = here.origin
        self._here = {here.origin, here.origin.replace("127.0.0.1", "localhost")}
        known = (_place_of(one.partition("?")[0]) for one in addresses)
        self._origins = {one.origin for one in known if one is not None}

    @property
    def origins(self) -> frozenset[str]:
        """Scheme, host and port of each model server that is known by now."""
        return frozenset(self._origins)

    def route(self, method: str, url: str, body: bytes | None) -> Redirected | None:
        """Returns where to send a request: the loopback server, or None for its own address. Thread-safe.

        The path and the query stay; the header ``x-rollout-trace-origin`` says where it was going. A request to the
        loopback server itself goes there as it is.
        """
        address, mark, query = url.partition("?")
        place = _place_of(address)
        if place is None:
            return None
        if place.origin in self._here:
            return Redirected(url, {})
        if place.origin not in self._origins:
            if place.kind != "provider" and not _is_for_model(method.upper(), place, body):
                return None
            self._origins.add(place.origin)
        target = f"{place.path}{mark}{query.partition('#')[0]}"
        return Redirected(self._server + target, {ORIGIN_HEADER: place.origin})


@lru_cache(maxsize=4096)
def _place_of(address: str) -> _Place | None:
    """The parts of an address without its query; None where it is none of HTTP."""
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        return None
    usual = {"http": 80, "https": 443}.get(parts.scheme)
    if usual is None or not parts.hostname:
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    origin = f"{parts.scheme}://{host}" + ("" if port in (None, usual) else f":{port}")
    path = unquote(parts.path).rstrip("/")
    return _Place(origin, parts.path or "/", _kind_of(parts.hostname, port, path))


def is_provider(host: str) -> bool:
    """Whether a host is that of a known provider's API for models."""
    host = host.rstrip(".")
    if host.endswith(".amazonaws.com"):
        return host.startswith(("bedrock-runtime", "bedrock-mantle"))
    return host in _HOSTS or host.endswith(_DOMAINS)


def _kind_of(host: str, port: int | None, path: str) -> _Kind:
    if is_provider(host):
        return "provider"
    if path.endswith(_POSTED):
        return "posted"
    # An address without a path is how many local servers are given: `/models`.
    if path == "/models" or path.endswith(_LISTED) or "/v1/models/" in path or "/v1beta/models/" in path:
        return "listed"
    # Other APIs have such paths too: of a blog its tags.
    if path in _OLLAMA_LISTED and (port == OLLAMA_PORT or host.replace(".", "").isdigit() or "." not in host):
        return "listed"
    if path.endswith(_POSTED_WITH_MODEL):
        return "named"
    return "other" if protocol_of_path("POST", path) is None else "maybe"


def _is_for_model(method: str, place: _Place, body: bytes | None) -> bool:
    if method == "GET":
        return place.kind == "listed"
    if method != "POST" or place.kind in ("other", "listed"):
        return False
    if place.kind == "posted" or body is None:
        return True
    return b'"model"' in body if place.kind == "named" else protocol_of_request(method, place.path, body) is not None
