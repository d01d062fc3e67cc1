"""Training on what was recorded: a tiny model learns to say the digit it is asked for.

The model is made here, from a seed, and sampled behind a server with vLLM's API. An agent talks with it for two turns
on the openai client, recorded. The training step takes all it needs from the recorded file: token ids, loss mask,
logprobs, rewards. Before each first update the importance ratio, computed with the recorded logprobs, must be 1; over
the iterations the reward must rise. If either fails, the script prints it and exits with status 1.

    python reinforce.py
    python reinforce.py --iterations 20 --seed 1 --out rollouts

Needs PyTorch, on the CPU. The same seed gives the same numbers on the same machine.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, NamedTuple

import torch
from openai import OpenAI
from torch import nn
from torch.nn.utils.rnn import pad_sequence

import rollout_trace as rt
from rollout_trace.testing import Reply, ScriptedServer

DIGITS = "0123"
ROLLOUTS = 32  # of each task in each iteration: a group
EPOCHS = 4
LEARNING_RATE = 1e-3
CLIP = 0.2
MAX_RATIO_ERROR = 1e-3


# The model. Its tokens are the 128 characters of ASCII, so that each id is the code of its character.

BEGIN, END = "\x02", "\x03"
VOCABULARY, WIDTH, MAX_LENGTH = 128, 64, 128


class Policy:
    """A causal transformer of two layers."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.modules = nn.ModuleDict(
            {
                "tokens": nn.Embedding(VOCABULARY, WIDTH),
                "positions": nn.Embedding(MAX_LENGTH, WIDTH),
                "layers": nn.TransformerEncoder(layer, 2, nn.LayerNorm(WIDTH), enable_nested_tensor=False),
                "head": nn.Linear(WIDTH, VOCABULARY),
            }
        )
        # One first token in seven: short answers must be among those it tries.
        self.modules["head"].bias.data[ord(END)] += 3.0

    def logprobs(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Logprobs of the next token after each token: float32 [rows, length, VOCABULARY] from ids [rows, length]."""
        length = token_ids.shape[1]
        hidden = self.modules["tokens"](token_ids) + self.modules["positions"](torch.arange(length))
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        hidden = self.modules["layers"](hidden, mask=mask, is_causal=True)
        return torch.log_softmax(self.modules["head"](hidden), dim=-1)

    def sample(self, prompt: list[int], max_tokens: int, seed: int) -> tuple[list[int], list[float]]:
        """Ids and logprobs of a completion at temperature 1, with its END if it came to one."""
        generator = torch.Generator().manual_seed(seed)
        ids: list[int] = []
        logprobs: list[float] = []
        while len(ids) < max_tokens and ids[-1:] != [ord(END)]:
            with torch.no_grad():
                next_token = self.logprobs(torch.tensor([prompt + ids]))[0, -1]
            ids.append(int(torch.multinomial(next_token.exp(), 1, generator=generator)))
            logprobs.append(float(next_token[ids[-1]]))
        return ids, logprobs


# The server.


def render(messages: list[dict[str, str]]) -> list[int]:
    """The ids of a prompt. A completion that is sent back is in the next prompt as it was sampled."""
    text = "".join(f"{BEGIN}{message['role'][0]}{message['content']}{END}" for message in messages)
    return [ord(character) for character in f"{text}{BEGIN}a"]


def serve(policy: Policy) -> ScriptedServer:
    """A server with vLLM's API, whose answers are sampled from the policy. Nothing trains while it serves."""

    def answer(request: Mapping[str, Any]) -> Reply:
        prompt = render(request["messages"])
        ids, logprobs = policy.sample(prompt, request["max_tokens"], request["seed"])
        stopped = ids[-1] == ord(END)
        return Reply(
            token_ids=ids,
            logprobs=logprobs,
            finish_reason="stop" if stopped else "length",
            extra_message={"content": "".join(map(chr, ids[:-1] if stopped else ids))},
            # In place of those that the server makes with a tokenizer of its own.
            usage={"prompt_tokens": len(prompt), "total_tokens": len(prompt) + len(ids)},
            extra={"prompt_token_ids": prompt},
        )

    return ScriptedServer(answer, model="tiny")


# The agent. Nothing in it is about tokens.


def grade(answer: str, digit: str) -> float:
    """Similarity of an answer to the digit, from 0 to 1; 1 is the digit and nothing else."""
    return SequenceMatcher(None, answer, digit).ratio()


def converse(client: OpenAI, digit: str, seed: int) -> float:
    """Prompts for the digit, replies with a verdict and prompts again. Returns the mean grade."""
    messages: list[Any] = [{"role": "user", "content": f"Say {digit}"}]
    grades = []
    for turn in range(2):
        response = client.chat.completions.create(model="tiny", messages=messages, max_tokens=4, seed=2 * seed + turn)
        answer = response.choices[0].message.content or ""
        grades.append(grade(answer, digit))
        verdict = "Right" if grades[-1] == 1 else "Wrong"
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": f"{verdict}, say {digit}"}]
    return sum(grades) / len(grades)


# Recording.


class Job(NamedTuple):
    digit: str
    rollout: int
    seed: int


def collect(client: OpenAI, path: Path, first_seed: int) -> None:
    """Records a group of rollouts for each digit, into a file of their own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)

    def rollout(job: Job) -> None:
        task = f"say/{job.digit}"
        with rt.trajectory(task=task, group=task, rollout_index=job.rollout) as trajectory:
            trajectory.reward = converse(client, job.digit, job.seed)

    pairs = [(digit, index) for digit in DIGITS for index in range(ROLLOUTS)]
    # A seed for each rollout: which thread runs it, and when, does not matter.
    jobs = [Job(digit, index, first_seed + number) for number, (digit, index) in enumerate(pairs)]
    with rt.recording(path), ThreadPoolExecutor(4) as threads:
        list(threads.map(rt.propagate(rollout), jobs))


# Training.


@dataclass(frozen=True)
class Batch:
    """Rows, padded on the right to one length: [rows, length], save the rewards: [rows]."""

    token_ids: torch.Tensor
    sampled: torch.Tensor
    logprobs: torch.Tensor
    advantages: torch.Tensor
    rewards: torch.Tensor


def batch_of(trajectories: Iterable[rt.Trajectory]) -> Batch:
    """All rows of the runs. The advantage of a run's tokens is its reward less the mean of the others of its group."""
    # Threads end in any order, and sums of floats depend on it.
    ordered = sorted(trajectories, key=lambda each: (each.group_id or "", each.rollout_index or 0))
    for group in rt.groups(ordered):
        for trajectory, advantage in zip(group.trajectories, group.advantages("leave_one_out"), strict=True):
            for step in trajectory.steps:
                step.advantage = advantage
    rows = [row for trajectory in ordered for row in trajectory.sequences()]

    def padded(name: str) -> torch.Tensor:
        return pad_sequence([torch.tensor(getattr(row, name)) for row in rows], batch_first=True)

    return Batch(
        token_ids=padded("token_ids").long(),
        sampled=padded("loss_mask").bool(),
        logprobs=padded("logprobs"),
        advantages=padded("advantages"),
        rewards=torch.tensor([row.reward for row in rows]),
    )


def learn(policy: Policy, optimizer: torch.optim.Optimizer, batch: Batch) -> float:
    """Some epochs of PPO. Returns how far from 1 an importance ratio was before the first update."""
    sampled, targets = batch.sampled[:, 1:], batch.token_ids[:, 1:]
    recorded, advantage = batch.logprobs[:, 1:][sampled], batch.advantages[:, 1:][sampled]
    error = 0.0
    for epoch in range(EPOCHS):
        logprobs = policy.logprobs(batch.token_ids[:, :-1]).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        ratio = torch.exp(logprobs[sampled] - recorded)
        if epoch == 0:
            error = (ratio - 1).abs().max().item()
        loss = -torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return error


def run(iterations: int, seed: int, folder: Path) -> tuple[list[float], float]:
    """Mean reward of each iteration, and the largest error of an importance ratio."""
    policy = Policy(seed)
    optimizer = torch.optim.Adam(policy.modules.parameters(), LEARNING_RATE)
    rewards, errors = [], []
    with serve(policy) as server, OpenAI(base_url=server.base_url, api_key="none") as client:
        rt.wrap_openai(client, engine="vllm")
        for iteration in range(iterations):
            path = folder / f"{iteration:03}.jsonl"
            collect(client, path, seed * 10**6 + iteration * 10**3)
            batch = batch_of(rt.read(path))
            errors.append(learn(policy, optimizer, batch))
            rewards.append(batch.rewards.mean().item())
            print(
                f"{iteration:3}  reward {rewards[-1]:.3f}  ratio off by {errors[-1]:.1e}  "
                f"{batch.sampled.sum()} tokens sampled  "
                f"{len(batch.rewards) / (len(DIGITS) * ROLLOUTS):g} rows a trajectory",
                flush=True,
            )
    return rewards, max(errors)


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains, and exits with a message if a ratio was wrong or the reward did not rise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="a folder for the recorded rollouts; without it they are thrown away")
    options = parser.parse_args(arguments)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        rewards, error = run(options.iterations, options.seed, options.out or Path(temporary))
    print(f"mean reward: {rewards[0]:.3f} at first, {rewards[-1]:.3f} at last")
    if error > MAX_RATIO_ERROR:
        sys.exit(f"an importance ratio before an update was off by {error:.1e}: the logprobs are not the policy's")
    if rewards[-1] <= rewards[0]:
        sys.exit("the reward did not rise")


if __name__ == "__main__":
    main()
