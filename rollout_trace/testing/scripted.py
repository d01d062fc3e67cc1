"""A model server that answers from a script, in the shapes of every protocol of the core."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rollout_trace.clients.loopback.messages import ConnectionCut, RequestRecord, Response, json_response
from rollout_trace.clients.loopback.server import LoopbackServer

from . import _utilities as utilities
from ._anthropic import MessagesApi
from ._api import Api, Ask, BadRequest, Row, Turn, sent_ids
from ._chat import ChatApi
from ._completions import CompletionsApi, SGLangGenerateApi, VLLMGenerateApi
from ._delivery import Delivery, Holds, vllm_error
from ._google import GoogleApi
from ._ollama import OllamaApi, OllamaGenerateApi
from ._responses import ResponsesApi
from ._sampling import Sampler
from .script import Answer, AnyScript, Director, Fault, FaultPlan, Faults, Reply, key_of, reply_of
from .tokenizer import AnyTokenizer, ByteTokenizer
from .traffic import Latency, Meter, RateLimit, Slots, checked_count, latency_of


class ScriptedServer(LoopbackServer):
    """A model server on loopback whose answers come from a script, for tests of an agent.

        with ScriptedServer(lambda request: "4") as server:
            client = OpenAI(base_url=server.base_url, api_key="none")

    `script` is a function of the request's JSON that returns a `str`, a `Reply`, a `Fault`, or a list of them (one for
    each attempt of an equal request; the last one repeats). It may have a second parameter for the index of the choice,
    and parameters named `messages` (the request's messages as chat messages, whatever its protocol) and `record` (the
    `RequestRecord`). Concurrent requests call it on several threads. Instead of a function, pass one answer for all
    requests, a list of answers to successive requests, `by_conversation(...)` or `by_content(...)`. For a running
    server, set `server.script = ...` or call `server.answers("first", "second")`.

    It serves every protocol that the core records, under any prefix (so Azure's paths too). POST `…/chat/completions`,
    `…/completions`, `…/responses` (GET and DELETE of stored ones, `previous_response_id`) and `/inference/v1/generate`
    have the JSON shape of vLLM 0.32: ids if the request has `return_token_ids` (Responses: `enable_response_messages`),
    logprobs if it asks for them. POST `/generate` is SGLang's. POST `…/messages` is Anthropic's: give its client
    `server.url` as `base_url`. POST `…/models/MODEL:generateContent` and `:streamGenerateContent` (events with
    `alt=sse`, else one JSON array) are Google's, with ids and logprobs if the `generationConfig` has
    `responseLogprobs`: give its client `http_options={"base_url": server.url}`. POST `/api/chat` and `/api/generate`
    are Ollama's: give its client `host=server.url`. Served without the script: `…/models`, `…/embeddings`, `/tokenize`,
    `/detokenize`, `/version`, and the token counts of Anthropic and Google. Nothing is random: response ids are hashes
    of `seed` and the number of the request, logprobs of `seed` and the token ids.

    Args:
        script: the script that answers requests.
        model: model name in `/models`; requests may name any model unless `strict_model` is true.
        tokenizer: makes the ids: a `ByteTokenizer` (the default), a `RealTokenizer`, or a source that `RealTokenizer`
            takes.
        seed: seed of response ids and logprobs.
        delay: seconds before every answer, in addition to the latency.
        latency: seconds before the first token, or a `Latency`.
        tokens_per_second: speed of each answer; None: all at once.
        max_parallel: maximum number of simultaneous answers; other requests wait. None: no limit.
        rate_limit: when requests get status 429 instead of an answer.
        faults: faults by the number of the request that asks for an answer, from 1: a dict, or a function of the
            number. A fault that hides the answer uses up no answer of the script; an answer that is cut off is given
            again to an equal request.
        chunk_tokens: number of tokens per event of a stream.
        chunk_bytes: cut the bytes of every answer into HTTP chunks of this size.
        strict_model: whether to reject requests that name another model.
        scale_out: whether to serve `/inference/v1/generate`, as vLLM does with `--enable-scale-out`.
        port: the port to listen on; 0: any free one.

    Raises:
        ValueError: a number is out of range, or the tokenizer is invalid.
    """

    def __init__(
        self,
        script: AnyScript = (),
        *,
        model: str = "scripted",
        tokenizer: Any = None,
        seed: int = 0,
        delay: float = 0.0,
        latency: float | Latency = 0.0,
        tokens_per_second: float | None = None,
        max_parallel: int | None = None,
        rate_limit: RateLimit | None = None,
        faults: Faults | None = None,
        chunk_tokens: int = 1,
        chunk_bytes: int | None = None,
        strict_model: bool = False,
        scale_out: bool = False,
        port: int = 0,
    ) -> None:
        super().__init__(port=port)
        self.model = model
        self.tokenizer: AnyTokenizer = _tokenizer(tokenizer)
        self._sampler = Sampler(self.tokenizer, seed)
        self._director = Director(script)
        self._plan = FaultPlan(faults)
        self._holds = Holds()
        self._latency = latency_of(latency, tokens_per_second, delay)
        self._meter = Meter(rate_limit)
        # Hundreds of threads that compute at the same time slow each other, and the streams that are under way.
        self._making = threading.Lock()
        count = checked_count("max_parallel", max_parallel)
        self._slots = None if count is None else Slots(count, self.closing)
        self._chunk_tokens = chunk_tokens
        self._chunk_bytes = chunk_bytes
        self._strict_model = strict_model
        self._scale_out = scale_out
        self._responses = ResponsesApi()
        # The longest end first: `/chat/completions` ends in `/completions`, too.
        apis: list[Api] = [self._responses, *(api() for api in _APIS)]
        ends = [(end, api) for api in apis for end in api.ends]
        self._apis = sorted(ends, key=lambda item: len(item[0]), reverse=True)

    @property
    def script(self) -> AnyScript:
        """The script that answers requests. If set while the server runs, it answers the next request."""
        return self._director.script

    @script.setter
    def script(self, script: AnyScript) -> None:
        self._director = Director(script)

    @property
    def faults(self) -> Faults | None:
        """Faults by the number of the request that asks for an answer, counted from 1 since they were set."""
        return self._plan.faults

    @faults.setter
    def faults(self, faults: Faults | None) -> None:
        self._plan = FaultPlan(faults)

    def answers(self, *answers: Answer) -> None:
        """Answer successive requests with these, after the rest of a list. A script of another kind is replaced."""
        if not self._director.add(answers):
            self.script = answers

    @property
    def answers_left(self) -> int:
        """Number of unused answers in lists; 0 if the script is a function."""
        return self._director.left

    def release(self, count: int | None = None) -> None:
        """Continue `count` held responses, including ones held later. None: all, now and later."""
        self._holds.release(count)

    def wait_held(self, count: int = 1, timeout: float = 30.0) -> None:
        """Wait until `count` responses are held. Raises TimeoutError after `timeout` seconds."""
        self._holds.wait_held(count, timeout)

    def close(self) -> None:
        """Stop the server and cut off held or delayed responses."""
        self._holds.close()
        super().close()

    def answer(self, record: RequestRecord) -> Response:
        """Answer one request (called by the server)."""
        api = self._api_of(record)
        if api is None:
            return self._utility(record)
        if record.method != "POST":
            return json_response(405, api.refusal(None, 405, "Method Not Allowed"))
        if isinstance(api, VLLMGenerateApi) and not self._scale_out:
            return json_response(404, {"detail": "Not Found"})
        wait = self._meter.enter()
        if wait is not None:
            return _too_many(api, wait)
        try:
            response = self._generate(api, record)
        except BaseException:
            self._meter.leave()
            raise
        return replace(response, after=[*response.after, self._meter.leave])

    def _api_of(self, record: RequestRecord) -> Api | None:
        """The protocol of a request, by the end of its path; None where no model is asked."""
        return next((api for end, api in self._apis if record.path.endswith(end)), None)

    def _generate(self, api: Api, record: RequestRecord) -> Response:
        try:
            ask = Ask(record, self._parse(record, api.path_model(record.path)), self.tokenizer)
            prompts = api.prompts(ask)
            ids = sent_ids(ask) if api.takes_ids else None
            prompts = prompts if ids is None else [ids]
        except BadRequest as error:
            return api.refuse(error.status, str(error), error.param)
        except ValueError as error:
            return api.refuse(400, str(error))
        count = api.count(ask.request)
        answers = self._plan.answers(
            key_of(record),
            lambda: self._director.answers(ask.request, record, count * len(prompts), lambda: api.messages(ask)),
        )
        pace = self._latency.pace(key_of(record), sum(map(len, prompts)))
        delivery = Delivery(answers[0], self._holds.hold, self._pause, pace, self._chunk_bytes)
        if delivery.fault.hides_reply:
            status = delivery.fault.status or 500
            return delivery.error(api.refusal(ask, status, f"the script answers with status {status}"))
        with self._making:
            return self._made(api, ask, prompts, answers, delivery)

    def _made(
        self, api: Api, ask: Ask, prompts: list[list[int]], answers: list[Reply | Fault], delivery: Delivery
    ) -> Response:
        count = len(answers) // len(prompts)
        asked = [prompt for prompt in prompts for _ in range(count)]
        rows = [
            Row(prompt, self._sampler.sample(reply_of(answer), prompt, api.limits(ask.request)))
            for prompt, answer in zip(asked, answers, strict=True)
        ]
        delivery = replace(delivery, tokens=max(len(row.completion.tokens) for row in rows))
        turn = self._turn(api, ask, [one for prompt in prompts for one in prompt])
        response = api.stream(ask, delivery, turn, rows) if api.is_stream(ask) else delivery.json(api.whole(turn, rows))
        return response if self._slots is None else self._slots.place(response)

    def _utility(self, record: RequestRecord) -> Response:
        """Answer what needs no model."""
        if "/responses/" in record.path:
            return self._responses.stored(record)
        try:
            return utilities.answer(record, self.model, self.tokenizer, self._parse)
        except BadRequest as error:
            return json_response(error.status, vllm_error(error.status, str(error), param=error.param))
        except ValueError as error:
            return json_response(400, vllm_error(400, str(error)))

    def _parse(self, record: RequestRecord, path_model: str | None = None) -> dict[str, Any]:
        try:
            request = json.loads(record.body)
        except ValueError as error:
            raise BadRequest(f"the body is not JSON: {error}", "body") from None
        if not isinstance(request, dict):
            raise BadRequest(f"the body should be a JSON object, not {type(request).__name__}", "body")
        model = path_model or request.get("model")
        if self._strict_model and model != self.model:
            raise BadRequest(f"The model `{model}` does not exist. Valid aliases: {self.model}.", "model", 404)
        return request

    def _turn(self, api: Api, ask: Ask, prompt: Sequence[int]) -> Turn:
        model = str(api.path_model(ask.record.path) or ask.request.get("model") or self.model)
        return Turn(ask.request, model, ask.record.index, self._sampler, self._chunk_tokens, prompt, api.prefix)

    def _pause(self, seconds: float) -> None:
        if self.closing.wait(seconds):
            raise ConnectionCut


_APIS: tuple[type[Api], ...] = (
    ChatApi,
    CompletionsApi,
    MessagesApi,
    VLLMGenerateApi,
    SGLangGenerateApi,
    GoogleApi,
    OllamaApi,
    OllamaGenerateApi,
)


def _tokenizer(given: Any) -> AnyTokenizer:
    if given is None:
        return ByteTokenizer()
    if hasattr(given, "assistant_parts"):
        tokenizer: AnyTokenizer = given
        return tokenizer
    from .real_tokenizer import RealTokenizer  # it needs packages that a byte tokenizer does not

    return RealTokenizer(given)


def _too_many(api: Api, wait: float) -> Response:
    # OpenAI's and Anthropic's SDKs read the milliseconds, all clients the whole seconds.
    headers = [("retry-after", str(math.ceil(wait))), ("retry-after-ms", str(math.ceil(wait * 1000)))]
    body = api.refusal(None, 429, "the rate limit of the scripted server was reached: try again later")
    return json_response(429, body, headers)
