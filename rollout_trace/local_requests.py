"""Detects foreign requests to a server on 127.0.0.1: from a web page, or under a name that resolves to it."""

from __future__ import annotations

from collections.abc import Iterable

HOST = "127.0.0.1"


def why_foreign(headers: Iterable[tuple[str, str]], port: int) -> str | None:
    """Returns a sentence on why a request does not come from this machine's programs or pages; None if it may.

    Args:
        headers: of the request, names in any case.
        port: of the server.
    """
    lines = [(name.lower(), value) for name, value in headers]
    hosts = [value.lower() for name, value in lines if name == "host"]
    if len(hosts) != 1 or hosts[0] not in (f"{HOST}:{port}", f"localhost:{port}"):
        return "The host of the request is not this server's."
    if any(name == "origin" and value != f"http://{hosts[0]}" for name, value in lines):
        return "The request comes from a page of another origin."
    if any(name == "sec-fetch-site" and value not in ("same-origin", "none") for name, value in lines):
        return "The request comes from another site. Copy the address into the browser yourself."
    return None
