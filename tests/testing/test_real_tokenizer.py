"""Ids from a trained tokenizer and its chat template: each prompt extends the one before, with its answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rollout_trace.testing import RealTokenizer, Reply, ScriptedServer
from tests.testing.asking import CHAT, post

tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
# Hermes' calls, thoughts, and tool results, as templates of open models write them.
TEMPLATE = """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}{{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.reasoning_content %}{{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}{%- endif %}
    {{- message.content or '' }}
    {%- for call in message.tool_calls or [] %}
        {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
        {{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}
        {{- '}\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
CORPUS = [
    "the weather in Paris is sunny, naïve café 🙂 你好",
    'get_weather {"city": "Paris", "unit": "c"}',
    "<tool_call> </tool_call>",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a model has it, with a small BPE that is trained here."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=SPECIAL,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(CORPUS * 20, trainer)
    path = tmp_path_factory.mktemp("model")
    made.save(str(path / "tokenizer.json"))
    (path / "chat_template.jinja").write_text(TEMPLATE, "utf-8")
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|im_end|>"}}), "utf-8")
    return path


REPLIES = [
    Reply("the weather is sunny, naïve 🙂 你好"),
    Reply("", [("get_weather", '{"city":  "Pa\\u00e9ris"}')]),
    Reply("Let me see.", [("get_weather", '{"city": "Paris"}'), ("f", "no json"), ("g", "{}")], "two things"),
    Reply("a <|im_end|> b"),
    Reply(" surrounded by blanks \n"),
]


@pytest.fixture(params=[False, True])
def stream(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def ask(server: ScriptedServer, messages: list[Any], *, stream: bool) -> tuple[list[int], list[int], dict[str, Any]]:
    """Ids of the prompt and of the answer, and the message."""
    fields = {"return_token_ids": True, "logprobs": True, "stream": stream}
    body = post(server, CHAT, {"messages": messages, **fields})[1]
    if not stream:
        answer = json.loads(body)
        return answer["prompt_token_ids"], answer["choices"][0]["token_ids"], answer["choices"][0]["message"]
    chunks = [json.loads(line[6:]) for line in body.decode().split("\n\n") if line.startswith("data: {")]
    message: dict[str, Any] = {"role": "assistant", "content": "", "reasoning": "", "tool_calls": []}
    ids: list[int] = []
    for chunk in chunks:
        choice = chunk["choices"][0]
        ids += choice.get("token_ids") or []
        message["content"] += choice["delta"].get("content") or ""
        message["reasoning"] += choice["delta"].get("reasoning") or ""
        for call in choice["delta"].get("tool_calls") or ():
            if call["index"] == len(message["tool_calls"]):
                message["tool_calls"].append({"id": call["id"], "function": {"name": "", "arguments": ""}})
            function = message["tool_calls"][call["index"]]["function"]
            for name, text in call["function"].items():
                function[name] += text
    return chunks[0]["prompt_token_ids"], ids, message


OTHER = TEMPLATE.replace("<tool_call>\\n", "[CALL]").replace("arguments\": '", "parameters\": '")


@pytest.mark.parametrize("template", [TEMPLATE, OTHER])
@pytest.mark.parametrize("reply", REPLIES)
def test_the_next_prompt_begins_with_what_was_sampled(folder: Path, reply: Reply, template: str, stream: bool) -> None:
    user = {"role": "user", "content": "the weather?"}
    with ScriptedServer(reply, tokenizer=RealTokenizer(folder, chat_template=template)) as server:
        prompt, sampled, message = ask(server, [user], stream=stream)
        calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()]
        assert (message["content"] or "", message["reasoning"] or "") == (reply.text, reply.reasoning or "")
        assert calls == [tuple(call) for call in reply.tool_calls]
        # The server's own prompts, from the message as a client sends it back.
        longer, _, _ = ask(server, [user, message, {"role": "user", "content": "go on"}], stream=stream)
        assert server.errors == []
    if reply.text != "a <|im_end|> b":  # A template writes it as the token, as that of any engine does.
        assert longer[: len(prompt) + len(sampled)] == prompt + sampled
    assert ("[CALL]" in server.tokenizer.decode(sampled)) == (template == OTHER and bool(reply.tool_calls))
    inner = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert sampled[-1] == inner.token_to_id("<|im_end|>")


def test_prompts_are_those_of_the_tokenizer_and_its_template(folder: Path) -> None:
    tools = [{"type": "function", "function": {"name": "get_weather"}}]
    text = (
        f"<|im_start|>system\n{json.dumps(tools[0])}<|im_end|>\n<|im_start|>user\nhé<|im_end|>\n<|im_start|>assistant\n"
    )
    inner = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    for tokenizer in (RealTokenizer(folder), RealTokenizer(inner, chat_template=TEMPLATE)):
        ids = tokenizer.apply_chat_template([{"role": "user", "content": [{"type": "text", "text": "hé"}]}], tools)
        assert ids == inner.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids) == text


def test_a_path_is_a_tokenizer_and_ids_fewer_than_bytes(folder: Path) -> None:
    with ScriptedServer("the weather in Paris is sunny", tokenizer=folder / "tokenizer.json") as server:
        _, sampled, message = ask(server, [{"role": "user", "content": "hi"}], stream=False)
        assert message["content"] == server.tokenizer.decode(sampled[:-1]) == "the weather in Paris is sunny"
    assert len(sampled) < 15


TINY = Path(__file__).parent.parent / "data" / "tiny-model"


@pytest.mark.parametrize("library", ["tokenizers", "transformers"])
def test_the_tokenizer_of_a_model(library: str, stream: bool) -> None:
    tokenizer: Any = TINY
    if library == "transformers":
        tokenizer = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(TINY)
    reply = Reply("Let me see.", [("get_weather", '{"city": "Paris"}'), ("now", "{}")])
    user = {"role": "user", "content": "the weather?"}
    with ScriptedServer([reply, "Sunny."], tokenizer=tokenizer) as server:
        prompt, sampled, message = ask(server, [user], stream=stream)
        results = [{"role": "tool", "tool_call_id": call["id"], "content": "sun"} for call in message["tool_calls"]]
        longer, _, last = ask(server, [user, message, *results], stream=stream)
        assert server.errors == []
    assert longer[: len(prompt) + len(sampled)] == prompt + sampled
    assert last["content"] == "Sunny."


def test_text_of_a_special_token_is_text(folder: Path) -> None:
    tokenizer = RealTokenizer(folder)
    ids = tokenizer.encode("a<|im_end|>b")
    assert tokenizer.decode(ids) == "a<|im_end|>b"
    assert not any(map(tokenizer.is_special, ids))
    assert tokenizer.eos_token_id in tokenizer.encode("a<|im_end|>b", special=True)


def test_a_template_that_writes_something_else_gets_ids_all_the_same(folder: Path, stream: bool) -> None:
    template = TEMPLATE.replace("message.content or ''", "(message.content or '') | trim | upper")
    tokenizer = RealTokenizer(folder, chat_template=template)
    with ScriptedServer(Reply(" hello ", [("f", "{}")]), tokenizer=tokenizer) as server:
        _, sampled, message = ask(server, [{"role": "user", "content": "hi"}], stream=stream)
    assert message["content"] == " hello "
    assert message["tool_calls"][0]["function"]["name"] == "f"
    assert " hello " in tokenizer.decode(sampled)


def test_what_is_no_tokenizer_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no tokenizer\. Give a folder"):
        ScriptedServer("x", tokenizer=tmp_path)
    with pytest.raises(ValueError, match="3 is not a tokenizer"):
        ScriptedServer("x", tokenizer=3)
    with pytest.raises(ValueError, match=r"the end token '<eot>' is not in the vocabulary"):
        RealTokenizer(folder, end_token="<eot>")
    with pytest.raises(ValueError, match="token id 100000 is not in the vocabulary"):
        RealTokenizer(folder).token_bytes(100_000)


def test_a_template_that_refuses_the_messages_is_a_bad_request(folder: Path) -> None:
    tokenizer = RealTokenizer(folder, chat_template="{{ raise_exception('no system prompts') }}")
    with ScriptedServer("x", tokenizer=tokenizer) as server:
        status, body, _ = post(server, CHAT, {"messages": []})
        assert server.errors == []
    assert (status, "no system prompts" in body.decode()) == (400, True)


@pytest.mark.parametrize("kind", ["spm", "plain"])
def test_a_vocabulary_with_marks_for_blanks_and_bytes(kind: str) -> None:
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(byte_fallback=True, unk_token="<unk>"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="never")
    steps = [
        tokenizers.decoders.Metaspace(prepend_scheme="never"),
        tokenizers.decoders.ByteFallback(),
        tokenizers.decoders.Fuse(),
    ]
    inner.decoder = tokenizers.decoders.Sequence(steps)
    special = ["<unk>", "<|im_start|>", "<|im_end|>", *(f"<0x{at:02X}>" for at in range(256))]
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=400, special_tokens=special[:3], show_progress=False)
    inner.train_from_iterator(CORPUS * 20, trainer)
    tokenizer = RealTokenizer(inner)
    reply = Reply("the weather in Paris", [("f", '{"a": "b"}')] if kind == "spm" else [])
    with ScriptedServer(reply, tokenizer=tokenizer) as server:
        _, _, message = ask(server, [{"role": "user", "content": "hi"}], stream=True)
        assert server.errors == []
    assert message["content"] == "the weather in Paris"
