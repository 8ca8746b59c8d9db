"""Noise2Void by CAREamics, by its own interpreter: imports nothing of ours.

python noise2void.py train TRAIN.npy NOISY.npy RESTORED.npy MINUTES FOLDER
python noise2void.py predict IMAGE.npy FOLDER
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np


def trained(images: Any, minutes: float, folder: str) -> Any:
    """A CAREamist for grey images (N, H, W), trained for so many minutes of processor time."""
    import torch
    from careamics import CAREamist
    from careamics.config.factories import create_n2v_config
    from lightning.pytorch import Callback

    class Stop(Callback):  # type: ignore[misc]
        """When the time is up."""

        started = time.process_time()

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            trainer.should_stop = time.process_time() - self.started > 60 * minutes

    torch.set_num_threads(1)
    config = create_n2v_config("benchmark", "array", "SYX", [64, 64], 16, 1000)
    careamist = CAREamist(config, work_dir=folder, callbacks=[Stop()], enable_progress_bar=False)
    careamist.train(train_data=images)
    return careamist


def restored(careamist: Any, y: Any, **tiles: Any) -> Any:
    """One image (H, W)."""
    found = careamist.predict(y[None], **tiles)
    while isinstance(found, (list, tuple)):
        found = found[0]
    return np.asarray(found).reshape(y.shape)


def train(train_path: str, noisy_path: str, out: str, minutes: str, folder: str) -> None:
    """Train, then write the restored images."""
    careamist = trained(np.load(train_path, allow_pickle=False), float(minutes), folder)
    noisy = np.load(noisy_path, allow_pickle=False)
    np.save(out, np.stack([restored(careamist, y) for y in noisy]).astype(np.float32))


def predict(path: str, folder: str) -> None:
    """Processor seconds and peak memory (MB) of restoring an image in tiles, after one step."""
    image = np.load(path, allow_pickle=False)
    careamist = trained(np.stack([image[:128, :128]] * 20), 0.0, folder)
    started = time.process_time()
    restored(careamist, image, tile_size=[256, 256], tile_overlap=[48, 48])
    seconds = time.process_time() - started
    # not ru_maxrss, which counts what the caller had when it forked
    status = Path("/proc/self/status").read_text().splitlines()
    memory = next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024
    print(json.dumps({"seconds": seconds, "peak_mb": memory}))


if __name__ == "__main__":
    {"train": train, "predict": predict}[sys.argv[1]](*sys.argv[2:])
