"""A call as the chat completion that vLLM would have answered: request and response bodies with token ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollout_trace.data.model import CUT_OFF
from rollout_trace.data.tokens import same_array
from rollout_trace.wire.chat_messages import answer, to_chat, tools_of, with_text

if TYPE_CHECKING:
    from rollout_trace.data.model import Step, Usage
    from rollout_trace.report import ExportReport

_FINISH_REASONS = {
    **dict.fromkeys(CUT_OFF, "length"),
    **dict.fromkeys(("end_turn", "stop_sequence", "completed", "eos", "STOP"), "stop"),
    "tool_use": "tool_calls",
}


def chat_request(step: Step, report: ExportReport) -> dict[str, Any]:
    """The body of a chat request: ``model``, ``messages``, ``tools`` and the recorded sampling parameters."""
    tools = tools_of(step, report)
    # A request of chat with `functions` has them in `tools` here.
    sampling = {name: value for name, value in (step.sampling or {}).items() if name != "functions"}
    body: dict[str, Any] = {"model": step.model, "messages": to_chat(step, report), **sampling}
    return body if tools is None else {**body, "tools": tools}


def chat_response(choices: list[Step], report: ExportReport, *, tokens: bool = True) -> dict[str, Any]:
    """The body of the answer to a call: a choice for each step, in vLLM's shape.

    ``prompt_token_ids`` stand beside ``choices``; each choice has ``token_ids``, and ``logprobs.content`` with a
    ``token`` ``"token_id:N"`` for each of them, as vLLM writes them with ``return_token_ids`` and
    ``return_tokens_as_token_ids``. Logprobs whose number is not that of the ids are left out.
    """
    first = choices[0]
    began = next((step.started_at for step in choices if step.started_at is not None), None)
    body: dict[str, Any] = {
        "id": first.response_id or first.call_id,
        "object": "chat.completion",
        "created": 0 if began is None else int(began.timestamp()),
        "model": first.response_model or first.model or "",
        "choices": [_choice(step, report, tokens) for step in choices if _has_answer(step)],
        # An answer from a cache has the usage of the call that filled it.
        "usage": None if first.status == "cached" else _usage(first.usage),
    }
    prompts = [step.prompt_token_ids for step in choices] if tokens else []
    if all(same_array(prompt, prompts[0]) for prompt in prompts):
        return body if not prompts or prompts[0] is None else {**body, "prompt_token_ids": prompts[0].tolist()}
    # A request of completions with several prompts: their ids stand on the choices, where vLLM has them there.
    answered = [step for step in choices if _has_answer(step)]
    for choice, step in zip(body["choices"], answered, strict=True):
        choice["prompt_token_ids"] = None if step.prompt_token_ids is None else step.prompt_token_ids.tolist()
    return body


def finish_reason(step: Step) -> str | None:
    """The finish reason in chat's words, where it has one for it; otherwise the server's own."""
    reason = step.finish_reason
    return None if reason is None else _FINISH_REASONS.get(reason, reason)


def _choice(step: Step, report: ExportReport, tokens: bool) -> dict[str, Any]:
    message = answer(step, "json", report)
    choice: dict[str, Any] = {
        "index": step.choice,
        "message": {"role": "assistant", "content": None} if message is None else with_text(message),
        "finish_reason": finish_reason(step),
        "logprobs": None,
    }
    if tokens and step.completion_token_ids is not None:
        ids = choice["token_ids"] = step.completion_token_ids.tolist()
        if step.logprobs is not None and len(step.logprobs) == len(ids):
            choice["logprobs"] = {
                "content": [
                    {"token": f"token_id:{one}", "logprob": logprob, "bytes": None, "top_logprobs": []}
                    for one, logprob in zip(ids, step.logprobs.tolist(), strict=True)
                ]
            }
    if step.stop_reason is not None:
        choice["stop_reason"] = step.stop_reason
    return choice


def _has_answer(step: Step) -> bool:
    return step.completion is not None or step.completion_token_ids is not None


def _usage(usage: Usage | None) -> dict[str, Any] | None:
    if usage is None:
        return None
    counts: dict[str, Any] = {"prompt_tokens": usage.input, "completion_tokens": usage.output}
    if usage.input is not None and usage.output is not None:
        counts["total_tokens"] = usage.input + usage.output
    details = {
        "prompt_tokens_details": {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }
    for name, values in details.items():
        known = {key: value for key, value in values.items() if value is not None}
        if known:
            counts[name] = known
    return {name: value for name, value in counts.items() if value is not None}
