"""What each token of a completion is: text, thinking, syntax and arguments of tool calls, or the end token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollout_trace.data.model import CUT_OFF

if TYPE_CHECKING:
    from rollout_trace.data.model import Completion, Step

TEXT, THINKING, TOOL_CALL, END = "text", "thinking", "tool call", "end token"


def token_roles(step: Step) -> list[str]:
    """The role of each completion token of a step: ``text``, ``thinking``, ``tool call`` or ``end token``.

    Which is which is told by the texts of the tokens (``Step.token_texts``): the answer's text and its reasoning are
    looked for in them, and what is around the reasoning belongs to it. Without texts, all tokens of an answer that is
    nothing but a tool call, or nothing but text, are that; of others they are ``text``.
    """
    ids = step.completion_token_ids
    count = 0 if ids is None else len(ids)
    texts = step.token_texts
    roles = [_only_role(step.completion)] * count
    if texts is not None and len(texts) == count and step.completion is not None:
        roles = _by_text(list(texts), step.completion)
    ended = step.finish_reason is not None and step.finish_reason not in CUT_OFF
    if ended and count and (texts is None or not _is_in(texts[-1], step.completion)):
        roles[-1] = END
    return roles


def _is_in(text: str, completion: Completion | None) -> bool:
    """True where the last token's text is that of the answer: the engine did not return the end token."""
    content = None if completion is None else _text(completion.content)
    return bool(text) and content is not None and content.endswith(text)


def _only_role(completion: Completion | None) -> str:
    is_call = completion is not None and completion.tool_calls and not completion.content
    return TOOL_CALL if is_call else TEXT


def _by_text(texts: list[str], completion: Completion) -> list[str]:
    whole = "".join(texts)
    content, reasoning = _text(completion.content), completion.reasoning
    thought_end = _end_of(whole, reasoning, 0)
    # Of an answer that is found twice, once in the reasoning, the later one.
    begin = -1 if not content else whole.find(content.strip(), thought_end)
    end = -1 if begin < 0 or content is None else begin + len(content.strip())
    other = TOOL_CALL if completion.tool_calls else TEXT
    roles, place = [], 0
    for text in texts:
        middle = place + len(text) / 2
        place += len(text)
        if thought_end and (middle < thought_end or (begin >= 0 and middle < begin)):
            roles.append(THINKING)
        else:
            roles.append(TEXT if begin <= middle < end else other)
    return roles


def _end_of(whole: str, part: str | None, start: int) -> int:
    """Where a part ends, with the mark behind it (``</think>``); 0 where it is not there."""
    found = -1 if not part or not part.strip() else whole.find(part.strip(), start)
    if found < 0 or part is None:
        return 0
    end = found + len(part.strip())
    rest = whole[end:].lstrip()
    return len(whole) - len(rest) + rest.find(">") + 1 if rest.startswith("</") and ">" in rest else end


def _text(content: Any) -> str | None:
    """The text of a content that is one, or a list of parts."""
    if content is None or isinstance(content, str):
        return content
    parts = [part.get("text") for part in content if isinstance(part, dict)]
    return "".join(part for part in parts if isinstance(part, str))
