"""Calls of vLLM's ``LLM`` and ``AsyncLLM`` in their own process, recorded, against the outputs that vLLM returned.

    python tests/live_engines/llm_program.py llm|async FILE [RECORDED]

Run by the Python that has vLLM, which has no pytest. FILE gets the trajectories, RECORDED the outputs as plain JSON,
for ``tests/data/vllm_outputs.json``.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

import rollout_trace as rt

TINY = str(Path(__file__).parent.parent / "data" / "tiny-model")
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
MESSAGES = [{"role": "user", "content": "hi"}]
OPTIONS: dict[str, Any] = {"model": TINY, "max_model_len": 512, "enforce_eager": True, "dtype": "float32"}
recorded: dict[str, Any] = {}
# Of any type: what a step has, or lacks, is what is asserted.
recording: Any = rt.recording
trajectory: Any = rt.trajectory


def plain(output: Any) -> Any:
    """An output as JSON, whose fields have vLLM's names."""
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        return {one.name: plain(getattr(output, one.name)) for one in dataclasses.fields(output)}
    if type(output).__name__ == "RequestOutput":
        return {name: plain(value) for name, value in vars(output).items()}
    if isinstance(output, dict):
        return {str(name): plain(value) for name, value in output.items()}
    if isinstance(output, (list, tuple)):
        return [plain(one) for one in output]
    return output if output is None or isinstance(output, (str, int, float, bool)) else repr(output)


def check(steps: Any, outputs: list[Any]) -> None:
    """Each completion of the outputs is a step, with the same ids, logprobs, text and reasons."""
    completions = [(output, one) for output in outputs for one in output.outputs]
    assert len(steps) == len(completions), (len(steps), len(completions))
    for step, (output, one) in zip(steps, completions, strict=True):
        assert (step.protocol, step.engine, step.status, step.token_issue) == ("vllm.llm", "vllm", "ok", None), step
        assert step.prompt_token_ids.tolist() == list(output.prompt_token_ids)
        assert step.completion_token_ids.tolist() == list(one.token_ids)
        assert step.completion.content == one.text
        assert (step.choice, step.finish_reason, step.stop_reason) == (one.index, one.finish_reason, one.stop_reason)
        assert step.response_id == str(output.request_id)
        if one.logprobs is None:
            assert step.logprobs is None
        else:
            own = [row[token].logprob for row, token in zip(one.logprobs, one.token_ids, strict=True)]
            assert step.logprobs.tolist() == np.array(own, np.float32).tolist()
            assert step.logprobs_mode == "raw"
            assert list(step.token_texts) == [
                row[token].decoded_token for row, token in zip(one.logprobs, one.token_ids, strict=True)
            ]
        if output.prompt_logprobs is not None:
            rows = zip(output.prompt_logprobs[1:], output.prompt_token_ids[1:], strict=True)
            own = [row[token].logprob for row, token in rows]
            assert np.isnan(step.prompt_logprobs[0])
            assert step.prompt_logprobs[1:].tolist() == np.array(own, np.float32).tolist()
    calls = [step.call_id for step in steps]
    assert len(set(calls)) == len(outputs)


def llm(path: str) -> None:
    """The offline ``LLM``."""
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import BeamSearchParams

    model = LLM(**OPTIONS)
    kind = type(model)
    several = SamplingParams(n=2, max_tokens=6, logprobs=2, prompt_logprobs=1, seed=7)
    prompts = ["hello", {"prompt_token_ids": [5, 6, 7]}]
    before = model.generate(prompts, several, use_tqdm=False)

    assert rt.wrap_vllm(model) is model
    assert isinstance(model, LLM)
    with recording(path), trajectory("generate") as run:
        outputs = model.generate(prompts, several, use_tqdm=False)
    assert [plain(one.outputs) for one in outputs] == [plain(one.outputs) for one in before]
    check(run.steps, outputs)
    assert run.steps[0].messages == ["hello"]
    assert run.steps[2].messages is None
    assert run.steps[0].top_tokens.ids.shape == (6, 3)
    assert run.steps[0].sampling["n"] == 2
    recorded["generate"] = [plain(one) for one in outputs]

    with recording(path), trajectory("chat") as run:
        greedy = SamplingParams(max_tokens=6, temperature=0.0, logprobs=0)
        outputs = model.chat(MESSAGES, greedy, use_tqdm=False, tools=[TOOL])
        check(run.steps, outputs)
        again = model.chat([MESSAGES, MESSAGES], greedy, use_tqdm=False)
    check(run.steps[1:], again)
    assert [list(run.steps[0].messages), list(run.steps[0].tools)] == [MESSAGES, [TOOL]]
    assert run.steps[0].sampling["temperature"] == 0.0
    recorded["chat"] = [plain(one) for one in outputs]

    with recording(path), trajectory("beams") as run:
        (beams,) = model.beam_search([{"prompt": "hello"}], BeamSearchParams(beam_width=2, max_tokens=4))
    assert len(run.steps) == 2
    for step, beam in zip(run.steps, beams.sequences, strict=True):
        assert [*step.prompt_token_ids.tolist(), *step.completion_token_ids.tolist()] == beam.tokens
        assert "hello" + step.completion.content == beam.text
    assert {"distribution_biased"} <= {finding.code for finding in run.check()}

    with recording(path), trajectory("queue") as run:
        ids = model.enqueue(["a", "b"], SamplingParams(max_tokens=3), use_tqdm=False)
        assert [step.status for step in run.steps] == ["running"] * 2
        outputs = model.wait_for_completion(use_tqdm=False)
    assert len(ids) == 2
    check(run.steps, outputs)

    with recording(path), trajectory("refused") as run:
        refused = None
        try:
            model.generate("a", SamplingParams(max_tokens=3, logprobs=1000), use_tqdm=False)
        except Exception as error:
            refused = error
        (step,) = run.steps
    assert (step.status, step.error.type, step.error.message) == ("error", type(refused).__name__, str(refused)), step

    rt.wrap_vllm(model, logprobs=True, policy_version=lambda: "step-3")
    params = SamplingParams(max_tokens=3)
    with recording(path), trajectory("asked") as run:
        outputs = model.generate([5, 6, 7], params, use_tqdm=False)
        check(run.steps, outputs)
        model.generate([5, 6, 7], use_tqdm=False)
    assert params.logprobs is None
    assert run.steps[0].logprobs is not None
    assert run.steps[1].logprobs is not None
    assert {step.policy_version for step in run.steps} == {"step-3"}
    assert rt.unwrap(model) is model
    assert type(model) is kind
    with trajectory() as run:
        model.generate([5, 6, 7], params, use_tqdm=False)
    assert not run.steps


