"""Runs an agent as an agent server of NeMo-Gym 0.7 (``nemo_gym/base_responses_api_agent.py``)."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rollout_trace.collection.tasks import digest
from rollout_trace.data.episodes import NOT_SUCCEEDED
from rollout_trace.export import nemo_gym
from rollout_trace.report import ExportReport
from rollout_trace.trainers.served import Served, ServedTask, longest, refuse

if TYPE_CHECKING:
    import os

    from nemo_gym.base_responses_api_agent import SimpleResponsesAPIAgent
    from typing_extensions import Unpack

    from rollout_trace.collection.collect import Agent, Reward
    from rollout_trace.collection.rollouts import TrainerOptions
    from rollout_trace.train.groups import Group

_INDEXES = ("_ng_task_index", "_ng_rollout_index")
_OF_RUN = frozenset({"response", "reward", "mask_sample", "failure_kind", "failure_reason"})
"""Fields of an answer that no column of the dataset takes the place of."""


def agent_server(
    agent: "Agent",
    *,
    reward: "Reward | None" = None,
    output: "str | os.PathLike[str] | None" = None,
    in_flight: int = 256,
    **options: "Unpack[TrainerOptions]",
) -> "type[SimpleResponsesAPIAgent]":
    """Makes a server class that runs an agent, for ``SERVER.run_webserver()`` in the server's ``app.py``.

    The agent's task is a dict: the row of the dataset, with its ``responses_create_params``. ``task.base_url`` is the
    configured model server, whose chat completions include ids with ``return_token_id_information``; ``task.model`` is
    the model's name. The configuration is that of NeMo-Gym's own agents: ``model_server``, and ``resources_server``,
    which verifies the runs. Without a ``resources_server``, ``reward`` gives the reward.

    NeMo-Gym takes one row per run: the run's own row with the most sampled tokens. Other rows, and trajectories opened
    inside the run, are counted in the class's ``report``. A run that failed, or has no sampled ids, is not verified:
    its response is the part that exists, its reward is that of ``reward`` or 0.0, and ``mask_sample`` is True, with
    ``failure_kind`` and ``failure_reason``.

    ``group_id`` is NeMo-Gym's index of the task, otherwise derived from the row; ``metadata["nemo_gym"]`` has its
    indexes.

    Args:
        agent: as for ``rt.rollouts``.
        reward: as for ``rt.rollouts``.
        output: a new file, folder or address for the rollouts; None: rollouts are not kept.
        in_flight: maximum number of simultaneous rollouts; NeMo-Gym's own limit is lower.
        options: the other arguments of ``rt.rollouts``.

    Raises:
        ImportError: NeMo-Gym is not installed.
        TypeError, ValueError, OSError: an argument is wrong.
    """
    try:
        from fastapi import HTTPException, Request
        from nemo_gym.base_resources_server import BaseRunRequest, BaseVerifyResponse
        from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig, SimpleResponsesAPIAgent
        from nemo_gym.config_types import ModelServerRef, ResourcesServerRef
        from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
        from nemo_gym.server_utils import get_response_json, raise_for_status
        from pydantic import ConfigDict
    except ImportError as error:
        raise ImportError(f"trainers.nemo_gym needs NeMo-Gym 0.7, which cannot be imported: {error}") from error
    refuse("agent_server", options, "NeMo-Gym decides which rollouts are made")
    given: dict[str, Any] = {"progress": False, **options}
    served = Served(agent, reward=reward, output=output, in_flight=in_flight, **given)

    class AgentServerConfig(BaseResponsesAPIAgentConfig):  # type: ignore[misc]
        model_server: ModelServerRef
        resources_server: ResourcesServerRef | None = None

    class RunRequest(BaseRunRequest):  # type: ignore[misc]
        model_config = ConfigDict(extra="allow")

    class VerifyResponse(BaseVerifyResponse):  # type: ignore[misc]
        model_config = ConfigDict(extra="allow")

    class AgentServer(SimpleResponsesAPIAgent):  # type: ignore[misc]
        """Runs an agent of this process, recorded."""

        config: AgentServerConfig

        async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming) -> NeMoGymResponse:
            """Returns the response of a run that is not verified."""
            row = await self._row({"responses_create_params": body.model_dump(mode="json", exclude_unset=True)}, None)
            if row["mask_sample"]:
                raise HTTPException(500, row["failure_reason"])
            return NeMoGymResponse.model_validate(row["response"])

        async def run(self, request: Request, body: RunRequest) -> VerifyResponse:
            """Makes a rollout and lets the resources server verify it."""
            fields, cookies = body.model_dump(mode="json", exclude_unset=True), request.cookies
            if self.config.resources_server is not None:
                seeded = await self._post("/seed_session", fields, cookies)
                cookies = seeded.cookies
            columns = {name: value for name, value in fields.items() if name not in _OF_RUN}
            row = {**await self._row(fields, self.rollout_id_from_run(body)), **columns}
            if self.config.resources_server is not None and not row["mask_sample"]:
                verified = await self._post("/verify", {**fields, "response": row["response"]}, cookies)
                row |= await get_response_json(verified)
            answer: VerifyResponse = VerifyResponse.model_validate(row)
            return answer

        async def _post(self, path: str, value: Any, cookies: Any) -> Any:
            assert self.config.resources_server is not None
            name = self.config.resources_server.name
            answer = await self.server_client.post(server_name=name, url_path=path, json=value, cookies=cookies)
            await raise_for_status(answer)
            return answer

        async def _row(self, fields: dict[str, Any], rollout: str | None) -> dict[str, Any]:
            name = self.config.model_server.name
            key = str(fields.get(_INDEXES[0], digest(fields, lenient=True)))
            known = {"nemo_gym": {index.removeprefix("_ng_"): fields[index] for index in _INDEXES if index in fields}}
            address = self.resolve_model_base_url(name, rollout)
            task = ServedTask(fields, base_url=address, model=name, group=key, known=known)
            is_verified = self.config.resources_server is not None
            return _row_of(await served.make(key, task), report, is_verified=is_verified)

    report = AgentServer.report = ExportReport()
    return AgentServer


def _row_of(group: "Group", report: ExportReport, *, is_verified: bool) -> dict[str, Any]:
    """Returns the row of a run for NeMo-Gym, before it is verified."""
    (run,) = group.trajectories
    report.drop("trajectories inside another", len(group.inside))
    # The export leaves out what has no reward, which a resources server gives later.
    scored = run if run.reward is not None else replace(run, reward=0.0)
    rows = list(nemo_gym(scored, report=report)) if run.steps else []
    row = longest(rows, _sampled, report)
    if row is None:
        response = {
            "id": f"resp_{run.id}", "created_at": 0.0, "model": "", "object": "response", "output": [], "tools": [],
            "parallel_tool_calls": True, "tool_choice": "auto",
        }  # fmt: skip
        said = "nothing was sampled with token ids" if run.error is None else f"{run.error.type}: {run.error.message}"
        return {"response": response, "reward": scored.reward, "trajectory_id": run.id, **_failure(said)}
    if run.status in NOT_SUCCEEDED and not row["mask_sample"]:
        row |= _failure(run.status if run.error is None else f"{run.error.type}: {run.error.message}")
    if run.reward is None and not is_verified and not row["mask_sample"]:
        row |= _failure("it has no reward")
    return {name: value for name, value in row.items() if name not in _INDEXES}


def _failure(reason: str) -> dict[str, Any]:
    return {"mask_sample": True, "failure_kind": "agent_run_error", "failure_reason": reason}


def _sampled(row: dict[str, Any]) -> int:
    """Returns the number of sampled tokens in a row."""
    return sum(len(item.get("generation_token_ids", ())) for item in row["response"]["output"])
