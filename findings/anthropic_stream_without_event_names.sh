#!/usr/bin/env bash
# anthropic 2.11.0: a Messages stream whose events have no `event:` line gives no events and no error.
#
# Each event's type is in its JSON too ("type": "message_start"), and gateways that pass on data lines alone exist.
# Expected: the events, by that type, or an error that says what is missing.
# Real: `messages.create(stream=True)` iterates over nothing and ends as if all were well; the helper
# `messages.stream().get_final_message()` fails by an AssertionError without a message.
# Seen on 2026-11-28:
#   named    6 events, helper 'hi'
#   unnamed  0 events, helper AssertionError()
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check anthropic==2.11.0
"$folder/env/bin/python" - <<'PY'
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

from anthropic import Anthropic

USAGE = {"input_tokens": 1, "output_tokens": 1}
EVENTS = [
    {"type": "message_start", "message": {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [],
                                          "stop_reason": None, "stop_sequence": None, "usage": USAGE}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hi"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": USAGE},
    {"type": "message_stop"},
]


class Server(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        named = self.headers["x-named"] == "yes"
        lines = [(f"event: {one['type']}\n" if named else "") + f"data: {json.dumps(one)}\n\n" for one in EVENTS]
        text = "".join(lines)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


server = HTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
ASKED = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
found = {}
for name in ("named", "unnamed"):
    client = Anthropic(base_url=f"http://127.0.0.1:{server.server_port}", api_key="-", max_retries=0,
                       default_headers={"x-named": "yes" if name == "named" else "no"})
    events = [event.type for event in client.messages.create(stream=True, **ASKED)]
    try:
        with client.messages.stream(**ASKED) as stream:
            said = stream.get_final_message().content[0].text
    except AssertionError as error:
        said = error
    found[name] = len(events), said
    print(f"{name:8} {len(events)} events, helper {said!r}")
assert found["named"] == (len(EVENTS), "hi"), "it has changed"
assert found["unnamed"][0] == 0 and isinstance(found["unnamed"][1], AssertionError) and not str(found["unnamed"][1]), "it has changed"
PY
