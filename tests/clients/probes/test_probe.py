"""`rt.probe`: what it finds out about servers that behave as engines do, and that it disturbs nothing."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
from pathlib import Path
from typing import Any, Literal

import numpy as np
import openai
import pytest

import rollout_trace as rt
from rollout_trace.clients.loopback.messages import Response, json_response
from rollout_trace.clients.probe import ProbeReport, probe
from rollout_trace.clients.probe_report import ProbeCall
from rollout_trace.testing import Fault, LoopbackServer, Reply, RequestRecord, ScriptedServer, load_exchanges
from tests.wire.engines.test_wishes import recorded

Kind = Literal["sync", "async"]


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> Kind:
    kind: Kind = request.param
    return kind


def probed(kind: Kind, address: str, *, wrap: dict[str, Any] | None = None, **options: Any) -> ProbeReport:
    """The report of a client."""
    connect: dict[str, Any] = {"base_url": address, "api_key": "none", "max_retries": 0}
    if kind == "sync":
        with openai.OpenAI(**connect) as client:
            return probe(client if wrap is None else rt.wrap_openai(client, **wrap), "m", **options)

    async def run() -> ProbeReport:
        async with openai.AsyncOpenAI(**connect) as client:
            return await probe(client if wrap is None else rt.wrap_openai(client, **wrap), "m", **options)

    return asyncio.run(run())


class Server(ScriptedServer):
    """An engine that is told what to say, and refuses the calls that `refuses` is true for."""

    def __init__(self, script: Any = "fine", refuses: Any = lambda asked: None, **options: Any) -> None:
        super().__init__(script, **options)
        self.refuses = refuses

    def answer(self, record: RequestRecord) -> Response:
        refusal = self.refuses(record.json) if record.method == "POST" else None
        return json_response(*refusal) if refusal is not None else super().answer(record)


def calls(server: LoopbackServer) -> list[Any]:
    return [record.json for record in server.requests if record.method == "POST"]


def test_a_server_that_has_everything(kind: Kind) -> None:
    """Everything is found, with one inquiry and seven small calls, six requests for exact turns and three for
    extras."""
    with ScriptedServer("blue is nice") as server:
        report = probed(kind, server.base_url)
        *bodies, extras, extras_streamed, generate = calls(server)
        bodies, turns = bodies[:7], bodies[7:]
    assert report.engine == "vllm"
    assert report.prompt_ids
    assert report.completion_ids
    assert report.logprobs
    assert (report.aligned, report.stream_equals_unary, report.logprobs_mode) == (True, True, "raw")
    assert (report.n_choices, report.tools, report.trainable) == (2, True, True)
    assert (report.reasons, report.failures) == ((), {})
    assert ["kv_transfer_params" in body for body in turns] == [True, False, False, False, False, True]
    assert len(server.requests) == 17
    assert (extras["prompt_logprobs"], extras_streamed["top_logprobs"], "token_ids" in generate) == (1, 2, True)
    assert all(body["max_tokens"] <= 16 and body["return_token_ids"] for body in bodies)
    assert [body.get("n") for body in bodies].count(2) == 1
    assert ["tools" in body for body in bodies].count(True) == 1
    assert [body.get("stream") for body in bodies].count(True) == 1
    assert [body["temperature"] for body in bodies[-2:]] == [0.5, 1.0]
    assert len({body["seed"] for body in bodies}) == 1


def test_the_report_is_frozen_and_readable(kind: Kind) -> None:
    """Its text is a table that holds what it found."""
    with ScriptedServer("fine") as server:
        report = probed(kind, server.base_url)
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.trainable = False  # type: ignore[misc]
    lines = str(report).splitlines()
    assert lines[0] == "Probe of model 'm', engine: vllm"
    assert re.split(r"  +", lines[2]) == [
        "call", "answered", "choices", "prompt ids", "completion ids", "logprobs", "aligned",
    ]  # fmt: skip
    assert re.split(r"  +", lines[3]) == ["plain", "yes", "1", "yes", "yes", "yes", "yes"]
    assert "logprobs are: raw" in lines
    assert lines[-1] == "trainable: yes"
    assert all(line == line.rstrip() and line.isascii() for line in lines)


@pytest.mark.parametrize(("wrap", "options"), [({}, {}), ({"engine": "vllm"}, {}), (None, {"engine": "vllm"})])
def test_it_disturbs_nothing(kind: Kind, wrap: Any, options: Any, tmp_path: Path) -> None:
    """Its calls are in no trajectory, no file and no list of orphans; the client is as it was."""
    orphans = len(rt.orphans())
    with ScriptedServer("fine") as server, rt.recording(tmp_path / "file.jsonl"):
        with rt.trajectory() as trajectory:
            report = probed(kind, server.base_url, wrap=wrap, **options)
            assert trajectory.steps == []
        probed(kind, server.base_url, wrap=wrap, **options)
    assert report.trainable
    assert len(rt.orphans()) == orphans
    assert [found.steps for found in rt.read(tmp_path / "file.jsonl")] == [[]]


def test_the_client_stays_as_it_was() -> None:
    """Neither wrapped nor closed nor with other settings."""
    with ScriptedServer("fine") as server, openai.OpenAI(base_url=server.base_url, api_key="none") as client:
        probe(client, "m")
        assert type(client) is openai.OpenAI
        rt.wrap_openai(client)
        kind = type(client)
        assert probe(client, "m", engine="vllm").engine == "vllm"
        assert type(client) is kind
        with rt.trajectory() as trajectory:
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
        (step,) = trajectory.steps
        assert step.engine is None


def test_a_server_that_knows_no_ids(kind: Kind) -> None:
    """No ids and no logprobs: the report says so, call by call, and no temperature is tried."""
    with Server() as server:
        report = probed(kind, server.base_url, engine="openai")
        assert len(calls(server)) == 5
    assert (report.engine, report.trainable, report.logprobs_mode) == ("openai", False, None)
    assert (report.prompt_ids, report.completion_ids, report.logprobs) == (False, False, False)
    assert (report.aligned, report.stream_equals_unary) == (None, None)
    assert [reason.partition(":")[0] for reason in report.reasons] == ["plain", "streamed", "with tools"]
    assert all("no prompt ids and completion ids and logprobs" in reason for reason in report.reasons)
    assert "trainable: no" in str(report)


def test_a_server_that_refuses_to_be_asked(kind: Kind) -> None:
    """The reason names its refusal."""

    def refuses(asked: Any) -> Any:
        unknown = {"detail": "Unexpected fields in the request: {'return_token_ids'}"}
        return (422, unknown) if "return_token_ids" in asked else None

    with Server(refuses=refuses) as server:
        report = probed(kind, server.base_url, engine="vllm")
    assert not report.trainable
    assert "Unexpected fields in the request: {'return_token_ids'}" in report.reasons[0]


@pytest.mark.parametrize(
    ("field", "failed"), [("tools", "with tools"), ("n", "n=2"), ("stream", "streamed"), ("top_logprobs", None)]
)
def test_a_server_that_refuses_one_thing(kind: Kind, field: str, failed: str | None) -> None:
    """It is reported; what agents need makes the answer no. Without alternatives the first tokens are compared."""

    def refuses(asked: Any) -> Any:
        return (400, {"error": {"message": f"cannot do {field}"}}) if asked.get(field) else None

    with Server(refuses=refuses) as server:
        report = probed(kind, server.base_url, engine="vllm")
    assert report.failures == ({} if failed is None else {failed: f"HTTP 400: cannot do {field}"})
    assert report.trainable == (failed in (None, "n=2"))
    assert (report.tools, report.n_choices) == (failed != "with tools", 0 if failed == "n=2" else 2)
    assert report.logprobs_mode == "raw"
    if failed is not None:
        assert f"failed: {failed}: HTTP 400: cannot do {field}" in str(report)


def test_a_model_that_takes_no_temperature(kind: Kind) -> None:
    """Models that reason: asked with what they take."""

    def refuses(asked: Any) -> Any:
        return (400, {"error": {"message": "max_tokens is not supported"}}) if "max_tokens" in asked else None

    with Server(refuses=refuses) as server:
        report = probed(kind, server.base_url, engine="vllm")
        # The first call is tried with what is asked of the engine, and without.
        assert all("temperature" not in body for body in calls(server)[2:])
    assert (report.trainable, report.logprobs_mode, report.failures) == (True, None, {})


def at_temperature(mode: str) -> Any:
    """A model whose only token has probability e**-2 at temperature 1."""

    def script(asked: Any) -> Reply:
        moved = -2.0 / (asked["temperature"] or 1.0) if mode == "processed" else -2.0
        return Reply(token_ids=[65], logprobs=[moved], finish_reason="length")

    return script


@pytest.mark.parametrize("mode", ["raw", "processed"])
def test_logprobs_mode(kind: Kind, mode: str) -> None:
    """Raw logprobs do not move with the temperature."""
    with ScriptedServer(at_temperature(mode)) as server:
        assert probed(kind, server.base_url).logprobs_mode == mode


@pytest.mark.parametrize("kind_of_setting", ["engine", "argument", "right"])
def test_a_wrong_setting_is_told(kind: Kind, kind_of_setting: str) -> None:
    """A server whose logprobs are not what its engine's are by default: the argument to pass is named."""
    settings: dict[str, Any] = {"engine": "vllm"}
    if kind_of_setting != "engine":
        settings["logprobs_mode"] = "processed" if kind_of_setting == "right" else "raw"
    with ScriptedServer(at_temperature("processed")) as server:
        report = probed(kind, server.base_url, wrap=settings)
    if kind_of_setting == "right":
        assert report.advice == ()
        assert "advice" not in str(report)
    else:
        assert report.advice == (
            "logprobs are processed, and are recorded as raw: pass logprobs_mode='processed' to wrap_openai()",
        )
        assert f"advice: {report.advice[0]}" in str(report).splitlines()
    assert report.logprobs_mode == "processed"


