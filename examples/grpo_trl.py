"""TRL's GRPOTrainer on rollouts of a recorded agent: a tiny model learns to look into the right drawer.

A thing lies in each of four drawers. The agent is asked what lies in one of them, and has a tool that opens a drawer.
The trainer's ``rollout_func``, made of the agent and a reward, hands token ids, logprobs, mask and rewards to TRL.

The model is made here, from a seed. A short supervised training, on conversations that are often wrong, comes first, so
that it calls the tool and answers at all. Then TRL trains it. The script exits with status 1 if an importance ratio,
which TRL computes with the recorded logprobs, is not 1, or if the last steps did not earn more than the first.

    python grpo_trl.py --seed 1 --out rollouts

Needs PyTorch and TRL, on the CPU. The same seed gives the same numbers on the same machine.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from datasets import Dataset
from openai import OpenAI
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

import rollout_trace as rt
from rollout_trace.testing import Reply, ScriptedServer
from rollout_trace.trainers.trl import recorded_reward, rollout_func

DRAWERS = "0123"
THINGS = ("coin", "key", "pen", "ring")
ROLLOUTS = 16  # of each task in each step: a group
LEARNING_RATE = 7e-4  # at its highest; with 1e-3 at all steps, some seeds unlearned where a call ends
WARM_UP_STEPS, WARM_UP_RATE = 300, 2e-3


# The model, and its tokenizer, which has an id for each word.

SPECIAL = ["<|pad|>", "<|end|>", "<|user|>", "<|assistant|>", "<|tool|>"]
TEMPLATE = """\
{%- for message in messages -%}
<|{{ message.role }}|> {{ message.content or '' }}
{%- for call in message.tool_calls or [] %} open {{ call.function.arguments.drawer }} {% endfor -%}
<|end|>{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}
"""


def make_tokenizer() -> Any:
    vocabulary = {word: at for at, word in enumerate([*SPECIAL, "drawer", "open", *DRAWERS, *THINGS])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<|pad|>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(SPECIAL)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|end|>", pad_token="<|pad|>")
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def make_model(tokenizer: Any, seed: int) -> Any:
    """Two layers of Llama, with random weights."""
    torch.manual_seed(seed)
    size = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    special = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **size, **special))


def demonstration(tokenizer: Any, chance: random.Random) -> list[int]:
    """The ids of a conversation. In 25% no drawer is opened; each drawer and each answer is right in 55%."""
    asked, found = chance.choice(DRAWERS), chance.choice(THINGS)
    messages: list[Any] = [{"role": "user", "content": f"drawer {asked}"}]
    if chance.random() < 0.75:
        drawer = asked if chance.random() < 0.4 else chance.choice(DRAWERS)
        messages.append({"role": "assistant", "tool_calls": [{"function": {"arguments": {"drawer": drawer}}}]})
        messages.append({"role": "tool", "content": found})
    answer = found if chance.random() < 0.4 else chance.choice(THINGS)
    messages.append({"role": "assistant", "content": answer})
    return list(tokenizer.apply_chat_template(messages)["input_ids"])


def warm_up(model: Any, tokenizer: Any, seed: int) -> None:
    """Supervised training on the demonstrations."""
    chance = random.Random(seed)
    optimizer = torch.optim.Adam(model.parameters(), WARM_UP_RATE)
    for _ in range(WARM_UP_STEPS):
        rows = [demonstration(tokenizer, chance) for _ in range(64)]
        batch = tokenizer.pad({"input_ids": rows}, return_tensors="pt")
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        optimizer.zero_grad()
        model(**batch, labels=labels).loss.backward()
        optimizer.step()


def sample(model: Any, prompt: Sequence[int], max_tokens: int, seed: int) -> tuple[list[int], list[float]]:
    """Ids and logprobs of a completion at temperature 1, with its end token if it came to one."""
    generator = torch.Generator().manual_seed(seed)
    ids: list[int] = []
    logprobs: list[float] = []
    while len(ids) < max_tokens and ids[-1:] != [model.config.eos_token_id]:
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *ids]]), use_cache=False).logits[0, -1]
        next_token = torch.log_softmax(logits, dim=-1)
        ids.append(int(torch.multinomial(next_token.exp(), 1, generator=generator)))
        logprobs.append(float(next_token[ids[-1]]))
    return ids, logprobs


# The server. On a GPU, vLLM and TRL's own connection to it are in the place of this part: docs/training.md.


@dataclass
class Policy:
    """The weights that TRL trains, and the copy of them that is served."""

    trained: Any
    served: Any

    def sync_weights(self) -> None:
        """TRL calls this before the first rollout after each update."""
        self.served.load_state_dict(self.trained.state_dict())


def serve(model: Any, tokenizer: Any) -> ScriptedServer:
    """A server with vLLM's API, whose answers are sampled from the model."""

    def answer(request: Mapping[str, Any]) -> Reply:
        prompt = server.tokenizer.apply_chat_template(request["messages"])
        ids, logprobs = sample(model, prompt, request["max_tokens"], request["seed"])
        stopped = ids[-1] == tokenizer.eos_token_id
        text = tokenizer.decode(ids[:-1] if stopped else ids)
        message: dict[str, Any] = {"content": text}
        call = re.fullmatch(r"open (\d)", text)
        if call:
            function = {"name": "open", "arguments": json.dumps({"drawer": call[1]})}
            made = {"id": f"call-{request['seed']}", "type": "function", "function": function}
            message = {"content": None, "tool_calls": [made]}
        reason = "length" if not stopped else "tool_calls" if call else "stop"
        return Reply(token_ids=ids, logprobs=logprobs, finish_reason=reason, extra_message=message)

    server = ScriptedServer(answer, model="tiny", tokenizer=tokenizer)
    return server


