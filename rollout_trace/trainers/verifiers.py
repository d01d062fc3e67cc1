"""Runs an agent as a harness of verifiers 0.4 (``verifiers/v1/harness.py``) and prime-rl."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rollout_trace.data.episodes import NOT_SUCCEEDED
from rollout_trace.trainers.served import Served, ServedTask, refuse

if TYPE_CHECKING:
    import os

    from typing_extensions import Unpack
    from verifiers.v1.clients import ModelContext
    from verifiers.v1.configs.harness import HarnessConfig
    from verifiers.v1.harness import Harness
    from verifiers.v1.runtimes import ProgramResult, Runtime
    from verifiers.v1.task import TaskData
    from verifiers.v1.trace import Trace

    from rollout_trace.collection.collect import Agent, Reward
    from rollout_trace.collection.rollouts import TrainerOptions
    from rollout_trace.data.trajectory import Trajectory


def harness(
    agent: Agent,
    *,
    reward: Reward | None = None,
    output: str | os.PathLike[str] | None = None,
    in_flight: int = 256,
    policy_version: int | str | Callable[[], int | str] | None = None,
    **options: Unpack[TrainerOptions],
) -> type[Harness[HarnessConfig]]:
    """Makes a harness class that runs an agent in the environment's process.

    The agent's task is a dict: the fields that are set in the task's data, and ``messages``, the system prompt and the
    prompt in the form of chat completions. The agent's model is at ``task.base_url``, ``task.api_key`` and
    ``task.model``: calls to it are in verifiers' trace, on which prime-rl trains. Other calls are only in our
    recording.

    The trace's ``info["rollout_trace"]`` has the ``trajectory_id`` of our trajectory, whose ``metadata["verifiers"]``
    has the ``trace_id``. Its ``group_id`` is the task's ``id``, otherwise its ``idx``, otherwise its key.

    A failed run is an error in the trace, unless verifiers itself ended it, as at ``max_turns``. On a timeout, an async
    agent is cancelled; a sync agent keeps running, and its calls fail.

    Args:
        agent: as for ``rt.rollouts``.
        reward: as for ``rt.rollouts``. It becomes the trace's reward ``reward``; its named parts have weight 0.
            verifiers adds the task's own rewards.
        output: a new file, folder or address for this process's rollouts; None: rollouts are not kept.
        in_flight: maximum number of simultaneous rollouts; verifiers' own limits are lower.
        policy_version: as for ``rt.rollouts``.
        options: the other arguments of ``rt.rollouts``. With ``engine``, ids are requested through verifiers, which
            passes them on in evaluations; in training only verifiers has them.

    Returns:
        The class. List it in a module's ``__all__``; the module's name is then the harness's ``id``.

    Raises:
        ImportError: verifiers is not installed.
        TypeError, ValueError, OSError: an argument is wrong.
    """
    try:
        from verifiers.v1.configs.harness import HarnessConfig
        from verifiers.v1.dialects.chat import message_to_wire
        from verifiers.v1.harness import Harness
        from verifiers.v1.runtimes import ProgramResult
    except ImportError as error:
        raise ImportError(f"trainers.verifiers needs verifiers 0.4, which cannot be imported: {error}") from error
    refuse("harness", options, "verifiers decides which rollouts are made and repeated", "retries", "executor")
    given: dict[str, Any] = {"progress": False, **options, "policy_version": policy_version}
    served = Served(agent, reward=reward, output=output, in_flight=in_flight, **given)

    def task_of(data: TaskData) -> dict[str, Any]:
        system = [] if data.system_prompt is None else [{"role": "system", "content": data.system_prompt}]
        prompt = data.prompt or []
        asked = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else map(message_to_wire, prompt)
        return {**data.model_dump(mode="json", exclude_unset=True), "messages": [*system, *asked]}

    class InProcessHarness(Harness[HarnessConfig]):  # type: ignore[misc]
        """Runs an agent of this process, recorded."""

        APPENDS_SYSTEM_PROMPT = True
        NEEDS_CONTAINER = False

        async def launch(
            self,
            ctx: ModelContext,
            trace: Trace,
            runtime: Runtime,
            endpoint: str,
            secret: str,
            mcp_urls: dict[str, str],
            data: TaskData,
        ) -> ProgramResult:
            """Runs the agent once."""
            key = next((str(one) for one in (data.id, data.idx) if one is not None), trace.task.key)
            known = {"verifiers": {"trace_id": trace.id}}
            asked = {"base_url": endpoint, "api_key": secret, "model": ctx.model, "group": key, "known": known}
            (run,) = (await served.make(key, ServedTask(task_of(data), **asked))).trajectories
            _note(trace, run)
            if run.status not in NOT_SUCCEEDED:
                return ProgramResult(0, "", "")
            said = run.status if run.error is None else f"{run.error.type}: {run.error.message}"
            return ProgramResult(1, "", said)

    return InProcessHarness


def _note(trace: Trace, run: Trajectory) -> None:
    """Gives the trace the rewards of our record, and its id."""
    trace.info["rollout_trace"] = {"trajectory_id": run.id}
    for name, value in (run.rewards or {}).items():
        trace.record_reward(name, value, weight=0.0)
    if run.reward is not None:
        trace.record_reward("reward", run.reward)
