"""Sends a call's prompt as ids: finds the step that it continues, and has the server tokenise what is new.

What has to be asked of the server is yielded, so that sync and async clients ask it in their own way.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit, urlunsplit

import msgspec

from rollout_trace import guard
from rollout_trace._threads import lock_for
from rollout_trace.clients import ask
from rollout_trace.clients.detect import NO_CONNECTION, NO_REPLY, POOL_PATIENCE, Inquiry, Reply
from rollout_trace.data.exact_turn import ExactTurn
from rollout_trace.data.model import new_exact_turn
from rollout_trace.record.log import StepLog
from rollout_trace.wire.chat_messages import tool_of
from rollout_trace.wire.chat_template import tokenizer_at
from rollout_trace.wire.errors import error_of
from rollout_trace.wire.exact_turns import (
    NO_ANSWER_COUNTS,
    ByText,
    Render,
    Rendering,
    Seam,
    SeamIds,
    Seams,
    check_request,
    check_turn,
    prompt_of,
)
from rollout_trace.wire.profiles import PROMPT_FIELDS
from rollout_trace.wire.protocols import record_of
from rollout_trace.wire.turn import TEMPLATE_FIELDS

if TYPE_CHECKING:
    from rollout_trace.record.call import Call

PATIENCE = 5.0
"""Seconds that all requests of a call to the server's tokenizer may take."""
_HOOKS = "hooks"
"""Where it is kept that the server refuses what was sent without its user's hooks: one of them authenticates."""
_SERVERS = 64
"""Most servers and models whose seams are kept."""

_seams: OrderedDict[tuple[str, str], Seams] = OrderedDict()
_lock = lock_for(__name__)

Field: TypeAlias = tuple[str, Sequence[bytes | memoryview]]
"""The field to add: its name, and it as a member of a JSON object, in pieces."""
Asking = Generator[Inquiry, Reply, "Field | None"]
"""Yields requests to the server, takes its replies, and returns the field; None where the call goes out as text."""
_ENGINES = frozenset(engine for engine, _ in PROMPT_FIELDS)


def exact_turn(call: Call, address: Callable[[], object], body: Mapping[str, Any]) -> Field | Asking | None:
    """Returns the field with the ids of a call's prompt; where the server is to be asked first, what asks it.

    None where the call goes out as text. Sets ``call.exact_turn``, save for the first turn of a conversation.

    Args:
        call: it has been placed in its trajectory.
        address: returns that of the server, or of the request.
        body: of the caller's request.
    """
    call.exact_turn = None
    log, profile = call.log, call.profile
    # The steps of orphans are of many conversations, and are dropped.
    if not isinstance(log, StepLog) or log.is_bounded or profile is None:
        return None
    wishes = call.settings.wishes
    if wishes is not None and wishes.name != profile.name and profile.name not in _ENGINES:
        # A provider's API beside the server that was named, or what was detected.
        return None
    try:
        return _by_ids(call, log, _text_of(address()), body)
    except Exception as error:
        _goes_as_text(call, error, _Timer())
    return None


def _goes_as_text(call: Call, why: Exception, timer: _Timer) -> None:
    if not isinstance(why, ByText):
        has_failed(call, why)
        return
    call.exact_turn = ExactTurn(
        reason=why.reason, detail=why.detail, message=why.message, n_requests=timer.count, seconds=timer.seconds
    )


_addresses: dict[int, tuple[object, str]] = {}


def _text_of(address: object) -> str:
    """The text of an address: those of httpx, which do not change, put it together anew each time."""
    if isinstance(address, str):
        return address
    kept = _addresses.get(id(address))
    if kept is None or kept[0] is not address:
        if len(_addresses) >= _SERVERS:
            _addresses.clear()
        kept = _addresses[id(address)] = address, str(address)
    return kept[1]


def has_failed(call: Call, error: Exception) -> None:
    """Says on the call that the recorder failed, of no fault of it.

    It goes out as its caller made it, and its tokens can be trusted.
    """
    call.ids_field, call.exact_turn = None, ExactTurn(reason="failed", detail=guard.describe(error))
    guard.failed("exact_turn", None, error)