class NoIdsInResponses(ScriptedServer):
    """An engine that does not know what asks for the ids of a response."""

    def answer(self, record: RequestRecord) -> Response:
        unknown = b'"enable_response_messages"'
        return super().answer(dataclasses.replace(record, body=record.body.replace(unknown, b'"unknown"')))


def test_every_protocol_that_is_named(kind: Kind) -> None:
    """A server that has ids in chat and completions, and none in responses: each is told."""
    names = ["openai.chat", "openai.completions", "openai.responses"]
    with NoIdsInResponses("blue is nice") as server:
        report = probed(kind, server.base_url, protocols=names)
        paths = {record.path for record in server.requests if record.method == "POST"}
    own = {"/inference/v1/generate", "/tokenize"}
    assert paths == {"/v1/chat/completions", "/v1/completions", "/v1/responses", *own}
    assert dict(report.protocols) == {"openai.chat": True, "openai.completions": True, "openai.responses": False}
    assert not report.trainable
    assert report.failures == {}
    assert {reason.partition(": ")[0] for reason in report.reasons} == {"openai.responses"}
    assert [call.name for call in report.calls if call.name.endswith("plain")] == [
        "plain", "openai.completions: plain", "openai.responses: plain",
    ]  # fmt: skip
    lines = str(report).splitlines()
    assert "trainable in openai.completions: yes" in lines
    assert "trainable in openai.responses: no" in lines
    with ScriptedServer("blue is nice") as server:
        alone = probed(kind, server.base_url, protocols=["openai.completions"])
    assert (alone.trainable, alone.stream_equals_unary, alone.logprobs_mode) == (True, True, "raw")


