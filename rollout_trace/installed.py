"""Alias, kept for old imports: these names are public in ``rollout_trace.integration``."""

from __future__ import annotations

from rollout_trace.integration.installed import About, Integration, framework_missing, integrations

__all__ = ["About", "Integration", "framework_missing", "integrations"]