def _by_ids(call: Call, log: StepLog, server: str, body: Mapping[str, Any]) -> Field | Asking | None:
    profile, wishes = call.profile, call.settings.wishes
    assert profile is not None
    assert wishes is not None
    messages, tools = prompt_of(call.protocol, body)
    if messages is None:
        return None
    found, is_running = log.continued(call, server, messages)
    if is_running:
        raise ByText("running", "it continues an answer whose stream nobody has closed.")
    if found.changed is not None:
        raise ByText("history_changed", f"message {found.changed} is not as it was recorded.", found.changed)
    turn = found.turn
    if turn is None:
        return None
    field = check_request(body, profile.name, call.protocol)
    ids = check_turn(turn, call.protocol, server, body, tools)
    if found.is_ambiguous:
        raise ByText(
            "ambiguous",
            "several steps have these messages and this answer, with different ids, so it is not known which one "
            "it continues.",
        )
    if wishes.thinking == "template" and found.has_thought:
        raise ByText("thinking", 'thinking="template": the template decides what is left of the earlier thinking.')
    if not found.new:
        raise ByText("continued", "the request adds no message to the earlier answer.")
    if found.has_media:
        raise ByText("media", "the messages hold more than text.")
    outer, _, inner = field.partition(".")
    refused = ask.refusal_of(call, lambda: server, body, outer)
    if refused is not None:
        raise ByText("refused", refused.message)

    def finish(seam: SeamIds, timer: _Timer) -> Field:
        call.on_ids_not_served = ask.refuser_of(call, lambda: server, body, outer)
        call.exact_turn = new_exact_turn(
            step_id=turn.step.id, n_ids=ids.length + seam.length, n_requests=timer.count, seconds=timer.seconds
        )
        begin, end = (f'"{outer}":{{"{inner}":[', b"]}") if inner else (f'"{outer}":[', b"]")
        return outer, (begin.encode(), *ids.texts(), seam.text, end)

    # By the tokenizer of this process, or the server's.
    own = None if wishes.tokenizer is None else str(wishes.tokenizer)
    if own is not None and body.get("chat_template") is not None:
        raise ByText("tokenizer", "the request has a chat_template of its own, which the tokenizer does not know.")
    url = tokenize_url(server, call.protocol) if own is None else own
    seams = _seams_of(url, str(body.get("model")))
    seams.check(url)
    seam = Seam(found, turn, ids, seams)
    known = seam.known()
    if known is not None:
        return finish(known, _NOTHING_ASKED)
    settings = {name: body[name] for name in TEMPLATE_FIELDS if body.get(name) is not None}
    if own is not None:
        return finish(_rendered_here(seam.rendering(), own, tools, settings), _NOTHING_ASKED)
    timer = _Timer()
    return _asked(call, _rendered(seam.rendering(), seams, url, body, tools, settings, timer), timer, finish)


def _asked(
    call: Call,
    rendered: Generator[Inquiry, Reply, SeamIds],
    timer: _Timer,
    finish: Callable[[SeamIds, _Timer], Field],
) -> Asking:
    try:
        return finish((yield from rendered), timer)
    except Exception as error:
        _goes_as_text(call, error, timer)
    return None