@pytest.mark.parametrize("protocols", [[], ["chat"], ["openai.chat", "anthropic.messages"]])
def test_protocols_that_cannot_be_probed(protocols: list[str]) -> None:
    """A mistake of the caller's own is raised, with what there is."""
    with openai.OpenAI(api_key="none") as client:
        with pytest.raises(ValueError, match="expected one or more of"):
            probe(client, "m", protocols=protocols)
        with pytest.raises(TypeError, match="expected a list"):
            probe(client, "m", protocols="openai.chat")


@pytest.mark.parametrize("logprob", [0.0, -0.01])
def test_logprobs_mode_of_what_is_certain(kind: Kind, logprob: float) -> None:
    """A token that is certain is so at any temperature: nothing can be told."""

    def refuses(asked: Any) -> Any:
        return (400, {"error": {"message": "no top_logprobs"}}) if "top_logprobs" in asked else None

    with Server(Reply(token_ids=[65], logprobs=[logprob], finish_reason="length"), refuses) as server:
        assert probed(kind, server.base_url).logprobs_mode is None


NEWER = {one.name: one for one in load_exchanges(Path(__file__).parents[2] / "data" / "wire_vllm_033.jsonl.xz")}
RECORDED = {
    ("/v1/chat/completions", False): "chat",
    ("/v1/chat/completions", True): "chat_stream",
    ("/v1/completions", False): "comp",
    ("/v1/completions", True): "comp_stream",
    ("/inference/v1/generate", False): "gen",
    ("/inference/v1/generate", True): "gen_stream",
}


class Recorded(LoopbackServer):
    """A vLLM whose answers are recordings, by path and stream: with routed experts, or with masks."""

    def __init__(self, server: str) -> None:
        super().__init__()
        self.server = server
        self.refuses: Any = lambda asked: None

    def answer(self, record: RequestRecord) -> Response:
        if record.method == "GET":
            return json_response(200, {"data": [{"id": "m", "owned_by": "vllm"}]})
        if (refusal := self.refuses(record)) is not None:
            return json_response(*refusal)
        if record.path.endswith("/tokenize"):
            return json_response(404, {"detail": "Not Found"})
        kind = RECORDED[record.path, bool(record.json.get("stream"))]
        names = {"moe": f"moe_{kind}", "mask": f"mask_{kind}_topk5".replace("stream_topk5", "topk5_stream")}
        one = recorded()[names[self.server]]
        return Response(one.status or 0, [("content-type", one.content_type)], one.chunks)


