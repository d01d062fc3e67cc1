"""A model server that answers from a script: OpenAI's APIs with vLLM's ids and logprobs, Anthropic's and Google's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from . import _google as google
from . import _ollama as ollama
from ._anthropic import MessagesDelivery, anthropic_error, conversation, limits, message_events, message_object
from ._chat import chat_events, chat_response
from ._completions import Row, completions_events, completions_response
from ._delivery import Delivery, vllm_error
from ._holds import Holds
from ._messages import ConnectionCut, RequestRecord, Response, json_response
from ._responses import responses_events, responses_object
from ._responses_input import conversation as responses_conversation
from ._sampling import Sampler
from ._server import LoopbackServer
from ._turn import Turn
from .script import Answer, AnyScript, Director, Fault, Reply, reply_of
from .tokenizer import ByteTokenizer


class BadRequest(ValueError):
    """A request that vLLM refuses with status 400."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ScriptedServer(LoopbackServer):
    """A loopback model server whose answers come from a script, for tests of an agent.

        with ScriptedServer(lambda request: "4") as server:
            client = OpenAI(base_url=server.base_url, api_key="none")

    `script` is a function of the request's JSON that returns a `str`, a `Reply`, a `Fault`, or a list of them (one for
    each attempt of an equal request; the last repeats). It may have a second parameter for the index of the choice, and
    one named `record` for the `RequestRecord`. Concurrent requests call it on several threads. Instead of a function:
    one answer for all requests, or a list of answers to successive requests. A server that runs already gets its script
    with `server.script = ...` or `server.answers("first", "second")`; until then each request is an error.

    It serves POST `…/chat/completions`, `…/completions` and `…/responses`, and GET `…/models`, under any prefix (so
    Azure's paths too), with bodies in the JSON shape of vLLM 0.32: ids if the request has `return_token_ids`, logprobs
    if it has `logprobs`. POST `…/messages` and `…/messages/count_tokens` have Anthropic's shape: give its client
    `server.url` as `base_url`. POST `…/models/MODEL:generateContent`, `:streamGenerateContent` (events with `alt=sse`,
    else one JSON array) and `:countTokens` have Google's, with ids and logprobs if the `generationConfig` has
    `responseLogprobs`: give its client `http_options={"base_url": server.url}`. POST `/api/chat` and `/api/generate`
    have Ollama's: give its client `host=server.url`. Nothing is random: response ids are hashes of `seed` and the
    number of the request, logprobs of `seed` and the token ids.

    `model` is the name in `/models`; requests may name any model unless `strict_model` is true. `delay` is the time in
    seconds before every answer. `chunk_tokens` is the number of tokens per event of a stream; `chunk_bytes` cuts the
    bytes of every answer into HTTP chunks of that size. `port` is the port to listen on; 0 means any free one.
    """

    def __init__(
        self,
        script: AnyScript = (),
        *,
        model: str = "scripted",
        tokenizer: ByteTokenizer | None = None,
        seed: int = 0,
        delay: float = 0.0,
        chunk_tokens: int = 1,
        chunk_bytes: int | None = None,
        strict_model: bool = False,
        port: int = 0,
    ) -> None:
        super().__init__(port=port)
        self.model = model
        self.tokenizer = tokenizer or ByteTokenizer()
        self._sampler = Sampler(self.tokenizer, seed)
        self._director = Director(script)
        self._holds = Holds()
        self._delay = delay
        self._chunk_tokens = chunk_tokens
        self._chunk_bytes = chunk_bytes
        self._strict_model = strict_model

    @property
    def script(self) -> AnyScript:
        """What answers the requests. May be set while the server runs: the next request gets its answer from it."""
        return self._director.script

    @script.setter
    def script(self, script: AnyScript) -> None:
        self._director = Director(script)

    def answers(self, *answers: Answer) -> None:
        """Answer successive requests with these, after what is left of a list. Any other script is replaced."""
        if not self._director.add(answers):
            self.script = answers

    @property
    def answers_left(self) -> int:
        """Number of answers of a list that no request has got yet; 0 for a script that is no list."""
        return self._director.left

    def release(self, count: int | None = None) -> None:
        """Continue `count` held responses, including ones that reach their hold later; None: all, now and later."""
        self._holds.release(count)

    def wait_held(self, count: int = 1, timeout: float = 30.0) -> None:
        """Wait until `count` responses are held. Raises TimeoutError after `timeout` seconds."""
        self._holds.wait_held(count, timeout)

    def close(self) -> None:
        """Stop the server; responses that are held or delayed are cut."""
        self._holds.close()
        super().close()

    def answer(self, record: RequestRecord) -> Response:
        """Answer one request (called by the server)."""
        if record.path.endswith(google.PATHS):
            return self._google(record)
        if record.path.endswith(ollama.PATHS):
            return self._ollama(record)
        endpoints = {
            "/chat/completions": ("POST", self._chat),
            "/completions": ("POST", self._completions),
            "/responses": ("POST", self._responses),
            "/messages": ("POST", self._messages),
            "/messages/count_tokens": ("POST", self._count_tokens),
            "/models": ("GET", self._models),
        }
        found = next((value for end, value in endpoints.items() if record.path.endswith(end)), None)
        if found is None:
            return json_response(404, {"detail": "Not Found"})
        method, handle = found
        if record.method != method:
            return json_response(405, {"detail": "Method Not Allowed"})
        try:
            return handle(record)
        except BadRequest as error:
            return json_response(400, vllm_error(400, str(error), param=error.param))
        except _UnknownModel as error:
            return json_response(404, vllm_error(404, str(error), param="model"))

    def _models(self, record: RequestRecord) -> Response:
        model = {"id": self.model, "object": "model", "created": 1_700_000_000, "owned_by": "vllm", "root": self.model}
        data = [model | {"parent": None, "max_model_len": 1_048_576, "permission": []}]
        return json_response(200, {"object": "list", "data": data})

    def _parse(self, record: RequestRecord, path_model: str | None = None) -> dict[str, Any]:
        try:
            request = json.loads(record.body)
        except ValueError as error:
            raise BadRequest(f"the body is not JSON: {error}", "body") from None
        if not isinstance(request, dict):
            raise BadRequest(f"the body should be a JSON object, not {type(request).__name__}", "body")
        model = path_model or request.get("model")
        if self._strict_model and model != self.model:
            raise _UnknownModel(f"The model `{model}` does not exist. Valid aliases: {self.model}.")
        return request

    def _turn(self, request: Mapping[str, Any], record: RequestRecord, prompt: Sequence[int], prefix: str) -> Turn:
        model = str(request.get("model") or self.model)
        return Turn(request, model, record.index, self._sampler, self._chunk_tokens, prompt, prefix)

    def _delivery(self, answer: Reply | Fault) -> Delivery:
        return Delivery(answer, self._holds.hold, self._pause, self._delay, self._chunk_bytes)

    def _pause(self, seconds: float) -> None:
        if self.closing.wait(seconds):
            raise ConnectionCut

    def _chat(self, record: RequestRecord) -> Response:
        request = self._parse(record)
        prompt = self.tokenizer.apply_chat_template(_messages(request), request.get("tools"))
        answers = self._director.answers(request, record, request.get("n") or 1)
        delivery = self._delivery(answers[0])
        if delivery.fault.status is not None:
            return delivery.error()
        turn = self._turn(request, record, prompt, "chatcmpl-")
        completions = [self._sampler.sample(reply_of(answer), prompt, request) for answer in answers]
        if request.get("stream"):
            return delivery.events(chat_events(turn, completions))
        return delivery.json(chat_response(turn, completions))

    def _completions(self, record: RequestRecord) -> Response:
        request = self._parse(record)
        if request.get("echo"):
            raise BadRequest("a scripted server does not echo: leave `echo` out", "echo")
        prompts = self._prompts(request.get("prompt"))
        count = request.get("n") or 1
        answers = self._director.answers(request, record, count * len(prompts))
        delivery = self._delivery(answers[0])
        if delivery.fault.status is not None:
            return delivery.error()
        repeated = [prompt for prompt in prompts for _ in range(count)]
        pairs = zip(repeated, answers, strict=True)
        rows = [Row(prompt, self._sampler.sample(reply_of(answer), prompt, request)) for prompt, answer in pairs]
        turn = self._turn(request, record, [i for prompt in prompts for i in prompt], "cmpl-")
        if request.get("stream"):
            return delivery.events(completions_events(turn, rows))
        return delivery.json(completions_response(turn, rows))

    def _prompts(self, prompt: object) -> list[list[int]]:
        """The prompts of a completions request: a text, ids, or a list of either."""
        if isinstance(prompt, str):
            return [self.tokenizer.encode(prompt, special=True)]
        if isinstance(prompt, list) and prompt and all(isinstance(item, int) for item in prompt):
            return [prompt]
        if isinstance(prompt, list) and prompt:
            return [ids for item in prompt for ids in self._prompts(item)]
        raise BadRequest(f"`prompt` should be text, token ids, or a list of them, not {prompt!r}", "prompt")

    def _responses(self, record: RequestRecord) -> Response:
        request = self._parse(record)
        try:
            messages = responses_conversation(request)
        except ValueError as error:
            raise BadRequest(str(error), "input") from None
        prompt = self.tokenizer.apply_chat_template(messages, request.get("tools"))
        (answer,) = self._director.answers(request, record, 1)
        delivery = self._delivery(answer)
        if delivery.fault.status is not None:
            return delivery.error()
        turn = self._turn(request, record, prompt, "resp_")
        completion = self._sampler.sample(reply_of(answer), prompt, {"max_tokens": request.get("max_output_tokens")})
        if request.get("stream"):
            return delivery.events(responses_events(turn, completion), named=True)
        return delivery.json(responses_object(turn, completion))

    def _messages(self, record: RequestRecord) -> Response:
        try:
            request = self._parse(record)
            prompt = self.tokenizer.apply_chat_template(conversation(request), request.get("tools"))
        except ValueError as error:
            return json_response(400, anthropic_error(400, str(error)))
        except _UnknownModel as error:
            return json_response(404, anthropic_error(404, str(error)))
        (answer,) = self._director.answers(request, record, 1)
        delivery = MessagesDelivery(answer, self._holds.hold, self._pause, self._delay, self._chunk_bytes)
        if delivery.fault.status is not None:
            return delivery.error()
        turn = self._turn(request, record, prompt, "msg_")
        completion = self._sampler.sample(reply_of(answer), prompt, limits(request))
        if request.get("stream"):
            return delivery.events(message_events(turn, completion))
        return delivery.json(message_object(turn, completion))

    def _ollama(self, record: RequestRecord) -> Response:
        is_chat = record.path.endswith("/api/chat")
        try:
            request = self._parse(record)
            prompt = self.tokenizer.apply_chat_template(
                ollama.conversation(request, is_chat=is_chat), request.get("tools")
            )
        except ValueError as error:
            return json_response(400, {"error": str(error)})
        except _UnknownModel as error:
            return json_response(404, {"error": str(error)})
        (answer,) = self._director.answers(request, record, 1)
        delivery = ollama.OllamaDelivery(answer, self._holds.hold, self._pause, self._delay, self._chunk_bytes)
        if delivery.fault.status is not None:
            return delivery.error()
        turn = self._turn(request, record, prompt, "")
        completion = self._sampler.sample(reply_of(answer), prompt, ollama.limits(request))
        # Unless it is refused: a stream is what this server sends.
        if request.get("stream") is not False:
            return delivery.lines(ollama.ollama_lines(turn, completion, is_chat=is_chat))
        return delivery.json(ollama.ollama_object(turn, completion, is_chat=is_chat))

    def _count_tokens(self, record: RequestRecord) -> Response:
        request = self._parse(record)
        prompt = self.tokenizer.apply_chat_template(conversation(request), request.get("tools"))
        return json_response(200, {"input_tokens": len(prompt)})

    def _google(self, record: RequestRecord) -> Response:
        if record.method != "POST":
            return json_response(405, google.google_error(405, "Method Not Allowed"))
        model, method = google.model_of(record.path)
        is_stream, is_sse = method == "streamGenerateContent", "alt=sse" in record.query.split("&")
        try:
            request = self._parse(record, model)
            prompt = self.tokenizer.apply_chat_template(google.conversation(request), google.tools_of(request))
        except ValueError as error:
            return json_response(400, google.google_error(400, str(error)))
        except _UnknownModel as error:
            return json_response(404, google.google_error(404, str(error)))
        if method == "countTokens":
            return json_response(200, {"totalTokens": len(prompt)})
        answers = self._director.answers(request, record, google.settings_of(request).get("candidateCount") or 1)
        delivery = google.GoogleDelivery(answers[0], self._holds.hold, self._pause, self._delay, self._chunk_bytes)
        if delivery.fault.status is not None:
            return delivery.error(is_stream=is_stream and not is_sse)
        turn = self._turn({**request, "model": model}, record, prompt, "")
        completions = [self._sampler.sample(reply_of(answer), prompt, google.limits(request)) for answer in answers]
        if is_stream:
            return delivery.stream(google.response_chunks(turn, completions), is_sse=is_sse)
        return delivery.json(google.response_object(turn, completions))


class _UnknownModel(LookupError):
    pass


def _messages(request: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    messages = request.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise BadRequest(f"`messages` should be a list of objects, not {messages!r}", "messages")
    return messages
