"""Linear operators: what an instrument measures of an image (METHOD.md §1 to §3).

An operator acts on tensors, images x (B, C, H, W) to measurements y, and knows what training
and sampling ask of it: its adjoint, where its noise is, a linear first guess of the image, and
which part of it a crop of a measurement belongs to. `window` gives the operator of a crop,
`turned` that of a crop turned with it, `stack` one operator for a batch of crops.
"""

from nediff.operators.base import Identity, LinearOperator, turn
from nediff.operators.coloured import Colour, Coloured
from nediff.operators.convolution import Convolution
from nediff.operators.doubtful import Doubtful
from nediff.operators.fourier import Fourier
from nediff.operators.mask import Mask
from nediff.operators.physics import Physics

__all__ = [
    "Colour",
    "Coloured",
    "Convolution",
    "Doubtful",
    "Fourier",
    "Identity",
    "LinearOperator",
    "Mask",
    "Physics",
    "turn",
]
