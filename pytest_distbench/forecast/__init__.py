"""Extension: what a step costs on many ranks of a cluster, forecast from what one rank computes, sends and holds."""

STEP, EXPOSED, COMMUNICATION, EFFICIENCY = "step_forecast", "exposed", "communication", "efficiency"
"""Metrics of a step: its seconds; those in which a rank waits for others; those of all that it sends; and computing
over the step."""

GRADIENTS, ACTIVATIONS, FLOPS = "gradient_bytes", "activation_bytes", "flops"
"""Metrics of one rank's step: bytes of gradients, bytes that the backward pass keeps of the forward pass, and FLOPs of
its matrix products and convolutions."""


def label(ranks: int) -> str:
    """Key of the fingerprint of a step at ``ranks`` ranks."""
    return f"step at {ranks:,} ranks"
