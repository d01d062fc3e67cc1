"""Token ids made from text, on request alone, for steps whose engine sent none: ``token_source="retokenized"``.

They need not be the ids that were sampled: a model may have written the text in other tokens, and a template may render
it otherwise. The report compares their numbers with the engine's usage.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rollout_trace._field_docs import document_fields
from rollout_trace.data.extras import EXTRAS
from rollout_trace.data.model import CUT_OFF, TokenIssue, Usage, amend, shared
from rollout_trace.data.tokens import as_int32
from rollout_trace.report import ExportReport
from rollout_trace.wire.chat_messages import answer, to_chat, tool_of, with_decoded_arguments
from rollout_trace.wire.protocols import record_of

if TYPE_CHECKING:
    from rollout_trace.data.model import Step
    from rollout_trace.data.tokens import IntArray
    from rollout_trace.data.trajectory import Trajectory


@document_fields
@dataclass(kw_only=True)
class RetokenizeReport:
    """The result for each step, by step id."""

    retokenized: list[str] = field(default_factory=list)
    """Steps that got ids made from their text."""
    kept: list[str] = field(default_factory=list)
    """Steps that kept the engine's completion ids."""
    failed: dict[str, str] = field(default_factory=dict)
    """Steps whose ids could not be made, with the error. They are unchanged."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Steps that were not tried, with the reason: their status (``error``, ``cancelled``, ...), or ``retokenized`` if
    they already have such ids."""
    disagreements: list[CountDifference] = field(default_factory=list)
    """Differences between the number of ids made and the engine's usage. Such a step gets the ``token_issue``
    ``usage_differs``, so ``allow={"retokenized"}`` alone does not admit it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountDifference:
    """A difference between the number of ids made for a step and the engine's usage."""

    step_id: str
    part: str
    """``prompt`` or ``completion``."""
    made: int
    """Number of ids made from the text."""
    counted: int
    """Number of tokens in the engine's usage."""


def retokenize(
    trajectory: Trajectory, tokenizer: Any, *, chat_template_kwargs: Mapping[str, Any] | None = None
) -> RetokenizeReport:
    """Sets the prompt and completion ids of the steps without completion ids, from their text.

    The prompt is the request's messages and tools through the chat template, with its generation prompt. The
    completion is what the template adds for the answer, up to the tokenizer's ``eos_token_id`` where it has one: no
    model samples what a template writes after that, and an answer that was cut off by its length ends before it. For
    text prompts the completion is the answer's text. Both are made, even where the prompt's ids are known, so that a
    step never mixes two sources. ``logprobs`` become None. Steps with the engine's completion ids are not changed.

    Arguments, and what is raised, are those of ``Trajectory.retokenize``.
    """
    if trajectory.is_open:
        raise ValueError("the trajectory is still open. Retokenize it after its block has ended.")
    report = RetokenizeReport()
    choices = Counter(step.call_id for step in trajectory.steps)
    accepts_parts = _accepts_parts(tokenizer)
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
            prompt, completion = _ids_from_text(step, tokenizer, accepts_parts, dict(chat_template_kwargs or {}))
        except Exception as failure:
            # Templates raise anything: jinja2's errors, TypeErrors for missing fields, errors that their author raises.
            report.failed[step.id] = f"{type(failure).__name__}: {failure}"
            continue
        # The usage counts all choices of a call together: it is compared only where there is one.
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
    # Recorded logprobs and extras go with ids that are not known: aligned with these they would be wrong.
    gone: dict[str, Any] = dict.fromkeys(
        ("logprobs", "top_logprobs", "token_texts", "logprobs_mode", "trainer", *EXTRAS)
    )
    made = {"prompt_token_ids": prompt, "completion_token_ids": completion, "token_source": "retokenized"}
    amend(step, **gone, **made, token_issue=issue)


def _ids_from_text(
    step: Step, tokenizer: Any, accepts_parts: bool, arguments: dict[str, Any]
) -> tuple[IntArray, IntArray]:
    if step.completion is None:
        raise ValueError("the step has no completion.")
    if step.messages and isinstance(step.messages[0], str) and record_of(step.protocol).messages != "items":
        content = step.completion.content
        if not isinstance(content, str):
            raise ValueError("the completion has no text.")
        return _encoded(tokenizer, step.messages[0]), _encoded(tokenizer, content)
    dropped = ExportReport()
    messages = [with_decoded_arguments(message) for message in to_chat(step, dropped)]
    tool_candidates = _tool_candidates(step, dropped)
    reply = answer(step, "dict", dropped)
    if reply is None or dropped.dropped:
        raise ValueError(f"not all of the conversation can be rendered: {dropped}.")
    arguments = {**_template_arguments(step), **arguments}
    if not accepts_parts:
        messages = [{**message, "content": _as_text(message.get("content"))} for message in messages]
    counted = (step.usage or Usage()).input
    rendered = []
    for tools in tool_candidates:
        rendered.append(_rendered_ids(step, tokenizer, messages, reply, {**arguments, "tools": tools}))
        if counted is None or len(rendered[-1][0]) == counted:
            return rendered[-1]
    return min(rendered, key=lambda ids: abs(len(ids[0]) - (counted or 0)))


