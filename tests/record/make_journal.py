"""Makes ``data/journal-N.journal``, what a killed process left, and ``data/journal-N.jsonl``, what is recovered of it;
``data/journal-N-long.journal`` has what is written as differences, and streams in parts.

    python -m tests.record.make_journal

Once for each version of the format: later versions of the library must read these files for ever.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import orjson

import rollout_trace as rt
from rollout_trace.file import journal as form
from rollout_trace.testing import Fault, Reply, ScriptedServer, ToolCall

DATA = Path(__file__).parent / "data"
PLATFORM = "Linux"

PROGRAM = """
import os, sys
import openai
import rollout_trace as rt

client = rt.wrap_openai(openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0), engine="vllm")
rt.recording(sys.argv[2]).__enter__()
ask = client.chat.completions.create
messages = [{"role": "user", "content": "What is 2 + 2?"}]
tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]

rt.trajectory("solver", task={"id": "sum/1", "terms": [2, 2]}, group="sum/1", rollout_index=0).__enter__()
answer = ask(model="m", messages=messages, tools=tools).choices[0].message
call = answer.tool_calls[0]
with rt.tool_run("add", tool_call_id=call.id, arguments={"a": 2, "b": 2}) as run:
    run.result = "4"
with rt.trajectory("critic", metadata={"turn": 1}):
    ask(model="m", messages=messages)
    rt.reward(0.5)
messages += [{"role": "assistant", "tool_calls": [call.model_dump()]}]
messages += [{"role": "tool", "tool_call_id": call.id, "content": "4"}]
stream = ask(model="m", messages=messages, stream=True)
print("".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices))
try:
    ask(model="m", messages=[], user="fails")
except openai.OpenAIError:
    rt.reward(1.0)
os._exit(0)
"""

LONG = """
import os, sys
import openai
import rollout_trace as rt
from rollout_trace.record import call

call.JOURNAL_SECONDS = 0.0
client = rt.wrap_openai(openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0), engine="vllm")
rt.recording(sys.argv[2]).__enter__()
ask = client.chat.completions.create
rt.trajectory("talker", task="long/1").__enter__()
messages = [{"role": "system", "content": " ".join(f"rule {number}" for number in range(150))}]
other = messages + [{"role": "user", "content": "a branch"}]
for turn in range(3):
    messages.append({"role": "user", "content": f"question {turn}"})
    if turn == 1:
        chunks = list(ask(model="m", messages=messages, stream=True))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    else:
        text = ask(model="m", messages=messages).choices[0].message.content
        other.append({"role": "user", "content": text})
        ask(model="m", messages=other)
    messages.append({"role": "assistant", "content": text})
open_stream = ask(model="m", messages=messages, stream=True)
[next(open_stream) for _ in range(4)]
os._exit(0)
"""
PROGRAMS = {"": PROGRAM, "-long": LONG}


def answer(request: dict[str, object]) -> Reply | Fault | str:
    """A tool call, then texts, and an error."""
    if request.get("user") == "fails":
        return Fault(status=400)
    return Reply("", tool_calls=[ToolCall("add", '{"a": 2, "b": 2}')]) if request.get("tools") else "It is four."


def main() -> None:
    """Writes the files."""
    with tempfile.TemporaryDirectory() as folder, ScriptedServer(answer) as server:
        for name, program in PROGRAMS.items():
            output = Path(folder) / f"runs{name}.jsonl"
            environment = {**os.environ, "PYTHONPATH": str(Path(rt.__file__).parents[1])}
            subprocess.run([sys.executable, "-c", program, server.base_url, output], env=environment, check=True)
            (journal,) = Path(f"{output}.journal").iterdir()
            kept = DATA / f"journal-{form.VERSION}{name}.journal"
            kept.write_bytes(_anonymous(journal.read_bytes()))
            shutil.rmtree(journal.parent)
            journal.parent.mkdir()
            shutil.copy(kept, journal)
            print(rt.recover(output, write=True).report)
            shutil.copy(output, kept.with_suffix(".jsonl"))


def _anonymous(data: bytes) -> bytes:
    """The records without the names of the machine that made them."""
    whole = []
    for record in form.records(data):
        assert isinstance(record, form.Record), record
        head, blobs = dict(record.head), [bytes(blob) for blob in record.blobs]
        if record.kind == form.FILE:
            head |= {"host": "host", "output": "runs.jsonl"}
        if record.kind == form.HEAD:
            fields = orjson.loads(blobs[0])
            fields["environment"] |= {"platform": PLATFORM, "pid": 1}
            blobs[0] = orjson.dumps(fields)
        whole += form.pack(record.kind, orjson.dumps(head), blobs)
    return b"".join(whole)


if __name__ == "__main__":
    main()
