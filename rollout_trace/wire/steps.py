"""Builds steps from the facts of an exchange."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rollout_trace import credentials
from rollout_trace.data.exact_turn import ExactTurn
from rollout_trace.data.extras import TopTokenRows
from rollout_trace.data.lists import ListStore
from rollout_trace.data.model import Step, StepStatus, TokenIssue, new_step
from rollout_trace.data.redact import COMPLETION_CHANGED, IN_COMPLETION, NO_TOKENS, PROMPT_CHANGED, repeats
from rollout_trace.data.redact import changed_fields as without_keys
from rollout_trace.data.rows import RowStore
from rollout_trace.data.tokens import PromptIds, TokenStore, id_array, id_list, readonly
from rollout_trace.wire import request as wire_request
from rollout_trace.wire.errors import error_of
from rollout_trace.wire.facts import ChoiceFacts, RequestFacts, ResponseFacts
from rollout_trace.wire.protocols import decoder_of, record_of
from rollout_trace.wire.request import ID_FIELDS
from rollout_trace.wire.sse import is_framed
from rollout_trace.wire.taken_ids import take


@dataclass(slots=True)
class Stores:
    """Storage that the steps of one trajectory share: token segments, rows of extras, messages, tools."""

    tokens: TokenStore = field(default_factory=TokenStore)
    rows: RowStore = field(default_factory=RowStore)
    messages: ListStore = field(default_factory=ListStore)
    tools: ListStore = field(default_factory=ListStore)
    cut_ids: list[bytes] = field(default_factory=list)
    """Token ids of completions that keys of this process's clients were cut out of: later prompts may repeat them."""

    def finish(self) -> None:
        """Frees what was reserved for growth. Nothing can be stored afterwards."""
        self.tokens.finish()
        self.messages.finish()
        self.tools.finish()
        if self.rows.blocks:
            self.rows.finish()


_NOTHING_KEPT: Mapping[str, Any] = {}


def exchange_of(
    call_id: str,
    protocol: str,
    request: bytes | None,
    response: bytes,
    *,
    content_type: str | None,
    status: int,
    stores: Stores,
    keep_bytes: bool = False,
    whole: bool = True,
    path_model: str | None = None,
) -> tuple[list[Step], bool]:
    """The steps of one exchange, one per choice in their order, at least one; and True where the answer is a stream.

    Args:
        whole: False where ``response`` is the beginning of a longer answer. Of a stream it is decoded; of an answer
            that is one object nothing is, nor of a stream without an event: the one step is ``abandoned``, without a
            completion.
        path_model: the model in the request's path, for protocols whose requests have it there.
    """
    decoder = decoder_of(protocol)
    kept = {}
    if keep_bytes or decoder is None:
        clean = None if request is None else credentials.cut_bytes(request)
        kept = {"request_bytes": clean, "response_bytes": credentials.cut_bytes(response)}
    request_facts = wire_request.read(protocol, request, stores.messages, stores.tools, stores.tokens)
    if request_facts.model is None:
        request_facts.model = path_model
    record = record_of(protocol)
    is_array = record.streams_arrays and response.lstrip()[:1] == b"["
    if record.streams_lines:
        asked = request_facts.stream
        streamed = "ndjson" in (content_type or "").lower() if asked is None else asked
    else:
        # Where the path asks for a stream, the body does not show it: then the answer does, whatever its type.
        asked = True if record.has_path_facts and _STREAM.match(response) else request_facts.stream
        streamed = is_array or _is_stream(content_type, response, asked)
    if decoder is None:
        return [_undecoded(call_id, protocol, request_facts, response, status, kept)], streamed
    if status >= 400:
        facts = ResponseFacts(error=error_of(response, status))
    elif whole or is_array or (_has_event(response) if streamed else is_framed(response)):
        facts = _decoded(decoder, protocol, response, streamed, status, request_facts, stores)
    else:
        facts = ResponseFacts()
    return steps_from(call_id, protocol, request_facts, facts, stores, kept), streamed


def _decoded(
    decoder: Callable[..., ResponseFacts],
    protocol: str,
    response: bytes,
    streamed: bool,
    status: int,
    request: RequestFacts,
    stores: Stores,
) -> ResponseFacts:
    """The facts of an answer. Of its prompt's ids only those are read that no earlier answer had."""
    if len(response) > stores.tokens.long_text:
        rest, request.taken = take(response, protocol, request.sampling, stores.tokens)
        if request.taken is not None:
            facts = decoder(rest, streamed=streamed, status=status, request=request)
            if request.taken.are_used:
                return facts
            request.taken = None
    return decoder(response, streamed=streamed, status=status, request=request)


