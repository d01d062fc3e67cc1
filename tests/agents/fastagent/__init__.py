"""fast-agent, which pins the SDKs that it uses and needs Python 3.13: `make test-agents-fastagent`."""
