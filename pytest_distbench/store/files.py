"""Files of ours: replaced whole by one rename, and read strictly.

They include run records, and a user's statements about a run in TOML: prices, an experiment. Baselines, which people
edit and merge, have a module of their own.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import stat
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

import msgspec

from pytest_distbench.errors import ConfigurationError, StoredFileError, StoredFilesError
from pytest_distbench.machine.hardware import host_name, mask_addresses
from pytest_distbench.machine.secrets import mask_secrets
from pytest_distbench.records.environment import Experiment, Prices
from pytest_distbench.records.record import Record
from pytest_distbench.records.run import RunRecord

_DRAFT = ".distbench-draft"
"""End of the name of a file that is being written; another writer in its folder removes it if its writer was killed."""

_ABANDONED_S = 600.0
"""A draft older than this is of a writer that was killed: writing one file takes milliseconds, an export seconds."""

_STEP = re.compile(r"\.\w+|\[[^\]]*\]")

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}

_UNWRITABLE = {
    errno.ENXIO: "nobody reads from this pipe",
    errno.EBUSY: "something is mounted on this file, and it is replaced as a whole; mount its folder instead",
}

_Content = TypeVar("_Content", bound=Record)
_Given = TypeVar("_Given")
_Found = TypeVar("_Found")


class _Head(msgspec.Struct):
    schema: int


_ITEM = rb'(?:-?[\d.eE+-]+|null|"(?:[^"\\\n]|\\.)*")'
_FLAT_LIST = re.compile(rb"\[\n\s+(%b(?:,\n\s+%b)*)\n\s*\]" % (_ITEM, _ITEM))
_LINE_END = re.compile(rb",\n\s+")


def lay_out(data: bytes, *, indent: int) -> bytes:
    """JSON for reading: indented, and lists of numbers and texts on one line."""
    text = msgspec.json.format(data, indent=indent)
    return _FLAT_LIST.sub(lambda found: b"[" + _LINE_END.sub(b", ", found[1]) + b"]", text)


PAGE_SIGN = b"<!doctype html>"
RECORD_SIGN = b"{"  # beginnings of an HTML report, and of a run record


def check_target(path: Path, sign: bytes, *, option: str) -> None:
    """Refuse early what could not be written at the end, or would replace somebody's file.

    Args:
        sign: bytes with which files of the wanted kind begin; such a file, or an empty one, may be overwritten.
        option: option that gave the path, for the error.

    Raises:
        ConfigurationError: nobody may write there, or another kind of file lies there.
    """
    folder = next((above for above in path.absolute().parents if above.exists()), path.parent)
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ConfigurationError(f"{option}: {path} cannot be written: {folder} is no folder that may be written to")
    with contextlib.suppress(OSError), path.open("rb") as file:
        if path.is_file() and (begin := file.read(len(sign))) and begin != sign:
            raise ConfigurationError(f"{option}: {path} is another kind of file, and would be lost: name another one")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileKind(Generic[_Content]):
    """One kind of JSON file that carries the number of its schema.

    Attributes:
        name: name of the kind in errors: ``baseline file``.
        record: type of the content, with a field ``schema``.
        schema: number of the schema that is written, and the only one that is read.
        max_bytes: size above which a file is refused before it is read, and never written.
        next_step: advice in the error if a file is not of this kind.
        where: advice in the error if the path cannot be written.
        smaller: advice in the error if the content is larger than ``max_bytes``.
        is_edited: whether people edit the file by hand, so that a key may occur twice.
        load: converts a file's content to the record's form; None if it has that form.
        check: why a readable content is invalid, after a wrong edit; or "".
    """

    name: str
    record: type[_Content]
    schema: int
    max_bytes: int
    next_step: str
    where: str
    smaller: str = "Measure fewer tests at once"
    is_edited: bool = False
    load: Callable[[Any], Any] | None = None
    check: Callable[[Any], str] = lambda content: ""
    render: Callable[[_Content], bytes] = lambda content: lay_out(msgspec.json.encode(content), indent=1)

    def write(self, path: Path, content: _Content, *, sync: bool = False) -> None:
        data = self.render(content)
        if len(data) > self.max_bytes:
            problem = f"{len(data)} bytes are too many for a {self.name}; at most {self.max_bytes}"
            raise StoredFileError(path, problem, self.smaller)
        with replace_file(path, next_step=self.where, sync=sync) as file:
            file.write(data)

    def read(self, path: Path) -> _Content:
        return self.parse(self.read_bytes(path), path)

    def read_bytes(self, path: Path) -> bytes:
        return read_limited(path, self.max_bytes, next_step=self.next_step)

    def parse(self, data: bytes, path: Path, *, next_step: str = "") -> _Content:
        """Decode the content of a file, strictly; ``path`` and ``next_step`` are for the error."""
        if not data.strip():
            raise StoredFileError(path, f"is empty, and no {self.name}", next_step or self.next_step)
        try:
            schema = msgspec.json.decode(data, type=_Head).schema
            if self.is_edited:
                _refuse_repeated_keys(data)
            if schema != self.schema:
                what_to_do = "Upgrade pytest-distbench" if schema > self.schema else self.next_step
                raise StoredFileError(path, f"written in schema {schema}, this version reads {self.schema}", what_to_do)
            if self.load is None:
                content = msgspec.json.decode(data, type=self.record)
            else:
                content = msgspec.convert(self.load(msgspec.json.decode(data)), self.record)
            if why_not := self.check(content):
                raise msgspec.ValidationError(why_not)
            return content
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if data.lstrip().startswith(b"<<<<<<<") or b"\n<<<<<<< " in data:
                raise StoredFileError(
                    path,
                    "has the marks of a merge conflict",
                    "Take one side (git checkout --ours or --theirs FILE), or write the file again",
                ) from error
            problem = str(error)
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                document = msgspec.json.decode(data)
                problem = name_keys(problem, document if self.load is None else self.load(document), self.record)
            raise StoredFileError(path, f"not a {self.name}: {problem}", next_step or self.next_step) from error


def name_keys(problem: str, document: Any, kind: Any) -> str:
    """Name the keys that the decoder prints as ``[...]`` in a complaint about a mapping.

    A key is the culprit if the same complaint comes without the others, which are removed from the document.
    """
    text, place = problem, document
    with contextlib.suppress(ValueError, LookupError, TypeError):
        for step in _STEP.findall(problem[problem.rindex("`$") :]):
            if step != "[...]":
                place = place[step[1:] if step.startswith(".") else int(step[1:-1])]
                continue
            for key, value in dict(place).items():
                place.clear()
                place[key] = value
                if _complaint(document, kind) == problem:
                    text, place = text.replace(step, f"[{key}]", 1), value
                    break
            else:
                return text
    return text


def _complaint(document: Any, kind: Any) -> str:
    try:
        msgspec.convert(document, kind, str_keys=True)
    except (msgspec.ValidationError, RecursionError) as error:
        return str(error)
    return ""


def _refuse_repeated_keys(data: bytes) -> None:
    def check(pairs: list[tuple[str, object]]) -> None:
        if len(pairs) > len(dict(pairs)):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise msgspec.ValidationError(f"the key {twice!r} stands twice in one object")

    json.loads(data, object_pairs_hook=check)


def read_each(read: Callable[[_Given], _Found], given: Iterable[_Given]) -> Iterator[_Found]:
    """Yield what can be read, and then raise one error that names all that cannot."""
    errors: list[StoredFileError] = []
    for one in given:
        try:
            found = read(one)
        except StoredFileError as error:
            errors += error.each
        else:
            yield found
    if errors:
        raise errors[0] if len(errors) == 1 else StoredFilesError(errors)


def open_regular(path: Path, *, next_step: str) -> BinaryIO:
    """Open a file to read it. A pipe or a device, to which a link in a repository may lead, would block for ever."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise StoredFileError(path, f"wanted a regular file, found {_KINDS.get(stat.S_IFMT(mode), 'no file')}", next_step)


