"""Agents and frameworks as their users write them, recorded without a change; each environment is a folder.

`make test-agents`, or `make test-agents-NAME` for the programs of `requirements/agents-NAME.txt`.
"""
