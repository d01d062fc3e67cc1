#!/usr/bin/env bash
# litellm 1.110.2: the answer that is built of a stream's chunks has no logprobs, though each chunk has its own.
#
# `stream_chunk_builder` makes the whole answer of the chunks of `completion(stream=True)`; callbacks and loggers get it.
# Expected: four logprobs, as `completion` without a stream gives for the same answer.
# Real: the choice has none, and nothing says so.
# Seen on 2026-11-29:
#   logprobs in chunks 4, in the whole answer 4, in what is built of the chunks none
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check litellm==1.110.2
LITELLM_LOCAL_MODEL_COST_MAP=True "$folder/env/bin/python" - 2>"$folder/errors" <<'PY' || { cat "$folder/errors"; exit 1; }
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import litellm

litellm.suppress_debug_info = True
WORDS = ["Hel", "lo", " wor", "ld"]
LOGPROBS = [{"token": word, "logprob": -0.5, "bytes": list(word.encode()), "top_logprobs": []} for word in WORDS]


def answer(kind, choice):
    return json.dumps({"id": "c", "object": kind, "created": 1, "model": "m", "choices": [{"index": 0, **choice}]})


def streamed():
    for one in LOGPROBS:
        delta = {"role": "assistant", "content": one["token"]}
        yield answer("chat.completion.chunk", {"delta": delta, "logprobs": {"content": [one]}, "finish_reason": None})
    yield answer("chat.completion.chunk", {"delta": {}, "finish_reason": "stop"})
    yield "[DONE]"


class Server(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        message = {"role": "assistant", "content": "".join(WORDS)}
        text = answer("chat.completion", {"message": message, "logprobs": {"content": LOGPROBS}, "finish_reason": "stop"})
        if asked.get("stream"):
            text = "".join(f"data: {event}\n\n" for event in streamed())
        self.send_response(200)
        self.send_header("content-type", "text/event-stream" if asked.get("stream") else "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


def count(one):
    logprobs = getattr(one.choices[0], "logprobs", None)
    return None if logprobs is None else len(logprobs["content"])


server = HTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
asked = {"model": "openai/m", "api_base": f"http://127.0.0.1:{server.server_port}/v1", "api_key": "-", "logprobs": True,
         "messages": [{"role": "user", "content": "hi"}]}
whole = count(litellm.completion(**asked))
chunks = list(litellm.completion(**asked, stream=True))
in_chunks, built = sum(count(one) or 0 for one in chunks), count(litellm.stream_chunk_builder(chunks))
print(f"logprobs in chunks {in_chunks}, in the whole answer {whole}, in what is built of the chunks {built or 'none'}")
assert (in_chunks, whole, built) == (4, 4, None), "it has changed"
PY
