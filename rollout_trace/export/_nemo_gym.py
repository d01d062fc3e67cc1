"""NeMo-Gym: rollouts, as its servers collect them and NeMo-RL trains on them.

Shapes: nemo-gym 0.7.0, ``BaseVerifyResponse`` in ``nemo_gym/base_resources_server.py`` and the items for training in
``nemo_gym/openai_utils.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollout_trace.export._exporter import Exporter, RowIterator
from rollout_trace.export._rows import (
    check_row_options,
    compare,
    run_facts,
    sampling_facts,
    task_id,
    task_or_run,
    training_rows,
)
from rollout_trace.export._values import strict_json
from rollout_trace.file.plain import dumps
from rollout_trace.wire.chat_messages import (
    answer,
    calls_of,
    previous_response_of,
    to_chat,
    tools_of,
    with_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Unpack

    from rollout_trace.data.model import Step
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.export._exporter import Row, Trajectories
    from rollout_trace.export._rows import RowOptions
    from rollout_trace.report import ExportReport, Strict
    from rollout_trace.train.sequence import Sequence
    from rollout_trace.wire.chat_messages import Message


@Exporter
def nemo_gym(
    trajectories: Trajectories,
    *,
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[RowOptions],
) -> RowIterator:
    """Exports NeMo-Gym's rollouts, one dict for each sequence: ``BaseVerifyResponse.model_validate(row)``.

    ``responses_create_params`` has the messages of the first call as ``input``, and its tools. ``response.output`` has
    everything after it as items of the Responses API, whatever the protocol was: answers as ``reasoning``, ``message``
    and ``function_call``, tool results as ``function_call_output``. The last item of each answer has
    ``prompt_token_ids`` (all tokens before it), ``generation_token_ids`` and ``generation_log_probs``: NeMo-RL trains
    on these. ``reward`` is the row's; ``mask_sample`` is True for runs whose status is ``failed`` or ``aborted``, with
    ``failure_kind`` and ``failure_reason``, which NeMo-Gym has since 0.7; ``_ng_task_index`` numbers the groups (else
    tasks, else runs) and ``_ng_rollout_index`` the rows of one. Beside them: ``trajectory_id``, ``group_id``,
    ``rollout_index``, ``task_id``, ``rewards`` by name, ``temperature``, ``logprobs_mode``.

    NeMo-RL fails on a rollout whose prompts do not repeat what came before; here each sequence of such a run is its own
    row. Left out and counted: trajectories without a reward, rows without logprobs, images and other non-text content.
    """
    check_row_options(options)
    return RowIterator(
        "nemo_gym", strict, report, lambda counts, raw: _rollouts(trajectories, counts, options, raw), checked=True
    )


def _rollouts(trajectories: Trajectories, report: ExportReport, options: RowOptions, raw: bool) -> Iterator[Row]:
    tasks: dict[str, list[int]] = {}
    compared = compare(trajectories, report, options)
    for trajectory, row in training_rows(compared, report, "rewards by name", complete=True):
        # A number for the task, and one for the row within it; both from 0, in the order of their first use.
        task = tasks.setdefault(task_or_run(trajectory), [len(tasks), -1])
        task[1] += 1
        rollout = {
            **_rollout(trajectory, row, report),
            "reward": row.reward,
            **_failure(trajectory),
            "_ng_task_index": task[0],
            "_ng_rollout_index": task[1],
            **run_facts(trajectory),
            "task_id": task_id(trajectory),
            "rewards": trajectory.rewards,
            **sampling_facts(row, report),
        }
        yield strict_json(rollout, report, f"trajectory {trajectory.id}", arrays=raw)


_FAILURES = {"failed": "agent_run_error", "aborted": "rollout_trace:aborted"}
"""NeMo-Gym's word for a status, or one of ours in its form."""


def _failure(trajectory: Trajectory) -> dict[str, Any]:
    """Whether the run is left out of scores, and why it failed: fields of NeMo-Gym 0.7."""
    error = trajectory.error
    failed = trajectory.status in _FAILURES
    reason = trajectory.status if error is None else f"{error.type}: {error.message}"
    return {
        "mask_sample": failed,
        "failure_kind": _FAILURES.get(trajectory.status),
        "failure_reason": reason if failed else None,
    }