def _rendered_ids(
    step: Step, tokenizer: Any, messages: list[dict[str, Any]], reply: dict[str, Any], arguments: dict[str, Any]
) -> tuple[IntArray, IntArray]:
    before = _rendered(tokenizer, messages, add_generation_prompt=True, **arguments)
    whole = _rendered(tokenizer, [*messages, reply], add_generation_prompt=False, **arguments)
    if not whole.startswith(before):
        raise ValueError(
            "the chat template renders the conversation differently once the answer is added: it no longer begins "
            f"with {before[-60:]!r}. Use a template of the same model that leaves earlier messages as they are."
        )
    # Encoded apart, as they were read and sampled: encoded together, characters on both sides could become one token.
    completion = _cut_after_eos(_encoded(tokenizer, whole[len(before) :]), step, tokenizer)
    return _encoded(tokenizer, before), completion


def _tool_candidates(step: Step, report: ExportReport) -> list[list[dict[str, Any]] | None]:
    """The forms in which the engine may have passed the tools to the template, in chat's shape, likeliest first.

    Without ids the engine is often unknown as well. How vLLM rewrites tools is recorded in the tests; for an unknown
    engine the tools as they were sent come second, for prompts whose length does not match the engine's usage.
    """
    if step.tools is None:
        return [None]
    sent = [copy.deepcopy(one) for tool in step.tools if (one := tool_of(tool, report)) is not None]
    by_vllm: list[dict[str, Any]] | None = list(map(_as_vllm, sent))
    return {"vllm": [by_vllm], None: [by_vllm, sent]}.get(step.engine, [sent])


def _as_vllm(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool with its keys in vLLM's order, and its absent keys as None: templates render keys in the order given."""
    function = tool.get("function")
    if not isinstance(function, dict):
        return tool
    described = {"name": None, "description": None, "parameters": None, **function}
    return {"type": "function", "function": described, **{name: tool[name] for name in tool if name != "function"}}


def _template_arguments(step: Step) -> dict[str, Any]:
    """The arguments of the chat template in the request. Raises ValueError where the answer continues a message."""
    sampling = step.sampling or {}
    for name, default in (("continue_final_message", False), ("add_generation_prompt", True)):
        if sampling.get(name, default) is not default:
            raise ValueError(f"the request has {name}={sampling[name]!r}: its answer continues another message.")
    template = sampling.get("chat_template")
    own = {} if template is None else {"chat_template": template}
    return {**(sampling.get("chat_template_kwargs") or {}), **own}


def _accepts_parts(tokenizer: Any) -> bool:
    """Returns whether the template renders contents that are lists of parts; some print the list as Python would."""
    probe = [{"role": "user", "content": [{"type": "text", "text": "PROBE"}]}]
    try:
        text = str(tokenizer.apply_chat_template(probe, tokenize=False))
    except Exception:
        return False
    return "PROBE" in text and "'type'" not in text and '"type"' not in text


def _as_text(content: Any) -> Any:
    """Text parts joined by newlines, as vLLM passes them to a template of strings. Raises ValueError for others."""
    if not isinstance(content, list):
        return content
    texts = [part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)]
    if len(texts) < len(content):
        raise ValueError("a message has parts other than text, which the template does not take.")
    return "\n".join(texts)


def _rendered(tokenizer: Any, messages: list[dict[str, Any]], **arguments: Any) -> str:
    text = tokenizer.apply_chat_template(messages, tokenize=False, **arguments)
    if not isinstance(text, str):
        raise TypeError(f"apply_chat_template(tokenize=False) gave {type(text).__name__}, expected a text.")
    return text


def _encoded(tokenizer: Any, text: str) -> IntArray:
    return as_int32(list(tokenizer.encode(text, add_special_tokens=False)), "the tokenizer's ids")


def _cut_after_eos(ids: IntArray, step: Step, tokenizer: Any) -> IntArray:
    """An answer's ids up to the last end-of-sequence token; without that token where the answer was cut off.

    Templates write the token, and more after it, behind every answer; the model samples neither where it is cut off.
    """
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