def given(report: ProbeReport) -> dict[str, set[str]]:
    """The extras of each form."""
    forms: dict[str, set[str]] = {one.form: set() for one in report.extras}
    for one in report.extras:
        if one.given:
            forms[one.form].add(one.extra)
    return forms


def test_extras_of_each_form(kind: Kind) -> None:
    """Those that the recorded answers have, with the request that showed it; six more calls."""
    with Recorded("moe") as server:
        report = probed(kind, server.base_url, protocols=["openai.chat", "openai.completions"])
        paths = [record.path for record in server.requests if record.method == "POST"]
    experts, all_of_generate = {"routed_experts"}, {"routed_experts", "top_tokens", "policy_spans"}
    assert given(report) == {
        "chat": experts,
        "chat streamed": set(),
        "completions": experts,
        "completions streamed": set(),
        "generate": all_of_generate,
        "generate streamed": all_of_generate,
    }
    assert paths.count("/inference/v1/generate") == 2
    assert report.trainable
    (streamed,) = [one for one in report.extras if (one.form, one.extra) == ("chat streamed", "routed_experts")]
    assert str(streamed.problem).startswith("vLLM never sends them in streams of /chat/completions")
    assert streamed.request is not None
    assert (streamed.request["stream"], streamed.request["top_logprobs"]) == (True, 2)
    (generate,) = [one for one in report.extras if (one.form, one.extra) == ("generate", "top_tokens")]
    assert generate.request is not None
    assert generate.request["sampling_params"]["prompt_logprobs"] == 1
    assert json.loads(json.dumps(dataclasses.asdict(report)))["extras"][0]["given"] is False


def test_versions_of_the_weights_in_chat(kind: Kind) -> None:
    """From 0.33 on, where they are asked for: `engine="vllm"` does."""

    class Newer(Recorded):
        def answer(self, record: RequestRecord) -> Response:
            if record.method == "GET" or not record.json.get("return_weight_versions"):
                return super().answer(record)
            name = "exact_weight_versions" + ("_stream" if record.json.get("stream") else "")
            return Response(200, [("content-type", NEWER[name].content_type)], NEWER[name].chunks)

    with Newer("moe") as server:
        report = probed(kind, server.base_url)
    assert "policy_spans" in given(report)["chat"]
    assert "policy_spans" in given(report)["chat streamed"]


def test_the_table_of_extras(kind: Kind) -> None:
    """One row for each form, then the reasons, each once; no row is wider than a terminal."""
    with Recorded("moe") as server:
        report = probed(kind, server.base_url)
    lines = str(report).splitlines()
    begin = next(place for place, line in enumerate(lines) if line.startswith("extras"))
    table = [re.split(r"  +", line) for line in lines[begin : begin + 5]]
    assert table == [
        ["extras", "prompt logprobs", "top tokens", "mask", "experts", "versions"],
        ["chat", "no", "no", "no", "yes", "no"],
        ["chat streamed", "no", "no", "no", "no", "no"],
        ["generate", "no", "yes", "no", "yes", "yes"],
        ["generate streamed", "no", "yes", "no", "yes", "yes"],
    ]
    assert all(len(line) <= 80 for line in lines[begin : begin + 5])
    reasons = [line for line in lines[begin + 5 :] if line.startswith("  - ")]
    assert len(reasons) == len(set(reasons))
    assert any(line.startswith("  - mask, generate, generate streamed: ") for line in reasons)
    assert lines[-1] == "trainable: yes"


