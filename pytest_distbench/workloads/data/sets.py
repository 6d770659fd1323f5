"""The table of data sets: the files in their folders, their sources, and how they are checked and generated."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pytest_distbench.errors import look_up
from pytest_distbench.workloads.data import cifar10, damaged, libsvm, pairs, unpack, wikitext

if TYPE_CHECKING:
    from pytest_distbench.worker.context import RankContext

SEED = 0  # of all generated sets: they are data, and no part of what a training's seed decides
GENERATED = "generated.txt"  # in a folder that was generated: says so


class DataSet(msgspec.Struct, frozen=True):
    """A row of the table.

    Attributes:
        layouts: for each layout of the set, the names of the files in its folder.
        archives: names of the archives in which the set is published.
        folders: names of the folders that these archives unpack to.
        published: size of the published set, as :attr:`count` returns it.
        count: reads all files in a folder, and returns the size of each part: ``{"test images": 10000}``.
        generate: takes a folder and a seed, and writes a small set in the same format.
        make_cache: makes the file that trainings read instead of the set's own, or None.
    """

    title: str
    source: str
    layouts: tuple[tuple[str, ...], ...]
    count: Callable[[Path], dict[str, int]]
    generate: Callable[[Path, int], None]
    archives: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    published: Mapping[str, int] = {}
    make_cache: Callable[[Path], object] | None = None


_PARTS = tuple(f"{text}.{language}" for text in pairs.TEXTS.values() for language in pairs.LANGUAGES)
_STEMS = tuple(f"{text}.{language}" for text in pairs.STEMS.values() for language in pairs.LANGUAGES)

SETS: dict[str, DataSet] = {
    "cifar10": DataSet(
        title="CIFAR-10, 60 000 images of 32 x 32 pixels in ten classes",
        source="https://www.cs.toronto.edu/~kriz/cifar.html",
        layouts=((*cifar10.FILES, f"{cifar10.TEST}.bin"), (*cifar10.TRAINING, cifar10.TEST)),
        archives=("cifar-10-binary.tar.gz", "cifar-10-python.tar.gz"),
        folders=(cifar10.FOLDER, cifar10.PICKLED_FOLDER),
        published={"training images": 50_000, "test images": 10_000},
        count=cifar10.count,
        generate=cifar10.generate,
    ),
    "epsilon": DataSet(
        title="Epsilon, 500 000 rows of 2000 features in two classes, as text of libsvm",
        source="https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html#epsilon",
        layouts=tuple(
            (f"{libsvm.TRAIN}{train}", f"{libsvm.TEST}{test}")
            for train in ("", libsvm.PACKED)
            for test in ("", libsvm.PACKED)
        ),
        published={"training rows": 400_000, "test rows": 100_000},
        count=libsvm.count,
        make_cache=libsvm.load,
        generate=libsvm.generate,
    ),
    "wmt16": DataSet(
        title="WMT16, English to German, text in pieces of byte pair encoding",
        source="https://storage.googleapis.com/mlbench-datasets/translation/wmt16_en_de.tar.gz",
        layouts=((pairs.VOCABULARY, *_PARTS),),
        archives=("wmt16_en_de.tar.gz",),
        folders=("wmt16_en_de",),
        count=partial(pairs.count, load=pairs.load_text),
        generate=pairs.generate_text,
    ),
    "wmt17": DataSet(
        title="WMT17, English to German, ids of subtokens in .idx and .bin",
        source="https://storage.googleapis.com/mlbench-datasets/translation/wmt17_en_de.tar.gz",
        layouts=((*pairs.DICTIONARIES, *(f"{stem}.{end}" for stem in _STEMS for end in ("idx", "bin"))),),
        archives=("wmt17_en_de.tar.gz",),
        folders=("wmt17_en_de",),
        count=partial(pairs.count, load=pairs.load_indexed),
        generate=pairs.generate_indexed,
    ),
    "wikitext2": DataSet(
        title="WikiText-2, two million words of Wikipedia",
        source="Merity et al., arXiv 1609.07843",
        layouts=(wikitext.FILES,),
        archives=("wikitext-2-v1.zip",),
        folders=("wikitext-2",),
        published={"training words": 2_088_628, "validation words": 217_646, "test words": 245_569},
        count=wikitext.count,
        generate=wikitext.generate,
    ),
}


def folder_of(rank: RankContext, name: str) -> Path:
    """The folder of a set, below ``rank.params["data"]`` if that is set, else generated. Collective.

    A generated set is the same for every seed, and is made once for all launches of a run, by a rank of each host.

    Raises:
        DataError: no such set lies in the user's folder, or it cannot be generated.
    """
    row = look_up(SETS, name, "data set")
    if given := rank.params.get("data"):
        return find(given, name)
    folder = Path(rank.data_dir, name)
    if rank.local_rank == 0 and not folder.exists():
        generate_into(folder, row)
    rank.barrier()
    return folder


def find(place: str | os.PathLike[str], name: str) -> Path:
    """Find the folder of a set in a user's folder: one of the set's name, that of its archive, or the folder itself.

    Raises:
        DataError: its files lie in none of them.
    """
    row = look_up(SETS, name, "data set")
    root = Path(place)
    if (folder := folder_in(root, name)) is not None:
        return folder
    there = ", ".join(sorted(path.name for path in root.iterdir())[:5]) if root.is_dir() else "no such folder"
    raise damaged(
        root,
        wanted=f"{' or '.join(', '.join(layout) for layout in row.layouts[:2])}, there or in {name}/",
        found=there or "nothing",
        hint=f"they come from {row.source}; see distbench data list",
    )


def folder_in(root: Path, name: str) -> Path | None:
    """Return the folder in which :func:`find` finds a set, or None if its files lie nowhere in it."""
    row = SETS[name]
    places = (root / name, *(root / inner for inner in row.folders), root)
    return next((folder for folder in places if layout_in(folder, row)), None)


def layout_in(folder: Path, row: DataSet) -> tuple[str, ...]:
    """The files of a set in a folder, or () if one of them is missing."""
    return next((names for names in row.layouts if all((folder / name).is_file() for name in names)), ())


def generate_into(folder: Path, row: DataSet) -> None:
    """Generate a folder with a small set, whole or not at all.

    Raises:
        DataError: something else has its name.
    """
    with _made_whole(folder, row) as making:
        row.generate(making, SEED)
        (making / GENERATED).write_text(f"Made by pytest-distbench in the format of {row.title}\n")


def unpack_into(folder: Path, row: DataSet, archive: Path) -> None:
    """Unpack the files of a set from an archive into a folder, whole or not at all.

    Raises:
        DataError: the archive is damaged, or has not all of them; something else has the folder's name.
    """
    with _made_whole(folder, row) as making:
        unpack(archive, {name for layout in row.layouts for name in layout}, making)
        if not layout_in(making, row):
            there = ", ".join(sorted(path.name for path in making.iterdir())) or "none of them"
            wanted = " or ".join(", ".join(layout) for layout in row.layouts[:2])
            raise damaged(archive, wanted=wanted, found=there)


@contextlib.contextmanager
def _made_whole(folder: Path, row: DataSet) -> Iterator[Path]:
    """Make a folder that gets its name when it is filled; if several processes do so at once, the first one counts."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as outer:
        making = Path(outer, folder.name)
        making.mkdir()
        yield making
        try:
            making.rename(folder)
        except OSError:
            if not folder.exists():
                raise
            if not layout_in(folder, row):
                wanted, hint = "nothing, or all files of the set", "move it away"
                raise damaged(folder, wanted=wanted, found="something else of this name", hint=hint) from None


def verify(folder: Path, row: DataSet) -> dict[str, int]:
    """Read all of a set, and return how much it holds.

    Raises:
        DataError: a file of it is damaged, or it is neither what was published nor generated.
    """
    counts = row.count(folder)
    if not (folder / GENERATED).exists():
        for what, wanted in row.published.items():
            if counts[what] != wanted:
                hint = "the set is not whole, or not the published one"
                raise damaged(folder, wanted=f"{wanted} {what}", found=str(counts[what]), hint=hint)
    return counts
