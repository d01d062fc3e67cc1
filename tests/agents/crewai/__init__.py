"""CrewAI, whose pins agree with nobody's: `make test-agents-crewai`."""
