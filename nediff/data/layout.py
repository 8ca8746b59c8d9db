"""Which axis of a stored array means what: stack, channels, rows, columns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from nediff.errors import NediffError

Array = NDArray[Any]

_CHANNELS = "CS"
_ALIASES = str.maketrans({"N": "I", "H": "Y", "W": "X"})
_MOST_CHANNELS = 4  # an axis this short is taken for channels where nothing says what it is


@dataclass(frozen=True)
class Layout:
    """One letter per axis of a stored array, and its shape.

    Y are rows, X columns, C or S channels (both at once are merged); any other letter is a
    stack of separate images. An image is always handed out as (C, H, W).
    """

    axes: str
    shape: tuple[int, ...]

    def _length(self, letters: str, *, inside: bool = True) -> int:
        pairs = zip(self.axes, self.shape, strict=True)
        return math.prod(n for letter, n in pairs if (letter in letters) == inside)

    @property
    def n_images(self) -> int:
        """The product of all stack axes."""
        return self._length("YX" + _CHANNELS, inside=False)

    @property
    def channels(self) -> int:
        """The product of the channel axes, 1 without any."""
        return self._length(_CHANNELS)

    @property
    def size(self) -> tuple[int, int]:
        """(H, W) of every image."""
        return self._length("Y"), self._length("X")

    def index(self, page: int, rows: slice, columns: slice) -> tuple[int | slice, ...]:
        """The basic index of one window of one image in the stored array."""
        if not 0 <= page < self.n_images:
            raise IndexError(f"page {page} of {self.n_images}")
        chosen: dict[int, int | slice] = {}
        for axis in reversed(range(len(self.axes))):
            letter, length = self.axes[axis], self.shape[axis]
            if letter in _CHANNELS:
                chosen[axis] = slice(None)
            elif letter in "YX":
                chosen[axis] = rows if letter == "Y" else columns
            else:
                page, chosen[axis] = divmod(page, length)
        return tuple(chosen[axis] for axis in range(len(self.axes)))

    def arrange(self, picked: Array) -> Array:
        """Bring what ``index`` picked (stack axes gone) to (channel axes ..., H, W); a view."""
        kept = [letter for letter in self.axes if letter in "YX" + _CHANNELS]
        channels = [k for k, letter in enumerate(kept) if letter in _CHANNELS]
        view: Array = picked.transpose(*channels, kept.index("Y"), kept.index("X"))
        return view

    def window(self, array: Array, page: int, rows: slice, columns: slice) -> Array:
        """One window (C, h, w) of one image: a view unless two channel axes are merged."""
        picked = self.arrange(array[self.index(page, rows, columns)])
        return picked.reshape(-1, *picked.shape[-2:])

    def put(
        self,
        array: Array,
        page: int,
        image: Array,
        rows: slice = slice(None),
        columns: slice = slice(None),
    ) -> None:
        """Store one image (C, H, W), or a window of it, at its place in ``array``."""
        kept = [k for k, letter in enumerate(self.axes) if letter in "YX" + _CHANNELS]
        channels = [k for k in kept if self.axes[k] in _CHANNELS]
        order = [*channels, self.axes.index("Y"), self.axes.index("X")]
        shaped = image.reshape(*(self.shape[k] for k in channels), *image.shape[-2:])
        stored = shaped.transpose([order.index(k) for k in kept])
        array[self.index(page, rows, columns)] = stored


def make_layout(shape: tuple[int, ...], axes: str | None, where: str) -> Layout:
    """The layout of an array by the user's ``axes`` (such as "NHWC"), or guessed from its shape."""
    if 0 in shape:
        raise NediffError(f"{where} is empty (its shape is {shape}); remove it.")
    if axes is None:
        return Layout(_guess(shape, where), shape)
    letters = axes.upper().translate(_ALIASES)
    if len(letters) != len(shape):
        raise NediffError(
            f"{where} has {len(shape)} axes, of lengths {shape}, but the axes {axes!r} name "
            f"{len(letters)}; give one letter for each."
        )
    if not letters.isalpha() or any(letters.count(k) != 1 for k in "YX") or _repeated(letters):
        raise NediffError(
            f"The axes {axes!r} given for {where} are not an order such as HW, NHW, HWC or NCHW: "
            "H and W must be there, and no letter twice."
        )
    return Layout(letters, shape)


def _repeated(letters: str) -> bool:
    return len(set(letters)) < len(letters)


def _guess(shape: tuple[int, ...], where: str) -> str:
    if len(shape) == 2:
        return "YX"
    if len(shape) == 3:
        return _guess_three(shape, where)
    if len(shape) == 4 and shape[-1] <= _MOST_CHANNELS:
        return "IYXC"
    if len(shape) == 4 and shape[1] <= _MOST_CHANNELS:
        return "ICYX"
    raise NediffError(
        f"It is not clear which axes of {where}, of shape {shape}, are rows, columns and "
        "channels; give their order as axes, for example NCHW."
    )


def _guess_three(shape: tuple[int, ...], where: str) -> str:
    """Short and last are channels, long and first a stack; short and first could be either.

    A wrong guess there would train on the wrong images without a word. A first axis of one is
    one grey image either way.
    """
    first, _, last = shape
    if last <= _MOST_CHANNELS:
        return "YXC"
    if 1 < first <= _MOST_CHANNELS:
        raise NediffError(
            f"{where}, of shape {shape}, may be one image of {first} channels or a stack of "
            f'{first} grey images; say which: --axes CHW or --axes NHW (axes="CHW" or "NHW").'
        )
    return "IYX"
