"""Ids made from text, on request alone, for steps whose engine gave none. They say so: ``token_source="retokenized"``.

Tokenising text anew is not the same as having the ids that were sampled: a model may have written the text in other
tokens, and a template may render it otherwise. The report compares the counts with what the engine counted.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rollout_trace._field_docs import document_fields
from rollout_trace.chat.messages import answer, to_chat, tool_of, with_decoded_arguments
from rollout_trace.data.model import CUT_OFF, TokenIssue, Usage, amend, shared
from rollout_trace.data.tokens import as_int32
from rollout_trace.report import ExportReport
from rollout_trace.wire.protocols import record_of

if TYPE_CHECKING:
    from rollout_trace.data.model import Step
    from rollout_trace.data.tokens import IntArray
    from rollout_trace.data.trajectory import Trajectory


@document_fields
@dataclass(kw_only=True)
class RetokenizeReport:
    """What became of the steps, by their ids."""

    retokenized: list[str] = field(default_factory=list)
    """Steps that have made ids now."""
    kept: list[str] = field(default_factory=list)
    """Steps that have the engine's completion ids: left as they are."""
    failed: dict[str, str] = field(default_factory=dict)
    """Steps without ids as before, and why."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Steps that are not tried, and why: their status (``error``, ``cancelled``, ...), or ``retokenized`` before."""
    disagreements: list[CountDifference] = field(default_factory=list)
    """Where the number of made ids is not the number that the engine counted. Such a step has the ``token_issue``
    ``usage_differs``: ``allow={"retokenized"}`` alone does not take it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountDifference:
    """The rendering disagrees with the engine's own count."""

    step_id: str
    part: str
    """``prompt`` or ``completion``."""
    made: int
    """Ids that were made."""
    counted: int
    """Tokens in the engine's usage."""


def retokenize(
    trajectory: Trajectory, tokenizer: Any, *, chat_template_kwargs: Mapping[str, Any] | None = None
) -> RetokenizeReport:
    """Fills the prompt and completion ids of the steps that have none.

    The prompt is the request's messages and tools through the chat template, with its generation prompt. The
    completion is what the template adds for the answer, up to the tokenizer's ``eos_token_id`` where it has one: what
    a template writes after that no model sampled, and an answer that was cut off by its length ends before it. For
    text prompts the completion is the answer's text. Both are made, also where one of them is known, so that they are
    never of two kinds. ``logprobs`` stay None. Steps with the engine's ids for their completion are not touched.

    Args:
        trajectory: a closed one; its steps are changed in place.
        tokenizer: anything with ``apply_chat_template(messages, tools=, add_generation_prompt=, tokenize=)`` and
            ``encode(text, add_special_tokens=)``, as those of ``transformers``.
        chat_template_kwargs: further arguments of the template, such as ``{"enable_thinking": False}``, beside those of
            the request.

    Raises:
        ValueError: the trajectory is open.
    """
    if trajectory.is_open:
        raise ValueError("the trajectory is open: retokenize it when its block has ended.")
    report = RetokenizeReport()
    choices = Counter(step.call_id for step in trajectory.steps)
    takes_parts = _takes_parts(tokenizer)
    for step in trajectory.steps:
        if step.status not in ("ok", "abandoned", "cached"):
            report.skipped[step.id] = step.status
            continue
        if step.token_source == "retokenized":
            report.skipped[step.id] = "retokenized"
            continue
        if shared(step, "completion_token_ids") is not None:
            report.kept.append(step.id)
            continue
        try:
            prompt, completion = _made(step, tokenizer, takes_parts, dict(chat_template_kwargs or {}))
        except Exception as failure:
            # A template raises what it likes: jinja2's errors, TypeErrors for missing fields, the model maker's own.
            report.failed[step.id] = f"{type(failure).__name__}: {failure}"
            continue
        # The usage of several choices counts them all.
        sampled = len(completion) if choices[step.call_id] == 1 else None
        differ = _differences(step, len(prompt), sampled)
        _fill(step, prompt, completion, differ)
        report.retokenized.append(step.id)
        report.disagreements.extend(differ)
    return report


def _fill(step: Step, prompt: IntArray, completion: IntArray, differ: list[CountDifference]) -> None:
    issue = step.token_issue
    if issue is not None and issue.code == "ids_missing":
        issue = None
    if issue is None and differ:
        counts = " and ".join(f"{one.made} {one.part} ids were made, usage says {one.counted}" for one in differ)
        issue = TokenIssue(code="usage_differs", message=f"{counts}.")
    amend(
        step,
        prompt_token_ids=prompt,
        completion_token_ids=completion,
        logprobs=None,
        top_logprobs=None,
        logprobs_mode=None,
        token_source="retokenized",
        token_issue=issue,
    )


