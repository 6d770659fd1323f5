"""Digests and sketches of tensors, to compare them later, at a fraction of a second per GiB.

The digest is a sum of 64-bit words with fixed random coefficients, modulo 2**64, over the words in each tile and over
the tiles: it depends on every bit and the order. The sketch is the norm, and products with fixed random vectors: the
difference of two sketches estimates the norm of the difference (Johnson and Lindenstrauss 1984).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy
import torch

from pytest_distbench.records.trained import NOT_A_TENSOR, TensorState

_TILE = 1 << 13
_PRODUCTS = 8
_CHUNK = 128  # tiles converted at once: 4 MiB of float32
_DEVICES = ("cpu", "cuda")


@functools.cache
def _words(level: int, device: torch.device) -> torch.Tensor:
    """Odd 64-bit coefficients of a level (_TILE,). NumPy guarantees the stream of a bit generator."""
    raw = numpy.random.PCG64(level).random_raw(_TILE) | numpy.uint64(1)
    return torch.from_numpy(raw.view(numpy.int64)).to(device)


@functools.cache
def _vectors(count: int, seed: int, device: torch.device) -> torch.Tensor:
    """Random vectors of mean 0 and variance 1, float32 (count, _PRODUCTS)."""
    raw = numpy.random.PCG64(seed).random_raw(count * _PRODUCTS)
    uniform = (raw >> numpy.uint64(11)).astype(numpy.float64) * 2.0**-53
    scaled = ((2.0 * uniform - 1.0) * math.sqrt(3.0)).astype(numpy.float32)
    return torch.from_numpy(scaled.reshape(count, _PRODUCTS)).to(device)


@torch.no_grad()  # else autograd records what makes a DTensor local, and a training step seems to begin
def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor, which may be a DTensor, or a ShardedTensor of torchrec's tables."""
    local = tensor.detach()
    if hasattr(local, "to_local"):
        return local.to_local()
    if not hasattr(local, "local_shards"):
        return local
    shards = [shard.tensor for shard in local.local_shards()]
    return shards[0] if len(shards) == 1 else torch.cat([torch.empty(0, dtype=local.dtype), *map(torch.ravel, shards)])


def own_part(tensor: torch.Tensor) -> torch.Tensor | None:
    """This rank's part of a tensor as a plain contiguous tensor, or None if its values cannot be read."""
    local = local_part(tensor)
    is_plain = type(local) in (torch.Tensor, torch.nn.Parameter) and local.layout == torch.strided
    is_readable = is_plain and not local.is_meta and not local.is_quantized and local.device.type in _DEVICES
    return local.contiguous() if is_readable else None


def form_of(tensor: torch.Tensor) -> str:
    """Dtype and shape: ``float32 64x32``."""
    shape = "x".join(map(str, tensor.shape))
    return f"{str(tensor.dtype).removeprefix('torch.')} {shape}".rstrip()


@torch.no_grad()
def digest(part: torch.Tensor) -> str:
    """Hexadecimal digest of all bits of a plain, contiguous tensor, in their order."""
    raw = part.reshape(-1).view(torch.uint8) if part.numel() else part.new_zeros(0, dtype=torch.uint8)
    whole = len(raw) // 8 * 8
    rest = raw.new_zeros(8)
    rest[: len(raw) - whole] = raw[whole:]
    if raw.storage_offset() * raw.element_size() % 8:
        raw = raw.clone()
    found = _reduced(raw[:whole].view(torch.int64), level=1) + _reduced(rest.view(torch.int64), level=9)
    return f"{int(found) & (2**64 - 1):016x}"


def _reduced(words: torch.Tensor, *, level: int) -> torch.Tensor:
    while True:
        coefficients = _words(level, words.device)
        whole = len(words) // _TILE * _TILE
        tiles = _of_tiles(words[:whole].view(-1, _TILE), coefficients)
        rest = (words[whole:] * coefficients[: len(words) - whole]).sum().reshape(1)
        words = torch.cat([tiles, rest])
        if len(words) == 1:
            return words[0]
        level += 1


def _of_tiles(tiles: torch.Tensor, coefficients: torch.Tensor) -> torch.Tensor:
    if tiles.device.type == "cpu":
        return torch.mv(tiles, coefficients)
    parts = [(chunk * coefficients).sum(1) for chunk in tiles.split(_CHUNK)]  # CUDA has no mv of integers
    return torch.cat(parts) if parts else tiles.new_zeros(0)


@dataclass(frozen=True, slots=True)
class Sketch:
    norm: float
    products: tuple[float, ...]

    def distance(self, other: Sketch) -> float:
        """An estimate of the norm of the difference of two tensors, to about a quarter of it."""
        squares = [(a - b) ** 2 for a, b in zip(self.products, other.products, strict=True)]
        return math.sqrt(math.fsum(squares) / len(squares))


@torch.no_grad()
def sketch(part: torch.Tensor) -> Sketch:
    """The norm of a plain, contiguous tensor and its products with fixed random vectors."""
    flat = (torch.view_as_real(part) if part.is_complex() else part).reshape(-1)
    inner = _vectors(_TILE, 1, flat.device)
    tiles = math.ceil(len(flat) / _TILE)
    outer = _vectors(1 << max(0, tiles - 1).bit_length(), 2, flat.device)
    products = flat.new_zeros(_PRODUCTS, dtype=torch.float64)
    squares = flat.new_zeros((), dtype=torch.float64)
    with torch.autocast(flat.device.type, enabled=False):
        for begin in range(0, tiles, _CHUNK):
            chunk = flat[begin * _TILE : (begin + _CHUNK) * _TILE].float()
            whole = len(chunk) // _TILE
            rows = chunk[: whole * _TILE].view(whole, _TILE)
            products += ((rows @ inner) * outer[begin : begin + whole]).double().sum(0)
            if rest := len(chunk) - whole * _TILE:
                products += ((chunk[-rest:] @ inner[:rest]) * outer[begin + whole]).double()
            squares += torch.linalg.vector_norm(chunk).double() ** 2
    return Sketch(float(squares.sqrt()), tuple(products.tolist()))


def state_of(tensor: torch.Tensor, *, first: Sketch | None = None) -> TensorState | None:
    """State of a tensor now, with its distance from a first sketch, or None if it cannot be read."""
    part = own_part(tensor)
    if part is None:
        return None
    now = sketch(part)
    change = now.distance(first) if first is not None else 0.0
    norm, product, other, change = map(_rounded, (now.norm, *now.products[:2], change))
    return TensorState(form_of(tensor), digest(part), norm, product, other, change)


def state_of_number(value: float) -> TensorState:
    """State of a plain number that was saved along with tensors."""
    value = float(value)
    return TensorState(NOT_A_TENSOR, value.hex(), value if math.isfinite(value) else 0.0)


def _rounded(value: float) -> float:
    return float(f"{value:.6g}") if math.isfinite(value) else 0.0  # which JSON does not have
