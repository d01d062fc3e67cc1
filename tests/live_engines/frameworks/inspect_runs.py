"""An evaluation of Inspect whose agent is asked to call its tool, one sample a run: ``BASE_URL MODEL FILE RUNS``."""

import sys

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageUser, GenerateConfig, execute_tools, get_model
from inspect_ai.solver import solver
from inspect_ai.tool import ToolFunction, tool

from rollout_trace_inspect import record_evals

BASE_URL, MODEL, FILE, RUNS = sys.argv[1:]


@tool
def add():
    async def execute() -> str:
        """Adds two numbers. Without arguments: a random model would write endless ones."""
        return "The sum is 3."

    return execute


@solver
def adder():
    async def solve(state, generate):
        tools, model = [add()], get_model()
        for choice in (ToolFunction(name="add"), "none"):
            state.output = await model.generate(state.messages, tools, choice)
            state.messages.append(state.output.message)
            messages, _ = await execute_tools(state.messages, tools)
            state.messages.extend(messages)
        return state

    return solve


if __name__ == "__main__":
    model = get_model(
        f"openai/{MODEL}",
        base_url=BASE_URL,
        api_key="none",
        responses_api=False,
        config=GenerateConfig(max_tokens=24, temperature=1.0, max_retries=0),
    )
    samples = [Sample(input=[ChatMessageUser(content=f"Add {number}.")], id=number) for number in range(int(RUNS))]
    with record_evals(FILE, engine="vllm"):
        (log,) = eval(Task(dataset=samples, solver=adder()), model=model, display="none", log_dir="logs")
    assert log.status == "success", log.error
