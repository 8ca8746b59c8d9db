"""A noise level for each image: kept by the image's name, read from and written to CSV."""

from __future__ import annotations

import csv
import hashlib
import io
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from nediff.errors import NediffError, did_you_mean_path

_NAME_COLUMNS = ("name", "file", "filename", "image")
_LEAST = 1e-5
_MOST_BYTES = 2**28


@dataclass(frozen=True)
class Sigmas:
    """The known σ of every image of a data set (unit range), by the name of the whole image.

    Crops, strips and windows are asked for by the image they are cut from, so however a set is
    split, its parts can share one of these.
    """

    by_name: Mapping[str, float]

    def __post_init__(self) -> None:
        if not self.by_name:
            raise NediffError("There is no noise level: give one for each image.")
        for name, sigma in self.by_name.items():
            if not (math.isfinite(sigma) and sigma > 0):
                raise NediffError(
                    f"The noise level of {name} must be a positive number, not {sigma:g}."
                )

    def of(self, name: str) -> float:
        """That of the image of this name."""
        return self.by_name[name]

    @cached_property
    def largest(self) -> float:
        """What the noise levels of training go up to: σ_n."""
        return max(self.by_name.values())

    @cached_property
    def least(self) -> float:
        """That of the cleanest image."""
        return min(self.by_name.values())

    @cached_property
    def mean_square(self) -> float:
        """The variance of the noise, averaged over the images."""
        return math.fsum(s * s for s in self.by_name.values()) / len(self.by_name)

    def scaled(self, factor: float) -> Sigmas:
        """The same noise in other units."""
        return Sigmas({name: factor * sigma for name, sigma in self.by_name.items()})

    @cached_property
    def fingerprint(self) -> str:
        """A short text that changes with any name or level."""
        return hashlib.blake2b(self.to_csv().encode(), digest_size=8).hexdigest()

    def to_csv(self) -> str:
        """Two columns, name and sigma; reading it gives the same numbers, bit for bit."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(("name", "sigma"))
        writer.writerows((name, repr(sigma)) for name, sigma in sorted(self.by_name.items()))
        return out.getvalue()


class _Row(NamedTuple):
    line: int
    name: str
    sigma: float


def read_sigmas(
    path: Path, images: Iterable[tuple[str, str]], scale: float = 1.0, every_row: bool = True
) -> Sigmas:
    """The σ of ``images`` from a CSV file with a header; in its units, σ / ``scale`` is the σ.

    ``images`` are (name of the file, name of the image): these differ for the pages of a stack,
    which a row may name one by one (``cells.tif#3``) or together (``cells.tif``). Each image
    needs exactly one row; with ``every_row``, each row an image.
    """
    pages: dict[str, list[str]] = {}
    for file, image in images:
        pages.setdefault(file, []).append(image)
    wanted = {image for of_file in pages.values() for image in of_file}
    found: dict[str, float] = {}
    lines: dict[str, int] = {}
    for row in _rows(path):
        sigma = _checked(path, row, scale)
        named = [row.name] if row.name in wanted else pages.get(row.name, [])
        if not named and every_row:
            raise NediffError(
                f"{path}, line {row.line}: there is no image '{row.name}' in the data."
            )
        for name in named:
            if name in lines:
                raise NediffError(
                    f"{path}, line {row.line}: {name} has a noise level already, on line "
                    f"{lines[name]}; give each image one."
                )
            found[name], lines[name] = sigma, row.line
    _refuse_missing(path, wanted, found)
    return Sigmas(found)


def _refuse_missing(path: Path, wanted: set[str], found: Mapping[str, float]) -> None:
    missing = sorted(wanted - found.keys())
    if missing:
        more = f" (nor for {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise NediffError(f"{path} has no row for {missing[0]}{more}; every image needs its σ.")


def _checked(path: Path, row: _Row, scale: float) -> float:
    """The σ of a row in unit range, if it can be one."""
    where = f"{path}, line {row.line} ({row.name})"
    if not (math.isfinite(row.sigma) and row.sigma > 0):
        raise NediffError(f"{where}: the noise level must be a positive number, not {row.sigma:g}.")
    sigma = row.sigma / scale
    if sigma > 1:
        hint = "; if it is in the units of the pixels, say --units data" if scale == 1 else ""
        raise NediffError(
            f"{where}: the noise level σ = {row.sigma:g} is larger than the intensity range{hint}."
        )
    if sigma < _LEAST:
        raise NediffError(
            f"{where}: the noise level σ = {row.sigma:g} is below {_LEAST:g} of the intensity "
            "range, practically no noise; check its units."
        )
    return sigma


def _rows(path: Path) -> Iterator[_Row]:
    if path.exists() and not path.is_file():
        raise NediffError(f"{path} is not a file; give a CSV file.")
    if path.exists() and path.stat().st_size > _MOST_BYTES:
        raise NediffError(f"{path} is larger than {_MOST_BYTES >> 20} MB, too long for a CSV file.")
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            yield from _parsed(path, file)
    except FileNotFoundError as error:
        raise NediffError(f"{path} does not exist.{did_you_mean_path(path)}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise NediffError(f"{path} is not a CSV file ({error}).") from error


def _parsed(path: Path, lines: Iterable[str]) -> Iterator[_Row]:
    """The rows below the header; blank ones are left out."""
    reader = csv.reader(lines)
    header = [cell.strip().lower() for cell in next(reader, [])]
    name, sigma = _columns(path, header)
    for cells in reader:
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != len(header):
            raise NediffError(
                f"{path}, line {reader.line_num}: {len(cells)} values where the header has "
                f"{len(header)}."
            )
        try:
            level = float(cells[sigma])
        except ValueError as error:
            raise NediffError(
                f"{path}, line {reader.line_num}: '{cells[sigma]}' is not a number."
            ) from error
        yield _Row(reader.line_num, cells[name].strip(), level)


def _columns(path: Path, header: list[str]) -> tuple[int, int]:
    """Where the name and the σ of an image are."""
    if header.count("sigma") != 1:
        raise NediffError(
            f"{path} needs a header with a column 'sigma' and one with the names of the images, "
            f"such as 'name,sigma'; its first line is '{','.join(header)}'."
        )
    names = [k for k, title in enumerate(header) if title in _NAME_COLUMNS]
    others = [k for k, title in enumerate(header) if title != "sigma"]
    if len(names) != 1 and len(others) != 1:
        raise NediffError(
            f"{path} does not say which column has the names of the images; call it 'name'."
        )
    return (names if len(names) == 1 else others)[0], header.index("sigma")
