"""Which requests are for a model server, and where they go instead."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from rollout_trace.process.routes import Redirected
from rollout_trace.testing.upstreams import child_environment, upstream_of
from rollout_trace.wire.recognise import protocol_of_path, protocol_of_request

ORIGIN_HEADER = "x-rollout-trace-origin"
"""Header of a redirected request: scheme, host and port of where it was going."""

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
    "models.inference.ai.azure.com", "ollama.com", "open.bigmodel.cn", "openrouter.ai", "qianfan.baidubce.com",
    "router.huggingface.co",
})  # fmt: skip
"""Hosts of which everything is an API for models."""

_DOMAINS = (
    ".openai.azure.com", ".services.ai.azure.com", ".cognitiveservices.azure.com", ".inference.ai.azure.com",
    ".models.ai.azure.com", ".api.openai.com", ".api.cognitive.microsoft.com", "-aiplatform.googleapis.com",
    ".endpoints.huggingface.cloud", ".cloud.databricks.com", ".azuredatabricks.net", ".ml.cloud.ibm.com",
    ".api.baseten.co", ".modal.run",
)  # fmt: skip
"""Ends of hosts, where the names before them are regions and customers."""

_SURE = (
    "/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", ":generateContent",
    ":streamGenerateContent", "/inference/v1/generate",
)  # fmt: skip
"""Ends of paths of generation calls, of which nothing else has them: no matter what the body holds."""

_POSTED = (
    "/embeddings", "/v1/rerank", "/v1/score", "/v1/moderations", "/v1/images/generations", "/v1/audio/speech",
    "/v1/audio/transcriptions", "/count_tokens", "/v1/responses/compact",
    "/v1/responses/input_tokens", "/v1/messages/batches",
    ":countTokens", ":embedContent", ":batchEmbedContents", ":computeTokens", ":predict", ":rawPredict",
    ":streamRawPredict", "/api/show", "/api/embed", "/api/embeddings",
)  # fmt: skip
"""Ends of paths of what else is asked of model servers."""

_GOTTEN = ("/v1/models", "/v1beta/models", "/openai/models", "/api/tags", "/api/version", "/api/ps", "/get_server_info")


class _Place(NamedTuple):
    origin: str
    """Scheme, host and port, without those of the scheme, and without user and password."""
    host: str
    target: str
    """Path and query, as they are in the address."""
    path: str


class ModelTraffic:
    """Tells requests to model servers from others. One for each test.

    Generation calls are, and the usual requests beside them (embeddings, lists of models, counts of tokens), whatever
    their address; and all that is sent to a known provider's API, or to an address to which such a request went before.

    Args:
        server: address of the loopback server that stands for all of them, ``http://127.0.0.1:PORT``.
    """

    def __init__(self, server: str) -> None:
        here = _place_of(server)
        if here is None:
            raise ValueError(f"ModelTraffic({server!r:.80}): expected the address of a server, http://127.0.0.1:PORT.")
        self._server = here.origin
        self._here = {here.origin, here.origin.replace("127.0.0.1", "localhost")}
        self._origins: set[str] = set()

    def route(self, method: str, url: str, body: bytes | None) -> Redirected | None:
        """Where a request is sent: the loopback server, or None, its own address. Thread safe.

        The path and the query stay; the header ``x-rollout-trace-origin`` says where it was going. A request to the
        loopback server itself goes there as it is.
        """
        place = _place_of(url)
        if place is None:
            return None
        if place.origin in self._here:
            return Redirected(url, {})
        if place.origin not in self._origins:
            if not (_is_provider(place.host) or _is_for_model(method, place, body)):
                return None
            self._origins.add(place.origin)
        return Redirected(self._server + place.target, {ORIGIN_HEADER: place.origin})


@lru_cache(maxsize=1024)
def _place_of(url: str) -> _Place | None:
    """The parts of an address; None where it is none of HTTP."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    usual = {"http": 80, "https": 443}.get(parts.scheme)
    if usual is None or not parts.hostname:
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    origin = f"{parts.scheme}://{host}" + ("" if port in (None, usual) else f":{port}")
    query = f"?{parts.query}" if parts.query else ""
    return _Place(origin, parts.hostname, f"{parts.path or '/'}{query}", unquote(parts.path).rstrip("/"))


@lru_cache(maxsize=1024)
def _is_provider(host: str) -> bool:
    host = host.rstrip(".")
    if host.endswith(".amazonaws.com"):
        return host.startswith(("bedrock-runtime", "bedrock-mantle"))
    return host in _HOSTS or host.endswith(_DOMAINS)


def _is_for_model(method: str, place: _Place, body: bytes | None) -> bool:
    method = method.upper()
    if method == "GET":
        return _is_gotten(place.path)
    if method != "POST":
        return False
    if place.path.endswith(_SURE) or place.path.endswith(_POSTED):
        return True
    if body is None:
        return protocol_of_path(method, place.path) is not None
    return protocol_of_request(method, place.path, body) is not None


def _is_gotten(path: str) -> bool:
    # An address without a path is how many local servers are given: `/models`.
    return path == "/models" or path.endswith(_GOTTEN) or "/v1/models/" in path or "/v1beta/models/" in path


__all__ = ["ORIGIN_HEADER", "ModelTraffic", "child_environment", "upstream_of"]