def test_a_server_of_masks(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    """It fails where no mask can be made, with an empty message: it is asked again with `top_k`."""

    def refuses(record: RequestRecord) -> Any:
        asked = {**record.json, **record.json.get("sampling_params", {})}
        empty = {"error": {"message": "", "type": "InternalServerError", "param": None, "code": 500}}
        return None if asked.get("top_k", 0) > 0 and asked.get("temperature") != 0 else (500, empty)

    with Recorded("mask") as server:
        server.refuses = refuses
        report = probed(kind, server.base_url)
    assert report.failures == {}
    assert "sampling_mask" in given(report)["generate"]
    assert "sampling_mask" in given(report)["generate streamed"]
    assert "sampling_mask" not in given(report)["chat"]
    # What its own calls cannot get is in the report: the log is for the user's calls.
    assert [record.getMessage() for record in caplog.records if "Engine(" in record.getMessage()] == []


@pytest.mark.parametrize("path", ["/inference/v1/generate", "/v1/chat/completions"])
def test_a_form_that_is_refused(kind: Kind, path: str) -> None:
    """It is reported; the others are tried all the same."""

    def refuses(record: RequestRecord) -> Any:
        is_for_extras = "top_k" in str(record.json)
        return (403, {"error": {"message": "not for you"}}) if record.path == path and is_for_extras else None

    with Recorded("moe") as server:
        server.refuses = refuses
        report = probed(kind, server.base_url)
    assert report.trainable
    refused = "generate" if path.endswith("generate") else "chat"
    for one in report.extras:
        assert (one.given is None) == (one.form.partition(" ")[0] == refused)
    forms = "generate" if refused == "generate" else "chat, chat streamed"
    assert f"  - {forms}: HTTP 403: not for you" in str(report).splitlines()


def test_engines_without_extras(kind: Kind) -> None:
    """Nothing is tried."""
    with ScriptedServer("fine") as server:
        report = probed(kind, server.base_url, engine="openai")
    assert report.extras == ()
    assert "extras" not in str(report)


def test_streams_that_differ(kind: Kind) -> None:
    """A stream that brings other logprobs is no good; a server that never repeats itself cannot be judged."""

    def differs(asked: Any) -> Reply:
        return Reply(token_ids=[65], logprobs=[-2.0 if asked.get("stream") else -1.0], finish_reason="length")

    numbers = iter(range(65, 90))

    def random(asked: Any) -> Reply:
        return Reply(token_ids=[next(numbers)], finish_reason="length")

    with ScriptedServer(differs) as server:
        report = probed(kind, server.base_url)
    assert (report.stream_equals_unary, report.trainable) == (False, False)
    assert report.reasons == ("streamed: ids or logprobs differ from those of unstreamed calls",)
    with ScriptedServer(random) as server:
        report = probed(kind, server.base_url)
    assert (report.stream_equals_unary, report.trainable) == (None, True)


def test_ids_that_are_not_aligned(kind: Kind) -> None:
    """Too few logprobs: withheld, and said so."""
    with ScriptedServer(Reply(token_ids=[65, 66], logprobs=[-1.0], finish_reason="length")) as server:
        report = probed(kind, server.base_url)
    assert (report.aligned, report.trainable) == (False, False)
    assert "2 token ids but 1 logprobs" in report.reasons[0]


def test_a_server_that_is_not_there(kind: Kind) -> None:
    """One try, one reason."""
    with ScriptedServer("fine") as server:
        address = server.base_url
    report = probed(kind, address)
    assert [call.name for call in report.calls] == ["plain"]
    assert report.failures == {"plain": "APIConnectionError: Connection error."}
    assert not report.trainable


@pytest.mark.parametrize(
    "fault",
    [Fault(status=404), Fault(status=500), Fault(bad_json=True), Fault(cut_after=0), Reply(compress=None, text=None)],
)
def test_it_never_raises(kind: Kind, fault: Any) -> None:
    """Whatever the server does, there is a report."""
    with ScriptedServer(fault) as server:
        report = probed(kind, server.base_url, engine="vllm")
    assert isinstance(str(report), str)
    assert report.trainable == (isinstance(fault, Reply))


def test_what_is_no_client() -> None:
    """A mistake of the caller's own is raised."""
    with pytest.raises(TypeError, match="needs a client of the openai SDK"):
        probe(object(), "m")  # type: ignore[call-overload]
    with openai.OpenAI(api_key="none") as client, pytest.raises(ValueError, match="is not known"):
        probe(client, "m", engine="nonsense")


@pytest.mark.parametrize("lacking", ["prompt_token_ids", "completion_token_ids", "logprobs"])
def test_what_one_of_two_choices_lacks_is_not_there(lacking: str) -> None:
    values: dict[str, Any] = {
        "prompt_token_ids": np.array([1], np.int32),
        "completion_token_ids": np.array([2], np.int32),
        "logprobs": np.array([-0.5], np.float32),
    }
    steps = [rt.Step(id=f"a.{at}", call_id="a", **kept) for at, kept in enumerate((values, {**values, lacking: None}))]
    call = ProbeCall.of("n=2", steps, None)
    assert call.answered
    found = {
        "prompt_token_ids": call.prompt_ids,
        "completion_token_ids": call.completion_ids,
        "logprobs": call.logprobs,
    }
    assert found == {name: name != lacking for name in values}
