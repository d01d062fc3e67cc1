"""The old names of rows one by one (``NAME.rows``) and of files of them (``export.write``)."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Concatenate

from rollout_trace.export._agent_lightning import agent_lightning, turns
from rollout_trace.export._areal import areal
from rollout_trace.export._atif import atif
from rollout_trace.export._chat import chat
from rollout_trace.export._distillation import distillation
from rollout_trace.export._exchanges import exchanges
from rollout_trace.export._exporter import Exporter, P
from rollout_trace.export._files import write
from rollout_trace.export._nemo_gym import nemo_gym
from rollout_trace.export._nemo_rl import nemo_rl
from rollout_trace.export._openenv import openenv
from rollout_trace.export._prompts import verl_prompts
from rollout_trace.export._rllm import rllm
from rollout_trace.export._slime import slime
from rollout_trace.export._steps import steps
from rollout_trace.export._tinker import tinker
from rollout_trace.export._trl import trl
from rollout_trace.export._verifiers import verifiers
from rollout_trace.export._verl import verl


def _writer(exporter: Exporter[P]) -> Callable[Concatenate[str | os.PathLike[str], P], int]:
    """The function of an old name, ``write_NAME(path, ...)``: ``export.write(path, export.NAME.rows(...))``."""

    def write_rows(path: str | os.PathLike[str], *args: Any, **kwargs: Any) -> int:
        return write(path, exporter.rows(*args, **kwargs))

    write_rows.__name__ = write_rows.__qualname__ = f"write_{exporter.__name__}"
    return write_rows  # type: ignore[return-value]  # A type cannot say that `path` may be named, too.


iter_agent_lightning = agent_lightning.rows
iter_areal = areal.rows
iter_atif = atif.rows
iter_chat, write_chat = chat.rows, _writer(chat)
iter_distillation, write_distillation = distillation.rows, _writer(distillation)
iter_exchanges, write_exchanges = exchanges.rows, _writer(exchanges)
iter_nemo_gym = nemo_gym.rows
iter_nemo_rl = nemo_rl.rows
iter_openenv = openenv.rows
iter_rllm = rllm.rows
iter_slime = slime.rows
iter_steps, write_steps = steps.rows, _writer(steps)
iter_tinker = tinker.rows
iter_trl, write_trl = trl.rows, _writer(trl)
iter_turns, write_turns = turns.rows, _writer(turns)
iter_verl = verl.rows
write_verifiers = _writer(verifiers)
write_verl_prompts = _writer(verl_prompts)
