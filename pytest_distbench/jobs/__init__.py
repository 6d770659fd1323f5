"""Elastic jobs and pools of them: launches whose membership changes."""
