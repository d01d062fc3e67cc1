"""The folder that goes in front of ``PYTHONPATH`` in the processes of a run. Nothing else may be in it."""