def _rollout(trajectory: Trajectory, row: Sequence, report: ExportReport) -> dict[str, Any]:
    by_id = {step.id: step for step in trajectory.steps}
    steps = [by_id[step_id] for step_id in row.step_ids]
    sent = [[with_text(message) for message in to_chat(step, report)] for step in steps]
    tools = [tool for one in tools_of(steps[0], report) or () for tool in _tool(one, report)]
    output: list[dict[str, Any]] = []
    for at, (step, (begin, end)) in enumerate(zip(steps, row.spans, strict=True)):
        if at:
            # What the prompt adds to the messages before and their answer: all of it, where the server holds these.
            known = 0 if previous_response_of(step) else len(sent[at - 1]) + 1
            output += [item for message in sent[at][known:] for item in _items(message, step, report)]
        items = _answer_items(step, report)
        items[-1] |= {
            "prompt_token_ids": row.token_ids[:begin],
            "generation_token_ids": row.token_ids[begin:end],
            "generation_log_probs": row.logprobs[begin:end],  # type: ignore[index]
        }
        output += items
    first = steps[0]
    created = 0.0 if first.started_at is None else first.started_at.timestamp()
    inputs = [item for message in sent[0] for item in _items(message, first, report)]
    model = first.response_model or first.model or ""
    return {
        "responses_create_params": {"input": inputs, "tools": tools},
        "response": {
            "id": f"resp_{steps[-1].id}",
            "created_at": created,
            "model": model,
            "object": "response",
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": tools,
        },
    }


def _answer_items(step: Step, report: ExportReport) -> list[dict[str, Any]]:
    message = answer(step, "json", report) or {"role": "assistant", "content": ""}
    return _items(with_text(message), step, report) or [_message_item("", step)]


def _items(message: Message, step: Step, report: ExportReport) -> list[dict[str, Any]]:
    """A chat message as items of the Responses API."""
    role, text = message.get("role"), _text(message.get("content"), report)
    if role == "tool":
        output = {"type": "function_call_output", "call_id": str(message.get("tool_call_id")), "output": text}
        return [{**output, "status": "completed"}]
    if role != "assistant":
        known = role if role in ("user", "system", "developer") else "user"
        return [{"type": "message", "role": known, "content": text}]
    items: list[dict[str, Any]] = []
    if message.get("reasoning_content"):
        summary = [{"type": "summary_text", "text": str(message["reasoning_content"])}]
        items.append({"type": "reasoning", "id": f"rs_{step.id}", "summary": summary})
    if text or not calls_of(message):
        items.append(_message_item(text, step))
    return items + [_call_item(call, report) for call in calls_of(message)]


def _message_item(text: str, step: Step) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {
        "type": "message", "id": f"msg_{step.id}", "role": "assistant", "status": "completed", "content": content,
    }  # fmt: skip


def _call_item(call: Any, report: ExportReport) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        report.drop("tool calls that are no calls of functions")
        function = {}
    name, arguments, call_id = function.get("name"), function.get("arguments"), call.get("id") if function else None
    return {
        "type": "function_call",
        "id": str(call_id),
        "call_id": str(call_id),
        "name": str(name),
        "arguments": arguments if isinstance(arguments, str) else dumps(arguments).decode(),
        "status": "completed",
    }


def _tool(tool: dict[str, Any], report: ExportReport) -> Iterator[dict[str, Any]]:
    function = tool.get("function")
    if isinstance(function, dict):
        yield {
            "type": "function",
            "name": str(function.get("name")),
            "description": function.get("description"),
            "parameters": function.get("parameters"),
            "strict": function.get("strict"),
        }
    else:
        report.drop("tools that are no functions")


def _text(content: Any, report: ExportReport) -> str:
    """The text of a content; what is no text is counted."""
    text = with_text({"content": content})["content"]
    if text is None or isinstance(text, str):
        return text or ""
    parts = text if isinstance(text, list) else [text]
    texts = [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
    report.drop("parts of messages that are no text", len(parts) - len(texts))
    return "\n".join(texts)
