#!/usr/bin/env bash
# @google/gemini-cli 0.61.0: a session that is resumed sends each result of a tool twice.
#
# A prompt of which the model calls a tool once, then `gemini --resume latest`, against a server of this script's own.
# Expected: the history of the resumed session has the call, its one result, and the answer, as the first run had them.
# Real: the result stands there twice: the prompt grows, and what the model sees is not what it was sampled from.
# Seen on 2026-11-29:
#   first run    calls 1 results 1
#   resumed run  calls 1 results 2
set -euo pipefail
folder=$(mktemp -d)
trap 'kill "$server" 2>/dev/null || true; rm -rf "$folder"' EXIT
server=
cat >"$folder/server.py" <<'PY'
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

folder = Path(sys.argv[1])


def parts_of(body, name):
    return [part for one in body.get("contents", []) for part in one.get("parts", []) if name in part]


class Server(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        is_stream = ":streamGenerateContent" in self.path
        part = {"text": json.dumps({"complexity_reasoning": "easy", "complexity_score": 1})}
        if is_stream:
            with (folder / "asked.jsonl").open("a") as file:
                file.write(json.dumps({n: len(parts_of(body, n)) for n in ("functionCall", "functionResponse")}) + "\n")
            call = {"name": "list_directory", "args": {"dir_path": str(folder / "work")}, "id": "call_1"}
            part = {"text": "done"} if parts_of(body, "functionCall") else {"functionCall": call}
        usage = {"promptTokenCount": 9, "candidatesTokenCount": 2, "totalTokenCount": 11}
        candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
        text = json.dumps({"candidates": [candidate], "usageMetadata": usage})
        data = (f"data: {text}\n\n" if is_stream else text).encode()
        self.send_response(200)
        self.send_header("content-type", "text/event-stream" if is_stream else "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
print(server.server_port, flush=True)
server.serve_forever()
PY
mkfifo "$folder/port"
python3 "$folder/server.py" "$folder" >"$folder/port" &
server=$!
read -r port <"$folder/port"
mkdir -p "$folder/work" "$folder/home/.gemini"
echo '{"security": {"auth": {"selectedType": "gemini-api-key"}}}' >"$folder/home/.gemini/settings.json"
npm install --silent --no-audit --no-fund --prefix "$folder" @google/gemini-cli@0.61.0
export HOME="$folder/home" GEMINI_API_KEY=none GOOGLE_GEMINI_BASE_URL="http://127.0.0.1:$port"
cd "$folder/work"
gemini="$folder/node_modules/.bin/gemini"
"$gemini" --yolo --skip-trust -p "What is in this folder?" >/dev/null
first=$(tail -n 1 "$folder/asked.jsonl")
"$gemini" --yolo --skip-trust --resume latest -p "Thanks." >/dev/null
python3 - "$first" "$(tail -n 1 "$folder/asked.jsonl")" <<'PY'
import json
import sys

first, resumed = ((one["functionCall"], one["functionResponse"]) for one in map(json.loads, sys.argv[1:]))
print(f"first run    calls {first[0]} results {first[1]}")
print(f"resumed run  calls {resumed[0]} results {resumed[1]}")
assert (first, resumed) == ((1, 1), (1, 2)), "it has changed"
PY
