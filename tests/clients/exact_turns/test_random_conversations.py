"""Random agents: whatever they do to their histories, a call is exact or says why not, and never has others' ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from openai import OpenAI

import rollout_trace as rt
from rollout_trace.testing import Reply, ScriptedServer
from tests.amount import examples

from .agents import ENGINE, TOKENIZER, TOOLS, check_steps, ids_of, spelled

WORDS = ("hello", "world", "tool", "go on")
ACTIONS = ("turn", "turn", "turn", "fork", "edit", "drop", "retry", "tools", "system", "cut", "two", "strip")


def answered(request: Mapping[str, Any], choice: int, messages: Sequence[Mapping[str, Any]]) -> Reply:
    """Spells its answer by letters or words, by what was asked."""
    said = str(messages[-1].get("content"))
    at = sum(said.encode()) + len(messages) + choice
    if at % 5 == 0 and request.get("tools"):
        return Reply("I call." if at % 2 else None, [("tool", f'{{"a":  {at}}}')] * (1 + at % 2))
    if at % 7 == 0:
        return Reply(f"hello {at % 3}", (), "world and more")
    text = f"{' ' * (at % 4 == 0)}hello world {choice or at % 3}{chr(10) * (at % 6 == 1)}"
    # Other ids for equal texts: what is taken for another's shows in the ids.
    ids = TOKENIZER.encode(text) if at % 2 else spelled(text)
    return Reply(token_ids=[*ids, TOKENIZER.eos_token_id])


class Agent:
    """One conversation; what it does is drawn."""

    def __init__(self, client: Any, name: str) -> None:
        self.client = client
        self.messages: list[dict[str, Any]] = [{"role": "user", "content": name}]
        self.tools: Any = TOOLS

    def act(self, action: str, word: str, at: int) -> None:
        options: dict[str, Any] = {} if self.tools is None else {"tools": self.tools}
        if action == "edit":
            edited = dict(self.messages[at % len(self.messages)])
            edited["content"] = f"edited {word}"
            self.messages[at % len(self.messages)] = edited
        elif action == "drop":
            self.messages = self.messages[: 1 + at % len(self.messages)]
            if self.messages[-1]["role"] == "assistant":
                self._reply(word)
        elif action == "tools":
            self.tools = None if self.tools else TOOLS
        elif action == "system" and self.messages[0]["role"] != "system":
            self.messages.insert(0, {"role": "system", "content": word})
        elif action == "cut":
            options["max_tokens"] = 1 + at % 6
        elif action == "two":
            options["n"] = 2
        elif action == "strip" and isinstance(self.messages[-1].get("content"), str):
            # Of the answer, or of what comes in its place.
            self.messages[-1] = {**self.messages[-1], "content": self.messages[-1]["content"].strip()}
        self._ask(options, word, at)
        if action == "retry":
            self.messages = self.messages[: self._before]
            self._ask(options, word, at)

    def _ask(self, options: dict[str, Any], word: str, at: int) -> None:
        if self.messages[-1]["role"] == "assistant":
            self._reply(word)
        self._before = len(self.messages)
        choices = self.client.chat.completions.create(model="m", messages=self.messages, **options).choices
        answer = choices[at % len(choices)].message.model_dump(include={"content", "tool_calls"}, exclude_none=True)
        self.messages = [*self.messages, {"role": "assistant", "content": None, **answer}]

    def _reply(self, word: str) -> None:
        calls = self.messages[-1].get("tool_calls") or ()
        results = [{"role": "tool", "tool_call_id": call["id"], "content": word} for call in calls]
        self.messages = [*self.messages, *(results or [{"role": "user", "content": word}])]


ACTS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(ACTIONS), st.sampled_from(WORDS), st.integers(0, 30)), max_size=14
)


@settings(max_examples=examples(300), deadline=None)
@given(ACTS)
def test_each_call_is_exact_or_says_why_not(acts: list[tuple[int, str, str, int]]) -> None:
    with ScriptedServer(answered, tokenizer=TOKENIZER) as server, rt.trajectory() as trajectory:
        client = rt.wrap_openai(OpenAI(base_url=server.base_url, api_key="-", max_retries=0), engine=ENGINE)
        # Two begin alike: each is to continue its own.
        agents = [Agent(client, "a"), Agent(client, "a"), Agent(client, "b")]
        for who, action, word, at in acts:
            if action == "fork":
                agents[who].messages = [*agents[(who + 1) % 3].messages]
            agents[who].act(action, word, at)
    steps = trajectory.steps
    check_steps(steps, strips=True)
    for step in steps:
        assert step.status == "ok"
        has_answers = any(one["role"] == "assistant" for one in step.messages or ())
        assert step.exact_turn is not None or not has_answers or step.messages is not None
        if step.exact_turn is not None and not step.exact_turn.is_exact:
            assert step.exact_turn.reason in ("ambiguous", "history_changed", "settings_changed"), step.exact_turn
    # Each token that was sampled is trained on once at most, in a row that the server really saw.
    for row in trajectory.sequences():
        assert int(row.loss_mask.sum()) <= sum(
            len(ids_of(step.completion_token_ids)) for step in steps if step.id in row.step_ids
        )
