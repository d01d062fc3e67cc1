"""Trajectories in the formats of trainers: functions that return plain lists and dicts, and writers of files.

Nothing is left out silently. What a format has no place for is counted in ``report=`` and named in one warning per
export; with ``strict=True``, ``rollout_trace.ExportError`` is raised instead.

Public: what ``__all__`` lists. The modules are internal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollout_trace._lazy import lazy_names

if TYPE_CHECKING:
    from rollout_trace.export._agent_lightning import agent_lightning, iter_agent_lightning
    from rollout_trace.export._areal import areal, iter_areal
    from rollout_trace.export._arrow import Rows, arrow, dataset
    from rollout_trace.export._art import art
    from rollout_trace.export._atif import atif, iter_atif, write_atif
    from rollout_trace.export._batches import batches
    from rollout_trace.export._chat import CHAT_COLUMNS, ChatOptions, chat, iter_chat, write_chat
    from rollout_trace.export._distillation import distillation, iter_distillation, write_distillation
    from rollout_trace.export._exchanges import exchanges, iter_exchanges, write_exchanges
    from rollout_trace.export._features import features
    from rollout_trace.export._files import write_jsonl, write_parquet
    from rollout_trace.export._nemo_gym import iter_nemo_gym, nemo_gym
    from rollout_trace.export._nemo_rl import iter_nemo_rl, nemo_rl
    from rollout_trace.export._openenv import iter_openenv, openenv
    from rollout_trace.export._openrlhf import openrlhf
    from rollout_trace.export._otel import otel
    from rollout_trace.export._rllm import iter_rllm, rllm
    from rollout_trace.export._skyrl import skyrl
    from rollout_trace.export._slime import iter_slime, slime
    from rollout_trace.export._steps import STEP_COLUMNS, iter_steps, steps, write_steps
    from rollout_trace.export._tinker import iter_tinker, tinker
    from rollout_trace.export._trl import iter_trl, trl, trl_rollout, write_trl
    from rollout_trace.export._trl_preferences import trl_dpo, trl_kto
    from rollout_trace.export._trl_prompts import trl_prompts
    from rollout_trace.export._turns import TURN_COLUMNS, iter_turns, turns, write_turns
    from rollout_trace.export._verifiers import verifiers, write_verifiers
    from rollout_trace.export._verl import iter_verl, verl, verl_prompts, write_verl_prompts
    from rollout_trace.report import ExportReport

_HOMES = {
    "rollout_trace.export._agent_lightning": ("agent_lightning", "iter_agent_lightning"),
    "rollout_trace.export._areal": ("areal", "iter_areal"),
    "rollout_trace.export._arrow": ("Rows", "arrow", "dataset"),
    "rollout_trace.export._art": ("art",),
    "rollout_trace.export._atif": ("atif", "iter_atif", "write_atif"),
    "rollout_trace.export._batches": ("batches",),
    "rollout_trace.export._chat": ("CHAT_COLUMNS", "ChatOptions", "chat", "iter_chat", "write_chat"),
    "rollout_trace.export._distillation": ("distillation", "iter_distillation", "write_distillation"),
    "rollout_trace.export._exchanges": ("exchanges", "iter_exchanges", "write_exchanges"),
    "rollout_trace.export._features": ("features",),
    "rollout_trace.export._files": ("write_jsonl", "write_parquet"),
    "rollout_trace.export._nemo_gym": ("iter_nemo_gym", "nemo_gym"),
    "rollout_trace.export._nemo_rl": ("iter_nemo_rl", "nemo_rl"),
    "rollout_trace.export._openenv": ("iter_openenv", "openenv"),
    "rollout_trace.export._openrlhf": ("openrlhf",),
    "rollout_trace.export._otel": ("otel",),
    "rollout_trace.export._rllm": ("iter_rllm", "rllm"),
    "rollout_trace.export._skyrl": ("skyrl",),
    "rollout_trace.export._slime": ("iter_slime", "slime"),
    "rollout_trace.export._steps": ("STEP_COLUMNS", "iter_steps", "steps", "write_steps"),
    "rollout_trace.export._tinker": ("iter_tinker", "tinker"),
    "rollout_trace.export._trl": ("iter_trl", "trl", "trl_rollout", "write_trl"),
    "rollout_trace.export._trl_preferences": ("trl_dpo", "trl_kto"),
    "rollout_trace.export._trl_prompts": ("trl_prompts",),
    "rollout_trace.export._turns": ("TURN_COLUMNS", "iter_turns", "turns", "write_turns"),
    "rollout_trace.export._verifiers": ("verifiers", "write_verifiers"),
    "rollout_trace.export._verl": ("iter_verl", "verl", "verl_prompts", "write_verl_prompts"),
    "rollout_trace.report": ("ExportReport",),
}
if not TYPE_CHECKING:  # A type checker takes any name for one of a module that has a `__getattr__`.
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)


__all__ = [
    "CHAT_COLUMNS",
    "STEP_COLUMNS",
    "TURN_COLUMNS",
    "ChatOptions",
    "ExportReport",
    "Rows",
    "agent_lightning",
    "areal",
    "arrow",
    "art",
    "atif",
    "batches",
    "chat",
    "dataset",
    "distillation",
    "exchanges",
    "features",
    "iter_agent_lightning",
    "iter_areal",
    "iter_atif",
    "iter_chat",
    "iter_distillation",
    "iter_exchanges",
    "iter_nemo_gym",
    "iter_nemo_rl",
    "iter_openenv",
    "iter_rllm",
    "iter_slime",
    "iter_steps",
    "iter_tinker",
    "iter_trl",
    "iter_turns",
    "iter_verl",
    "nemo_gym",
    "nemo_rl",
    "openenv",
    "openrlhf",
    "otel",
    "rllm",
    "skyrl",
    "slime",
    "steps",
    "tinker",
    "trl",
    "trl_dpo",
    "trl_kto",
    "trl_prompts",
    "trl_rollout",
    "turns",
    "verifiers",
    "verl",
    "verl_prompts",
    "write_atif",
    "write_chat",
    "write_distillation",
    "write_exchanges",
    "write_jsonl",
    "write_parquet",
    "write_steps",
    "write_trl",
    "write_turns",
    "write_verifiers",
    "write_verl_prompts",
]
