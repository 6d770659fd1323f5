"""Extension: a training under a layout, compared with the same training on one rank in float64."""

from importlib.metadata import PackageNotFoundError, version

LOSS_DEVIATION, GRADIENT_DEVIATION, STATE_DEVIATION = "loss_deviation", "gradient_deviation", "state_deviation"
"""Metrics: relative distance from the float64 reference, of the quantity that exceeds its bound by most."""

RANDOM_CONFLICTS = "random_conflicts"  # pairs of ranks whose random numbers do not fit to their samples

STEP_TIME = "step_time"  # of the layout

NARROW = PARAMETERS, GRADIENTS, SENT = "parameters", "gradients", "what a step sends"
"""Facts of a deviation: names of the 16-bit dtypes that parameters, gradients and collectives of a layout have."""

HELD_BYTES = "held_bytes"  # of parameters and optimizer state, of the rank that holds most

LAYOUT_NAMES = (
    "ddp",
    "accumulation",
    "checkpointing",
    "compiled",
    "inductor",
    "fsdp2",
    "tensor_parallel",
    "pipeline",
    "resume",
    "reshard_to_one",
    "reshard_from_one",
)
"""Names of the layouts of more than one rank, for modules that do not import torch."""

INSTALL = "pip install 'pytest-distbench[models]'"
LIBRARIES = {"transformers": "5.24"}  # the release of each whose private parts are known


def why_no_library(name: str) -> str:
    """Why a library's models cannot be built, or ""."""
    wanted = LIBRARIES[name]
    try:
        found = version(name)
    except PackageNotFoundError:
        found = ""
    if found.startswith(f"{wanted}."):
        return ""
    return f"needs {name} {wanted}, {f'found {found}' if found else 'which is not installed'}: {INSTALL}"
