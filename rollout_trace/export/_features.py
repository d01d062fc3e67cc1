"""Types of the columns of exported files, for ``datasets.load_dataset``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollout_trace.export import (
    _distillation,
    _exchanges,
    _steps,
    _trl,
    _trl_preferences,
    _trl_prompts,
    _turns,
    _verifiers,
    _verl,
)
from rollout_trace.export._arrow import arrow_schema, import_datasets
from rollout_trace.export._chat import columns_of, settings_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from rollout_trace.export._chat import ChatOptions


def features(exporter: str, **options: Unpack[ChatOptions]) -> Any:
    """The ``datasets.Features`` with which to load an exporter's JSON lines; those of its parquet files are the same.

    ``load_dataset("json")`` takes types from the first 10 MB of the first file. What comes later (tools, a reward, a
    message with other keys) is refused, unless it is given the types::

        datasets.load_dataset("json", data_files=paths, split="train", features=export.features("chat"))

    Args:
        exporter: ``chat``, ``distillation``, ``exchanges``, ``steps``, ``trl``, ``trl_dpo``, ``trl_kto``,
            ``trl_prompts``, ``turns``, ``verifiers`` or ``verl_prompts``.
        **options: of ``chat``: ``columns``, with which the file was written.

    Raises:
        ImportError: datasets or pyarrow is not installed.
        TypeError: an option that the exporter does not have.
        ValueError: there is no such exporter, or it has no columns; or an option has an unknown value.
    """
    if exporter == "chat":
        schema: Any = columns_of(settings_of(options))
    elif exporter == "verl_prompts":
        schema = _verl.prompt_schema()
    elif exporter in _COLUMNS:
        schema = _COLUMNS[exporter]
    else:
        known = ", ".join(sorted([*_COLUMNS, "chat", "verl_prompts"]))
        raise ValueError(f"exporter={exporter!r}: expected one whose rows have columns: {known}.")
    if options and exporter != "chat":
        raise TypeError(f"{next(iter(options))!r} is no option of features({exporter!r}): its columns are fixed.")
    return import_datasets().Features.from_arrow_schema(arrow_schema(schema))


_COLUMNS = {
    "distillation": _distillation.SCHEMA,
    "exchanges": _exchanges.COLUMNS,
    "steps": _steps.STEP_COLUMNS,
    "trl": _trl.SCHEMA,
    "trl_dpo": _trl_preferences.DPO_COLUMNS,
    "trl_kto": _trl_preferences.KTO_COLUMNS,
    "trl_prompts": _trl_prompts.COLUMNS,
    "turns": _turns.TURN_COLUMNS,
    "verifiers": _verifiers.COLUMNS,
}
