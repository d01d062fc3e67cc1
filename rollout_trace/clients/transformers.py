"""``rt.wrap_transformers``: recording for ``generate`` of models of transformers, in the process that samples.

Neither transformers nor torch is imported. Overridden is ``generate`` alone.
"""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from rollout_trace import guard
from rollout_trace.clients import sampler
from rollout_trace.clients.sampler import Calls, PolicyVersion, SamplerSettings
from rollout_trace.record.settings import MAX_CALL_BYTES
from rollout_trace.wire.profiles import EngineProfile

if TYPE_CHECKING:
    from rollout_trace.data.model import LogprobsMode

M = TypeVar("M")

PROTOCOL: Final = "transformers.generate"
_ENGINE: Final = EngineProfile("transformers")
_SETTINGS: Final = (
    "do_sample", "temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff",
    "repetition_penalty", "encoder_repetition_penalty", "no_repeat_ngram_size", "length_penalty", "num_beams",
    "num_return_sequences", "max_new_tokens", "max_length", "min_new_tokens", "min_length", "max_time", "stop_strings",
    "eos_token_id", "pad_token_id", "bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "sequence_bias",
    "guidance_scale", "renormalize_logits", "prompt_lookup_num_tokens",
)  # fmt: skip
"""The settings of ``GenerationConfig`` that are recorded, where they are set."""
_NEUTRAL: Final = {
    "typical_p": 1, "epsilon_cutoff": 0, "eta_cutoff": 0, "repetition_penalty": 1, "encoder_repetition_penalty": 1,
    "no_repeat_ngram_size": 0, "length_penalty": 1, "num_beams": 1, "num_return_sequences": 1, "min_length": 0,
    "renormalize_logits": False,
}  # fmt: skip
"""Values of settings that have no effect: they are left out."""
_SAMPLED_ONLY: Final = frozenset(
    ("temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff")
)
"""Settings that greedy decoding does not read."""
_POSITIONAL: Final = (
    "inputs", "generation_config", "logits_processor", "stopping_criteria", "prefix_allowed_tokens_fn", "synced_gpus",
    "assistant_model", "streamer",
)  # fmt: skip
"""The parameters of ``generate``, in their order."""
_FUNCTIONS: Final = ("logits_processor", "stopping_criteria", "prefix_allowed_tokens_fn", "assistant_model", "streamer")
"""Arguments with code of the caller's: that they were there is recorded."""


def wrap_transformers(
    model: M,
    *,
    logprobs: bool = False,
    policy_version: PolicyVersion = None,
    logprobs_mode: LogprobsMode | None = None,
    keep_bytes: bool = False,
    max_call_bytes: int = MAX_CALL_BYTES,
) -> M:
    """Records every call of a transformers model's ``generate``. Returns the same object.

    Each row of the input is one call, and each sequence returned for it is one step. Padding is not recorded: prompts
    leave out positions that the attention mask leaves out, and completions end with their end token.

    Args:
        model: a model that generates, such as one from ``AutoModelForCausalLM``, or a peft model around it.
        logprobs: ask ``generate`` for scores (``output_scores``), from which logprobs are computed, if the caller does
            not. They are removed from what ``generate`` returns. Scores need memory: one number per vocabulary entry
            for each sampled token.
        policy_version: version of the weights, or a function that returns it when a call begins.
        logprobs_mode: distribution of the logprobs; by default ``processed``, the distribution that was sampled from,
            or ``raw`` if the caller asked for logits only.
        keep_bytes: keep the recorded request and answer on the steps.
        max_call_bytes: limit on the bytes kept of one request, and of one answer.

    Wrapping again only changes the settings. ``rt.unwrap(model)`` undoes it. Copies of the model, and models unpickled
    from it, are not wrapped.

    Raises:
        TypeError: ``model`` is not a model that generates, or an argument has the wrong type.
        ValueError: ``logprobs_mode`` is unknown, or ``max_call_bytes`` is below 1.
    """
    kind = sampler.recording.plain(type(model))
    if not callable(getattr(kind, "generate", None)) or not hasattr(model, "generation_config"):
        raise TypeError(f"wrap_transformers() needs a model of transformers with generate(), got {model!r:.80}.")
    settings = sampler.settings_for(_ENGINE, keep_bytes, max_call_bytes, logprobs_mode, logprobs)
    sampler.put_on(model, settings, _methods, sampler.check_version(policy_version))
    return model


