"""What became of the ranks of a launch: evidence (stacks, flight), fates, blame, and the reason in one line."""
