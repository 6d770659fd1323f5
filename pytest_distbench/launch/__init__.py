"""One launch, from plan to record: what starts its ranks, where they live, what they leave, what went wrong."""
