"""mini-swe-agent in the local shell."""

import os
import sys

import yaml
from minisweagent import package_dir
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel

CONFIG = yaml.safe_load((package_dir / "config" / "default.yaml").read_text())["agent"]


def run(question: str) -> str:
    model = LitellmModel(model_name=os.environ["LITELLM_ROUTE"] + os.environ["MODEL"], cost_tracking="ignore_errors")
    agent = DefaultAgent(model, LocalEnvironment(), **CONFIG)
    return agent.run(question)["submission"].strip()


if __name__ == "__main__":
    print(run(sys.argv[1]))
