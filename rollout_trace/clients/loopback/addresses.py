"""The addresses that programs in any language read from variables, and where a request to one of ours was going."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, MutableMapping
from typing import NamedTuple
from urllib.parse import urlsplit


class _Upstream(NamedTuple):
    prefix: str
    """Path on the loopback server that stands for the base address."""
    variables: tuple[str, ...]
    """What SDKs read the base address from; of what was set before, the first counts."""
    default: str | None
    """The SDK's own base address; None: it has none, so the variables are set only where one was set before."""


_UPSTREAMS = (
    # openai (Python, Node, Go, Java), the AI SDK; the second one: LangChain, LiteLLM, LlamaIndex.
    _Upstream("/openai/v1", ("OPENAI_BASE_URL", "OPENAI_API_BASE"), "https://api.openai.com/v1"),
    # openai; LiteLLM.
    _Upstream("/azure", ("AZURE_OPENAI_ENDPOINT", "AZURE_API_BASE"), None),
    # anthropic (all languages); LangChain; LiteLLM.
    _Upstream(
        "/anthropic", ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_URL", "ANTHROPIC_API_BASE"), "https://api.anthropic.com"
    ),
    # google-genai (Python, Node, Go).
    _Upstream("/google", ("GOOGLE_GEMINI_BASE_URL",), "https://generativelanguage.googleapis.com"),
    # LiteLLM, which adds `/models/NAME:generateContent`.
    _Upstream("/gemini/v1beta", ("GEMINI_API_BASE",), "https://generativelanguage.googleapis.com/v1beta"),
    # ollama (Python, the command); LiteLLM.
    _Upstream("/ollama", ("OLLAMA_HOST", "OLLAMA_API_BASE"), "http://127.0.0.1:11434"),
    # groq, which adds `/openai/v1`; the others: LiteLLM.
    _Upstream("/groq", ("GROQ_BASE_URL",), "https://api.groq.com"),
    _Upstream("/mistral/v1", ("MISTRAL_API_BASE",), "https://api.mistral.ai/v1"),
    _Upstream("/openrouter/api/v1", ("OPENROUTER_API_BASE",), "https://openrouter.ai/api/v1"),
    _Upstream("/vllm/v1", ("HOSTED_VLLM_API_BASE",), None),
    # Kimi Code.
    _Upstream("/kimi-model", ("KIMI_MODEL_BASE_URL",), None),
    _Upstream("/kimi", ("KIMI_BASE_URL",), None),
    # Copilot, with a provider of the user's own.
    _Upstream("/copilot", ("COPILOT_PROVIDER_BASE_URL",), None),
)
OLLAMA_PORT = 11434
LOOPBACK = "ROLLOUT_TRACE_LOOPBACK"
"""Variable: address of a program's loopback server, with its secret."""
BEFORE = "ROLLOUT_TRACE_BEFORE"
"""Variable: those that lead to the loopback server as they were before, as a JSON object; null: not there."""
_NOT_PROXIED = ("127.0.0.1", "localhost")


def base_variables(url: str, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables that send the model calls of child processes, in any language, to a loopback server.

    They are the base addresses that SDKs and programs read, and the loopback address among those that no proxy is used
    for.

    Args:
        url: of the loopback server, ``http://127.0.0.1:PORT``, and what its paths begin with.
        environ: the variables that there are; None: those of this process.
    """
    environ = os.environ if environ is None else environ
    url = url.rstrip("/")
    found = {
        name: url + one.prefix
        for one in _UPSTREAMS
        if one.default is not None or _given(one, environ) is not None
        for name in one.variables
    }
    for name in ("NO_PROXY", "no_proxy"):
        # Programs read one of the two: what one names is not to be lost by setting the other.
        hosts = [one.strip() for one in (environ.get(name) or environ.get(_other(name)) or "").split(",")]
        found[name] = ",".join([*filter(None, hosts), *(one for one in _NOT_PROXIED if one not in hosts)])
    return found


def led_to(address: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of a program whose calls go to a loopback server, and what leads Python programs back."""
    variables = base_variables(address, environ)
    before = json.dumps({name: environ.get(name) for name in variables})
    return {**variables, LOOPBACK: address, BEFORE: before}


def lead_back(environ: MutableMapping[str, str]) -> dict[str, tuple[str, str | None]]:
    """Gives the variables of a process that records itself what they were before they led to a loopback server.

    Returns:
        What each was, and is now; None: it is not there.
    """
    address = environ.get(LOOPBACK)
    if not address:
        return {}
    found = {}
    for name, value in json.loads(environ.get(BEFORE, "{}")).items():
        # One that the program has set itself stays.
        if environ.get(name, "").startswith(address):
            found[name] = (environ.pop(name), value)
            if value is not None:
                environ[name] = value
    return found


def _other(name: str) -> str:
    return name.lower() if name.isupper() else name.upper()


def base_addresses(environ: Mapping[str, str]) -> list[str]:
    """The addresses of model servers that SDKs read from these variables; none where they are not set."""
    found = ((one, _given(one, environ)) for one in _UPSTREAMS)
    return [_with_scheme(one, base) for one, base in found if base is not None]


def upstream_of(path: str, environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Where a request to the loopback server was going, whose client has its address from ``base_variables``.

    Args:
        path: of the request, with its query.
        environ: the variables as they were before.

    Returns:
        The origin, ``https://api.openai.com``, with the name and password that the base address has, and the path there
        with its query; None where the path has none of the prefixes of ``base_variables``.
    """
    for one in _UPSTREAMS:
        rest = path.removeprefix(one.prefix)
        if rest != path and rest[:1] in ("", "/", "?"):
            base = _given(one, environ) or one.default
            return None if base is None else _joined(_with_scheme(one, base), _completed(one, base, rest))
    return None


def _given(one: _Upstream, environ: Mapping[str, str]) -> str | None:
    return next((environ[name].strip() for name in one.variables if environ.get(name, "").strip()), None)


def _completed(one: _Upstream, base: str, rest: str) -> str:
    # The AI SDK takes `/v1` for part of the base address, anthropic's own SDKs add it.
    is_short = one.prefix == "/anthropic" and not rest.startswith("/v1/") and not base.rstrip("/").endswith("/v1")
    return f"/v1{rest}" if is_short else rest


def _with_scheme(one: _Upstream, base: str) -> str:
    """The address with scheme and port: ollama's may be a host, or a port, alone, and one to listen on."""
    if one.prefix != "/ollama":
        return base
    if "://" not in base:
        host, slash, path = base.partition("/")
        name, port = urlsplit(f"//{host}").hostname or "127.0.0.1", urlsplit(f"//{host}").port or OLLAMA_PORT
        base = f"http://{f'[{name}]' if ':' in name else name}:{port}{slash}{path}"
    return base.replace("://0.0.0.0", "://127.0.0.1", 1)


def _joined(base: str, rest: str) -> tuple[str, str]:
    parts = urlsplit(base)
    path = f"{parts.path.rstrip('/')}{rest}"
    return f"{parts.scheme}://{parts.netloc}", path if path.startswith("/") else f"/{path}"
