"""What to say of an instrument: what it is, and how much of an image it sees."""

from __future__ import annotations

import torch
from torch import Tensor

from nediff.cli.console import say
from nediff.config import RecipeConfig
from nediff.groups import seen_share
from nediff.operators import Convolution, Fourier, LinearOperator, Mask
from nediff.problem import Problem
from nediff.randomness import Draws

_LITTLE = 0.2
"""A group that shows less than this share of what is not seen is warned about."""


def describe(problem: Problem) -> str:
    """The instrument in one line."""
    operator = problem.operator
    if isinstance(operator, Mask) and operator.periodic:
        form = "raw mosaics of one channel" if problem.raw else "masked images of three channels"
        return f"demosaicing: Bayer pattern {pattern_of(operator)}, {form}"
    if isinstance(operator, Mask):
        height, width = operator.mask.shape[-2:]
        share = float(operator.mask.mean())
        return f"inpainting: {share:.1%} of {width} × {height} pixels are measured"
    if isinstance(operator, Fourier):
        height, width = operator.fixed_size
        share = float(operator.mask.mean())
        return f"mri: {share:.1%} of a k-space of {width} × {height} is sampled"
    if isinstance(operator, Convolution):
        rows, columns = operator.kernel.shape[-2:]
        kernel = f"a kernel of {columns} × {rows} pixels"
        if operator.stride == 1:
            return f"blur by {kernel}"
        return f"super-resolution by a factor of {operator.stride}, measured with {kernel}"
    return problem.kind


def pattern_of(mosaic: Mask) -> str:
    """The letters of a Bayer mask."""
    return "".join("RGB"[k] for k in mosaic.mask[0].argmax(dim=0).flatten().tolist())


def say_what_is_seen(problem: Problem, recipe: RecipeConfig) -> None:
    """Print the instrument, what it sees, and what the group adds; warn if that is too little."""
    say(describe(problem))
    group = recipe.group or problem.operator.group
    operator, like = _small(problem)
    alone, through = (_share(operator, like, g) for g in (None, group))
    unused = "" if recipe.ei > 0 else " (not used by this recipe, which learns in other ways)"
    say(
        f"the instrument alone sees {alone:.0%} of all that an image can be; through the group "
        f"'{group}'{unused}, {through:.0%}"
    )
    if recipe.ei > 0 and through - alone < _LITTLE * (1 - alone) and alone < 0.98:
        say(
            f"Careful: the group '{group}' shows this instrument little that it does not see "
            "anyway, so the data cannot teach the rest of the images; expect a smooth guess "
            "there, or try another --group."
        )


def _share(operator: LinearOperator, like: Tensor, group: str | None) -> float:
    share = seen_share(operator, like, group, lambda k: Draws(0, f"seen {k}", 1), elements=16)
    return min(max(share, 0.0), 1.0)


def _small(problem: Problem, side: int = 48) -> tuple[LinearOperator, Tensor]:
    """An operator of the same kind for a small image, and such an image."""
    operator = problem.operator
    channels = problem.channels
    if isinstance(operator, Convolution):
        side = max(32, 3 * max(operator.kernel.shape[-2:]))
        size = operator.image_size(*operator.measured_size(side, side))
        return operator, torch.zeros(1, channels, *size)
    if isinstance(operator, Mask) and operator.periodic:
        return operator.window(0, 0, side, side), torch.zeros(1, channels, side, side)
    if isinstance(operator, Mask):
        mask = _thinned(operator.mask, side)
        return Mask(mask, operator.kind), torch.zeros(mask.shape)
    assert isinstance(operator, Fourier)  # the command line knows no other
    mask = _thinned(operator.mask, side)
    return Fourier(mask), torch.zeros(1, channels, *mask.shape)


def _thinned(mask: Tensor, side: int) -> Tensor:
    """Every k-th row and column about the middle, which stays the middle (of k-space)."""
    for axis in (-2, -1):
        length = mask.shape[axis]
        step = max(1, length // side)
        count = length // step
        places = length // 2 + step * (torch.arange(count) - count // 2)
        mask = mask.index_select(axis, places.clamp(0, length - 1))
    return mask
