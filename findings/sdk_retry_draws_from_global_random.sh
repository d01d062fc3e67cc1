#!/usr/bin/env bash
# openai 3.57.0 and anthropic 2.11.0: a call that is tried again takes a number from the global `random`.
#
# A program seeds `random`, makes one call, and draws a number. The server answers at once, or with status 500 first.
# Expected: the same number: what the server does is not what the program seeded.
# Real: the wait before the second try is `random()` of the module, so every later draw of the program is another one.
# A rollout that seeds the module (shuffles, samples tools, picks a prompt) is not made again where a call was retried; a
# generator of its own, `random.Random(seed)`, is left alone.
# Seen on 2026-11-29:
#   openai at once: 0.8444218515250481, after a retry: 0.7579544029403025
#   anthropic at once: 0.8444218515250481, after a retry: 0.7579544029403025
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check openai==3.57.0 anthropic==2.11.0
"$folder/env/bin/python" - <<'PY'
import json
import random
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import anthropic
import openai

CHAT = {"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": [
    {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Hello"}}]}
MESSAGE = {"id": "m", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn",
           "stop_sequence": None, "content": [{"type": "text", "text": "Hello"}],
           "usage": {"input_tokens": 1, "output_tokens": 1}}
failures = 0


class Server(BaseHTTPRequestHandler):
    def do_POST(self):
        global failures
        self.rfile.read(int(self.headers["content-length"]))
        status, failures = (500, failures - 1) if failures else (200, 0)
        body = {"error": {"type": "server_error", "message": "busy"}}
        if status == 200:
            body = MESSAGE if self.path.endswith("/messages") else CHAT
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}"
asked = [{"role": "user", "content": "Hello"}]
calls = {
    "openai": lambda: openai.OpenAI(base_url=f"{url}/v1", api_key="-").chat.completions.create(
        model="m", messages=asked),
    "anthropic": lambda: anthropic.Anthropic(base_url=url, api_key="-").messages.create(
        model="m", messages=asked, max_tokens=9),
}
for name, call in calls.items():
    drawn = []
    for failures in (0, 1):
        random.seed(0)
        call()
        drawn.append(random.random())
    print(f"{name} at once: {drawn[0]}, after a retry: {drawn[1]}")
    random.seed(0)
    first, second = random.random(), random.random()
    assert drawn == [first, second], drawn
PY