# The agent. Nothing in it is about tokens.

PARAMETERS = {"type": "object", "properties": {"drawer": {"type": "string", "enum": list(DRAWERS)}}}
TOOLS: list[Any] = [{"type": "function", "function": {"name": "open", "parameters": PARAMETERS}}]


def solve(client: OpenAI, messages: list[Any], drawers: Mapping[str, str], seed: int) -> tuple[str, list[str]]:
    """The answer of the model, within three calls of it, and the drawers that were opened before."""
    opened: list[str] = []
    messages = list(messages)
    for turn in range(3):
        response = client.chat.completions.create(
            model="tiny", messages=messages, tools=TOOLS, temperature=1.0, max_tokens=4, seed=3 * seed + turn
        )
        message: Any = response.choices[0].message
        if not message.tool_calls:
            return message.content or "", opened
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            opened.append(json.loads(call.function.arguments)["drawer"])
            messages.append({"role": "tool", "tool_call_id": call.id, "content": drawers[opened[-1]]})
    return "", opened


def agent_of(client: OpenAI, seed: int) -> Callable[[list[Any], rt.Rollout], tuple[bool, bool]]:
    """The agent, a function of the prompt: whether it opened the right drawer and no other, and its answer is right."""

    def agent(prompt: list[Any], rollout: rt.Rollout) -> tuple[bool, bool]:
        asked = prompt[-1]["content"].split()[-1]
        things = random.Random(f"{seed}/{rollout.group}").sample(THINGS, len(THINGS))
        drawers = dict(zip(DRAWERS, things, strict=True))
        # A seed for each rollout: which thread runs it, and when, does not matter.
        answer, opened = solve(client, prompt, drawers, seed * 10**6 + int(asked) * 10**5 + rollout.index)
        return opened == [asked], answer == drawers[asked]

    return agent


def grade(prompt: list[Any], result: tuple[bool, bool], trajectory: rt.Trajectory) -> float:
    """Half for the drawer, half for the answer."""
    return sum(result) / 2


# Training.


class Table(TrainerCallback):  # type: ignore[misc]
    """Prints a line for each step."""

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **others: Any) -> None:
        if "reward" in logs:
            low, high = ratios(logs)
            print(f"{state.global_step:4}  {logs['reward']:11.3f}  {low:.6f} to {high:.6f}", flush=True)


def ratios(logs: Mapping[str, float]) -> tuple[float, float]:
    """The lowest and the highest importance ratio of a step: TRL's logprobs of its tokens over the recorded ones."""
    name = "sampling/importance_sampling_ratio"
    return logs[f"{name}/min"], logs[f"{name}/max"]


def make_trainer(rollouts: Any, policy: Policy, tokenizer: Any, steps: int, seed: int, folder: Path) -> Any:
    config = GRPOConfig(
        output_dir=str(folder),
        max_steps=steps,
        seed=seed,
        num_generations=ROLLOUTS,
        per_device_train_batch_size=ROLLOUTS * len(DRAWERS),
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="linear",  # up in the first tenth of the steps, then down to 0
        warmup_steps=0.1,
        vllm_importance_sampling_mode="token_truncate",  # a ratio for each token
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        logging_steps=1,
        save_strategy="no",
        disable_tqdm=True,
    )
    dataset = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"drawer {drawer}"}] for drawer in DRAWERS]})
    trainer = GRPOTrainer(
        policy.trained, recorded_reward, config, dataset, processing_class=tokenizer, rollout_func=rollouts
    )
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(Table)
    # TRL compares the recorded logprobs with its own only where vLLM samples, so our server takes the place of vLLM.
    trainer.use_vllm, trainer.vllm_generation, trainer._last_loaded_step = True, policy, -1
    return trainer


def run(steps: int, seed: int, path: Path) -> list[dict[str, float]]:
    """Trains, with the rollouts recorded in a file. Returns what TRL logged of each step."""
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, seed)
    warm_up(model, tokenizer, seed)
    policy = Policy(model, deepcopy(model).eval())
    print("step  mean reward  importance ratios")
    with serve(policy.served, tokenizer) as server, OpenAI(base_url=server.base_url, api_key="none") as client:
        rollouts = rollout_func(agent_of(client, seed), reward=grade, output=path)
        trainer = make_trainer(rollouts, policy, tokenizer, steps, seed, path.parent)
        trainer.train()
        rollouts.close()
    return [logs for logs in trainer.state.log_history if "reward" in logs]


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains, and exits with a message if a ratio was wrong or the reward did not rise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="a folder for the recorded rollouts; by default a temporary one")
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore", "You are using 'rollout_func'", UserWarning)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    path = (options.out or Path(tempfile.mkdtemp())) / "rollouts.jsonl"
    if path.exists():
        parser.error(f"{path} exists: name another folder")
    lines = run(options.steps, options.seed, path)
    rewards = [logs["reward"] for logs in lines]
    first, last = fmean(rewards[:5]), fmean(rewards[-5:])
    print(f"mean reward: {first:.3f} in the first five steps, {last:.3f} in the last five")
    print(f"Look at the rollouts: rollout-trace view {path}")
    error = max(abs(ratio - 1) for logs in lines for ratio in ratios(logs))
    if not error <= 1e-3:
        sys.exit(f"an importance ratio before an update was off by {error:.1e}: the logprobs are not the policy's")
    if last <= first:
        sys.exit("the reward did not rise")


if __name__ == "__main__":
    main()