def steps_from(
    call_id: str,
    protocol: str,
    request_facts: RequestFacts,
    facts: ResponseFacts,
    stores: Stores,
    kept: Mapping[str, Any] = _NOTHING_KEPT,
) -> list[Step]:
    """The steps of an exchange of which the facts are known, one per choice.

    Args:
        kept: fields of each step beside the facts: the bytes of the exchange.
    """
    # An answer without choices (an error, a stream cut early) is a step all the same: no call is lost.
    choices = facts.choices or [ChoiceFacts(complete=False)]
    return [_step(call_id, protocol, request_facts, facts, choice, stores, kept) for choice in choices]


def _has_event(body: bytes) -> bool:
    """Whether a stream holds an event with its end: a blank line, or the end of a line of JSON."""
    return b"\n\n" in body or b"\r\n\r\n" in body or (body.lstrip()[:1] == b"{" and b"\n" in body)


_STREAM = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:data|event|id|retry)?:")
_BEGINNINGS = (b"data:", b"event:", b"id:", b"retry:", b"\xef\xbb\xbf")


def _is_stream(content_type: str | None, body: bytes, requested: bool | None) -> bool:
    """True where an answer is server-sent events. ``requested``: the request's ``stream``, None where it is unknown."""
    # As in the SDKs, the content type alone does not decide: servers and proxies send wrong ones.
    if content_type is None:
        return bool(_STREAM.match(body))
    if "event-stream" in content_type.lower():
        return requested is not False or body.lstrip()[:1] != b"{"
    return requested is True and (bool(_STREAM.match(body)) or _is_cut_early(body))


def _is_cut_early(body: bytes) -> bool:
    """True for a body that ends before the first colon of a stream; an empty body too."""
    beginning = body.removeprefix(b"\xef\xbb\xbf").lstrip()
    return any(name.startswith(beginning) for name in _BEGINNINGS)


def _undecoded(
    call_id: str, protocol: str, request_facts: RequestFacts, response: bytes, status: int, kept: dict[str, Any]
) -> Step:
    failed = status >= 400
    return Step(
        id=f"{call_id}.0",
        call_id=call_id,
        protocol=protocol,
        model=request_facts.model,
        status="error" if failed else "ok",
        error=error_of(response, status) if failed else None,
        token_issue=TokenIssue(
            code="protocol_not_decoded",
            message=f"this version has no decoder for {protocol}: the bytes are kept, ids and text are not read.",
        ),
        **kept,
    )


def _step(
    call_id: str,
    protocol: str,
    request_facts: RequestFacts,
    facts: ResponseFacts,
    choice: ChoiceFacts,
    stores: Stores,
    kept: Mapping[str, Any],
) -> Step:
    error, sent = choice.error or facts.error, request_facts.prompt_token_ids
    status: StepStatus = "ok" if choice.complete and not choice.error else "error" if error else "abandoned"
    values: dict[str, Any] = {
        "id": f"{call_id}.{choice.index}",
        "call_id": call_id,
        "choice": choice.index,
        "protocol": protocol,
        "model": request_facts.model,
        "response_model": facts.model,
        "response_id": facts.response_id,
        "completion": choice.completion,
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
        "top_logprobs": choice.top_logprobs,
        "token_texts": choice.token_texts,
        "token_issue": choice.issue or _missing_ids(protocol, choice, request_facts),
        "usage": facts.usage,
        "status": status,
        "error": error,
        "policy_version": choice.policy_version,
        "extra": choice.extra,
        "extra_issues": choice.extra_issues,
        "policy_spans": choice.policy_spans,
        "exact_turn": None if sent is None else _served(sent, choice, facts),
        **kept,
    }
    # Before the ids are stored: a segment that other steps share must not hold those of a key.
    issue = _cut_keys(values, request_facts, choice, stores.cut_ids) if credentials.any_known() else None
    # Of the request keys are cut before it is read.
    values["messages"] = _messages(request_facts, choice)
    values["tools"] = request_facts.tools
    values["sampling"] = _sampling(request_facts, choice)
    if issue is None:
        prompt, completion = stores.tokens.add(choice.prompt_token_ids, choice.completion_token_ids)
        values["prompt_token_ids"], values["completion_token_ids"] = prompt, completion
        values["token_source"] = None if completion is None else choice.token_source
        if choice.logprobs is not None:
            values["logprobs"], values["logprobs_mode"] = readonly(choice.logprobs), choice.logprobs_mode
        _add_extras(values, choice, stores.rows)
    else:
        values |= {**NO_TOKENS, "token_issue": issue, "extra": None, "extra_issues": ()}
    return new_step(values)


