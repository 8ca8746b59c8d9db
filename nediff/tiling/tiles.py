"""Rectangles that an image is cut into, and what has to be looked at around them."""

from __future__ import annotations

from dataclasses import dataclass

Size = tuple[int, int]
"""(H, W)."""


@dataclass(frozen=True)
class Tile:
    """A rectangle of an image."""

    top: int
    left: int
    height: int
    width: int

    @property
    def place(self) -> tuple[int, int, int, int]:
        """(top, left, height, width)."""
        return self.top, self.left, self.height, self.width

    @property
    def rows(self) -> slice:
        """Of the image."""
        return slice(self.top, self.top + self.height)

    @property
    def columns(self) -> slice:
        """Of the image."""
        return slice(self.left, self.left + self.width)

    def grown(self, margin: int, step: int, size: Size) -> Tile:
        """With so many pixels around it, as far as there are any in an image of this size.

        It begins at multiples of ``step``, and ends there too unless the image does: so a network
        that halves its input sees the same pixels together as in the whole image.
        """
        top, height = _grown(self.top, self.height, margin, step, size[0])
        left, width = _grown(self.left, self.width, margin, step, size[1])
        return Tile(top, left, height, width)

    def within(self, outer: Tile) -> tuple[slice, slice]:
        """Its rows and columns in a larger one."""
        top, left = self.top - outer.top, self.left - outer.left
        return slice(top, top + self.height), slice(left, left + self.width)


def _grown(start: int, length: int, margin: int, step: int, end: int) -> tuple[int, int]:
    first = max(0, start - margin) // step * step
    last = min(end, -(-(start + length + margin) // step) * step)
    return first, last - first


def tiles_of(size: Size, side: int) -> list[Tile]:
    """Squares of at most this side that cover the image, row by row."""
    height, width = size
    return [
        Tile(top, left, min(side, height - top), min(side, width - left))
        for top in range(0, height, side)
        for left in range(0, width, side)
    ]
