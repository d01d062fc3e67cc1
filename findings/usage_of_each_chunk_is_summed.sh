#!/usr/bin/env bash
# langchain-openai 1.7.4, smolagents 1.26.0, pydantic-ai-slim 2.68.0: a streamed call of 100 prompt tokens counts as 600.
#
# vLLM (`stream_options.continuous_usage_stats`) and other servers say in each chunk what has been used until then: here
# 100 prompt tokens in each of six chunks, and 1, 2, 3, 4, 4, 4 sampled ones.
# Expected: 100 and 4, what the last chunk says (strands-agents 1.62.0, litellm 1.110.2 and openai-agents 0.24.0 do so).
# Real: each chunk's numbers are added to those before: 600 and 18. Budgets and limits that count tokens end a run early.
# Seen on 2026-11-29:
#   langchain-openai  600 18
#   smolagents        600 18
#   pydantic-ai       600 18
#   strands           100 4
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/server.py" <<'PY'
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def chunk(number, *choices):
    usage = {"prompt_tokens": 100, "completion_tokens": number, "total_tokens": 100 + number}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices, "usage": usage}


def choice(delta, reason=None):
    return {"index": 0, "delta": delta, "finish_reason": reason}


CHUNKS = [chunk(at + 1, choice({"role": "assistant", "content": word})) for at, word in enumerate("abcd")]
CHUNKS += [chunk(4, choice({}, "stop")), chunk(4)]
BODY = "".join(f"data: {json.dumps(one)}\n\n" for one in CHUNKS).encode() + b"data: [DONE]\n\n"


class Server(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
base_url = f"http://127.0.0.1:{server.server_port}/v1"


def check(name, seen, expected):
    print(f"{name:17} {seen[0]} {seen[1]}")
    assert seen == expected, "it has changed"
PY
try() {
    local name=$1
    shift
    python3 -m venv "$folder/$name"
    "$folder/$name/bin/pip" install --quiet --disable-pip-version-check "$@"
    PYTHONPATH="$folder" "$folder/$name/bin/python" -
}
try langchain langchain-openai==1.7.4 langchain-core==1.8.1 <<'PY'
from functools import reduce
from operator import add

from langchain_openai import ChatOpenAI
from server import base_url, check

model = ChatOpenAI(model="m", base_url=base_url, api_key="-", max_retries=0, stream_usage=True)
usage = reduce(add, model.stream("hi")).usage_metadata
check("langchain-openai", (usage["input_tokens"], usage["output_tokens"]), (600, 18))
PY
try smolagents "smolagents[openai]==1.26.0" <<'PY'
from server import base_url, check
from smolagents import OpenAIModel
from smolagents.models import agglomerate_stream_deltas

model = OpenAIModel(model_id="m", api_base=base_url, api_key="-")
deltas = list(model.generate_stream([{"role": "user", "content": [{"type": "text", "text": "hi"}]}]))
usage = agglomerate_stream_deltas(deltas).token_usage
check("smolagents", (usage.input_tokens, usage.output_tokens), (600, 18))
PY
try pydantic-ai "pydantic-ai-slim[openai]==2.68.0" <<'PY'
import asyncio

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from server import base_url, check


async def main():
    agent = Agent(OpenAIChatModel("m", provider=OpenAIProvider(base_url=base_url, api_key="-")))
    async with agent.run_stream("hi") as run:
        await run.get_output()
        return run.usage.input_tokens, run.usage.output_tokens


check("pydantic-ai", asyncio.run(main()), (600, 18))
PY
try strands "strands-agents[openai]==1.62.0" <<'PY'
import asyncio

from server import base_url, check
from strands.models.openai import OpenAIModel


async def main():
    model = OpenAIModel(client_args={"base_url": base_url, "api_key": "-"}, model_id="m")
    events = [event async for event in model.stream([{"role": "user", "content": [{"text": "hi"}]}])]
    usage = next(event["metadata"]["usage"] for event in events if "metadata" in event)
    return usage["inputTokens"], usage["outputTokens"]


check("strands", asyncio.run(main()), (100, 4))
PY
