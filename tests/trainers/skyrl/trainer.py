"""SkyRL's trainer without what needs Ray and a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.trainer import RayPPOTrainer


def make_trainer(prompts: int, *, stepwise: bool = False, per_prompt: int = 1) -> Any:
    """A trainer of batches of so many prompts."""
    trainer: Any = object.__new__(RayPPOTrainer)  # Its constructor starts servers.
    trainer.cfg = SkyRLTrainConfig()
    trainer.cfg.generator.step_wise_trajectories = stepwise
    trainer.cfg.generator.n_samples_per_prompt = per_prompt
    trainer.cfg.trainer.train_batch_size = trainer.cfg.trainer.policy_mini_batch_size = prompts
    trainer.cfg.trainer.critic.model.path = None
    trainer.tokenizer, trainer.all_metrics = SimpleNamespace(pad_token_id=0), {}
    trainer.dispatch = SimpleNamespace(get_lcm_dp_size=lambda: 1)
    return trainer
