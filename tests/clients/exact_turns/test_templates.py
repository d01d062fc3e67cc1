"""Templates that treat earlier turns in their own way, by the server's tokenizer and by one in this process."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace.testing import Reply, ScriptedServer
from rollout_trace.testing.real_tokenizer import RealTokenizer

from .agents import TOOLS, exact, ids_of, texts
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
# As those of ChatGLM: [Round 2].
NUMBERS_ROUNDS = template().replace("{{ m.role }}", "{{ m.role }}{% if m.role == 'user' %} {{ loop.index }}{% endif %}")
# As Mistral's: the system prompt stands in the last message of the user.
MOVES_THE_SYSTEM_PROMPT = "{% set n = namespace(last=0) %}" + (
    "{% for m in messages %}{% if m.role == 'user' %}{% set n.last = loop.index %}{% endif %}{% endfor %}"
    "{% for m in messages if m.role != 'system' %}<|im_start|>{{ m.role }}\n"
    "{% if messages[0].role == 'system' and m.role == 'user' and loop.index + 1 == n.last %}"
    "{{ messages[0].content }}\n\n{% endif %}{{ m.content or '' }}" + _CALLS + "<|im_end|>\n{% endfor %}" + _OPEN
)
# As SmolLM3's and Nemotron's: what the system prompt says decides how an answer begins.
OPENS_BY_THE_SYSTEM_PROMPT = template().removesuffix(_OPEN) + _OPEN.replace(
    "assistant\n", "assistant\n{% if '/no_think' in messages[0].content %}<think>\n\n</think>\n{% endif %}"
)

CALL = Reply(None, [("tool", '{"a":  1}'), ("tool", '{"a":2}')])


def conversation(server: ScriptedServer, *, tokenizer: str | None = None, system: str | None = None) -> list[rt.Step]:
    """Two turns with calls of tools, then one of the user, then another."""
    engine = rt.Engine("vllm", exact_turns=True, tokenizer=tokenizer)
    with rt.trajectory() as trajectory:
        client, messages = wrapped(server, engine), [USER]
        if system is not None:
            messages.insert(0, {"role": "system", "content": system})
        for turn in range(4):
            asked(client, messages, tools=TOOLS)
            calls = messages[-1].get("tool_calls") or ()
            messages += [{"role": "tool", "tool_call_id": call["id"], "content": f"r {turn}"} for call in calls]
            messages += [] if calls else [user(f"go {turn}")]
    return trajectory.steps


EXACT, BY_TEXT_ALONE = [False, True, True, True], [False, False, False, False]
CASES: dict[str, tuple[str, str | None, list[bool]]] = {
    "keeps": (KEEPS, None, EXACT),
    "strips": (STRIPS, None, EXACT),
    "marks the last": (MARKS_THE_LAST, None, EXACT),
    "merges results": (MERGES, None, EXACT),
    "merges results, with a system prompt": (MERGES, "Be kind.", EXACT),
    "writes ids": (WRITES_IDS, None, EXACT),
    "looks back": (LOOKS_BACK, None, BY_TEXT_ALONE),
    "numbers rounds": (NUMBERS_ROUNDS, None, BY_TEXT_ALONE),
    # Only where a message of the user comes.
    "moves the system prompt": (MOVES_THE_SYSTEM_PROMPT, "Be kind.", [False, True, True, False]),
    "moves a system prompt that is not there": (MOVES_THE_SYSTEM_PROMPT, None, EXACT),
    "opens by the system prompt": (OPENS_BY_THE_SYSTEM_PROMPT, "Be kind. /no_think", BY_TEXT_ALONE),
    "opens as it does without a system prompt": (OPENS_BY_THE_SYSTEM_PROMPT, "Be kind.", EXACT),
}
ANSWERS: list[Any] = [CALL, CALL, Reply("well", (), "I think."), "done"]


def folder_of(chat_template: str, folder: Path) -> Path:
    """The tiny model's tokenizer with a template, as a folder."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((TINY / name).read_bytes())
    (folder / "chat_template.jinja").write_text(chat_template)
    return folder


@pytest.mark.parametrize("name", CASES)
def test_a_template_by_the_server_s_tokenizer_and_by_one_in_this_process(name: str, tmp_path: Path) -> None:
    chat_template, system, expected = CASES[name]
    folder = folder_of(chat_template, tmp_path)
    tokenizer, prompts = RealTokenizer(folder), []
    for source in (None, str(folder)):
        with ScriptedServer(ANSWERS, tokenizer=tokenizer) as server:
            steps = conversation(server, tokenizer=source, system=system)
            paths = {one.path for one in server.requests}
        assert exact(steps) == expected, [step.exact_turn for step in steps]
        assert {reason for reason in texts(steps) if reason} == (set() if all(expected[1:]) else {"template"})
        assert ("/tokenize" in paths) == (source is None)
        assert all(not step.exact_turn.n_requests for step in steps if step.exact_turn) == (source is not None)
        for step in steps[1:]:
            by_text = tokenizer.apply_chat_template(step.messages or (), step.tools)
            served, rendered = tokenizer.decode(ids_of(step.prompt_token_ids)), tokenizer.decode(by_text)
            assert _BESIDE.sub("", served) == _BESIDE.sub("", rendered)
        prompts.append([ids_of(step.prompt_token_ids) for step in steps])
    assert prompts[0] == prompts[1]


_BESIDE = re.compile(r"<think>\n.*?\n</think>\n\n|chatcmpl-tool-\w+|\s+")
"""What a prompt has otherwise than by text: thinking, blanks in a call's JSON, and ids, which no model writes here."""


@pytest.mark.parametrize("in_process", [False, True])
@pytest.mark.parametrize(
    ("chat_template", "thinking", "is_exact", "thought"),
    [
        (KEEPS, "keep", True, True),
        (STRIPS, "keep", True, True),
        (KEEPS, "template", False, True),
        (STRIPS, "template", False, False),
    ],
)
def test_what_is_left_of_earlier_thinking(
    chat_template: str, thinking: Any, is_exact: bool, thought: bool, in_process: bool, tmp_path: Path
) -> None:
    folder = folder_of(chat_template, tmp_path)
    engine = rt.Engine("vllm", exact_turns=True, thinking=thinking, tokenizer=folder if in_process else None)
    tokenizer = RealTokenizer(folder)
    with ScriptedServer([Reply("well", (), "I think."), "done"], tokenizer=tokenizer) as server:
        with rt.trajectory() as trajectory:
            client, messages = wrapped(server, engine), [USER]
            asked(client, messages)
            messages[-1]["reasoning"] = "I think."
            asked(client, messages, user("go"))
    ids = trajectory.steps[1].prompt_token_ids
    assert ids is not None
    assert exact(trajectory.steps) == [False, is_exact]
    assert ("I think." in tokenizer.decode(ids)) == thought


def test_a_tokenizer_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no tokenizer"):
        rt.Engine("vllm", exact_turns=True, tokenizer=tmp_path)
    (tmp_path / "tokenizer.json").write_bytes((TINY / "tokenizer.json").read_bytes())
    with pytest.raises(ValueError, match=r"has no chat template"):
        rt.Engine("vllm", exact_turns=True, tokenizer=tmp_path / "tokenizer.json")
