"""``rt.wrap_transformers``: steps of ``generate`` against its own output, and logprobs against a forward pass."""

from __future__ import annotations

import copy
import io
import logging
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from page_blocks import run_blocks
from peft import LoraConfig, get_peft_model
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
    T5Config,
    T5ForConditionalGeneration,
    TextIteratorStreamer,
)
from transformers.generation import utils as generation_utils

import rollout_trace as rt
from rollout_trace.train.shaping import biased
from rollout_trace.wire import decode
from tests.consumers.torch import tiny

pytestmark = pytest.mark.filterwarnings("default")  # of transformers

PAD, END = 256, 257
PROMPTS = torch.tensor([[PAD, PAD, 5, 6], [7, 8, 9, 10], [PAD, 1, 2, 3]])
MASK = (PROMPTS != PAD).long()


@pytest.fixture
def model() -> Iterator[Any]:
    """A model of random weights, with which seeds give the same."""
    made = tiny.model().eval()
    yield made
    rt.unwrap(made)


def sampled(model: Any, inputs: Any = PROMPTS, seed: int = 0, **options: Any) -> Any:
    torch.manual_seed(seed)
    return model.generate(inputs, **{"max_new_tokens": 8, "do_sample": True, "top_k": 0, **options})


def forward(model: Any, step: rt.Step, temperature: float = 1.0) -> list[float]:
    """The logprobs of a step's completion by one forward pass over its prompt and completion."""
    assert step.prompt_token_ids is not None
    assert step.completion_token_ids is not None
    row = torch.tensor([[*step.prompt_token_ids.tolist(), *step.completion_token_ids.tolist()]])
    with torch.no_grad():
        logits = model(row).logits[0, len(step.prompt_token_ids) - 1 : -1] / temperature
    found: list[float] = logits.log_softmax(-1).gather(1, row[0, len(step.prompt_token_ids) :, None])[:, 0].tolist()
    return found


def ids(step: rt.Step) -> tuple[list[int], list[int]]:
    assert step.prompt_token_ids is not None
    assert step.completion_token_ids is not None
    return step.prompt_token_ids.tolist(), step.completion_token_ids.tolist()


def logprobs(step: rt.Step) -> list[float]:
    assert step.logprobs is not None
    return [float(one) for one in step.logprobs]