def _methods(base: Any, settings: SamplerSettings) -> dict[str, Any]:
    @functools.wraps(base.generate)
    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        run = sampler.begun(lambda: _Run(self, settings, args, kwargs))
        if run is None:
            with guard.hidden_frame:
                return base.generate(self, *args, **kwargs)
        with run:
            output = base.generate(self, *run.generation.args, **run.generation.kwargs)
        run.answer(lambda: run.answers(output))
        return run.result(output)

    return {"generate": generate, "__reduce_ex__": sampler.plain_copies(base)}


class _Run(Calls):
    """One call of ``generate``: a call for each row of the input."""

    __slots__ = ("_version", "generation")

    def __init__(self, model: Any, settings: SamplerSettings, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.generation = generation = TransformersGeneration(model, args, kwargs, logprobs=settings.logprobs)
        version = sampler.version_of(model)
        self._version = {} if version is None else {"policy_version": version}
        name = getattr(getattr(model, "config", None), "_name_or_path", None) or type(model).__name__
        shared = {"model": name, **generation.settings()}
        name = "encoder_prompt" if generation.is_encoder_decoder else "prompt"
        requests = [shared if ids is None else {name: ids, **shared} for ids in generation.prompts]
        super().__init__(settings.calls, PROTOCOL, map(sampler.encoded, requests))

    def result(self, output: Any) -> Any:
        """What the caller gets."""
        try:
            return self.generation.result(output)
        except Exception as error:
            guard.failed("result", self.calls[0], error)
            return output

    def answers(self, output: Any) -> list[dict[str, Any]]:
        """The answer of each row of the input."""
        rows, mode = self.generation.rows(output)
        head = self._version if mode is None else {**self._version, "logprobs_mode": mode}
        answers: list[dict[str, Any]] = [{**head, "choices": []} for _ in self.calls]
        for row in rows:
            answer = answers[row.prompt]
            if row.prompt_token_ids is not None and row.prompt_token_ids != self.generation.prompts[row.prompt]:
                answer["prompt_token_ids"] = row.prompt_token_ids
            choice = {"index": len(answer["choices"]), "token_ids": row.completion_token_ids, "logprobs": row.logprobs}
            answer["choices"].append({**choice, "finish_reason": row.finish_reason, "unconfirmed": row.unconfirmed})
        return answers


@dataclass(slots=True)
class Row:
    """One returned sequence."""

    prompt: int
    """Index of the input row that the sequence belongs to."""
    prompt_token_ids: list[int] | None
    completion_token_ids: list[int]
    logprobs: list[float] | None
    finish_reason: Literal["stop", "length"]
    unconfirmed: str | None = None
    """Why it is not certain where the completion ends."""


class TransformersGeneration:
    """One call of a model's ``generate``: its arguments and its result.

    Args:
        model: the model.
        args: the positional arguments of the call.
        kwargs: its keyword arguments.
        logprobs: whether to ask for scores if the caller does not.
    """

    def __init__(self, model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, logprobs: bool = False) -> None:
        self._model = model
        self._given = {**dict(zip(_POSITIONAL, args, strict=False)), **kwargs}
        self._takes_dict = bool(self._value("return_dict_in_generate"))
        self._takes_scores = bool(self._value("output_scores"))
        self._asks = logprobs
        self.args: tuple[Any, ...] = args
        """The positional arguments to pass on."""
        self.kwargs: dict[str, Any] = dict(kwargs)
        """The keyword arguments to pass on."""
        config = copy.copy(self._given.get("generation_config"))
        for name in ("return_dict_in_generate", "output_scores") if logprobs else ():
            if config is None or name in self.kwargs:
                self.kwargs[name] = True
            else:
                # transformers warns of arguments beside a configuration.
                setattr(config, name, True)
        if logprobs and len(self.args) > 1:
            self.args = (self.args[0], config, *self.args[2:])
        elif logprobs and config is not None:
            self.kwargs["generation_config"] = config
        is_encoder_decoder = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
        self.is_encoder_decoder: bool = is_encoder_decoder is True
        """Whether an encoder reads the input, so that it does not precede the completion."""
        self._embeds = self._given.get("inputs_embeds")
        self._inputs = _first(self._given.get("inputs"), self._given.get("input_ids"))
        self.prompts: list[list[int] | None] = self._prompts()
        """Prompt ids of each input row, without padding; None if the prompt was not given as ids."""

    def _value(self, name: str) -> Any:
        """A setting in force: of the arguments, the configuration that was passed, the model's, transformers' own."""
        if name in self._given:
            # None too: it turns off what the configurations set.
            return self._given[name]
        configs = (self._given.get("generation_config"), getattr(self._model, "generation_config", None))
        for config in configs:
            value = getattr(config, name, None)
            if value is not None:
                return value
        # transformers 5 keeps its defaults apart from the configurations.
        defaults = getattr(configs[1], "_get_default_generation_params", None)
        return defaults().get(name) if callable(defaults) else None

    def _prompts(self) -> list[list[int] | None]:
        inputs = self._inputs
        if inputs is None or inputs.dim() != 2 or inputs.is_floating_point():
            # Embeddings, images, audio; without any input there is one row, which begins with a token of its own.
            like = _first(self._embeds, inputs)
            return [None] * (1 if like is None else len(like))
        # Which tokens the model attends to, [rows, prompt]; None: to all.
        mask = self._given.get("attention_mask")
        if mask is not None:
            mask = mask if mask.dim() == 2 and mask.shape == inputs.shape else None
        else:
            # As transformers does where no mask is given.
            pad = self._value("pad_token_id")
            mask = None if pad is None or pad in self._ends() else inputs != pad
        if mask is None:
            found: list[list[int] | None] = inputs.tolist()
            return found
        rows = zip(inputs.tolist(), mask.tolist(), strict=True)
        return [[token for token, keep in zip(row, kept, strict=True) if keep] for row, kept in rows]

    def _ends(self) -> list[int]:
        ends = self._value("eos_token_id")
        ends = ends.tolist() if hasattr(ends, "tolist") else ends
        return [] if ends is None else list(ends) if isinstance(ends, (list, tuple)) else [ends]

    def settings(self) -> dict[str, Any]:
        """The generation settings in force, under transformers' names."""
        found = {
            name: value
            for name in _SETTINGS
            if (value := self._value(name)) is not None and (name in self._given or value != _NEUTRAL.get(name))
        }
        if not found.get("do_sample"):
            found = {name: value for name, value in found.items() if name not in _SAMPLED_ONLY or name in self._given}
        if found.get("max_new_tokens") is not None and "max_length" not in self._given:
            found.pop("max_length", None)
        if isinstance(found.get("sequence_bias"), Mapping):
            # The other form that transformers takes: JSON has no objects with lists of ids as names.
            found["sequence_bias"] = [[list(ids), bias] for ids, bias in found["sequence_bias"].items()]
        if (found.get("num_beams") or 1) > 1:
            found["use_beam_search"] = True
        found.update((name, True) for name in _FUNCTIONS if self._given.get(name) is not None)
        return found

    def result(self, output: Any) -> Any:
        """Returns what the caller gets: what ``generate`` would have returned without the additional scores."""
        if not self._asks or not hasattr(output, "sequences"):
            return output
        if not self._takes_dict:
            return output.sequences
        if self._takes_scores:
            return output
        # Those of whole beams come with the scores.
        added = ("scores", "sequences_scores")
        return type(output)(**{name: value for name, value in output.items() if name not in added})

    def rows(self, output: Any) -> tuple[list[Row], Literal["raw", "processed"] | None]:
        """The rows that were returned, and the distribution of their logprobs."""
        sequences = getattr(output, "sequences", output)
        if getattr(sequences, "dim", lambda: 0)() != 2:
            raise TypeError(f"generate() returned {type(output).__name__}, which holds no rows of token ids.")
        begin = self._begin(sequences)
        lists = sequences.tolist()
        scores, mode = self._scores(output, begin)
        samples = max(len(lists) // max(len(self.prompts), 1), 1)
        found = []
        for at, row in enumerate(lists):
            prompt = min(at // samples, len(self.prompts) - 1)
            completion, reason = self._completion(row, begin, len(lists))
            logprobs = None if scores is None else scores[at][: len(completion)]
            own = self.prompts[prompt]
            if self.is_encoder_decoder:
                # What the encoder read does not come before the completion.
                own = None
            elif own is None and self._embeds is None and self._inputs is None:
                own = row[:begin]
            found.append(Row(prompt, own, completion, logprobs, reason, self._doubt(completion, reason, len(lists))))
        return found, mode

    def _begin(self, sequences: Any) -> int:
        """Where the completions begin in the rows."""
        if self.is_encoder_decoder:
            given = self._given.get("decoder_input_ids")
            if given is None:
                return 1
            # transformers puts its start token before what does not begin with it.
            return int(given.shape[1]) + int(bool(sequences[0, 0] != given[0, 0]))
        if self._inputs is not None and self._inputs.dim() == 2 and not self._inputs.is_floating_point():
            return int(self._inputs.shape[1])
        return 0 if self._embeds is not None or self._inputs is not None else 1

    def _completion(self, row: list[int], begin: int, rows: int) -> tuple[list[int], Literal["stop", "length"]]:
        """The tokens that were sampled: to the end token, and without the pads of rows that ended before others."""
        completion, ends = row[begin:], set(self._ends())
        end = next((at for at, token in enumerate(completion) if token in ends), None)
        if end is not None:
            return completion[: end + 1], "stop"
        pad = self._value("pad_token_id")
        # A row that a stop string or a criterion ended goes on as pads. Without these, a pad was sampled.
        if rows > 1 and pad is not None and self._may_stop_otherwise():
            while completion and completion[-1] == pad:
                completion.pop()
        limit = self._value("max_new_tokens")
        limit = limit if limit is not None else (self._value("max_length") or sys.maxsize) - begin
        return completion, "length" if len(completion) >= limit else "stop"

    def _may_stop_otherwise(self) -> bool:
        """Whether a row may end without an end token, before others."""
        return bool(self._value("stop_strings") or self._given.get("stopping_criteria"))

    def _doubt(self, completion: list[int], reason: str, rows: int) -> str | None:
        pad, ends = self._value("pad_token_id"), self._ends()
        is_pad = bool(completion) and reason == "stop" and completion[-1] in ends and (pad is None or pad in ends)
        if not (is_pad and rows > 1 and self._may_stop_otherwise()):
            return None
        return (
            "the end token also pads the rows of this batch, so it is not known whether it was sampled, or whether a "
            "stop string or criterion ended the row before it. Set another token as pad_token_id."
        )

    def _scores(self, output: Any, begin: int) -> tuple[list[list[float]] | None, Literal["raw", "processed"] | None]:
        """Logprobs of the new tokens of each row: of the distribution sampled from, else of the model's own."""
        scores, logits = getattr(output, "scores", None), getattr(output, "logits", None)
        sequences = getattr(output, "sequences", None)
        kept: Sequence[Any] = scores or logits or ()
        if sequences is None or not kept:
            return None, None
        beams = getattr(output, "beam_indices", None)
        if beams is not None:
            if not scores:
                return None, None
            found = self._model.compute_transition_scores(sequences, scores, beams, normalize_logits=True)
            return found.tolist(), "processed"
        new = sequences[:, begin:]
        columns = [
            one.float().log_softmax(-1).gather(-1, new[:, at, None].to(one.device))[:, 0]
            for at, one in enumerate(kept[: new.shape[1]])
        ]
        # Loaded by the model that is called.
        stacked = sys.modules["torch"].stack(columns, dim=1)
        return stacked.tolist(), "processed" if scores else "raw"


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)
