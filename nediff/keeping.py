"""Files that can be trusted after a crash: checksums, copies, and the generation before.

A safetensors file carries the SHA-256 of its tensors and metadata in its metadata, a text that of
all its lines in the first one. So each file can be checked by itself, and replacing one is still
one step: there is no list of checksums that could be older than what it lists. Files without a
checksum, of older versions or edited by hand, are taken as they are.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save_file
from torch import Tensor

from nediff.data import atomic_path
from nediff.data.atomic import sync, telling
from nediff.data.limits import refuse_whole
from nediff.errors import NediffError, NediffWarning

T = TypeVar("T")

CHECKSUM = "sha256"
NOTES = "nediff"
"""The entry of the metadata of a safetensors file that holds ours, as JSON."""
_SEAL = f"# {CHECKSUM} of what follows: "
MOST_TEXT = 2**18
"""Bytes of a text that is ours: a longer one was not made by us, and only costs time."""


class Damaged(NediffError):
    """A file that is missing, cut short or changed, so that a copy of it is to be preferred."""


# --- texts ---------------------------------------------------------------------------------------


def sealed(text: str) -> str:
    """The text below a comment with its checksum."""
    return f"{_SEAL}{hashlib.sha256(text.encode()).hexdigest()}\n{text}"


def read_sealed(path: Path) -> str:
    """The text of a file, without its first line if that is the checksum, which must fit then."""
    text = read_text(path)
    first, _, rest = text.partition("\n")
    if not first.startswith(_SEAL):
        return text
    if sealed(rest) != text:
        raise Damaged(
            f"{path} is damaged: it is not what was written there. (If you have edited it, remove "
            "its first line, a checksum.)"
        )
    return rest


def read_text(path: Path) -> str:
    """A short text that may be anybody's, or a sentence."""
    if not path.is_file():
        raise Damaged(f"{path} is missing: the run has not got that far, or lost it.")
    if path.stat().st_size > MOST_TEXT:
        raise NediffError(f"{path} is too long for what it should be; it was not made by nediff.")
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise Damaged(f"{path} is damaged: it is no text ({error.reason}).") from error


# --- tensors -------------------------------------------------------------------------------------


def checksum_of(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """SHA-256 of all names, types, shapes, values and metadata."""
    digest = hashlib.sha256()
    for key in sorted(metadata):
        digest.update(f"{key}={metadata[key]}\x1f".encode())
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(f"{name}:{value.dtype}{tuple(value.shape)}\x1f".encode())
        digest.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """As they are written: values alone, in the memory of the CPU."""
    return {name: value.detach().cpu().contiguous() for name, value in tensors.items()}


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str] | None = None,
    previous: Path | None = None,
) -> None:
    """Write a safetensors file whole or not at all; the folder is made if need be.

    What was there before is kept as ``previous``, once the new file is written and checked.
    """
    values, words = plain(tensors), dict(metadata or {})
    with atomic_path(path) as temporary:
        _save(values, temporary, _noted(words, checksum_of(values, words)))
        if previous is not None and path.exists():
            sync(temporary)
            read_tensors(temporary)
            _keep(path, previous)


def _save(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
    """A safetensors file, made in a folder of its own beside ``path``, a temporary one.

    The library writes to ".tmpAb12Cd" first, which is nobody's if the process is killed then, and
    leaves a file that only its owner can read. The folder is known as ours (`clear_leftovers`),
    and says what others may do with what is made here.
    """
    workshop = path.with_name(f"{path.name}-made")
    workshop.mkdir()
    try:
        save_file(tensors, workshop / "new", metadata=metadata)
        (workshop / "new").chmod(workshop.stat().st_mode & 0o666)
        (workshop / "new").replace(path)
    except SafetensorError as error:  # how it reports a full or read-only disk
        raise OSError(first_line(error)) from error
    finally:
        shutil.rmtree(workshop, ignore_errors=True)


def _noted(words: dict[str, str], checksum: str) -> dict[str, str]:
    """Metadata of one entry: several are written in any order, and equal files would differ."""
    return {NOTES: json.dumps(words | {CHECKSUM: checksum}, sort_keys=True)}


def _notes_of(metadata: dict[str, str], path: Path) -> dict[str, str]:
    """The reverse; older files have an entry for each."""
    if NOTES not in metadata:
        return metadata
    try:
        found = json.loads(metadata[NOTES])
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        raise Damaged(f"{path} is corrupt (its metadata are none of ours).")
    return found


def _keep(path: Path, previous: Path) -> None:
    """A second name for a file, which the first one is about to lose; or a copy."""
    temporary = previous.parent / f".tmp-{secrets.token_hex(4)}-{previous.name}"
    try:
        try:
            os.link(path, temporary)
        except OSError:  # not on every disk; a full one says so again
            shutil.copyfile(path, temporary)
            sync(temporary)
        os.replace(temporary, previous)
    finally:
        with suppress(OSError):  # there still, if both were the same file already
            temporary.unlink(missing_ok=True)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors and the metadata of a safetensors file, or a sentence on what is wrong."""
    if not path.is_file():
        raise Damaged(f"{path} is missing: the run has not got that far, or lost it.")
    refuse_whole(path.stat().st_size, str(path))
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            metadata: dict[str, str] = file.metadata() or {}
        # not file.get_tensor: safetensors 0.8 loses 60 bytes in each call, for good
        tensors: dict[str, Tensor] = load(path.read_bytes())
    except (SafetensorError, OSError, ValueError) as error:
        raise Damaged(f"{path} is corrupt ({first_line(error)}).") from error
    metadata = _notes_of(metadata, path)
    told = metadata.pop(CHECKSUM, None)
    if told is not None and told != checksum_of(tensors, metadata):
        raise Damaged(f"{path} is corrupt (its checksum does not fit its contents).")
    return tensors, metadata


def read_notes(path: Path) -> dict[str, str]:
    """The metadata alone, quickly: the checksum, which takes the tensors, is not looked at."""
    if not path.is_file():
        raise Damaged(f"{path} is missing: the run has not got that far, or lost it.")
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            return _notes_of(file.metadata() or {}, path)
    except (SafetensorError, OSError, ValueError) as error:
        raise Damaged(f"{path} is corrupt ({first_line(error)}).") from error


# --- copies --------------------------------------------------------------------------------------


def first_whole(paths: Sequence[Path], read: Callable[[Path], T], why: str) -> T:
    """``read`` of the first of these files that is not damaged; says so if it is not the first.

    ``why`` is what is done then, half a sentence.
    """
    problem: Damaged | None = None
    for path in paths:
        if problem is not None and not path.is_file():
            continue
        try:
            found = read(path)
        except Damaged as error:
            problem = problem or error
            continue
        if problem is not None:
            warnings.warn(f"{problem} {path} is whole: {why}.", NediffWarning, stacklevel=2)
        return found
    assert problem is not None  # there is at least one path
    raise problem


def copy_whole(path: Path, to: Path) -> None:
    """A copy that appears whole or not at all."""
    with atomic_path(to) as temporary, telling(to):
        shutil.copyfile(path, temporary)


def first_line(error: Exception) -> str:
    """The first line of what a library says."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
