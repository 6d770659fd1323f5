"""The loop of a run: request, launches, verdict, more launches while an answer is open. Knows nothing of pytest."""
