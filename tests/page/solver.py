"""The trajectory of an agent with a calculator, with everything in it that the page can show."""

from __future__ import annotations

from typing import Any

import msgspec

from rollout_trace.view.model import (
    AttemptView,
    DriftView,
    FindingView,
    Message,
    Outline,
    Part,
    RowPart,
    RowView,
    StepLine,
    StepView,
    Summary,
    ToolRunView,
)
from rollout_trace.view.values import indented
from tests.page.trajectories import PIXEL, STARTED, One, tokens, words


def solver(index: int = 2, answer: str = "The answer is 89. I checked it twice, because 84 and 5 make 89.") -> One:
    """An agent with a calculator: reasoning, tools, drift, a retry, a finding, a sub-agent and a left-out step."""
    system = Message(
        role="system",
        parts=[
            Part(kind="text", text="You answer arithmetic questions. One calculator call a step; then give the number.")
        ],
    )
    asked = Message(
        role="user",
        parts=[Part(kind="text", text="What is 12 * 7 + 5 ?"), Part(kind="image", text=PIXEL, name="image/png")],
    )
    thought = "I should multiply first,\nthen add five."
    first = [
        "<think>",
        "\n",
        *words(thought),
        "\n",
        "</think>",
        "\n\n",
        "<tool_call>",
        "\n",
        *words('{"name": "calculator", "arguments": '),
        *words('{"expression": "12 * 7"}'),
        "}",
        "\n",
        "</tool_call>",
        "<|im_end|>",
    ]
    second = [
        "<tool_call>",
        "\n",
        *words('{"name": "calculator", "arguments": '),
        *words('{"expression": "84 + 5"}'),
        "}",
        "\n",
        "</tool_call>",
        "<|im_end|>",
    ]
    third = [*words(answer), "<|im_end|>"]
    sampled = [tokens(first, 1), tokens(second, 2), tokens(third, 3)]
    finding = FindingView(
        code="constrained_sampling",
        grade="warning",
        message="tool_choice forced the call; 6 logprobs are of the grammar.",
        step=1,
    )
    whole = FindingView(code="no_reward_parts", grade="info", message="The reward has no parts.")
    drift = DriftView(
        step=2,
        previous=1,
        position=117,
        kind="retokenized",
        expected=[27, 83, 1616],
        found=[2042],
        expected_text="<tool_call>",
        found_text="<tool_call>",
        meaning="the same text in other token ids",
    )
    runs = [
        ToolRunView(
            name="calculator",
            tool_call_id="call_1",
            step=0,
            arguments='{"expression": "12 * 7"}',
            result="84",
            started=STARTED + 0.42,
            duration=0.03,
        ),
        ToolRunView(
            name="calculator",
            tool_call_id="call_2",
            step=1,
            arguments='{"expression": "84 + 5"}',
            result="89",
            started=STARTED + 0.78,
            duration=0.0007,
        ),
        ToolRunView(
            name="lookup", step=1, arguments="{}", error="KeyError: 'sum'", started=STARTED + 0.77, duration=0.05
        ),
    ]

    def line(at: int, **more: Any) -> StepLine:
        base: dict[str, Any] = {
            "index": at,
            "id": f"s{at}",
            "call_id": f"c{at}",
            "model": "Qwen/Qwen3-8B",
            "started": STARTED + (0, 0.46, 0.9, 1.3)[at],
            "latency": (0.41, 0.30, 0.33, 0.05)[at],
            "first_token": 0.09,
            "continues": at - 1 if at else None,
        }
        return StepLine(**{**base, **more})

    lines = [
        line(
            0,
            n_prompt=30,
            n_completion=len(first),
            row=0,
            begin=30,
            finish="tool_calls",
            tools=["calculator"],
            excerpt=thought,
            mean_logprob=-0.51,
        ),
        line(
            1,
            n_prompt=90,
            n_completion=len(second),
            row=0,
            begin=90,
            finish="tool_calls",
            tools=["calculator"],
            grade="warning",
        ),
        line(
            2,
            n_prompt=140,
            n_completion=len(third),
            row=1,
            begin=140,
            finish="stop",
            drift="retokenized",
            excerpt=answer,
        ),
        line(3, status="error", left_out="status", continues=0, thread=1),
    ]
    steps = [
        StepView(
            line=lines[0],
            new=[system, asked],
            tokens=sampled[0],
            tool_runs=runs[:1],
            policy_version="step-120",
            engine="vllm",
            protocol="openai.chat",
            logprobs_mode="raw",
            token_source="engine",
            sampling={"temperature": 1.0},
            usage={"input": 30, "output": len(first)},
            answer=Message(
                role="assistant",
                parts=[
                    Part(kind="reasoning", text=thought),
                    Part(kind="tool_call", text='{"expression": "12 * 7"}', name="calculator", id="call_1"),
                ],
            ),
        ),
        StepView(
            line=lines[1],
            repeated=3,
            new=[Message(role="tool", tool_call_id="call_1", parts=[Part(kind="text", text="84")])],
            tokens=sampled[1],
            tool_runs=runs[1:],
            findings=[finding],
            children=["child-of-" + str(index), "unknown-child"],
            answer=Message(
                role="assistant",
                parts=[Part(kind="tool_call", text='{"expression": "84 + 5"}', name="calculator", id="call_2")],
            ),
        ),
        StepView(
            line=lines[2],
            repeated=5,
            new=[Message(role="tool", tool_call_id="call_2", parts=[Part(kind="text", text="89")])],
            tokens=sampled[2],
            drift=drift,
            attempts=[
                AttemptView(started=STARTED + 0.84, duration=0.04, status=429, error="Too Many Requests"),
                AttemptView(started=STARTED + 0.9, duration=0.33, status=200),
            ],
            answer=Message(role="assistant", parts=[Part(kind="text", text=answer)]),
        ),
        StepView(
            line=lines[3],
            repeated=2,
            new=[Message(role="user", parts=[Part(kind="text", text="And without the tool?")])],
            error="APITimeoutError: Request timed out.",
            attempts=[AttemptView(started=STARTED + 1.3, duration=0.05, error="ReadTimeout")],
        ),
    ]
    reward = 1.0 if "89" in answer else 0.0
    summary = Summary(
        id=f"solver-{index}",
        name="solver",
        task="chain/1",
        group="chain/1",
        index=index,
        reward=reward,
        rewards={"correct": reward},
        started=STARTED,
        seconds=1.35,
        steps=4,
        calls=4,
        agents=["solver"],
        models=["Qwen/Qwen3-8B"],
        input_tokens=260,
        output_tokens=len(first) + len(second) + len(third),
        cost=0.0004,
        currency="USD",
        rows=2,
        trained=len(first) + len(second) + len(third),
        left_out={"status": 1},
        findings={"constrained_sampling": 1},
        tool_runs=3,
        tool_errors=1,
        grade="warning",
        drift={"retokenized": 1},
        episode=f"episode-{index}",
        excerpt="What is 12 * 7 + 5 ?",
    )
    rows = [
        RowView(
            length=90 + len(second),
            trained=len(first) + len(second),
            reward=reward,
            parts=[
                RowPart(30, 0, None),
                RowPart(len(first), 1, 0),
                RowPart(60 - len(first), 0, None),
                RowPart(len(second), 1, 1),
            ],
        ),
        RowView(
            length=140 + len(third),
            trained=len(third),
            reward=reward,
            parts=[RowPart(140, 0, None), RowPart(len(third), 1, 2)],
        ),
    ]
    child = Summary(
        id=f"child-of-{index}",
        name="checker",
        parent=summary.id,
        episode=f"episode-{index}",
        started=STARTED + 0.8,
        seconds=0.1,
        steps=1,
        reward=0.5,
    )
    outline = Outline(
        summary=summary,
        steps=lines,
        tool_runs=[msgspec.structs.replace(run, arguments=None, result=None) for run in runs],
        rows=rows,
        findings=[finding, whole],
        drift=[drift],
        threads=2,
        family=[summary, child],
        task={"question": "12 * 7 + 5"},
        environment={"python": "3.12"},
        metadata={"seed": 3},
        token_texts="engine",
    )
    request = indented(b'{"model": "Qwen/Qwen3-8B", "seed": 12345678901234567890}')
    raw = {"request": request, "response": None, "line": None}
    return One(outline, steps, raw)


def child(index: int = 2) -> One:
    """The sub-agent of ``solver(index)``."""
    parent = solver(index).outline
    summary = parent.family[1]
    line = StepLine(index=0, id="x0", call_id="y0", n_completion=2, row=0, begin=5)
    step = StepView(
        line=line, tokens=tokens(["Yes", "."]), answer=Message(role="assistant", parts=[Part(kind="text", text="Yes.")])
    )
    rows = [RowView(length=7, trained=2, parts=[RowPart(5, 0, None), RowPart(2, 1, 0)])]
    return One(
        Outline(summary=summary, steps=[line], tool_runs=[], rows=rows, findings=[], drift=[], family=parent.family),
        [step],
    )
