"""``rollout-trace versions``."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Any

import click

from rollout_trace._version import __version__
from rollout_trace.cli.common import json_option, show

# What the library needs, what it records and what it writes with: the packages that a report of a defect turns on.
_PACKAGES = (
    *("aiohttp", "anthropic", "fsspec", "google-genai", "groq", "httpx", "httpx2", "litellm", "msgspec"),
    *("numpy", "ollama", "openai", "opentelemetry-sdk", "orjson", "pyarrow", "pytest", "ray", "requests", "sglang"),
    *("tinker", "tokenizers", "torch", "transformers", "trl", "verl", "vllm", "zstandard"),
)


@click.command()
@json_option
def versions(as_json: bool) -> int:
    """Print the versions of rollout-trace, of Python, and of what it is used with here.

    Those are the integrations with their frameworks, and the SDKs, HTTP libraries, engines and trainers
    that are installed. For a report of a defect.
    """
    from rollout_trace.integration.installed import Integration, integrations

    def line(one: Integration) -> str:
        if one.framework_version is None:
            return f"{one.distribution} {one.version} ({one.framework} is not installed)"
        tested = "" if one.is_tested else f", tested with {' to '.join(one.tested)}"
        return f"{one.distribution} {one.version} ({one.framework} {one.framework_version}{tested})"

    found = integrations()
    packages = {name: version for name in _PACKAGES if (version := _version(name)) is not None}
    python = f"{platform.python_version()} ({platform.python_implementation()})"
    result: dict[str, Any] = {
        "rollout-trace": __version__,
        "python": python,
        "platform": platform.platform(),
        "integrations": [
            {
                "distribution": one.distribution,
                "version": one.version,
                "framework": one.framework,
                "framework_version": one.framework_version,
                "tested": list(one.tested),
            }
            for one in found
        ],
        "packages": packages,
    }
    lines = [f"rollout-trace {__version__}", f"Python {python}", platform.platform()]
    lines += [*map(line, found), *(f"{name} {version}" for name, version in packages.items())]
    show(lines, result, as_json=as_json)
    return 0


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
