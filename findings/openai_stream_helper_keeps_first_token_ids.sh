#!/usr/bin/env bash
# openai 3.57.0: the stream helper joins the logprobs of all chunks, and keeps of vLLM's token ids those of the first.
#
# The server streams what vLLM 0.33 streams for `return_token_ids`: each chunk's choice has `token_ids` of its own, and
# the last one the `stop_reason`.
# Expected: `get_final_completion()` has all nine ids, or none.
# Real: it has the two of the first chunk beside four logprobs, and `stop_reason` None, which the first chunk said.
# Seen on 2026-11-29:
#   text 'Hello world' logprobs 4 token_ids [10, 7] stop_reason None
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check openai==3.57.0
"$folder/env/bin/python" - <<'PY'
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

from openai import OpenAI

WORDS = ["Hel", "lo", " wor", "ld"]


def chunk(*choices, **more):
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices, **more}


def choice(number, delta, **more):
    return {"index": 0, "delta": delta, "finish_reason": None, "token_ids": [number + 10, 7], "stop_reason": None, **more}


def said(number, word):
    logprobs = {"content": [{"token": word, "logprob": -0.5, "bytes": list(word.encode()), "top_logprobs": []}]}
    first = {"role": "assistant"} if number == 0 else {}
    return chunk(choice(number, {**first, "content": word}, logprobs=logprobs))


END = chunk(choice(4, {}, finish_reason="stop", stop_reason=13, token_ids=[99]))
EVENTS = [*(json.dumps(said(*one)) for one in enumerate(WORDS)), json.dumps(END), "[DONE]"]
BODY = "".join(f"data: {event}\n\n" for event in EVENTS).encode()


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


server = HTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
client = OpenAI(base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key="-", max_retries=0)
asked = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "logprobs": True}
with client.chat.completions.stream(**asked, extra_body={"return_token_ids": True}) as stream:
    found = stream.get_final_completion().choices[0]
seen = found.message.content, len(found.logprobs.content), found.token_ids, found.stop_reason
print("text {!r} logprobs {} token_ids {} stop_reason {}".format(*seen))
assert seen == ("Hello world", 4, [10, 7], None), "it has changed"
PY
