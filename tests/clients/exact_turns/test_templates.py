"""Templates that treat earlier turns in their own way, by the server's tokenizer and by one in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace.testing import Reply, ScriptedServer
from rollout_trace.testing.real_tokenizer import RealTokenizer

from .agents import TOOLS, exact, texts
from .test_exact_turns import USER, _closed, asked, user, wrapped  # noqa: F401

TINY = Path(__file__).parents[2] / "data" / "tiny-model"
_TURN = (
    "<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}BEFORE{% endif %}{{ m.content or '' }}AFTER<|im_end|>\n"
)
_THOUGHT = "<think>\n{{ m.reasoning_content }}\n</think>\n\n"
_CALLS = (
    "{% for c in m.tool_calls or [] %}<tool_call>\n{{ {'name': c.function.name, 'arguments': c.function.arguments}"
    " | tojson }}\n</tool_call>{% endfor %}"
)
_OPEN = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"


def template(before: str = "", after: str = _CALLS) -> str:
    return "{% for m in messages %}" + _TURN.replace("BEFORE", before).replace("AFTER", after) + "{% endfor %}" + _OPEN


KEEPS = template("{% if m.reasoning_content %}" + _THOUGHT + "{% endif %}")
STRIPS = template("{% if m.reasoning_content and loop.last %}" + _THOUGHT + "{% endif %}")
# As Qwen's: the last answer gets an empty thought, if nothing comes after it.
MARKS_THE_LAST = template("{% if loop.last %}<think>\n\n</think>\n\n{% endif %}")
WRITES_IDS = template(after="{% for c in m.tool_calls or [] %}[{{ c.id }}:{{ c.function.name }}"
                      "{{ c.function.arguments | tojson }}]{% endfor %}")  # fmt: skip
LOOKS_BACK = template("({{ messages | length - loop.index }} ago)")
MERGES = (TINY / "chat_template.jinja").read_text()

CALL = Reply(None, [("tool", '{"a":  1}'), ("tool", '{"a":2}')])


def conversation(server: ScriptedServer, *, tokenizer: str | None = None, thinking: Any = "keep") -> list[rt.Step]:
    """Two turns with calls of tools, then one of the user, then another."""
    engine = rt.Engine("vllm", exact_turns=True, tokenizer=tokenizer, thinking=thinking)
    with rt.trajectory() as trajectory:
        client, messages = wrapped(server, engine), [USER]
        for turn in range(4):
            asked(client, messages, tools=TOOLS)
            calls = messages[-1].get("tool_calls") or ()
            messages += [{"role": "tool", "tool_call_id": call["id"], "content": f"r {turn}"} for call in calls]
            messages += [] if calls else [user(f"go {turn}")]
    return trajectory.steps


CASES: dict[str, tuple[str, list[bool]]] = {
    "keeps": (KEEPS, [False, True, True, True]),
    "strips": (STRIPS, [False, True, True, True]),
    "marks the last": (MARKS_THE_LAST, [False, True, True, True]),
    "merges results": (MERGES, [False, True, True, True]),
    "writes ids": (WRITES_IDS, [False, True, True, True]),
    "looks back": (LOOKS_BACK, [False, False, False, False]),
}
ANSWERS: list[Any] = [CALL, CALL, Reply("well", (), "I think."), "done"]


@pytest.mark.parametrize("name", CASES)
def test_a_template(name: str) -> None:
    chat_template, expected = CASES[name]
    tokenizer = RealTokenizer(TINY, chat_template=chat_template)
    with ScriptedServer(ANSWERS, tokenizer=tokenizer) as server:
        steps = conversation(server)
    assert exact(steps) == expected, [step.exact_turn for step in steps]
    assert {reason for reason in texts(steps) if reason} == (set() if all(expected[1:]) else {"template"})
    for step in steps[1:]:
        assert step.prompt_token_ids is not None
        # Nothing but the thinking, and how a call's JSON is spelled, is other than by text.
        by_text = tokenizer.apply_chat_template(step.messages or (), step.tools)
        assert step.prompt_token_ids[-3:].tolist() == by_text[-3:]


def test_the_tokenizer_of_this_process_gives_the_server_s_ids() -> None:
    with ScriptedServer([*ANSWERS, *ANSWERS], tokenizer=RealTokenizer(TINY)) as server:
        of_server = conversation(server)
        n_requests = len(server.requests)
        of_process = conversation(server, tokenizer=str(TINY))
        paths = {one.path for one in server.requests[n_requests:]}
    assert exact(of_process) == exact(of_server) == [False, True, True, True]
    assert [step.prompt_token_ids.tolist() for step in of_process if step.prompt_token_ids is not None] == [
        step.prompt_token_ids.tolist() for step in of_server if step.prompt_token_ids is not None]  # fmt: skip
    assert paths == {"/v1/chat/completions"}
    assert [step.exact_turn.n_requests for step in of_process if step.exact_turn] == [0, 0, 0]


def test_a_tokenizer_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no tokenizer"):
        rt.Engine("vllm", exact_turns=True, tokenizer=tmp_path)
    (tmp_path / "tokenizer.json").write_bytes((TINY / "tokenizer.json").read_bytes())
    with pytest.raises(ValueError, match=r"has no chat template"):
        rt.Engine("vllm", exact_turns=True, tokenizer=tmp_path / "tokenizer.json")
