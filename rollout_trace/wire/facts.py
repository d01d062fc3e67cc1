"""What a decoder finds in the bytes of one exchange, before it becomes steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollout_trace.data.lists import ListSpan
    from rollout_trace.data.model import Completion, ErrorInfo, TokenIssue, TokenSource, Usage


@dataclass(slots=True)
class RequestFacts:
    """What was asked. ``messages`` and ``tools`` hold objects that equal messages share."""

    model: str | None = None
    messages: list[Any] | ListSpan | None = None
    tools: list[Any] | ListSpan | None = None
    sampling: dict[str, Any] | None = None
    stream: bool | None = None
    """Whether the answer was to be a stream; None where the request is not known."""


@dataclass(slots=True)
class ChoiceFacts:
    """One sampled completion. Ids and logprobs are as the engine sent them until they have been checked."""

    index: int = 0
    messages: list[Any] | None = None
    """The messages of this choice alone, where one request holds several prompts."""
    completion: Completion | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    prompt_token_ids: Any = None
    completion_token_ids: Any = None
    logprobs: Any = None
    top_logprobs: list[Any] | None = None
    may_lack_logprobs: bool = False
    """Some logprobs are None: the engine left them out, and their positions are known."""
    token_source: TokenSource | None = None
    complete: bool = True
    """False where the answer broke off before this choice ended."""
    uneven: bool = False
    """A part of the answer brought another number of ids than of logprobs."""
    policy_version: str | None = None
    """The version of the weights that sampled this, as the engine names it; several are joined by a comma."""
    issue: TokenIssue | None = None


@dataclass(slots=True)
class ResponseFacts:
    """What was answered."""

    response_id: str | None = None
    model: str | None = None
    choices: list[ChoiceFacts] = field(default_factory=list)
    usage: Usage | None = None
    error: ErrorInfo | None = None
    malformed: str | None = None
    """The first field that had the wrong type, and was left out."""
