"""A server that answers with recorded exchanges, byte for byte."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from rollout_trace.clients.loopback.messages import HOP_BY_HOP, Part, RequestRecord, Response, cut, json_response
from rollout_trace.clients.loopback.server import LoopbackServer
from rollout_trace.data.exchange import Exchange
from rollout_trace.wire.added_chunks import AddedChunks

from ._differences import Change, changes, named
from ._normal_form import parsed
from .recordings import load_exchanges

Match = Callable[[RequestRecord, Exchange], bool]
_REPLAY_PREFIX = "/replay/"


class ReplayServer(LoopbackServer):
    """Serves the exchanges of a cassette, a folder, a packed file (see `recordings`) or a list.

        with ReplayServer("recordings/") as server:
            client = OpenAI(base_url=server.base_url_for("chat_ids"), api_key="none")

    Under `base_url` a request is answered with the recording that has its method, path and an equal body (equal as
    JSON, in any order of keys); `match` replaces this rule. If several recordings match (a retried call), each answers
    once, in order, and the last one answers from then on. Under `base_url_for(name)` every request is answered with
    that recording. Status, headers, bytes and chunk boundaries are the recorded ones. If a recording ended early or had
    no answer, the connection is closed where its bytes end. A request without a matching recording gets status 404 and
    the name of the closest recording. `port` is the port to listen on; 0 means any free one.

    Raises ValueError if the source holds something other than exchanges, for example trajectories without them.
    """

    def __init__(self, source: str | Path | Iterable[Exchange], *, match: Match | None = None, port: int = 0) -> None:
        super().__init__(port=port)
        exchanges = load_exchanges(source) if isinstance(source, (str, Path)) else source
        self.exchanges = {exchange.name: exchange for exchange in exchanges}
        """The recorded exchanges, by name."""
        self._match = match or matches
        self._answered: set[str] = set()
        self._lock = threading.Lock()

    def base_url_for(self, name: str) -> str:
        """Returns the base URL under which one recording answers every request. Raises KeyError for an unknown name."""
        if name not in self.exchanges:
            raise KeyError(f"there is no recording {name!r}: the names are {', '.join(sorted(self.exchanges))}")
        return f"{self.url}{_REPLAY_PREFIX}{quote(name, safe='')}/v1"

    def answer(self, record: RequestRecord) -> Response:
        """Answer one request (called by the server)."""
        if record.path.startswith(_REPLAY_PREFIX):
            name = unquote(record.path.removeprefix(_REPLAY_PREFIX).split("/")[0])
            exchange = self.exchanges.get(name)
        else:
            exchange = self._next([e for e in self.exchanges.values() if self._match(record, e)])
        return self._not_recorded(record) if exchange is None else response_of(exchange)

    def _next(self, matching: list[Exchange]) -> Exchange | None:
        if not matching:
            return None
        with self._lock:
            found = next((e for e in matching if e.name not in self._answered), matching[-1])
            self._answered.add(found.name)
        return found

    def _not_recorded(self, record: RequestRecord) -> Response:
        message = f"no recording matches {record.method} {record.path}"
        closest = min(self.exchanges.values(), key=lambda one: _distance(record, one), default=None)
        if closest is not None:
            different = named(_differences(record, closest))
            message += f"; the closest is {closest.name!r}, which differs in: {different}"
        error = {"message": message, "type": "NotRecorded", "param": None, "code": 404}
        return json_response(404, {"error": error, "closest": closest.name if closest else None})


def matches(record: RequestRecord, exchange: Exchange) -> bool:
    """Whether method, path and body of a request equal the recorded ones (body as JSON, or as bytes if not JSON)."""
    is_there = (record.method, record.path) == (exchange.method, urlsplit(exchange.path).path)
    return is_there and (record.body == exchange.request or parsed(record.body) == parsed(exchange.request))


def response_of(
    exchange: Exchange,
    *,
    wait: Callable[[float], None] | None = None,
    leave: Callable[[], None] | None = None,
    added: AddedChunks | None = None,
) -> Response:
    """The recorded response, which ends as it ended then.

    ``wait`` is called with the seconds of each pause; ``leave`` waits for the client to go, where it had gone in the
    middle (None: the server cuts the answer there); ``added`` takes out what is not sent.
    """
    parts: list[Part] = []
    before = 0.0
    for chunk, at in zip(exchange.chunks, exchange.chunk_times or [0.0] * len(exchange.chunk_sizes), strict=True):
        if wait is not None and at > before:
            parts.append(partial(wait, at - before))
        parts.append(chunk if added is None else added.shown(chunk))
        before = max(before, at)
    if added is not None:
        parts = [part for part in (*parts, added.rest()) if part]
    if exchange.outcome != "complete" and wait is not None and (exchange.duration or 0.0) > before:
        parts.append(partial(wait, (exchange.duration or 0.0) - before))
    if exchange.outcome == "closed" and leave is not None:
        parts.append(leave)
    if exchange.status is None:
        return Response(before=[*(part for part in parts if not isinstance(part, bytes)), cut])
    headers = [(name, value) for name, value in exchange.headers if name not in HOP_BY_HOP]
    length = next((value for name, value in exchange.headers if name == "content-length"), "")
    if exchange.outcome == "complete":
        return Response(exchange.status, headers, parts, exchange.chunked)
    # The client sees that the body is cut, by its length.
    size = int(length) if length.isdecimal() else len(exchange.response) + 1
    return Response(exchange.status, headers, [*parts, cut], exchange.chunked, length=size)


def _differences(record: RequestRecord, exchange: Exchange) -> list[Change]:
    recorded = {"method": exchange.method, "path": urlsplit(exchange.path).path, "body": parsed(exchange.request)}
    now = {"method": record.method, "path": record.path, "body": parsed(record.body)}
    return [one._replace(path=one.path.removeprefix("body.")) for one in changes(recorded, now)]


def _distance(record: RequestRecord, exchange: Exchange) -> tuple[bool, int]:
    return record.path != urlsplit(exchange.path).path, len(_differences(record, exchange))