def _served(sent: list[int] | PromptIds, choice: ChoiceFacts, facts: ResponseFacts) -> ExactTurn:
    """Compares the ids that were sent beside the messages with those that the answer says were served."""
    served, usage = choice.prompt_token_ids, facts.usage
    n_served = usage.input if served is None and usage is not None else None if served is None else len(served)
    detail = None
    if n_served is None:
        detail = "the answer does not say which ids were served."
    elif n_served != len(sent):
        detail = f"{len(sent)} ids were sent, {n_served} served."
    elif served is not None and not _are_same(sent, served):
        pairs = enumerate(zip(id_list(sent), id_list(served), strict=True))
        at, (one, two) = next((at, pair) for at, pair in pairs if pair[0] != pair[1])
        detail = f"at position {at} the id {one} was sent, {two} served."
    return ExactTurn(n_ids=len(sent), reason=None if detail is None else "not_served", detail=detail)


def _are_same(sent: list[int] | PromptIds, served: Any) -> bool:
    return sent.equals(served) if isinstance(sent, PromptIds) else bool(id_list(served) == sent)


def _add_extras(values: dict[str, Any], choice: ChoiceFacts, rows: RowStore) -> None:
    """Adds the arrays of a step that engines send beside ids and logprobs."""
    scores, top, experts = choice.prompt_logprobs, choice.prompt_top_tokens, choice.routed_experts
    if choice.top_tokens is not None:
        values["top_tokens"] = choice.top_tokens
    if choice.sampling_mask is not None:
        values["sampling_mask"] = choice.sampling_mask
    if scores is not None:
        values["prompt_logprobs"] = rows.add("prompt_logprobs", scores)
    if top is not None:
        ids, logprobs = rows.add("prompt_top_ids", top.ids), rows.add("prompt_top_logprobs", top.logprobs)
        values["prompt_top_tokens"] = TopTokenRows(ids, logprobs)
    if experts is not None:
        # Their last row is of the last token but one: the last sampled one is not run through the model.
        end = len(choice.prompt_token_ids) + len(choice.completion_token_ids) - 1
        values["routed_experts"] = rows.add("routed_experts", experts, end - len(experts))


def _cut_keys(
    values: dict[str, Any], request_facts: RequestFacts, choice: ChoiceFacts, cut_ids: list[bytes]
) -> TokenIssue | None:
    """Cuts keys of this process's clients out of a step's fields; returns why its ids cannot stay, if they cannot."""
    changed = without_keys(values)
    values |= changed
    if "top_tokens" in changed:
        choice.top_tokens = None
    if not IN_COMPLETION.isdisjoint(changed):
        if choice.completion_token_ids is not None and len(choice.completion_token_ids):
            cut_ids.append(choice.completion_token_ids.tobytes())
        return COMPLETION_CHANGED
    if request_facts.is_cut or (cut_ids and repeats(id_array(choice.prompt_token_ids), cut_ids)):
        return PROMPT_CHANGED
    return None


def _messages(request_facts: RequestFacts, choice: ChoiceFacts) -> Any:
    """The messages of a step; None for a prompt sent as ids, which is stored once, in ``prompt_token_ids``."""
    messages = request_facts.messages if choice.messages is None else choice.messages
    if not isinstance(messages, list) or not messages or not isinstance(messages[0], (list, PromptIds)):
        return messages
    return None if choice.prompt_token_ids is not None else list(map(id_list, messages))


def _sampling(request_facts: RequestFacts, choice: ChoiceFacts) -> dict[str, Any] | None:
    """The sampling parameters of a step, without the ids of a prompt that are in ``prompt_token_ids``."""
    sampling = request_facts.sampling
    if not sampling or ID_FIELDS.isdisjoint(sampling):
        return sampling
    if choice.prompt_token_ids is None:
        return {name: id_list(value) for name, value in sampling.items()}
    return {name: value for name, value in sampling.items() if name not in ID_FIELDS}


def requests_ids(sampling: Mapping[str, Any] | None) -> bool:
    """True where a request has a field that makes engines send token ids."""
    # The table is for answers: a client that is only wrapped does not load it.
    from rollout_trace.wire import places

    return sampling is not None and places.requests_ids(sampling)


def _missing_ids(protocol: str, choice: ChoiceFacts, request_facts: RequestFacts) -> TokenIssue | None:
    if choice.completion is None or choice.completion_token_ids is not None:
        return None
    if not record_of(protocol).has_ids:
        message = f"{protocol} has no place for token ids."
    elif not requests_ids(request_facts.sampling):
        message = "the server sent no completion token ids, and was not asked for them."
    elif not choice.complete:
        message = "the answer broke off before any completion token ids came."
    else:
        message = "the server sent no completion token ids, although it was asked for them."
    return TokenIssue(code="ids_missing", message=message)
