"""Answers that go wrong, and attempts that are tried again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import openai
import pydantic
import pytest
from pydantic import BaseModel, model_validator

from rollout_trace.testing import Fault, Reply
from tests.clients.either import Kind, done, each, entered, shown

from .harness import IDS, STREAM, World, both, chat, parsing, streamed

QUICK = {"retry-after-ms": "1"}


async def read_to_its_end(world: World) -> Any:
    """The chunks of a stream, and what ended it."""
    seen: list[Any] = []
    try:
        async for chunk in each(await done(world.client.chat.completions.create(**IDS, stream=True))):
            seen.append(shown(chunk))
    except Exception as error:
        seen.append(shown(error))
    return seen


def test_the_server_disconnects(kind: Kind) -> None:
    """A stream that the server cuts is an error with what had come; the exception is the SDK's."""
    run = both(kind, Fault("a longer answer", cut_after=3), read_to_its_end)
    step = run.step
    assert step.status == "error"
    assert step.error is not None
    assert step.error.type == "RemoteProtocolError"
    # The server had answered; the body that broke off is its attempt's error too.
    assert [(attempt.status, attempt.error) for attempt in step.attempts] == [(200, step.error)]
    assert step.completion is not None
    assert step.completion.content == "a "
    assert step.completion_token_ids is not None
    assert step.completion_token_ids.tolist() == list(b"a ")


def test_the_server_disconnects_behind_the_finish_reason(kind: Kind) -> None:
    """The completion is whole, and the step keeps what its caller got."""
    step = both(kind, Fault("fine", cut_after=6), read_to_its_end).step
    assert (step.status, step.finish_reason) == ("ok", "stop")
    assert step.error is not None
    assert step.error.type == "RemoteProtocolError"
    assert step.completion is not None
    assert step.completion.content == "fine"


def test_an_error_inside_a_stream(kind: Kind) -> None:
    """An error event raises as it did; the step holds the server's words and what had come."""
    step = both(kind, Fault("a longer answer", error_event_after=3), read_to_its_end).step
    assert step.status == "error"
    assert step.error is not None
    assert (step.error.message, step.error.type, step.error.code) == (
        "the script breaks this stream",
        "InternalServerError",
        500,
    )
    assert step.completion is not None
    assert step.completion.content == "a "


def test_a_stream_without_done(kind: Kind) -> None:
    """A stream that ends without [DONE] after its finish reason is whole."""
    assert both(kind, Fault("fine", no_done=True), read_to_its_end).step.status == "ok"


def test_bad_json_in_a_stream(kind: Kind) -> None:
    """An event that is no JSON raises as it did; the step is an error."""
    step = both(kind, Fault("fine", bad_json=True, hold_after=2), read_to_its_end).step
    assert step.status == "error"
    assert step.error is not None
    assert step.error.type in ("InvalidJSON", "JSONDecodeError")


def test_bad_json_in_an_answer(kind: Kind) -> None:
    """So does an answer with status 200 that is no JSON."""

    async def scenario(world: World) -> Any:
        return await chat(world.client)

    step = both(kind, Fault("fine", bad_json=True), scenario, raises=True).step
    assert step.status == "error"
    assert step.error is not None
    assert step.attempts[0].status == 200


def test_an_answer_that_is_cut(kind: Kind) -> None:
    """An unstreamed answer that breaks off raises as it did."""

    async def scenario(world: World) -> Any:
        return await chat(world.client)

    step = both(kind, Fault("fine", cut_after=40), scenario, raises=True).step
    assert step.status == "error"
    assert step.error is not None
    assert step.attempts[0].error is not None
    assert step.attempts[0].error.type == "RemoteProtocolError"


def test_a_stream_that_is_left_is_no_error_of_its_attempt(kind: Kind) -> None:
    """Its reader closed it: nothing broke off."""

    async def scenario(world: World) -> Any:
        stream = await done(world.client.chat.completions.create(**STREAM))
        async with entered(stream):
            return shown(await anext(stream) if world.kind == "async" else next(stream))

    step = both(kind, Fault("a longer answer", hold_after=2), scenario).step
    assert (step.status, [attempt.error for attempt in step.attempts]) == ("abandoned", [None])
    assert step.token_issue is not None
    assert step.token_issue.message == "the answer broke off before any completion token ids came."


