"""Two ways to a real measurement with less noise: less contrast, and a coarser scale.

python examples/invariances.py --out docs/images/invariances.svg
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import skimage
from PIL import Image

from nediff.experiments.drawing import charts

SIGMA, ALPHA, FACTOR, SIDE = 0.12, 0.3, 4, 128


def photograph() -> np.ndarray:
    """A grey square of the cat that comes with scikit-image, in [0, 1]."""
    path = Path(skimage.__file__).parent / "data" / "chelsea.png"
    with Image.open(path) as picture:
        grey = np.asarray(picture.convert("L"), dtype=np.float64) / 255
    return grey[40 : 40 + SIDE, 110 : 110 + SIDE]


def pictures() -> list[tuple[str, np.ndarray]]:
    """The noisy photograph, at less contrast, and pooled."""
    noise = SIGMA * np.random.default_rng(0).standard_normal((SIDE, SIDE))
    noisy = photograph() + noise
    less = ALPHA * noisy + (1 - ALPHA) * 0.5
    pooled = noisy.reshape(SIDE // FACTOR, FACTOR, SIDE // FACTOR, FACTOR).mean((1, 3))
    return [
        (f"as measured: noise {SIGMA:g}", noisy),
        (f"contrast {ALPHA:g}: noise {ALPHA * SIGMA:.3g}", less),
        (f"means of {FACTOR} × {FACTOR}: noise {SIGMA / FACTOR:.3g}", pooled),
    ]


def main() -> None:
    """Draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("invariances.svg"))
    out = parser.parse_args().out
    with charts(out, 1, 3, width=2.6) as axes:
        for axis, (title, picture) in zip(axes[0], pictures(), strict=True):
            axis.imshow(picture, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axis.set_title(title, fontsize=8)
            axis.axis("off")
    print(out)


if __name__ == "__main__":
    main()