def read_limited(path: Path, max_bytes: int, *, next_step: str) -> bytes:
    try:
        with open_regular(path, next_step=next_step) as file:
            size = os.fstat(file.fileno()).st_size
            if size > max_bytes:
                raise StoredFileError(path, f"larger than {max_bytes // 2**20} MiB", next_step)
            return file.read(size + 1)
    except OSError as error:
        what_to_do = "Check its permissions" if isinstance(error, PermissionError) else next_step
        raise StoredFileError(path, f"cannot read: {error.strerror or error}", what_to_do) from error


@contextlib.contextmanager
def replace_file(path: Path, *, next_step: str, sync: bool = False) -> Iterator[BinaryIO]:
    """Open a file to write that replaces ``path`` when all is written, or nothing if that fails.

    If ``path`` is a link, the file it leads to is replaced and the link stays. What is no regular file, such as
    ``/dev/stdout`` or a pipe that somebody reads, is written to as it is.

    Args:
        path: file to replace; its folder is made if it is missing.
        sync: wait until the disk has the file; else a power failure (no mere ``kill -9``) may leave an empty one.
    """
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC), "wb") as special:
                os.set_blocking(special.fileno(), True)
                yield special
            return
        path = Path(os.path.realpath(path))
        if path.is_symlink():
            path.stat()  # a link that leads to itself: this raises
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(path)
        draft = path.with_name(f".{secrets.token_hex(8)}{_DRAFT}")
        try:
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666), "wb") as file:
                yield file
                file.flush()
                with contextlib.suppress(FileNotFoundError):
                    old = path.stat()
                    with contextlib.suppress(PermissionError):
                        os.fchown(file.fileno(), old.st_uid, old.st_gid)
                    os.fchmod(file.fileno(), stat.S_IMODE(old.st_mode))
                if sync:
                    os.fsync(file.fileno())
            os.replace(draft, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(draft)
            raise
    except OSError as error:
        what = _UNWRITABLE.get(error.errno or 0) or error.strerror or error
        raise StoredFileError(path, f"cannot write: {what}", next_step) from error


def _remove_abandoned(path: Path) -> None:
    for draft in path.parent.glob(f".*{_DRAFT}"):
        with contextlib.suppress(OSError):  # another writer may be faster
            if time.time() - draft.stat().st_mtime > _ABANDONED_S:
                draft.unlink()


SCHEMA = 7  # version of the file format

RUN_RECORDS = FileKind(
    name="run record",
    record=RunRecord,
    schema=SCHEMA,
    max_bytes=512 * 2**20,
    next_step="Write one with pytest --distbench-json FILE",
    where="Give --distbench-json or --distbench-out a writable place",
)


def write_run_record(path: Path, record: RunRecord) -> None:
    RUN_RECORDS.write(path, record)


def read_run_record(path: Path) -> RunRecord:
    return RUN_RECORDS.read(path)


_MOST_BYTES = 2**20
_Kind = TypeVar("_Kind")


def read_toml(path: Path, kind: type[_Kind], *, next_step: str) -> _Kind:
    """Read a TOML file of the user's.

    Raises:
        StoredFileError: it cannot be read, is no TOML, or of another kind; the message has the line or the key.
    """
    try:
        content = read_limited(path, _MOST_BYTES, next_step=next_step).decode()
        return msgspec.toml.decode(content, type=kind)
    except msgspec.ValidationError as error:
        problem = name_keys(str(error), tomllib.loads(content), kind)
        raise StoredFileError(path, problem, next_step) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoredFileError(path, f"is no TOML: {error}", next_step) from None


def read_prices(path: Path) -> Prices:
    """Read a price list.

    Raises:
        StoredFileError: it does not exist, or is no price list; the message has file, key, what was wanted and found.
    """
    return read_toml(path, Prices, next_step="distbench explain prices shows a price list")


_ADDRESSES = "addresses"
_Stated = str | int | float | bool


class _Tables(msgspec.Struct, frozen=True, kw_only=True):
    test: dict[str, dict[str, _Stated]] = {}
    planned: dict[str, _Stated] = {}


def read_experiment(path: Path | None, *, with_addresses: bool) -> Experiment:
    """Read statements as they may be stored: secrets are masked, and addresses too unless they are asked for.

    Args:
        path: the TOML file, or None for no statements.
        with_addresses: whether addresses are kept; if none are stated, this machine's name is added.

    Raises:
        StoredFileError: it does not exist, or is no experiment; the message has file, key, what was wanted and found.
    """
    own = {_ADDRESSES: host_name()} if with_addresses else {}
    if path is None:
        return Experiment(statements={"": own} if own else {})
    next_step = "distbench explain experiment shows such a file"
    tables = read_toml(path, _Tables, next_step=next_step)
    keys = read_toml(path, dict[str, _Stated | dict[str, Any]], next_step=next_step)
    of_all = {key: value for key, value in keys.items() if not isinstance(value, dict)}
    for name in keys:
        if name not in of_all and name not in _Tables.__struct_fields__:
            raise StoredFileError(path, f"{name}: wanted text, a number, true or false; found a table", next_step)
    stated = {
        of: _storable(fields, with_addresses=with_addresses)
        for of, fields in {"": {**own, **of_all}, **tables.test}.items()
        if fields
    }
    return Experiment(statements=stated, planned=_storable(tables.planned, with_addresses=with_addresses))


def _storable(stated: Mapping[str, _Stated], *, with_addresses: bool) -> dict[str, str]:
    yes_or_no = {True: "yes", False: "no"}
    words = {k: yes_or_no[v] if isinstance(v, bool) else " ".join(str(v).split()) for k, v in stated.items()}
    masked: dict[str, str] = mask_secrets(words)  # by their keys, too
    if with_addresses:
        return masked
    return {key: mask_addresses(value) for key, value in masked.items() if key != _ADDRESSES}
