"""Reads a scalar of TensorBoard's event files, with the tensorboard package."""

from __future__ import annotations

import importlib
from typing import Any

from pytest_distbench.errors import ReadingError
from pytest_distbench.launch.readers.place import Found, Place
from pytest_distbench.records.reader import Reader


def read(reader: Reader, place: Place) -> list[Found]:
    """The values of the tag ``reader.key`` below a folder, in the order of their steps."""
    try:
        accumulator = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    except ImportError as error:
        raise ReadingError(f"reading TensorBoard files needs its package: pip install tensorboard ({error})") from None
    folder = place.path(reader.source)
    there = sorted(folder.rglob("events.out.tfevents.*")) if folder.is_dir() else [folder]
    files = [file for file in there if place.is_of_this_launch(file)]
    if not files:
        older = f", but for {len(there)} of earlier runs" if there else ""
        raise ReadingError(f"{folder} has no event file{older}")
    scalars, tags = [], dict[str, None]()
    for file in files:
        events = accumulator.EventAccumulator(str(file), size_guidance={"tensors": 0, "scalars": 0})
        events.Reload()
        known = events.Tags()
        tags.update(dict.fromkeys([*known["scalars"], *known["tensors"]]))
        if reader.key in known["scalars"]:
            scalars += [(event.step, event.value, file.name) for event in events.Scalars(reader.key)]
        elif reader.key in known["tensors"]:
            make = importlib.import_module("tensorboard.util.tensor_util").make_ndarray
            scalars += [
                (event.step, _scalar(reader.key, make(event.tensor_proto)), file.name)
                for event in events.Tensors(reader.key)
            ]
    if not scalars:
        raise ReadingError(f"{folder}: no tag {reader.key!r}; there are {', '.join(tags) or 'none'}")
    scalars.sort(key=lambda one: one[0])
    return [Found(repr(value), f"step {step} of {name}", f"step {step}") for step, value, name in scalars]


def _scalar(tag: str, array: Any) -> float:
    if array.size != 1 or array.dtype.kind not in "fiu":
        raise ReadingError(f"the tag {tag!r} is no scalar: it holds {array.size} elements of {array.dtype}")
    return float(array.item())
