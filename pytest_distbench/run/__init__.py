"""The loop of a run: request, launches, verdict, more launches while an answer is open. It does not import pytest."""