async def stream(path: str) -> None:
    """``AsyncLLM``."""
    from vllm import SamplingParams
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.async_llm import AsyncLLM

    engine = rt.wrap_vllm(AsyncLLM.from_engine_args(AsyncEngineArgs(**OPTIONS)))
    assert isinstance(engine, AsyncLLM)
    prompt = {"prompt_token_ids": [5, 6, 7]}
    try:
        for kind in (RequestOutputKind.FINAL_ONLY, RequestOutputKind.CUMULATIVE, RequestOutputKind.DELTA):
            params = SamplingParams(n=2, max_tokens=8, logprobs=1, prompt_logprobs=0, seed=3, output_kind=kind)
            with recording(path), trajectory(kind.name) as run:
                outputs = [one async for one in engine.generate(prompt, params, kind.name)]
            recorded[kind.name] = [plain(one) for one in outputs]
            if kind is RequestOutputKind.FINAL_ONLY:
                final, expected = outputs[-1], [run.steps]
                check(run.steps, [final])
            expected.append(run.steps)
            for one, two in zip(run.steps, expected[0], strict=True):
                assert one.completion_token_ids.tolist() == two.completion_token_ids.tolist()
                assert one.completion == two.completion
                assert np.allclose(one.logprobs, two.logprobs, atol=1e-4)
                assert one.prompt_logprobs is not None
                assert (one.status, one.finish_reason) == ("ok", "length")
                assert one.time_to_first_token is not None

        # It belongs to the trajectory in which it was begun, wherever it is read.
        with recording(path):
            with trajectory("later") as run:
                items = engine.generate(prompt, SamplingParams(max_tokens=3), "later")
            outputs = [one async for one in items]
        assert [step.status for step in run.steps] == ["ok"]

        long = SamplingParams(max_tokens=400, ignore_eos=True)
        with recording(path), trajectory("closed") as run:
            items = engine.generate(prompt, long, "closed")
            first = await anext(items)
            await items.aclose()
        (step,) = run.steps
        assert (step.status, step.finish_reason) == ("abandoned", None), step
        assert step.completion_token_ids.tolist() == list(first.outputs[0].token_ids)

        got = asyncio.Event()

        async def read() -> None:
            async for _ in engine.generate(prompt, long, "cancelled"):
                got.set()

        with recording(path), trajectory("cancelled") as run:
            task = asyncio.create_task(read())
            await got.wait()
            task.cancel()
            assert isinstance((await asyncio.gather(task, return_exceptions=True))[0], asyncio.CancelledError)
        (step,) = run.steps
        assert step.status == "cancelled", step
        assert 0 < len(step.completion_token_ids) < 400

        with recording(path), trajectory("unread") as run:
            engine.generate(prompt, long, "unread")
        assert [step.status for step in run.steps] == ["abandoned"]

        async def one(number: int) -> None:
            with trajectory(f"task {number}") as own:
                params = SamplingParams(max_tokens=4, seed=number)
                items = [
                    item async for item in engine.generate({"prompt_token_ids": [number + 5]}, params, f"t{number}")
                ]
                check(own.steps, items[-1:])

        with recording(path):
            await asyncio.gather(*map(one, range(12)))
        assert not rt.orphans()
    finally:
        engine.shutdown()


if __name__ == "__main__":
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    part, file, *rest = sys.argv[1:]
    if part == "llm":
        llm(file)
    else:
        asyncio.run(stream(file))
    for target in rest:
        Path(target).write_text(json.dumps(recorded))
    print("done")
