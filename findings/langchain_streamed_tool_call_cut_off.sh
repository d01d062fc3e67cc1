#!/usr/bin/env bash
# langchain-core 1.8.1, langchain-openai 1.7.4: a tool call that the token limit cut off is valid when it is streamed.
#
# The server's answer ends with finish_reason "length" inside a call's arguments: {"path": "/tmp/x", "mode": "de
# Expected: the message is the same streamed and whole: no tool call, one entry in `invalid_tool_calls`.
# Real: whole, it is so. Streamed, the text is completed by a parser of partial JSON: a call with {"path": "/tmp/x",
# "mode": "de"}, which an agent runs. Only `response_metadata["finish_reason"]` says that it was cut.
# Seen on 2026-11-28:
#   whole  tool_calls [] invalid ['{"path": "/tmp/x", "mode": "de']
#   stream tool_calls [{'path': '/tmp/x', 'mode': 'de'}] invalid []
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check langchain-core==1.8.1 langchain-openai==1.7.4
"$folder/env/bin/python" - <<'PY'
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

from langchain_openai import ChatOpenAI

CUT = '{"path": "/tmp/x", "mode": "de'
CALL = {"id": "call_1", "type": "function", "function": {"name": "write", "arguments": CUT}}


def body(kind, choice):
    return json.dumps({"id": "c", "object": kind, "created": 1, "model": "m", "choices": [{"index": 0, **choice}]})


class Server(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if asked.get("stream"):
            first = body("chat.completion.chunk", {"delta": {"role": "assistant", "tool_calls": [{"index": 0, **CALL}]}, "finish_reason": None})
            last = body("chat.completion.chunk", {"delta": {}, "finish_reason": "length"})
            text, kind = "".join(f"data: {one}\n\n" for one in (first, last, "[DONE]")), "text/event-stream"
        else:
            message = {"role": "assistant", "content": None, "tool_calls": [CALL]}
            text, kind = body("chat.completion", {"message": message, "finish_reason": "length"}), "application/json"
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


server = HTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
found = {}
for name, streaming in (("whole", False), ("stream", True)):
    model = ChatOpenAI(model="m", base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key="-", max_retries=0, streaming=streaming)
    message = model.invoke("hi")
    found[name] = [call["args"] for call in message.tool_calls], [call["args"] for call in message.invalid_tool_calls]
    print(f"{name:6} tool_calls {found[name][0]} invalid {found[name][1]}")
assert found == {"whole": ([], [CUT]), "stream": ([{"path": "/tmp/x", "mode": "de"}], [])}, "it has changed"
PY
