"""Which requests of the openai SDK's clients are generation calls, and of HTTP clients that are wrapped."""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import urlsplit

from rollout_trace.wire.protocols import RECORDS, protocol_at


@lru_cache(maxsize=256)
def protocol_of(method: str, url: str) -> str | None:
    """The protocol of a request, by the path that the SDK's resources use, or of an engine's own endpoint.

    None for requests that do not generate.
    """
    return protocol_at("openai", method, url) or _engines_own(method, url)


def _engines_own(method: str, url: str) -> str | None:
    """The protocol of ``/inference/v1/generate`` or ``/generate``, which engines have beside the OpenAI API.

    The short path counts only as the whole path: other servers have one that ends in it.
    """
    path = urlsplit(url).path.rstrip("/")
    for one in RECORDS:
        for known in one.paths if one.sdk is None and one.decoder is not None and method.lower() == "post" else ():
            if path == known or (known.count("/") > 1 and path.endswith(known)):
                return one.name
    return None