def test_what_an_attempt_says_is_what_the_http_library_said(kind: Kind) -> None:
    """An answer that is tried again is noted once, by the exception that the SDK handles, not by one of ours.

    The body of an answer to a streamed call is not read before the next attempt: it cannot say more.
    """

    async def scenario(world: World) -> Any:
        return await streamed(world.client)

    step = both(kind, [Fault(status=500, headers=QUICK), "fine"], scenario, max_retries=1).step
    failed, answered = step.attempts
    assert failed.error is not None
    assert failed.error.type == "HTTPStatusError"
    assert failed.error.message.startswith("Server error '500 Internal Server Error' for url")
    assert answered.error is None


def test_an_exception_that_carries_another_answer(kind: Kind) -> None:
    """Reading an answer can call elsewhere, and fail with that response: it is not the body of this call."""

    class Looked(BaseModel):
        colour: str

        @model_validator(mode="after")
        def look_it_up(self) -> Looked:
            raise Elsewhere(elsewhere)

    class Elsewhere(Exception):
        def __init__(self, response: Any) -> None:
            super().__init__("no such colour")
            self.response = response

    async def scenario(world: World) -> Any:
        return await done(parsing(world.client).parse(**IDS, response_format=Looked))

    elsewhere = SimpleNamespace(status_code=404, content=b'{"error": {"message": "of another server"}}')
    step = both(kind, '{"colour": "blue"}', scenario, raises=True).step
    assert step.completion is not None
    assert step.completion.content == '{"colour": "blue"}'
    assert step.completion_token_ids is not None
    assert step.status == "ok"


@pytest.mark.parametrize("stream", [False, True])
def test_a_refused_call(kind: Kind, stream: bool) -> None:
    """An error status raises the SDK's exception with the server's body; the step holds it."""

    async def scenario(world: World) -> Any:
        return await done(world.client.chat.completions.create(**IDS, stream=stream))

    step = both(kind, Fault(status=400), scenario, raises=True).step
    assert step.status == "error"
    assert step.error is not None
    assert (step.error.type, step.error.status, step.error.code) == ("BadRequestError", 400, 400)
    assert step.messages == IDS["messages"]
    assert step.completion is None


@pytest.mark.parametrize("body", ["", "<html>oops</html>", b"\xff\xfe", {"detail": "no"}])
def test_errors_that_are_no_openai_errors(kind: Kind, body: Any) -> None:
    """Whatever the body of an error is, the exception is what it was."""

    async def scenario(world: World) -> Any:
        return await chat(world.client)

    step = both(kind, Fault(status=502, body=body), scenario, raises=True).step
    assert step.error is not None
    assert step.error.status == 502


@pytest.mark.parametrize("stream", [False, True])
def test_retried_until_it_works(kind: Kind, stream: bool) -> None:
    """A call that is answered 429 and then 200 is one step with two attempts."""

    async def scenario(world: World) -> Any:
        return await (streamed if stream else chat)(world.client)

    answers = [
        Fault(status=429, headers={**QUICK, "x-request-id": "r1"}),
        Reply("fine", headers={"x-request-id": "r2"}),
    ]
    step = both(kind, answers, scenario, max_retries=2).step
    assert step.status == "ok"
    assert [(a.status, a.request_id, a.error is None) for a in step.attempts] == [(429, "r1", False), (200, "r2", True)]
    assert step.error is None


def test_retried_in_vain(kind: Kind) -> None:
    """A call that fails every time is one step with all its attempts."""

    async def scenario(world: World) -> Any:
        return await chat(world.client)

    step = both(kind, Fault(status=500, headers=QUICK), scenario, raises=True, max_retries=2).step
    assert step.status == "error"
    assert [a.status for a in step.attempts] == [500, 500, 500]
    assert all(a.duration is not None and a.started_at is not None for a in step.attempts)
    assert step.error is not None
    assert step.error.status == 500


