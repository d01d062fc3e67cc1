"""``record`` and ``record_evals``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from inspect_ai.model import Model

from rollout_trace.integration import Engine, check_engine
from rollout_trace_inspect import settings
from rollout_trace_inspect.hooks import register
from rollout_trace_inspect.models import prepare, undo_since
from rollout_trace_inspect.settings import Settings


def record(
    model: Model,
    *,
    engine: str | Engine | None = None,
    path: str | os.PathLike[str] | None = None,
    keep_bytes: bool = False,
) -> Model:
    """Records every sample on which a model is evaluated, and the model's calls outside evaluations.

    Each epoch of a sample is a trajectory, with sub-agents as children. Calls outside an evaluation
    (``model.generate_loop``, ``run(agent, ...)``) belong to the surrounding ``with rt.trajectory()`` block.

    Args:
        model: a model from ``get_model()``. Its clients are wrapped in place.
        engine: the server behind it (``vllm``, ``sglang``, ...): its requests then ask for token ids and logprobs, see
            ``rollout_trace.wrap_openai``. Used only for clients of OpenAI's SDK.
        path: a file, folder or address, as for ``rt.recording``. None: the surrounding ``rt.recording``, or without one
            a file beside each log: ``<name of the log>.rollouts.jsonl``.
        keep_bytes: keep request and response bodies on the steps.

    Returns:
        The same model. Recording again only changes the settings.

    Raises:
        TypeError: ``model`` is not a model.
        ValueError: the engine is unknown.
    """
    if not isinstance(model, Model):
        raise TypeError(
            f"record() takes a model, got {type(model).__name__}: {model!r:.80}. Give it get_model(...), and that to "
            "eval(task, model=...); `with record_evals():` records the evaluations of any model."
        )
    chosen = _settings(engine, path, keep_bytes)
    register()
    settings.models[model.api] = chosen
    prepare(model.api, chosen)
    return model


@contextmanager
def record_evals(
    path: str | os.PathLike[str] | None = None, *, engine: str | Engine | None = None, keep_bytes: bool = False
) -> Iterator[None]:
    """Records all evaluations in a block: ``eval``, ``eval_retry``, ``eval_set``, with any models.

    Args:
        path: as for ``record``.
        engine: the server behind the evaluated models. Requests to other models of a sample (graders, roles) do not ask
            for ids; call ``record`` on these models for that.
        keep_bytes: keep request and response bodies on the steps.

    Raises:
        ValueError: the engine is unknown.
    """
    chosen = _settings(engine, path, keep_bytes)
    register()
    settings.blocks.append(chosen)
    try:
        with undo_since():
            yield
    finally:
        settings.blocks.remove(chosen)


def _settings(engine: str | Engine | None, path: str | os.PathLike[str] | None, keep_bytes: bool) -> Settings:
    return Settings(engine=check_engine(engine), path=None if path is None else os.fspath(path), keep_bytes=keep_bytes)
