"""A real model of ``transformers`` in this process: ids and logprobs are its own.

Needs torch and transformers, 5 GB that the other tests can do without: ``pip install torch transformers accelerate``.
"""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace_smolagents import record

from .conftest import read_back, tool_agent

torch = pytest.importorskip("torch", reason="torch is not installed: see the head of this file")
pytest.importorskip("transformers", reason="transformers is not installed: see the head of this file")
from smolagents import TransformersModel  # noqa: E402 - after what it needs

TINY = Path(__file__).parents[3] / "tests" / "data" / "tiny-model"
TOKENS = 12


@pytest.fixture(scope="module")
def loaded() -> Any:
    """The model that the repository's own tests use, with random weights."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # smolagents names an argument as transformers 4 did
        return TransformersModel(str(TINY), device_map="cpu", max_new_tokens=TOKENS, do_sample=True, temperature=0.7)


@pytest.fixture
def model(loaded: Any) -> Any:
    """The model, with a wrapper of its own."""
    return copy.copy(loaded)


def run(agent: Any) -> Any:
    """A run of two turns that sample nonsense, and a final answer."""
    torch.manual_seed(0)
    return agent.run("go", max_steps=2)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("scores", [False, True], ids=["ids", "scores"])
def test_ids_are_the_models_own(model: Any, stream: bool, scores: bool, tmp_path: Path) -> None:
    given: list[Any] = []
    generate = type(model.model).generate

    class Listened(type(model.model)):  # type: ignore[misc]
        def generate(self, *args: Any, **kwargs: Any) -> Any:
            given.append((kwargs["inputs"], generate(self, *args, **kwargs)))
            return given[-1][1]

    plain = type(model.model)
    model.model.__class__ = Listened
    try:
        agent = record(tool_agent(model, stream_outputs=stream), scores=scores)
        with rt.recording(tmp_path / "runs.jsonl"), rt.trajectory("solver") as trajectory:
            run(agent)
    finally:
        model.model.__class__ = plain
    assert [(step.metadata or {})["turn"] for step in trajectory.steps] == ["action", "action", "final_answer"]
    assert len(trajectory.steps) == len(given)
    for step, (inputs, output) in zip(trajectory.steps, given, strict=True):
        row = getattr(output, "sequences", output)[0].tolist()
        assert step.prompt_token_ids is not None
        assert step.completion_token_ids is not None
        assert step.prompt_token_ids.tolist() == inputs[0].tolist()
        assert [*step.prompt_token_ids.tolist(), *step.completion_token_ids.tolist()] == row
        assert (step.token_source, step.engine, step.token_issue) == ("engine", "transformers", None)
        assert (step.status, step.finish_reason) == (
            "ok",
            "length" if len(step.completion_token_ids) == TOKENS else "stop",
        )
        assert step.usage == rt.Usage(input=len(step.prompt_token_ids), output=len(step.completion_token_ids))
        assert step.sampling is not None
        assert step.sampling["temperature"] == 0.7
        assert (step.logprobs is None, step.logprobs_mode) == ((False, "processed") if scores else (True, None))
        if scores:
            check_logprobs(model, step)
    assert not [finding for finding in trajectory.check() if finding.grade == "fatal"]
    assert read_back(tmp_path / "runs.jsonl") == [trajectory]


def check_logprobs(model: Any, step: rt.Step) -> None:
    """Against one forward pass over the whole row, at the temperature, with transformers' default top-k of 50."""
    assert step.prompt_token_ids is not None
    assert step.completion_token_ids is not None
    row = torch.tensor([[*step.prompt_token_ids.tolist(), *step.completion_token_ids.tolist()]])
    with torch.no_grad():
        logits = model.model(row).logits[0, len(step.prompt_token_ids) - 1 : -1] / 0.7
    kept = model.model.generation_config.top_k or 50
    logits[logits < logits.topk(kept).values[:, -1:]] = -torch.inf
    expected = logits.log_softmax(-1).gather(1, row[0, len(step.prompt_token_ids) :, None])[:, 0]
    assert step.logprobs is not None
    assert step.logprobs.tolist() == pytest.approx(expected.tolist(), abs=1e-4)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_smolagents_gets_what_it_would_have_got(model: Any, stream: bool) -> None:
    seen = []
    ways: list[Any] = [None, {}, {"scores": True}]
    for options in ways:
        agent = tool_agent(copy.copy(model), stream_outputs=stream)
        if options is not None:
            record(agent, **options)
        answer = run(agent)
        messages = [step.model_output for step in agent.memory.steps if hasattr(step, "model_output")]
        raw = [step.model_output_message and step.model_output_message.raw for step in agent.memory.steps[1:]]
        seen.append((answer, messages, [sorted(one["completion_kwargs"]) for one in raw if one]))
    assert seen[0] == seen[1] == seen[2]


def test_the_model_itself_is_not_touched(model: Any) -> None:
    kind, own = type(model.model), model.model
    record(tool_agent(model), scores=True)
    assert model.model is own
    assert type(own) is kind
    assert "generate" not in vars(own)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_stream_that_is_closed_has_no_ids(model: Any) -> None:
    agent = record(tool_agent(model, stream_outputs=True))
    with rt.trajectory() as trajectory:
        stream = agent.run("go", stream=True)
        next(stream)
        with pytest.raises(RuntimeError, match="ignored GeneratorExit"):
            stream.close()
        del stream
        for _ in model.streamer:  # The thread of the model goes on to its end.
            pass
    [step] = trajectory.steps
    assert step.status == "abandoned"
    assert step.completion_token_ids is None
    assert step.token_issue is not None
    assert step.token_issue.code == "ids_missing"