class _Timer:
    """Requests that were made, and the seconds that they took."""

    __slots__ = ("count", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0


_NOTHING_ASKED = _Timer()


def _rendered(
    rendering: Rendering,
    seams: Seams,
    url: str,
    body: Mapping[str, Any],
    tools: Any,
    settings: Mapping[str, Any],
    timer: _Timer,
) -> Generator[Inquiry, Reply, SeamIds]:
    try:
        render = next(rendering)
        deadline = time.monotonic() + PATIENCE
        while True:
            content = _content(render, body, tools, settings)
            began = time.perf_counter()
            inquiry = Inquiry(url, deadline, content=content, runs_hooks=seams.get(_HOOKS) is True)
            reply = yield inquiry
            timer.count += 1
            if reply.status in (401, 403) and not inquiry.runs_hooks:
                reply = yield inquiry._replace(runs_hooks=True)
                timer.count += 1
                if reply.status == 200:
                    seams.keep(_HOOKS, True)
            timer.seconds += time.perf_counter() - began
            try:
                ids = _ids_in(reply)
            except ByText as failure:
                render = rendering.throw(failure)
            else:
                render = rendering.send(ids)
    except StopIteration as stop:
        found: SeamIds = stop.value
        return found
    except _NoTokenizer as failure:
        seams.fail(url, failure)
        raise


def _rendered_here(rendering: Rendering, source: str, tools: Any, settings: Mapping[str, Any]) -> SeamIds:
    """The ids of a seam by a tokenizer in this process."""
    ids_of, arguments = tokenizer_at(source), settings.get("chat_template_kwargs") or {}
    asked = [one for tool in tools or () if (one := tool_of(tool, None)) is not None] or None
    try:
        render = next(rendering)
        while True:
            try:
                ids = ids_of(render.messages, asked, render.is_open, arguments)
            except Exception as error:  # A template may raise anything.
                render = rendering.throw(ByText("tokenizer", guard.describe(error)))
            else:
                render = rendering.send(ids)
    except StopIteration as stop:
        found: SeamIds = stop.value
        return found


def _content(render: Render, body: Mapping[str, Any], tools: Any, settings: Mapping[str, Any]) -> bytes:
    """The body of vLLM's ``/tokenize``."""
    own = ("add_special_tokens", "chat_template", "chat_template_kwargs", "mm_processor_kwargs")
    asked = {name: value for name, value in settings.items() if name in own}
    if tools:
        asked["tools"] = [one for tool in tools if (one := tool_of(tool, None)) is not None]
    request = {"model": body.get("model"), "messages": render.messages, "add_generation_prompt": render.is_open}
    try:
        return msgspec.json.encode({**request, **asked}, enc_hook=str)
    except UnicodeEncodeError as error:  # Half a surrogate pair, which some libraries send.
        raise ByText("tokenizer", f"the messages cannot be sent: {error}") from None


class _NoTokenizer(ByText):
    """The server has none, or does not answer, whatever is asked for."""


def _ids_in(reply: Reply) -> Sequence[int]:
    if reply is NO_CONNECTION:
        failure = ByText("tokenizer", f"the client had no free connection for /tokenize within {POOL_PATIENCE:g} s.")
        failure.counts = 0.0
        raise failure
    if reply is NO_REPLY:
        failure = _NoTokenizer("tokenizer", f"the server's /tokenize did not answer within {PATIENCE:g} seconds.")
        failure.counts = NO_ANSWER_COUNTS
        raise failure
    try:
        return _decoder.decode(reply.body).tokens
    except msgspec.DecodeError:
        pass
    message = error_of(reply.body, reply.status).message[:300]
    kind = _NoTokenizer if reply.status in (401, 403, 404, 405, 501) else ByText
    failure = kind("tokenizer", f"the server's /tokenize answered with status {reply.status}: {message}")
    # 400 is about these messages; 503, or 429, about this moment.
    if reply.status not in (400, 404, 405, 501):
        failure.counts = NO_ANSWER_COUNTS if kind is _NoTokenizer else 0.0
    raise failure


class _Tokens(msgspec.Struct):
    tokens: list[int]


_decoder = msgspec.json.Decoder(_Tokens)


@lru_cache(maxsize=256)
def tokenize_url(address: str, protocol: str) -> str:
    """The address of vLLM's ``/tokenize`` beside an endpoint, or below a client's base address."""
    parts = urlsplit(address)
    path = parts.path.rstrip("/")
    for end in (*record_of(protocol).paths, "/v1"):
        path = path.removesuffix(end).rstrip("/")
    return urlunsplit((parts.scheme, parts.netloc, f"{path.removesuffix('/v1')}/tokenize", "", ""))


def _seams_of(url: str, model: str) -> Seams:
    with _lock:
        seams = _seams.get((url, model))
        if seams is None:
            seams = _seams[url, model] = Seams()
            while len(_seams) > _SERVERS:
                _seams.popitem(last=False)
        return seams


def was_dropped(call: Call, remaining: Mapping[str, Any], message: str) -> None:
    """Says on the call that the server refused the ids, if they are no longer among its added fields."""
    turn = call.exact_turn
    if turn is not None and turn.is_exact and not ask.ID_FIELDS & remaining.keys():
        call.exact_turn = replace(turn, step_id=None, n_ids=None, reason="refused", detail=message)


__all__ = ["Asking", "Field", "exact_turn", "has_failed", "tokenize_url", "was_dropped"]
