"""Where each block of the documentation is run, and why a few are not."""

from __future__ import annotations

import re

from page_blocks import Block, blocks_of, pages

from .stages import part_of

ELSEWHERE: dict[tuple[str, str], str] = {
    ("docs/coding-agent.md", ""): "tests/examples/coding_agent/test_example.py",
    ("docs/export.md", "Dataset.from_generator"): "tests/consumers/datasets/test_datasets.py",
    ("docs/export.md", "features=export.features"): "tests/consumers/datasets/test_datasets.py",
    ("docs/export.md", 'datasets.load_dataset("parquet"'): "tests/consumers/datasets/test_datasets.py",
    ("docs/export.md", "export.dataset(export.steps"): "tests/consumers/datasets/test_datasets.py",
    ("docs/engines.md", "vLLM"): "tests/clients/samplers/test_page.py",
    ("docs/engines.md", "Tinker"): "tests/consumers/tinker/test_sampling.py",
    ("docs/engines.md", "transformers"): "tests/consumers/torch/test_generate.py",
    ("docs/filter.md", "Expressions"): "tests/documentation/test_expressions.py",
    ("docs/fork.md", "wrap_tool_call"): "integrations/rollout-trace-langchain/tests/test_forks.py",
    ("docs/integrations.md", "class Hooks"): "tests/integration/test_integration_example.py",
    ("docs/integrations.md", "record(agent, engine"): "tests/integration/test_integration_example.py",
    ("docs/mismatch.md", "class Reporting"): "tests/consumers/torch/test_trl_adapter.py",
    ("docs/mismatch.md", "class Noting"): "tests/consumers/torch/test_verl_numbers.py",
    ("docs/start.md", "Train"): "tests/consumers/torch/test_pages.py",
    ("docs/start.md", "-MODEL = "): "tests/documentation/test_start.py",
    ("docs/start.md", "-with ScriptedServer"): "tests/documentation/test_start.py",
    ("docs/test-agents.md", "Asserts on rollouts"): "tests/testing/test_asserts_page.py",
    ("docs/train-trl.md", "A whole loop"): "tests/consumers/torch/test_grpo.py",
    ("docs/train-verl.md", "An agent as an agent loop"): "tests/consumers/torch/test_verl_adapter.py",
    ("docs/train-verl.md", "Rows: `export.verl`"): "tests/consumers/torch/test_export_page.py",
    **{(f"docs/train-{name}.md", ""): "tests/consumers/torch/test_pages.py" for name in ("trl", "verl")},
    ("docs/train-skyrl.md", ""): "tests/trainers/skyrl/test_skyrl.py",
    ("docs/train-others.md", "Rows for NeMo-RL"): "tests/consumers/torch/test_export_page.py",
    ("docs/train-others.md", "Rows for AReaL"): "tests/trainers/torch/test_areal.py",
    ("docs/train-others.md", "Rows for OpenPipe ART"): "tests/trainers/python312/test_art.py",
    ("docs/train-others.md", "Rows for Agent-lightning"): "tests/trainers/skyrl/test_agent_lightning.py",
    ("docs/train-others.md", "Rows for OpenEnv"): "tests/consumers/openenv/test_openenv.py",
    ("docs/train-others.md", "NeMo-Gym"): "tests/trainers/python313/test_nemo_gym_adapter.py",
    ("docs/train-others.md", "slime and Miles"): "tests/trainers/torch/test_slime_adapter.py",
    ("docs/train-others.md", "AReaL"): "tests/trainers/torch/test_areal_adapter.py",
    ("docs/train-prime-rl.md", "An agent in the trainer"): "tests/consumers/verifiers/test_harness.py",
    ("docs/train-prime-rl.md", ""): "tests/consumers/verifiers/test_pages.py",
    ("docs/train-tinker.md", "An agent while it trains"): "tests/consumers/tinker/test_tinker_adapter.py",
    ("docs/train-tinker.md", ""): "tests/consumers/tinker/test_pages.py",
    ("docs/training.md", "reinforce.py"): "tests/consumers/torch/test_reinforce.py",
    ("docs/training.md", "ratio off by"): "tests/consumers/torch/test_reinforce.py",
    ("docs/training.md", "torch.log_softmax"): "tests/consumers/torch/test_export_page.py",
    ("docs/threads.md", "One trajectory a request"): "tests/consumers/torch/test_web_services.py",
    ("docs/which-way.md", "A framework"): "tests/mixed/test_page.py",
}
"""Blocks that another test runs: the page, a text that the block has or a heading above begins with, the test."""
ELSEWHERE |= {
    (page, ""): f"integrations/rollout-trace-{name}/tests/test_page.py"
    for name in ("google-adk", "inspect", "langchain", "openai-agents", "pydantic-ai", "smolagents", "strands")
    for page in (f"docs/{name}.md", f"integrations/rollout-trace-{name}/README.md")
}
NOT_RUN: dict[tuple[str, str], str] = {
    ("docs/collect.md", "ray start"): "starts a cluster of several machines; one of a machine is in tests/collect_ray",
    ("docs/collect.md", "rt.RayExecutor"): "needs that cluster, and a bucket; the same call is in tests/collect_ray",
    ("docs/export.md", "polars.read_parquet"): "needs polars, which no environment of the tests of exports has",
    ("docs/look.md", "ssh"): "needs a second machine",
    ("docs/start.md", "vllm serve"): "needs a GPU",
    **{
        ("docs/train-others.md", f"Rows for {name}"): f"on no index; its class gets these rows in {test}"
        for name, test in (
            ("slime", "tests/trainers/torch/test_checkouts.py"),
            ("rLLM", "tests/trainers/torch/test_checkouts.py"),
            ("OpenRLHF", "tests/trainers/torch/test_openrlhf.py"),
        )
    },
}
"""Blocks that no test can run, with the reason."""


def matches(key: tuple[str, str], block: Block) -> bool:
    """Whether an entry of the tables is about a block."""
    page, text = key
    return page == block.page and (text in block.text or any(one.startswith(text) for one in block.headings))


def place(block: Block) -> str:
    """Where a block is run: a test, a reason why it is not, or nothing: then its page is read here."""
    for key, where in [*NOT_RUN.items(), *ELSEWHERE.items()]:
        if matches(key, block):
            return where
    if not re.sub(r"^pip install .*\n", "", block.text, flags=re.MULTILINE):
        return "tests/install/test_commands.py"
    return ""


def is_run(block: Block) -> bool:
    """Whether a test runs it, here or elsewhere."""
    return place(block) not in NOT_RUN.values()


def is_read_here(block: Block) -> bool:
    """Whether `test_pages` runs it."""
    return not place(block)


def parts_read_here() -> list[str]:
    """The pages, and the parts with a stage of their own, with blocks that `test_pages` runs."""
    return sorted({part_of(block) for page in pages() for block in blocks_of(page) if is_read_here(block)})
