"""The program that is killed: rollouts of two calls each, in four threads.

    python -m tests.file.shards.agent BASE_URL OUTPUT

What an agent saw returned is in the log of the server, which it asks by a name of its own.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import openai

import rollout_trace as rt


def main(base_url: str, output: str) -> None:
    """Runs all rollouts."""
    with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        rt.wrap_openai(client)

        def rollout(number: int) -> None:
            with rt.trajectory(task=str(number)):
                for turn in range(2):
                    messages = [{"role": "user", "content": f"{number}/{turn}"}]
                    client.chat.completions.create(model="m", messages=messages)  # type: ignore[arg-type]

        with rt.recording(output, shard_bytes=4000), ThreadPoolExecutor(4) as pool:
            for one in [pool.submit(rt.propagate(rollout), number) for number in range(24)]:
                one.result()


if __name__ == "__main__":
    main(*sys.argv[1:])
