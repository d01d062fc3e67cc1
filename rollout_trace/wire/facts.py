"""The facts that decoders read from one exchange, before they become steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

if TYPE_CHECKING:
    from rollout_trace.data.extras import ExpertArray, ExtraIssue, JSONText, PolicySpan, SamplingMask, TopTokens
    from rollout_trace.data.lists import ListSpan, PackedTexts
    from rollout_trace.data.model import Completion, ErrorInfo, LogprobsMode, TokenIssue, TokenSource, Usage
    from rollout_trace.data.tokens import FloatArray, PromptIds
    from rollout_trace.wire.taken_ids import TakenIds


class RequestFacts(Struct):
    """A request. Equal messages, and equal tools, of one store are one object: do not change them.

    Long prompts that were sent as ids are ``PromptIds``, in ``messages`` and in ``sampling``, where there is a store.
    """

    model: str | None = None
    messages: list[Any] | ListSpan | None = None
    tools: list[Any] | ListSpan | None = None
    sampling: dict[str, Any] | None = None
    stream: bool | None = None
    """True where a stream was requested; None where the request is not known."""
    prompt_token_ids: list[int] | PromptIds | None = None
    """Ids that were sent beside the messages, to be served in their place; None where there are none."""
    is_cut: bool = False
    """Whether keys of this process's clients were cut out of it."""
    taken: TakenIds | None = None
    """What was taken out of the answer that is being decoded."""

    def ids(self, prompt: Any) -> Any:
        """The ids of a prompt as an answer has them: a list, or ``PromptIds`` where it was taken out of the answer."""
        return prompt if self.taken is None else self.taken.get(prompt)


class ChoiceFacts(Struct):
    """One sampled completion. Ids and logprobs are lists as the engine sent them; ``align.check`` makes arrays.

    Those of a prompt may be ``PromptIds`` before and after: they are known to be sound, and have a length.
    """

    index: int = 0
    messages: list[Any] | None = None
    """The messages of this choice alone, where one request holds several prompts."""
    completion: Completion | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    prompt_token_ids: Any = None
    completion_token_ids: Any = None
    logprobs: Any = None
    top_logprobs: list[Any] | JSONText | None = None
    token_texts: PackedTexts | None = None
    """Of the tokens whose logprobs came; ``align.check`` removes those of another number of tokens."""
    may_lack_logprobs: bool = False
    """A logprob may be None where the engine left it out and its position is known; it becomes NaN."""
    logprobs_mode: LogprobsMode | None = None
    """Where the answer itself carries it."""
    token_source: TokenSource | None = None
    complete: bool = True
    """False where the answer broke off before this choice ended."""
    error: ErrorInfo | None = None
    """Of this choice alone."""
    uneven: bool = False
    """Some part of the answer held another number of ids than of logprobs."""
    is_sound: bool = False
    """Its ids and logprobs are arrays, known to be in their range: they are not looked at again."""
    policy_version: str | None = None
    """Version of the weights that sampled this, as the engine names it; several versions are joined with commas."""
    issue: TokenIssue | None = None
    prompt_logprobs: FloatArray | None = None
    """float32 [prompt length]. This and the other extras are arrays, and aligned to the ids, when they are set."""
    prompt_top_tokens: TopTokens | None = None
    top_tokens: TopTokens | None = None
    sampling_mask: SamplingMask | None = None
    routed_experts: ExpertArray | None = None
    policy_spans: tuple[PolicySpan, ...] | None = None
    extra: dict[str, Any] | None = None
    """What else the choice, and the answer around it, holds."""
    extra_issues: tuple[ExtraIssue, ...] = ()


class ResponseFacts(Struct):
    """An answer: its choices and what they share."""

    response_id: str | None = None
    model: str | None = None
    choices: list[ChoiceFacts] = field(default_factory=list)
    usage: Usage | None = None
    counts: dict[str, Any] = field(default_factory=dict)
    """What ``usage`` is made of, as it was sent, in the protocols of OpenAI."""
    error: ErrorInfo | None = None
    malformed: str | None = None
    """A sentence about the first field that was dropped because of its type."""
