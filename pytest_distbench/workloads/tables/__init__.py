"""Tables of workloads."""
