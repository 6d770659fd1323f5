"""Elastic jobs: agents that come and go, and what each change of membership costs."""