def test_timeouts(kind: Kind) -> None:
    """Timeouts are tried again, and raised in the end; each is an attempt without a status."""

    async def scenario(world: World) -> Any:
        return await chat(world.client.with_options(timeout=openai.Timeout(60, read=0.2)))

    step = both(kind, Fault(hold=True), scenario, raises=True, max_retries=1).step
    assert step.status == "error"
    assert step.error is not None
    assert step.error.type == "APITimeoutError"
    assert [(a.status, a.error and a.error.type) for a in step.attempts] == [(None, "ReadTimeout")] * 2


def test_a_timeout_and_then_an_answer(kind: Kind) -> None:
    """A call whose second attempt is answered is whole."""

    async def scenario(world: World) -> Any:
        return await chat(world.client.with_options(timeout=openai.Timeout(60, read=1)))

    step = both(kind, [Fault(hold=True), "fine"], scenario, max_retries=1).step
    assert (step.status, [a.status for a in step.attempts]) == ("ok", [None, 200])


def test_a_timeout_in_the_middle_of_a_stream(kind: Kind) -> None:
    """A stream that stops coming raises as it did, and keeps what had come."""

    async def scenario(world: World) -> Any:
        client, seen = world.client.with_options(timeout=openai.Timeout(60, read=0.5)), []
        try:
            async for chunk in each(await done(client.chat.completions.create(**IDS, stream=True))):
                seen.append(shown(chunk))
        except Exception as error:
            seen.append(shown(error))
        return seen

    step = both(kind, Fault("a longer answer", hold_after=3), scenario).step
    assert step.status == "error"
    assert step.error is not None
    assert step.error.type == "ReadTimeout"
    assert step.completion is not None
    assert step.completion.content == "a "


def test_nobody_answers(kind: Kind) -> None:
    """A server that is not there: the attempts are recorded, though none arrived."""

    async def scenario(world: World) -> Any:
        client = world.client.with_options(base_url="http://127.0.0.1:9/v1")
        try:
            return await chat(client)
        except Exception as error:
            return shown(error)

    step = both(kind, "fine", scenario, unreached=2, max_retries=1).step
    assert step.status == "error"
    assert step.error is not None
    assert step.error.type == "APIConnectionError"
    assert [a.status for a in step.attempts] == [None, None]


def test_two_connections_cut_and_then_an_answer(kind: Kind) -> None:
    """Connections that break before the answer are attempts too."""

    async def scenario(world: World) -> Any:
        return await chat(world.client)

    cut = Fault("fine", cut_after=0)
    step = both(kind, [cut, cut, "fine"], scenario, max_retries=2).step
    assert step.status == "ok"
    assert [a.status for a in step.attempts] == [None, None, 200]


def test_a_redirect(kind: Kind) -> None:
    """A redirected call is one step, whose attempts are all the requests that were answered."""

    async def scenario(world: World) -> Any:
        return await chat(world.client)

    elsewhere = Fault(status=307, headers={"location": "/v1/chat/completions"})
    step = both(kind, [elsewhere, "fine"], scenario).step
    assert (step.status, [a.status for a in step.attempts]) == ("ok", [307, 200])


class Wanted(pydantic.BaseModel):
    """What the caller wants the answer to be."""

    number: int


def test_an_answer_that_its_caller_cannot_parse(kind: Kind) -> None:
    """It arrived whole: the step is ok and keeps its ids, and says what its caller could make nothing of."""

    async def scenario(world: World) -> Any:
        return await done(parsing(world.client).parse(**IDS, response_format=Wanted))

    found = both(kind, "no number", scenario, raises=True)
    assert found.step.status == "ok"
    assert found.step.completion_token_ids is not None
    assert found.step.error is not None
    assert found.step.error.type == "ValidationError"
    assert "Wanted" in found.step.error.message
