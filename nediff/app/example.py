"""A noisy picture to try the page with, from those that come with scikit-image."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from nediff.randomness import derive_key, normal_field

SIGMA = 0.12
CORNER, SIDE = (40, 90), 256


def write_example(folder: Path, grey: bool) -> Path:
    """Chelsea the cat, whom the pretrained network has not seen, with noise of σ = 0.12."""
    import skimage

    place = Path(skimage.__file__).parent / "data" / "chelsea.png"
    top, left = CORNER
    with Image.open(place) as picture:
        square = picture.convert("L" if grey else "RGB").crop((left, top, left + SIDE, top + SIDE))
    clean = np.asarray(square, dtype=np.float64)
    shape = (1 if grey else 3, SIDE, SIDE)
    noise = normal_field([derive_key("example", 0)], *shape)[0].numpy()
    noise = noise[0] if grey else np.moveaxis(noise, 0, -1)
    noisy = np.clip(np.rint(clean + 255 * SIGMA * noise), 0, 255).astype(np.uint8)
    path = folder / "example.png"
    Image.fromarray(noisy).save(path)
    return path
