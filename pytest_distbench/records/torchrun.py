"""The environment variables by which torchrun tells a rank who it is."""

from __future__ import annotations

PLACE = (
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip
"""A rank's place in its group."""

CONTRACT = (
    *PLACE, "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE", "TORCH_NCCL_ASYNC_ERROR_HANDLING",
)  # fmt: skip
"""All that torchrun gives a rank. The last one is the user's where it is set, as under torchrun."""

_PREFIXES = ("TORCHELASTIC_", "PET_")
"""Of what torchrun gives its ranks, and of what it takes its own options from."""


def is_of_a_group(name: str) -> bool:
    """Whether a variable belongs to one torchrun group; where pytest inherited it, it must never reach a rank."""
    return name in PLACE or name.startswith(_PREFIXES)


NOTES_VARIABLE = "DISTBENCH_NOTES"
"""In the environment of a command that is measured: the plan of its launch, for what its processes record."""