def _made(step: Step, tokenizer: Any, takes_parts: bool, arguments: dict[str, Any]) -> tuple[IntArray, IntArray]:
    if step.completion is None:
        raise ValueError("the step has no completion.")
    if step.messages and isinstance(step.messages[0], str) and record_of(step.protocol).messages != "items":
        content = step.completion.content
        if not isinstance(content, str):
            raise ValueError("the completion has no text.")
        return _encoded(tokenizer, step.messages[0]), _encoded(tokenizer, content)
    lost = ExportReport()
    messages = [with_decoded_arguments(message) for message in to_chat(step, lost)]
    offered = _offered(step, lost)
    said = answer(step, "dict", lost)
    if said is None or lost.dropped:
        raise ValueError(f"not all of the conversation can be rendered: {lost}.")
    arguments = {**_asked_of_the_template(step), **arguments}
    if not takes_parts:
        messages = [{**message, "content": _as_text(message.get("content"))} for message in messages]
    counted = (step.usage or Usage()).input
    made = [_rendered_ids(step, tokenizer, messages, said, {**arguments, "tools": offered[0]})]
    if counted is None or len(made[0][0]) == counted:
        return made[0]
    made += [_rendered_ids(step, tokenizer, messages, said, {**arguments, "tools": one}) for one in offered[1:]]
    return min(made, key=lambda ids: abs(len(ids[0]) - counted))


def _rendered_ids(
    step: Step, tokenizer: Any, messages: list[dict[str, Any]], said: dict[str, Any], arguments: dict[str, Any]
) -> tuple[IntArray, IntArray]:
    before = _rendered(tokenizer, messages, add_generation_prompt=True, **arguments)
    whole = _rendered(tokenizer, [*messages, said], add_generation_prompt=False, **arguments)
    if not whole.startswith(before):
        raise ValueError(
            f"the chat template renders the conversation with its answer otherwise than without: {before[-60:]!r} is "
            "not its beginning. A template of the same model that keeps what it wrote is needed."
        )
    # Apart, as they were read and sampled: text on both sides of the border could become one token.
    completion = _until_its_end(_encoded(tokenizer, whole[len(before) :]), step, tokenizer)
    return _encoded(tokenizer, before), completion


def _offered(step: Step, lost: ExportReport) -> list[list[dict[str, Any]] | None]:
    """The tools in chat's shape, as a template may have been given them; the likeliest first.

    A server that sends no ids is often one whose engine was not named. What vLLM makes of tools is known (recorded);
    where the prompt is then not as long as the engine counted, they may have been rendered as they were sent.
    """
    if step.tools is None:
        return [None]
    sent = [copy.deepcopy(one) for tool in step.tools if (one := tool_of(tool, lost)) is not None]
    by_vllm: list[dict[str, Any]] | None = [_as_vllm(tool) for tool in sent]
    return {"vllm": [by_vllm], None: [by_vllm, sent]}.get(step.engine, [sent])


def _as_vllm(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool with its keys as vLLM has them, whatever order they were sent in: templates write them as they come."""
    function = tool.get("function")
    if not isinstance(function, dict):
        return tool
    described = {"name": None, "description": None, "parameters": None, **function}
    return {"type": "function", "function": described, **{name: tool[name] for name in tool if name != "function"}}


def _asked_of_the_template(step: Step) -> dict[str, Any]:
    """What the request itself asked of the template."""
    asked = step.sampling or {}
    for name, usual in (("continue_final_message", False), ("add_generation_prompt", True)):
        if asked.get(name, usual) is not usual:
            raise ValueError(f"the request has {name}={asked[name]!r}: its answer is no message of its own.")
    template = asked.get("chat_template")
    return {**(asked.get("chat_template_kwargs") or {}), **({} if template is None else {"chat_template": template})}


def _takes_parts(tokenizer: Any) -> bool:
    """Whether the template reads contents that are lists of parts; some write them out as Python would."""
    probe = [{"role": "user", "content": [{"type": "text", "text": "PROBE"}]}]
    try:
        text = str(tokenizer.apply_chat_template(probe, tokenize=False))
    except Exception:
        return False
    return "PROBE" in text and "'type'" not in text and '"type"' not in text


def _as_text(content: Any) -> Any:
    """Parts that are all text as one text, a line each, as vLLM gives them to a template that takes texts."""
    if not isinstance(content, list):
        return content
    texts = [part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)]
    if len(texts) < len(content):
        raise ValueError("a message has parts that are no text, and the template takes none.")
    return "\n".join(texts)


def _rendered(tokenizer: Any, messages: list[dict[str, Any]], **arguments: Any) -> str:
    text = tokenizer.apply_chat_template(messages, tokenize=False, **arguments)
    if not isinstance(text, str):
        raise TypeError(f"apply_chat_template(tokenize=False) gave {type(text).__name__}, expected a text.")
    return text


def _encoded(tokenizer: Any, text: str) -> IntArray:
    return as_int32(list(tokenizer.encode(text, add_special_tokens=False)), "the tokenizer's ids")


def _until_its_end(ids: IntArray, step: Step, tokenizer: Any) -> IntArray:
    """An answer's ids up to the end-of-sequence token, which belongs to it unless its length cut it off."""
    import numpy as np

    ends = np.flatnonzero(ids == getattr(tokenizer, "eos_token_id", None))
    if not len(ends):
        return ids
    return ids[: int(ends[-1]) + (step.status != "abandoned" and step.finish_reason not in CUT_OFF)]


def _differences(step: Step, prompt: int, completion: int | None) -> list[CountDifference]:
    usage = step.usage or Usage()
    counts = (("prompt", prompt, usage.input), ("completion", completion, usage.output))
    return [
        CountDifference(step_id=step.id, part=part, made=made, counted=counted)
        for part, made, counted in counts
        if made is not None and counted is not None and counted != made
    ]