def test_logprobs_are_those_of_a_forward_pass(model: Any, tmp_path: Path) -> None:
    assert rt.wrap_transformers(model, logprobs=True) is model
    with rt.recording(tmp_path / "runs.jsonl"), rt.trajectory() as run:
        output = sampled(model, attention_mask=MASK, num_return_sequences=2, temperature=0.7)
    assert len(run.steps) == 6
    assert len({step.call_id for step in run.steps}) == 3
    assert [step.choice for step in run.steps] == [0, 1] * 3
    for at, step in enumerate(run.steps):
        prompt, completion = ids(step)
        assert prompt == PROMPTS[at // 2][MASK[at // 2].bool()].tolist()
        assert completion == output[at, 4:].tolist()[: len(completion)]
        assert set(output[at, 4 + len(completion) :].tolist()) <= {PAD}
        assert logprobs(step) == pytest.approx(forward(model, step, 0.7), abs=1e-4)
        assert (step.protocol, step.engine, step.logprobs_mode, step.token_issue) == (
            "transformers.generate", "transformers", "processed", None
        )  # fmt: skip
        assert step.sampling is not None
        assert (step.sampling["temperature"], step.sampling["num_return_sequences"]) == (0.7, 2)
    assert list(rt.read(tmp_path / "runs.jsonl")) == [run]
    assert len(run.sequences()) == 6


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"output_scores": True},
        {"return_dict_in_generate": True},
        {"return_dict_in_generate": True, "output_scores": True},
        {"return_dict_in_generate": True, "output_logits": True},
        {"generation_config": GenerationConfig(max_new_tokens=8, return_dict_in_generate=True, do_sample=True)},
        {"num_beams": 3, "do_sample": False},
        {"num_beams": 3, "do_sample": False, "return_dict_in_generate": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("asked", [False, True], ids=["", "logprobs"])
def test_the_caller_gets_what_it_would_have_got(model: Any, options: dict[str, Any], asked: bool) -> None:
    before = sampled(model, attention_mask=MASK, **options)
    rt.wrap_transformers(model, logprobs=asked)
    with rt.trajectory() as run:
        after = sampled(model, attention_mask=MASK, **options)
    assert type(before) is type(after)
    if isinstance(before, torch.Tensor):
        assert before.equal(after)
    else:
        assert list(before) == list(after)
        assert before.sequences.equal(after.sequences)
        kept = getattr(before, "scores", None)
        assert (kept is None) == (getattr(after, "scores", None) is None)
        assert kept is None or all(one.equal(two) for one, two in zip(kept, after.scores, strict=True))
    given = options.get("return_dict_in_generate") and (options.get("output_scores") or options.get("output_logits"))
    for step in run.steps:
        assert (step.logprobs is not None) == bool(asked or given), step
        if step.logprobs is not None and not options.get("num_beams") and "generation_config" not in options:
            assert logprobs(step) == pytest.approx(forward(model, step), abs=1e-4)
        mode = "raw" if options.get("output_logits") and not asked else "processed"
        assert step.logprobs_mode == (None if step.logprobs is None else mode)


def test_beams_are_named(model: Any) -> None:
    rt.wrap_transformers(model, logprobs=True)
    with rt.trajectory() as run:
        sampled(model, PROMPTS[1:2], num_beams=3, num_return_sequences=2, do_sample=False)
    assert len(run.steps) == 2
    assert {"distribution_biased"} <= {finding.code for finding in run.check()}
    assert all(logprobs(step) == pytest.approx(forward(model, step), abs=1e-4) for step in run.steps)


def forced(model: Any, rows: list[list[int]], **options: Any) -> tuple[list[rt.Step], Any]:
    """A call of ``generate`` that samples these tokens: the others are forbidden."""

    def force(input_ids: Any, scores: Any) -> Any:
        at = input_ids.shape[1] - 4
        allowed = torch.full_like(scores, -torch.inf)
        for row, tokens in enumerate(rows):
            allowed[row, tokens[at] if at < len(tokens) else END] = 0.0
        return allowed

    inputs = PROMPTS[: len(rows)]
    rt.wrap_transformers(model, logprobs=True)
    with rt.trajectory() as run:
        output = sampled(
            model,
            inputs,
            attention_mask=MASK[: len(rows)],
            do_sample=False,
            logits_processor=LogitsProcessorList([force]),
            **options,
        )
    return run.steps, output


def test_pads_after_the_end_are_no_tokens(model: Any) -> None:
    steps, output = forced(model, [[1, 2, END], [3, 4, 5, 6, 7], [END]], max_new_tokens=5)
    assert output[0, 4:].tolist() == [1, 2, END, PAD, PAD]
    assert [ids(step)[1] for step in steps] == [[1, 2, END], [3, 4, 5, 6, 7], [END]]
    assert [step.finish_reason for step in steps] == ["stop", "length", "stop"]
    assert [len(logprobs(step)) for step in steps] == [3, 5, 1]
    assert "distribution_biased" in {finding.code for finding in rt.Trajectory(steps=steps).check()}


def test_a_pad_that_was_sampled_is_a_token(model: Any) -> None:
    steps, _ = forced(model, [[1, PAD, PAD], [3, PAD, END]], max_new_tokens=3)
    assert [ids(step)[1] for step in steps] == [[1, PAD, PAD], [3, PAD, END]]


class Stop(StoppingCriteria):  # type: ignore[misc]
    """Ends the rows whose last token is 2."""

    def __call__(self, input_ids: Any, scores: Any, **options: Any) -> Any:
        return input_ids[:, -1] == 2


def test_a_row_that_a_criterion_ended(model: Any) -> None:
    criteria = StoppingCriteriaList([Stop()])
    steps, output = forced(model, [[1, 2, 9, 9], [3, 4, 5, END]], max_new_tokens=6, stopping_criteria=criteria)
    assert output[0, 4:].tolist() == [1, 2, PAD, PAD]
    assert [ids(step)[1] for step in steps] == [[1, 2], [3, 4, 5, END]]
    assert [step.finish_reason for step in steps] == ["stop", "stop"]


def test_arguments_by_position(model: Any) -> None:
    config = GenerationConfig(max_new_tokens=6, do_sample=True)
    rt.wrap_transformers(model, logprobs=True)
    with rt.trajectory() as run:
        torch.manual_seed(0)
        output = model.generate(PROMPTS, config, None, StoppingCriteriaList([EndsFirstRow()]), attention_mask=MASK)
    assert output[0, 6:].tolist() == [PAD] * 4
    assert ids(run.steps[0])[1] == output[0, 4:6].tolist()
    assert len(logprobs(run.steps[0])) == 2
    assert not config.return_dict_in_generate


class EndsFirstRow(StoppingCriteria):  # type: ignore[misc, unused-ignore]  # untyped where torch is not installed
    """Ends the first row after two tokens."""

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        return torch.tensor([input_ids.shape[1] >= 6] + [False] * (len(input_ids) - 1))


def test_scores_beside_a_configuration_bring_no_warning(model: Any) -> None:
    warned: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: warned.append(record.getMessage())  # type: ignore[method-assign]
    rt.wrap_transformers(model, logprobs=True)
    generation_utils.logger.warning_once.cache_clear()
    generation_utils.logger.addHandler(handler)
    try:
        with rt.trajectory() as run:
            model.generate(PROMPTS[1:2], generation_config=GenerationConfig(max_new_tokens=3))
    finally:
        generation_utils.logger.removeHandler(handler)
    assert warned == []
    assert len(logprobs(run.steps[0])) == len(ids(run.steps[0])[1])


def test_a_none_turns_the_end_token_off(model: Any) -> None:
    rt.wrap_transformers(model)
    bias = {(END,): 50.0}
    with rt.trajectory() as run:
        sampled(model, PROMPTS[1:2], eos_token_id=None, sequence_bias=bias)
    (step,) = run.steps
    assert ids(step)[1] == [END] * 8
    assert step.sampling is not None
    assert (step.sampling.get("eos_token_id"), step.finish_reason) == (None, "length")
    assert step.sampling["sequence_bias"] == [[[END], 50.0]]
    assert biased(step) is not None


@pytest.mark.parametrize("start", [[8, 9], [0, 8, 9]], ids=["added", "given"])
def test_a_decoder_that_is_given_a_start(start: list[int]) -> None:
    sizes = {"vocab_size": 50, "d_model": 16, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    config = T5Config(**sizes, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1)
    made = rt.wrap_transformers(T5ForConditionalGeneration(config).eval(), logprobs=True)
    with rt.trajectory() as run:
        output = made.generate(
            torch.tensor([[5, 6, 7]]), decoder_input_ids=torch.tensor([start]), max_new_tokens=4, eos_token_id=None
        )
    (step,) = run.steps
    assert step.token_issue is None
    assert step.completion_token_ids is not None
    assert step.completion_token_ids.tolist() == output[0, 3:].tolist()
    assert len(logprobs(step)) == 4


def test_where_the_end_pads_it_is_not_certain_that_it_was_sampled(model: Any) -> None:
    criteria = StoppingCriteriaList([Stop()])
    options = {"stopping_criteria": criteria, "pad_token_id": END, "max_new_tokens": 6}
    steps, _ = forced(model, [[1, 2, 9, 9], [3, 4, 5, END]], **options)
    for step in steps:
        assert step.token_issue is not None
        assert step.token_issue.code == "ids_unconfirmed"
        assert step.completion_token_ids is None
    # Of one row alone nothing pads.
    steps, _ = forced(model, [[1, 2, 9, 9]], **options)
    assert [ids(step)[1] for step in steps] == [[1, 2]]


def test_without_a_mask_pads_are_found_as_transformers_finds_them(model: Any) -> None:
    rt.wrap_transformers(model)
    with rt.trajectory() as run:
        sampled(model)
        sampled(model, input_ids=PROMPTS, inputs=None)
    assert [ids(step)[0] for step in run.steps] == [[5, 6], [7, 8, 9, 10], [1, 2, 3]] * 2


def test_inputs_that_are_no_ids(model: Any) -> None:
    rt.wrap_transformers(model, logprobs=True)
    embeds = model.get_input_embeddings()(PROMPTS[1:2])
    with rt.trajectory() as run:
        output = sampled(model, None, inputs_embeds=embeds, attention_mask=MASK[1:2])
    (step,) = run.steps
    assert step.prompt_token_ids is None
    assert step.completion_token_ids is not None
    assert step.completion_token_ids.tolist() == output[0].tolist()
    assert "prompt_ids_missing" in {finding.code for finding in run.check()}


def test_what_an_encoder_reads_is_no_prompt() -> None:
    torch.manual_seed(0)
    config = T5Config(vocab_size=512, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0)
    model = rt.wrap_transformers(T5ForConditionalGeneration(config).eval(), logprobs=True)
    with rt.trajectory() as run:
        output = sampled(model, torch.tensor([[5, 6, 7]]))
    (step,) = run.steps
    assert step.prompt_token_ids is None
    assert step.completion_token_ids is not None
    assert step.completion_token_ids.tolist() == output[0, 1:].tolist()
    assert step.sampling is not None
    assert step.sampling["encoder_prompt"] == [5, 6, 7]


def test_errors_and_interrupts(model: Any) -> None:
    rt.wrap_transformers(model)

    def fail(error: BaseException) -> Any:
        def processor(input_ids: Any, scores: Any) -> Any:
            raise error

        return LogitsProcessorList([processor])

    with rt.trajectory() as run:
        with pytest.raises(RuntimeError, match="out of memory"):
            sampled(model, logits_processor=fail(RuntimeError("out of memory")))
        with pytest.raises(KeyboardInterrupt):
            sampled(model, logits_processor=fail(KeyboardInterrupt()))
        with pytest.raises(TypeError):
            model.generate(PROMPTS, None, None, None, None, None, None, None, None, None, None, None, None, None)
    assert [step.status for step in run.steps] == ["error"] * 3 + ["cancelled"] * 3 + ["error"] * 3
    assert run.steps[0].error == rt.ErrorInfo(type="RuntimeError", message="out of memory")
    assert all(step.completion_token_ids is None for step in run.steps)


def test_a_streamer_in_a_thread(model: Any) -> None:
    rt.wrap_transformers(model)
    with rt.trajectory() as run:
        streamer = TextIteratorStreamer(tiny.tokenizer())
        options = {"inputs": PROMPTS[1:2], "streamer": streamer, "max_new_tokens": 8, "do_sample": False}
        thread = threading.Thread(target=rt.propagate(model.generate), kwargs=options)
        thread.start()
        assert "".join(streamer)
        thread.join()
    (step,) = run.steps
    assert len(ids(step)[1]) == 8
    assert step.sampling is not None
    assert step.sampling["streamer"] is True
    # Greedy decoding reads no temperature, and is not truncated by the default top-k.
    assert not {"temperature", "top_k"} & set(step.sampling)


def test_the_model_stays_the_users_own(model: Any) -> None:
    kind, state = type(model), set(vars(model))
    before = pickle.dumps(model)
    rt.wrap_transformers(model, policy_version="1")
    rt.wrap_transformers(model, policy_version=lambda: 2, keep_bytes=True)
    assert isinstance(model, kind)
    assert (type(model).__name__, type(model).__module__) == (kind.__name__, kind.__module__)
    assert set(vars(model)) == state
    assert type(model).can_generate()
    for copied in (copy.copy(model), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(copied) is kind
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    assert type(torch.load(file, weights_only=False)) is kind
    with rt.trajectory() as run:
        sampled(model, PROMPTS[1:2])
    (step,) = run.steps
    assert step.policy_version == 2
    assert step.request_bytes is not None
    assert step.response_bytes is not None
    (again,) = decode("transformers.generate", step.request_bytes, step.response_bytes)
    assert ids(again) == ids(step)
    assert rt.unwrap(model) is model
    assert type(model) is kind
    assert pickle.dumps(model) == before
    with rt.trajectory() as run:
        sampled(model, PROMPTS[1:2])
    assert run.steps == []


def test_a_model_of_peft(model: Any) -> None:
    adapted = get_peft_model(model, LoraConfig(target_modules=["q_proj"], r=2, task_type="CAUSAL_LM")).eval()
    kind = type(adapted)
    before = sampled(adapted, attention_mask=MASK, inputs=None, input_ids=PROMPTS)
    assert rt.wrap_transformers(adapted, logprobs=True) is adapted
    with rt.trajectory() as run:
        after = sampled(adapted, attention_mask=MASK, inputs=None, input_ids=PROMPTS)
    assert before.equal(after)
    assert isinstance(adapted, kind)
    assert [ids(step)[0] for step in run.steps] == [[5, 6], [7, 8, 9, 10], [1, 2, 3]]
    for step in run.steps:
        assert logprobs(step) == pytest.approx(forward(adapted, step), abs=1e-4)


def test_threads_that_share_a_model(model: Any) -> None:
    rt.wrap_transformers(model)
    found: dict[int, tuple[list[rt.Step], Any]] = {}

    def one(number: int) -> None:
        with rt.trajectory(str(number)) as run:
            output = model.generate(torch.tensor([[number + 1, 2, 3]]), max_new_tokens=4, do_sample=False)
            found[number] = list(run.steps), output

    threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    for number, (steps, output) in found.items():
        (step,) = steps
        prompt, completion = ids(step)
        assert prompt == [number + 1, 2, 3]
        assert [*prompt, *completion] == output[0].tolist()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"logprobs": 1}, "expected True or False"),
        ({"policy_version": 1.5}, "policy_version=1.5: expected a text, a whole number, or a function"),
        ({"max_call_bytes": "1"}, "expected a whole number of bytes"),
    ],
)
def test_mistakes_of_the_users(model: Any, wrong: dict[str, Any], message: str) -> None:
    kind = type(model)
    with pytest.raises(TypeError, match=message):
        rt.wrap_transformers(model, **wrong)
    assert type(model) is kind
    with pytest.raises(TypeError, match="needs a model of transformers with generate"):
        rt.wrap_transformers(object())
    with pytest.raises(ValueError, match="logprobs_mode='cooked' is not known"):
        rt.wrap_transformers(model, logprobs_mode="cooked")  # type: ignore[arg-type]


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = tmp_path / "model"
    tiny.model().save_pretrained(model)
    inputs = {"input_ids": PROMPTS, "attention_mask": MASK}
    run_blocks("docs/engines.md", "transformers", MODEL=model, inputs=inputs)
    (run,) = rt.read(tmp_path / "rollouts.jsonl")
    assert [ids(step)[0] for step in run.steps] == [[5, 6], [7, 8, 9, 10], [1, 2, 3]]
    assert all(step.logprobs is not None for step in run.steps)
