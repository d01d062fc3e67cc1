"""Trajectories in the formats of trainers: rows of plain values and arrays, and files of them.

``export.NAME(trajectories, ...)`` gives a list of rows, ``export.NAME.rows(trajectories, ...)`` an iterator that makes
each on demand, and ``export.write(path, rows)`` writes them. An exporter takes

- ``trajectories``: one, or any iterable
- ``strict``: raise ``rollout_trace.ExportError`` instead of leaving something out
- ``report``: an ``ExportReport``, which counts what the format has no place for; it is also named in one warning per
  export. Nothing is left out silently
- further options of its own. Those of rows of tokens are the options of ``Trajectory.sequences()``, and
  ``drop_constant_groups``; those of single calls ``include``, ``allow``, ``constrained`` and ``policy_versions``

It raises TypeError or ValueError at once for an option that is unknown or has an unknown value, and ValueError for a
step's ``advantage`` that does not fit its completion.

Public: what ``__all__`` lists. The modules are internal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollout_trace._lazy import lazy_names

if TYPE_CHECKING:
    from rollout_trace.export._agent_lightning import TURN_COLUMNS as TURN_COLUMNS
    from rollout_trace.export._agent_lightning import agent_lightning as agent_lightning
    from rollout_trace.export._agent_lightning import turns as turns
    from rollout_trace.export._areal import areal as areal
    from rollout_trace.export._arrow import arrow as arrow
    from rollout_trace.export._arrow import dataset as dataset
    from rollout_trace.export._art import art as art
    from rollout_trace.export._atif import atif as atif
    from rollout_trace.export._atif import write_atif as write_atif
    from rollout_trace.export._batches import batches as batches
    from rollout_trace.export._chat import CHAT_COLUMNS as CHAT_COLUMNS
    from rollout_trace.export._chat import ChatOptions as ChatOptions
    from rollout_trace.export._chat import chat as chat
    from rollout_trace.export._distillation import distillation as distillation
    from rollout_trace.export._exchanges import exchanges as exchanges
    from rollout_trace.export._exporter import Exporter as Exporter
    from rollout_trace.export._exporter import RowIterator as RowIterator
    from rollout_trace.export._exporter import Rows as Rows
    from rollout_trace.export._features import features as features
    from rollout_trace.export._files import write as write
    from rollout_trace.export._files import write_jsonl as write_jsonl
    from rollout_trace.export._files import write_parquet as write_parquet
    from rollout_trace.export._nemo_gym import nemo_gym as nemo_gym
    from rollout_trace.export._nemo_rl import nemo_rl as nemo_rl
    from rollout_trace.export._old_names import *  # noqa: F403
    from rollout_trace.export._openenv import openenv as openenv
    from rollout_trace.export._openrlhf import openrlhf as openrlhf
    from rollout_trace.export._otel import otel as otel
    from rollout_trace.export._prompts import trl_prompts as trl_prompts
    from rollout_trace.export._prompts import verl_prompts as verl_prompts
    from rollout_trace.export._rllm import rllm as rllm
    from rollout_trace.export._skyrl import skyrl as skyrl
    from rollout_trace.export._slime import slime as slime
    from rollout_trace.export._steps import STEP_COLUMNS as STEP_COLUMNS
    from rollout_trace.export._steps import steps as steps
    from rollout_trace.export._tinker import tinker as tinker
    from rollout_trace.export._trl import trl as trl
    from rollout_trace.export._trl import trl_dpo as trl_dpo
    from rollout_trace.export._trl import trl_kto as trl_kto
    from rollout_trace.export._trl import trl_rollout as trl_rollout
    from rollout_trace.export._verifiers import verifiers as verifiers
    from rollout_trace.export._verl import verl as verl
    from rollout_trace.report import ExportReport as ExportReport

_HOMES = {
    "rollout_trace.export._agent_lightning": ("TURN_COLUMNS", "agent_lightning", "turns"),
    "rollout_trace.export._areal": ("areal",),
    "rollout_trace.export._arrow": ("arrow", "dataset"),
    "rollout_trace.export._art": ("art",),
    "rollout_trace.export._atif": ("atif", "write_atif"),
    "rollout_trace.export._batches": ("batches",),
    "rollout_trace.export._chat": ("CHAT_COLUMNS", "ChatOptions", "chat"),
    "rollout_trace.export._distillation": ("distillation",),
    "rollout_trace.export._exchanges": ("exchanges",),
    "rollout_trace.export._exporter": ("Exporter", "RowIterator", "Rows"),
    "rollout_trace.export._features": ("features",),
    "rollout_trace.export._files": ("write", "write_jsonl", "write_parquet"),
    "rollout_trace.export._nemo_gym": ("nemo_gym",),
    "rollout_trace.export._nemo_rl": ("nemo_rl",),
    "rollout_trace.export._openenv": ("openenv",),
    "rollout_trace.export._openrlhf": ("openrlhf",),
    "rollout_trace.export._otel": ("otel",),
    "rollout_trace.export._prompts": ("trl_prompts", "verl_prompts"),
    "rollout_trace.export._rllm": ("rllm",),
    "rollout_trace.export._skyrl": ("skyrl",),
    "rollout_trace.export._slime": ("slime",),
    "rollout_trace.export._steps": ("STEP_COLUMNS", "steps"),
    "rollout_trace.export._tinker": ("tinker",),
    "rollout_trace.export._trl": ("trl", "trl_dpo", "trl_kto", "trl_rollout"),
    "rollout_trace.export._verifiers": ("verifiers",),
    "rollout_trace.export._verl": ("verl",),
    "rollout_trace.report": ("ExportReport",),
}
if not TYPE_CHECKING:  # A type checker takes any name for one of a module that has a `__getattr__`.
    _public, __dir__ = lazy_names(__name__, _HOMES)

    def __getattr__(name: str) -> Any:
        if name.startswith(("iter_", "write_")) and name not in __all__:
            from rollout_trace.export import _old_names

            if hasattr(_old_names, name):
                return getattr(_old_names, name)
        return _public(name)


# `write` writes both kinds of files: these are old names, which go on to work.
__all__ = sorted({name for names in _HOMES.values() for name in names} - {"write_jsonl", "write_parquet"})
