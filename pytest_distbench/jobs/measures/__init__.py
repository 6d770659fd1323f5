"""What a launch of a job or a pool measured, from its timeline. Pure."""
