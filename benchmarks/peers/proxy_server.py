"""The server and the plain proxies of the hop; each a process of the proxies' environment.

python -m benchmarks.peers.proxy_server stub PORT
python -m benchmarks.peers.proxy_server aiohttp PORT UPSTREAM
python -m benchmarks.peers.proxy_server starlette PORT UPSTREAM
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from typing import Any

from benchmarks.peers.measure import KINDS

HEADERS = {"content-type", "date", "server"}


def stub(port: int) -> None:
    """Answers each kind of call with its exchange; the kind is the model of the request."""
    from aiohttp import web

    exchanges = {kind: make(1) for kind, (make, _) in KINDS.items()}

    async def answer(request: web.Request) -> web.StreamResponse:
        model = (await request.json())["model"]
        exchange = exchanges[model.rpartition("/")[2]]
        headers = {"content-type": exchange.content_type}
        if not exchange.streamed:
            return web.Response(body=exchange.body, headers=headers)
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        for piece in exchange.pieces:
            await response.write(piece)
        return response

    application = web.Application(client_max_size=1 << 26)
    application.router.add_post("/v1/chat/completions", answer)
    web.run_app(application, host="127.0.0.1", port=port, print=None, access_log=None)


def aiohttp_proxy(port: int, upstream: str) -> None:
    """Passes each request on, and the answer back as it comes."""
    import aiohttp
    from aiohttp import web

    async def answer(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        url, session = upstream + request.path, request.app[SESSION]
        async with session.post(url, data=body, headers={"content-type": "application/json"}) as found:
            kept = {name: value for name, value in found.headers.items() if name.lower() in HEADERS}
            response = web.StreamResponse(status=found.status, headers=kept)
            await response.prepare(request)
            async for piece in found.content.iter_any():
                await response.write(piece)
            return response

    async def session(application: web.Application) -> AsyncIterator[None]:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as made:
            application[SESSION] = made
            yield

    SESSION = web.AppKey("session", aiohttp.ClientSession)
    application = web.Application(client_max_size=1 << 26)
    application.cleanup_ctx.append(session)
    application.router.add_post("/v1/chat/completions", answer)
    web.run_app(application, host="127.0.0.1", port=port, print=None, access_log=None)


def starlette_proxy(port: int, upstream: str) -> None:
    """The same on Starlette and httpx."""
    import httpx
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import StreamingResponse
    from starlette.routing import Route

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
    client = httpx.AsyncClient(limits=limits, timeout=120)

    async def answer(request: Request) -> StreamingResponse:
        body = await request.body()
        headers = {"content-type": "application/json"}
        passed = client.build_request("POST", upstream + request.url.path, content=body, headers=headers)
        found = await client.send(passed, stream=True)
        kept = {name: value for name, value in found.headers.items() if name.lower() in HEADERS}

        async def pieces() -> AsyncIterator[bytes]:
            async for piece in found.aiter_raw():
                yield piece
            await found.aclose()

        return StreamingResponse(pieces(), found.status_code, kept)

    application = Starlette(routes=[Route("/v1/chat/completions", answer, methods=["POST"])])
    uvicorn.run(application, host="127.0.0.1", port=port, log_level="error", access_log=False)


def main() -> None:
    """Serves until it is ended."""
    what, port, *upstream = sys.argv[1:]
    made: dict[str, Any] = {"stub": stub, "aiohttp": aiohttp_proxy, "starlette": starlette_proxy}
    made[what](int(port), *upstream)


if __name__ == "__main__":
    main()
