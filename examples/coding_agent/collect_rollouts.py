"""Rollouts of a coding agent on the tasks of this folder, with rewards by their tests, as data sets to train on.

    python collect_rollouts.py                                                # a scripted model: no key, no network
    python collect_rollouts.py --base-url http://localhost:8000/v1 --engine vllm --model NAME
    python collect_rollouts.py --claude                                       # with ANTHROPIC_API_KEY

The same command goes on after an interruption, and makes more with a larger ``--samples``.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import rollout_trace as rt
from grading import grade
from rollout_trace import export
from rollout_trace.testing import ByteTokenizer, ScriptedServer
from workspace import HERE

HEADER = ("task", "sample", "reward", "tests", "calls", "sampled", "rows", "ended by")


def main() -> None:
    options = parsed()
    folder = Path(options.output)
    folder.mkdir(parents=True, exist_ok=True)
    rollouts = folder / "rollouts.jsonl"
    with ExitStack() as stack:
        set_server(options, stack)
        summary = rt.collect(
            f"{HERE / ('claude_agent.py' if options.claude else 'coding_agent.py')}:solve",
            HERE / "tasks.jsonl",
            output=rollouts,
            reward=grade,
            samples=options.samples,
            concurrency=options.concurrency,
            timeout=options.timeout,
            reward_timeout=120,
            seed=0,
            task_ids=None if options.task_ids is None else options.task_ids.split(","),
            engine=None if options.claude else options.engine or ("auto" if options.base_url else "vllm"),
        )
    # By task and sample, however long each took. What an interruption cut off was made again.
    whole = [one for one in rt.read(rollouts) if one.status != "aborted"]
    found = sorted(whole, key=lambda one: (one.group_id or "", one.rollout_index or 0))
    print()
    show(list(table(found)))
    print()
    for line in write_all(folder, found, decoder(options), "turns.parquet" if options.parquet else "turns.jsonl"):
        print(line)
    print(f"\nNext:\n  rollout-trace view {rollouts}\n  rollout-trace show {rollouts} 1 --tokens")
    raise SystemExit(summary.exit_code)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", help="a server with the API; without it an embedded one answers")
    parser.add_argument("--engine", help="the engine behind it, to be asked for token ids; auto where it is not given")
    parser.add_argument("--model", help="its name; the first that the server lists where it is not given")
    parser.add_argument("--claude", action="store_true", help="Anthropic's API in the place of OpenAI's")
    parser.add_argument("--output", default="coding-agent", help="a folder (%(default)s)")
    parser.add_argument("--task-ids", help="those of tasks.jsonl to work on, with commas between them; all")
    parser.add_argument("--samples", type=int, default=4, help="rollouts of each task (%(default)s)")
    parser.add_argument("--concurrency", type=int, default=4, help="rollouts at the same time (%(default)s)")
    parser.add_argument("--turns", type=int, help="calls of the model in a rollout")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds for a rollout (%(default)g)")
    parser.add_argument("--tokenizer", help="its tokenizer.json, for the texts of prompts in the data set of turns")
    parser.add_argument("--parquet", action="store_true", help="the data set of turns as Parquet; needs pyarrow")
    options = parser.parse_args()
    if options.claude and not {"ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"} & set(os.environ):
        parser.error("--claude needs a key in ANTHROPIC_API_KEY")
    return options


def set_server(options: argparse.Namespace, stack: ExitStack) -> None:
    """Gives the agents their server and model in the variables that they, and their SDKs, read."""
    url = options.base_url
    if options.claude:
        if url is not None:
            os.environ["ANTHROPIC_BASE_URL"] = url
    else:
        if url is None:
            from scripted_model import script

            url = stack.enter_context(ScriptedServer(script)).base_url
        os.environ["OPENAI_BASE_URL"] = url
        os.environ.setdefault("OPENAI_API_KEY", "none")
    if options.model is not None:
        os.environ["CODING_AGENT_MODEL"] = options.model
    if options.turns is not None:
        os.environ["CODING_AGENT_TURNS"] = str(options.turns)


def table(rollouts: list[rt.Trajectory]) -> Iterator[tuple[str, ...]]:
    """A row for each rollout."""
    for one in rollouts:
        metrics = one.metrics or {}
        sampled = [len(ids) for step in one.steps if (ids := step.completion_token_ids) is not None]
        yield (
            str(one.group_id),
            str(one.rollout_index),
            "none" if one.reward is None else f"{one.reward:g}",
            f"{metrics['tests_passed']:.0%}" if "tests_passed" in metrics else "none",
            str(len(one.steps)),
            str(sum(sampled)) if sampled else "none",
            str(len(one.sequences())),
            (one.stop_reason or one.status) + (", edited tests" if metrics.get("edited_tests") else ""),
        )


def show(rows: list[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(HEADER, *rows, strict=True)]
    for row in (HEADER, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def decoder(options: argparse.Namespace) -> Callable[[list[int]], str] | None:
    """Makes texts of token ids; None where there is no tokenizer."""
    if options.tokenizer:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(options.tokenizer)
        return lambda ids: str(tokenizer.decode(ids, skip_special_tokens=False))
    return None if options.base_url or options.claude else ByteTokenizer().decode


def write_all(
    folder: Path, rollouts: list[rt.Trajectory], decode: Callable[[list[int]], str] | None, turns: str
) -> Iterator[str]:
    """Writes the data sets into the folder; gives a line for each. What is left out of one is logged."""
    solved = [one for one in rollouts if one.reward == 1.0]
    count = export.write(folder / turns, export.turns.rows(rollouts, decode=decode))
    yield f"{folder / turns}: {count} calls, with ids, logprobs and reward"
    count = export.write(folder / "sft.jsonl", export.chat.rows(solved))
    yield f"{folder / 'sft.jsonl'}: {count} attempts with reward 1, as messages"
    count = export.write(folder / "sft-tokens.jsonl", export.trl.rows(solved))
    yield f"{folder / 'sft-tokens.jsonl'}: {count} attempts with reward 1, as token ids"
    count = export.write(folder / "dpo.jsonl", export.trl_dpo.rows(rollouts))
    yield f"{folder / 'dpo.jsonl'}: {count} pairs, the best attempt at a task over its worst"


if __name__ == "__main__":
    main()
