"""Who is measured, in which environment, and what of it the page says beside figures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Peer:
    """One row of the tables."""

    name: str
    """Of the adapter, and of the row in the results."""
    title: str
    environment: str
    packages: tuple[str, ...]
    """Whose versions are stated."""
    kept: str
    """Where its records are in this benchmark."""
    counts: bool = True
    """False: nothing is recorded."""
    memory: bool = True
    """False: what it records is not kept in the process."""


def _peer(name: str, title: str, packages: str, kept: str, *, memory: bool = True) -> Peer:
    return Peer(name, title, f"peers-{name}", tuple(packages.split()), kept, memory=memory)


BARE = Peer("bare", "bare client, against itself", "peers-ours", (), "nothing", counts=False)
OURS = (
    Peer("ours", "rollout_trace, wrapped", "peers-ours", ("rollout-trace",), "trajectories in memory"),
    Peer(
        "ours-instrumented", "rollout_trace, instrumented", "peers-ours", ("rollout-trace",), "trajectories in memory"
    ),
    Peer("ours-file", "rollout_trace, to a file", "peers-ours", ("rollout-trace",), "a JSONL file", memory=False),
    Peer(
        "ours-process",
        "rollout_trace, to a file by a process",
        "peers-ours",
        ("rollout-trace",),
        "a JSONL file, written by another process, whose time is in no figure",
        memory=False,
    ),
)
OTHERS = (
    _peer(
        "openinference",
        "OpenInference",
        "openinference-instrumentation-openai opentelemetry-sdk",
        "OpenTelemetry's exporter in memory",
    ),
    _peer("langfuse", "Langfuse", "langfuse", "OpenTelemetry's exporter in memory"),
    _peer("langsmith", "LangSmith", "langsmith", "the bodies it sends, compressed"),
    _peer("mlflow", "MLflow", "mlflow", "a SQLite database", memory=False),
    _peer("braintrust", "Braintrust", "braintrust", "the logger in memory of its own tests"),
    _peer("opik", "Opik", "opik", "the bodies it sends, compressed"),
    _peer("weave", "Weave", "weave", "what its HTTP client is handed"),
    _peer("logfire", "Logfire", "logfire", "OpenTelemetry's exporter in memory"),
    _peer("art", "OpenPipe ART, trajectories", "openpipe-art", "trajectories in memory"),
    _peer("agentlightning", "Agent-lightning, AgentOpsTracer", "agentlightning agentops", "spans in memory"),
)
PEERS = (BARE, *OURS, *OTHERS)

PROXY_ENVIRONMENT = "peers-proxy"
PROXIES = {
    "aiohttp": ("a plain proxy on aiohttp", ("aiohttp",)),
    "starlette": ("a plain proxy on Starlette and httpx", ("starlette", "httpx", "uvicorn")),
    "litellm": ("LiteLLM's proxy", ("litellm",)),
}
