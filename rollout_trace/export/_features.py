"""Types of the columns of exported files, for ``datasets.load_dataset``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollout_trace.export._agent_lightning import turns
from rollout_trace.export._arrow import arrow_schema, import_package
from rollout_trace.export._chat import chat
from rollout_trace.export._distillation import distillation
from rollout_trace.export._exchanges import exchanges
from rollout_trace.export._prompts import trl_prompts, verl_prompts
from rollout_trace.export._steps import steps
from rollout_trace.export._trl import trl, trl_dpo, trl_kto
from rollout_trace.export._verifiers import verifiers

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from rollout_trace.export._chat import ChatOptions
    from rollout_trace.export._exporter import Exporter

_EXPORTERS: dict[str, Exporter[Any]] = {
    one.__name__: one
    for one in (
        chat, distillation, exchanges, steps, trl, trl_dpo, trl_kto, trl_prompts, turns, verifiers, verl_prompts,
    )
}  # fmt: skip


def features(exporter: str, **options: Unpack[ChatOptions]) -> Any:
    """Returns the ``datasets.Features`` with which to load an exporter's JSON lines or parquet files.

    ``load_dataset("json")`` infers types from the first 10 MB of the first file. It rejects values that first appear
    later (tools, a reward, a message with other keys), unless you pass the types::

        datasets.load_dataset("json", data_files=paths, split="train", features=export.features("chat"))

    Args:
        exporter: ``chat``, ``distillation``, ``exchanges``, ``steps``, ``trl``, ``trl_dpo``, ``trl_kto``,
            ``trl_prompts``, ``turns``, ``verifiers`` or ``verl_prompts``.
        **options: for ``chat``: the ``columns`` with which the file was written.

    Raises:
        ImportError: datasets or pyarrow is not installed.
        TypeError: an option that the exporter does not have.
        ValueError: there is no such exporter, or it has no columns; or an option has an unknown value.
    """
    if exporter not in _EXPORTERS:
        known = ", ".join(_EXPORTERS)
        raise ValueError(f"exporter={exporter!r}: expected one whose rows have columns: {known}.")
    if options and exporter != "chat":
        raise TypeError(f"{next(iter(options))!r} is no option of features({exporter!r}): its columns are fixed.")
    given: Any = {"data_source": "", "ability": ""} if exporter == "verl_prompts" else options
    columns = _EXPORTERS[exporter].rows((), **given).columns
    return import_package("datasets").Features.from_arrow_schema(arrow_schema(columns))
