"""What one rank's training leaves behind: its weights, how its replicas agreed on the way, and what it saved."""

from __future__ import annotations

from pytest_distbench.records.record import Number, Record

NOT_A_TENSOR = "number"  # form of a plain number in a saved file, such as an epoch or a learning rate


UPDATES = "updates"  # key of each saved file: after how many updates it was saved last


Option = bool | int | float | str  # of an optimizer or a scheduler


class TensorState(Record, frozen=True, array_like=True):
    """One tensor, or one rank's shard of it, reduced to what a comparison needs; in files a list."""

    form: str  # ``float32 64x32``: dtype and shape; :data:`NOT_A_TENSOR` of a plain number
    digest: str  # hexadecimal, of all bits in their order; "" if launches of the baseline differ
    norm: Number  # euclidean; for a plain number its value
    product: Number = 0.0
    other_product: Number = 0.0
    """Products with two fixed random vectors whose elements have variance 1. A change of the tensor changes each by
    about the norm of that change, whatever its sign and order."""
    change: Number = 0.0  # norm of its change since the first update, estimated from eight such products; 0 if unknown
    spread: Number = 0.0  # in a baseline, what its launches differ by, as :meth:`distance` measures it

    def distance(self, other: TensorState) -> float:
        """Largest difference of norm and products: an estimate of the norm of the difference."""
        return max(
            abs(self.norm - other.norm),
            abs(self.product - other.product),
            abs(self.other_product - other.other_product),
        )


class Trained(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Training state of one rank: weights of its optimizers, and buffers of the modules that have these."""

    updates: int = 0  # steps of all optimizers
    weights: dict[str, TensorState] = {}  # by name in the module, else ``group 0, parameter 3``
    options: dict[str, Option] = {}
    """Options of each optimizer at its first update, and of its schedulers, by ``AdamW: weight_decay``."""
    names: list[str] = []  # tensors that were compared on the way
    replicas: dict[str, list[int]] = {}
    """Ranks among which DistributedDataParallel, or a replicate dimension of a mesh, keeps a tensor equal, by name."""
    checks: list[tuple[int, list[str]]] = []  # after updates 1, 2, 4, 8 ..., with the digests of ``names``
    saved: dict[str, TensorState] = {}  # by file and key, as it was saved last
    remarks: list[str] = []  # what was not looked at, and why
