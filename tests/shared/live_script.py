"""A live vLLM that says what a script says, in tokens that it samples."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace

from rollout_trace.clients.loopback.forwarding import Forwarding
from rollout_trace.clients.loopback.messages import RequestRecord, Response
from rollout_trace.testing import LoopbackServer, Reply
from rollout_trace.testing._api import chat_messages

LIVE = os.environ.get("ROLLOUT_TRACE_LIVE_VLLM")
"""Address of a vLLM that serves the tiny model, for `assert_one_row`."""
_PATH = re.compile(r"/(v1/.*|tokenize|version|health)$")
_PROTOCOLS = {"/v1/chat/completions": "openai.chat", "/v1/responses": "openai.responses"}


class LiveScriptedServer(LoopbackServer):
    """Passes requests on to a vLLM, with a grammar for the text of the script's reply: which tokens it is said in is
    the model's choice.

    Args:
        script: as of a `ScriptedServer`.
        address: of the vLLM, without a path.
    """

    def __init__(self, script: Callable[..., Reply], address: str) -> None:
        super().__init__()
        self._script, self._address = script, address

    def release(self) -> None:
        """Does nothing: unlike a scripted server it holds no answer back."""

    def answer(self, record: RequestRecord) -> Response:
        """The live server's own answer."""
        # Tests have prefixes of their own.
        path = _PATH.search(record.path).group()  # type: ignore[union-attr]
        body = record.body
        if record.method == "POST":
            asked = {**record.json, "model": "tiny"}
            for tool in asked.get("tools") or ():
                # vLLM 0.33 admits any call of a strict tool beside the grammar of a request.
                tool.get("function", tool).pop("strict", None)
            if path in _PROTOCOLS:
                reply = self._script(asked, messages=chat_messages(_PROTOCOLS[path], body))
                asked["structured_outputs"] = {"regex": _pattern(reply)}
            body = json.dumps(asked).encode()
        return Forwarding(encodings=lambda given: "identity").send(
            self._address + path, replace(record, body=body), self.closing
        )


def _pattern(reply: Reply) -> str:
    """A regular expression for a reply as the model's parser of tool calls reads it."""
    calls = [call if isinstance(call, tuple) else (call.name, call.arguments) for call in reply.tool_calls]
    written = [f'<tool_call>\n{{"name": "{name}", "arguments": {text}}}\n</tool_call>' for name, text in calls]
    text = "\n".join([reply.text or "", *written] if reply.text else written)
    return re.sub(r"([\\.^$*+?()\[\]{}|/-])", r"\\\1", text).replace("\n", r"\n")
