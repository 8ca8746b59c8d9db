"""Distances as people see them: LPIPS between pictures, FID-768 between sets of pictures.

Both compare what a network trained on photographs makes of the pictures. The weights of the two
networks are files that the user has; nothing is downloaded, and nothing in them is executed:

| file | what |
|---|---|
| `lpips_alexnet_features.safetensors` | AlexNet's convolutions, `features.*` as in torchvision |
| `lpips_alexnet_heads.safetensors` | the linear heads of LPIPS 0.1, `lin*.model.1.weight` |
| `fid768_inception2015.pt2` | the FID Inception (2015) as far as Mixed_6e, by `torch.export` |

FID-768 is the Fréchet distance on the 768 features after Mixed_6e, averaged over the picture.
Its numbers are not those of the usual FID, which has 2048 features.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import avg_pool2d, conv2d, interpolate, max_pool2d, relu

from nediff.errors import NediffError

Images = NDArray[np.floating]
Array = NDArray[np.float64]
Weights = dict[str, Tensor]

ALEXNET = "lpips_alexnet_features.safetensors"
HEADS = "lpips_alexnet_heads.safetensors"
INCEPTION = "fid768_inception2015.pt2"
VARIABLE = "NEDIFF_WEIGHTS"
LEAST = 31
"""Pixels a side below which AlexNet has nothing left after its two poolings."""


class Perceptual:
    """LPIPS and FID-768 of pictures (N, C, H, W) with values in [0, 1], C = 1 (grey) or 3.

    ``weights`` is the folder with the files named above; without it, the environment variable
    NEDIFF_WEIGHTS says where it is. A file is opened when its metric is first asked for.
    ``batch`` pictures at a time go through the networks, on ``threads`` threads of the processor.

    Values beyond [0, 1] are clipped, as they are in a picture on a screen.
    """

    fid_name = "FID-768"

    def __init__(
        self, weights: Path | str | None = None, batch: int = 16, threads: int = 1
    ) -> None:
        self.folder = _folder(weights)
        self.batch = batch
        self.threads = threads

    def lpips(self, restored: Images, truth: Images) -> Array:
        """LPIPS (Zhang et al. 2018, AlexNet) of each pair, (N,): 0 for equal pictures."""
        if restored.shape != truth.shape:
            raise NediffError(
                f"LPIPS compares pictures in pairs, but the restored ones have shape "
                f"{restored.shape} and the true ones {truth.shape}: give both the same shape."
            )
        _check(restored)
        _check(truth)
        if min(truth.shape[2:]) < LEAST:
            height, width = truth.shape[2:]
            raise NediffError(
                f"LPIPS needs pictures of at least {LEAST} × {LEAST} pixels, but these have "
                f"{height} × {width}: leave LPIPS out, or give larger pictures."
            )
        alexnet, heads = self._alexnet
        return self._map(lambda a, b: _lpips(a, b, alexnet, heads), restored, truth)

    def features(self, images: Images) -> Array:
        """What FID-768 knows of each picture, (N, 768); each is resized to 299 × 299 first.

        Compute those of a reference set once, and compare many sets with it by
        ``frechet(*statistics(features), *statistics(reference))``.
        """
        _check(images)
        inception = self._inception
        return self._map(lambda x: _inception_features(x, inception), images)

    def fid768(self, images: Images, reference: Images) -> float:
        """Fréchet distance between the features of two sets, not necessarily of one size.

        WARNING: few pictures make it too large. Two sets of 200 photographs of cats that differ
        in nothing but chance are 0.28 apart, two sets of 400 still 0.17 (and 400 photographs
        from the same ones with noise of σ = 0.075, 0.75). So compare only numbers with the same
        N and the same reference, and say beside them what true pictures, as many, give against
        that reference: this is the floor.
        """
        _check(reference)
        return frechet(*statistics(self.features(images)), *statistics(self.features(reference)))

    def prepare(self) -> None:
        """Open the files now; one that is missing or damaged is said at once."""
        _ = self._alexnet, self._inception

    @cached_property
    def _alexnet(self) -> tuple[Weights, list[Tensor]]:
        alexnet = _read_safetensors(self.folder, ALEXNET)
        _expect(alexnet, ALEXNET, "features.0.weight", (64, 3, 11, 11))
        _expect(alexnet, ALEXNET, "features.10.weight", (256, 256, 3, 3))
        heads = _read_safetensors(self.folder, HEADS)
        names = [f"lin{i}.model.1.weight" for i in range(5)]
        for name, channels in zip(names, (64, 192, 384, 256, 256), strict=True):
            _expect(heads, HEADS, name, (1, channels, 1, 1))
        return alexnet, [heads[name] for name in names]

    @cached_property
    def _inception(self) -> Weights:
        weights = _read_exported(_file(self.folder, INCEPTION))
        _expect(weights, INCEPTION, "net.Conv2d_1a_3x3.w", (32, 3, 3, 3))
        _expect(weights, INCEPTION, "net.Mixed_6e.branch_pool.w", (192, 768, 1, 1))
        return {name.removeprefix("net."): _channels_last(value) for name, value in weights.items()}

    @torch.no_grad()
    def _map(self, function: Callable[..., Tensor], *images: Images) -> Array:
        """``function`` of the pictures, batch by batch."""
        out = []
        with _threads(self.threads):
            for start in range(0, len(images[0]), self.batch):
                stop = start + self.batch
                value = function(*(_pictures(x[start:stop]) for x in images))
                out.append(value.double().numpy())
        return np.concatenate(out)


def statistics(features: Array) -> tuple[Array, Array]:
    """Mean (D,) and unbiased covariance (D, D) of N ≥ 2 rows of features."""
    if len(features) < 2:
        raise NediffError(
            f"A Fréchet distance needs at least 2 pictures in each set, not {len(features)}."
        )
    mean = features.mean(0, dtype=np.float64)
    centred = features - mean
    return mean, centred.T @ centred / (len(features) - 1)


def frechet(mean1: Array, cov1: Array, mean2: Array, cov2: Array) -> float:
    """‖m₁ − m₂‖² + tr C₁ + tr C₂ − 2 tr (C₁^½ C₂ C₁^½)^½, between N(m₁, C₁) and N(m₂, C₂).

    With C = F Fᵀ, the last trace is the sum of the singular values of F₁ᵀ F₂. The product of the
    covariances is never formed, so that they may be singular, as they are for few pictures.
    """
    if not (mean1.shape == mean2.shape and cov1.shape == cov2.shape == 2 * mean1.shape):
        raise NediffError(
            f"A Fréchet distance needs means and covariances of one size, but they have "
            f"{mean1.shape}, {cov1.shape} and {mean2.shape}, {cov2.shape}."
        )
    cross = np.linalg.svd(_factor(cov1).T @ _factor(cov2), compute_uv=False).sum()
    distance = np.square(mean1 - mean2).sum() + np.trace(cov1) + np.trace(cov2) - 2 * cross
    return max(0.0, float(distance))


def _factor(cov: Array) -> Array:
    """F of C = F Fᵀ: eigenvectors times the roots of those eigenvalues that are not rounding."""
    values, vectors = np.linalg.eigh(cov)
    kept = values > len(values) * np.finfo(np.float64).eps * np.abs(values).max()
    factor: Array = vectors[:, kept] * np.sqrt(values[kept])
    return factor


# --- Pictures ---


def _check(images: Images) -> None:
    """Refuse what is not a set of grey or colour pictures in unit intensities."""
    if images.ndim != 4 or images.shape[1] not in (1, 3) or 0 in images.shape:
        raise NediffError(
            f"LPIPS and FID-768 take pictures as (N, C, H, W) with C = 1 or 3, not as an array "
            f"of shape {images.shape}; of complex images give the magnitude."
        )
    real = np.issubdtype(images.dtype, np.floating)
    if not real or not np.mean(np.abs(images - np.clip(images, 0, 1)), dtype=np.float64) <= 0.1:
        raise NediffError(
            f"LPIPS and FID-768 take pictures of floating-point values in [0, 1], but these are "
            f"{images.dtype} from {images.min():.4g} to {images.max():.4g}: map black to 0 and "
            f"white to 1."
        )


def _pictures(images: Images) -> Tensor:
    """(B, 3, H, W) in [0, 1], in float32; grey is repeated."""
    x = torch.from_numpy(np.array(images, dtype=np.float32)).clamp(0, 1)
    return x.expand(-1, 3, -1, -1)


def _channels_last(x: Tensor) -> Tensor:
    """The same numbers, channels innermost: Inception is a third faster so on a processor."""
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x


@contextmanager
def _threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# --- LPIPS ---


def _lpips(a: Tensor, b: Tensor, alexnet: Weights, heads: list[Tensor]) -> Tensor:
    """Σ_layers, mean over positions, of w · (â − b̂)², with features â, b̂ of unit length."""
    total = torch.zeros(len(a))
    layers = zip(_alexnet_layers(a, alexnet), _alexnet_layers(b, alexnet), heads, strict=True)
    for features_a, features_b, head in layers:
        squares = (_unit(features_a) - _unit(features_b)).square()
        total += conv2d(squares, head).mean((1, 2, 3))
    return total


def _unit(features: Tensor) -> Tensor:
    return features / (features.square().sum(1, keepdim=True).sqrt() + 1e-10)


def _alexnet_layers(x: Tensor, weights: Weights) -> Iterator[Tensor]:
    """The five rectified layers of AlexNet; the scaling of the input is that of LPIPS."""
    shift, scale = torch.tensor([-0.030, -0.088, -0.188]), torch.tensor([0.458, 0.448, 0.450])
    x = (2 * x - 1 - shift[:, None, None]) / scale[:, None, None]
    for layer, stride, padding in ((0, 4, 2), (3, 1, 2), (6, 1, 1), (8, 1, 1), (10, 1, 1)):
        if layer in (3, 6):
            x = max_pool2d(x, 3, 2)
        weight, bias = weights[f"features.{layer}.weight"], weights[f"features.{layer}.bias"]
        x = relu(conv2d(x, weight, bias, stride, padding))
        yield x


# --- The FID Inception ---

# The chains of convolutions in a mixed block, with their lengths, in the order of the output.
_FIVES = {"branch1x1": 1, "branch5x5": 2, "branch3x3dbl": 3}
_SEVENS = {"branch1x1": 1, "branch7x7": 3, "branch7x7dbl": 5}


def _inception_features(x: Tensor, weights: Weights) -> Tensor:
    """Pictures (B, 3, H, W) in [0, 1] to the means of the 768 channels after Mixed_6e.

    As Inception v3, but the poolings inside the blocks do not count what lies over the edge.
    """
    size = (299, 299)
    x = _channels_last(x)
    x = 2 * interpolate(x, size, mode="bilinear", align_corners=False) - 1
    x = _convolve(x, weights, "Conv2d_1a_3x3", stride=2, same=False)
    x = _convolve(x, weights, "Conv2d_2a_3x3", same=False)
    x = max_pool2d(_convolve(x, weights, "Conv2d_2b_3x3"), 3, 2)
    x = _convolve(x, weights, "Conv2d_3b_1x1")
    x = max_pool2d(_convolve(x, weights, "Conv2d_4a_3x3", same=False), 3, 2)
    for block in ("Mixed_5b", "Mixed_5c", "Mixed_5d"):
        x = _mixed(x, weights, block, _FIVES)
    x = _halve(x, weights, "Mixed_6a")
    for block in ("Mixed_6b", "Mixed_6c", "Mixed_6d", "Mixed_6e"):
        x = _mixed(x, weights, block, _SEVENS)
    return x.mean((2, 3))


def _mixed(x: Tensor, weights: Weights, block: str, chains: dict[str, int]) -> Tensor:
    """Chains of convolutions side by side, and one after a pooling."""
    parts = []
    for chain, length in chains.items():
        part = x
        for i in range(length):
            name = f"{block}.{chain}" if length == 1 else f"{block}.{chain}_{i + 1}"
            part = _convolve(part, weights, name)
        parts.append(part)
    pooled = avg_pool2d(x, 3, stride=1, padding=1, count_include_pad=False)
    parts.append(_convolve(pooled, weights, f"{block}.branch_pool"))
    return torch.cat(parts, 1)


def _halve(x: Tensor, weights: Weights, block: str) -> Tensor:
    """The block that halves the picture."""
    single = _convolve(x, weights, f"{block}.branch3x3", stride=2, same=False)
    double = _convolve(x, weights, f"{block}.branch3x3dbl_1")
    double = _convolve(double, weights, f"{block}.branch3x3dbl_2")
    double = _convolve(double, weights, f"{block}.branch3x3dbl_3", stride=2, same=False)
    return torch.cat([single, double, max_pool2d(x, 3, 2)], 1)


def _convolve(x: Tensor, weights: Weights, name: str, stride: int = 1, same: bool = True) -> Tensor:
    """Convolution (batch normalisation is folded into it) and rectification."""
    kernel = weights[f"{name}.w"]
    padding = (kernel.shape[2] // 2, kernel.shape[3] // 2) if same else (0, 0)
    return relu(conv2d(x, kernel, weights[f"{name}.b"], stride, padding))


# --- Files ---


def _folder(weights: Path | str | None) -> Path:
    named = weights or os.environ.get(VARIABLE)
    if not named:
        raise NediffError(
            f"LPIPS and FID-768 need the weights of their networks, which nediff does not "
            f"download: put {ALEXNET}, {HEADS} and {INCEPTION} into a folder and name it in the "
            f"environment variable {VARIABLE}."
        )
    if not Path(named).is_dir():
        raise NediffError(
            f"There is no folder {named} with the weights of LPIPS and FID-768: correct the name "
            f"(it comes from the option, or else from the environment variable {VARIABLE})."
        )
    return Path(named)


def _file(folder: Path, name: str) -> Path:
    if not (folder / name).is_file():
        raise NediffError(
            f"The folder {folder} has no {name}: put it there, or name another folder."
        )
    return folder / name


def _read_safetensors(folder: Path, name: str) -> Weights:
    path = _file(folder, name)
    try:
        weights = load_file(path)
    except SafetensorError as error:
        raise NediffError(f"{path} is not a whole safetensors file: copy it anew.") from error
    return {key: value.float() for key, value in weights.items()}


def _read_exported(path: Path) -> Weights:
    """The weights in a `torch.export` archive, in float32.

    They lie there as plain numbers beside a table in JSON. The program in the archive is left
    alone: to open it, PyTorch would unpickle, and so execute, what the file says.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            table = next(n for n in names if n.endswith("/weights/model_weights_config.json"))
            entries = json.loads(archive.read(table))["config"]
            folder = table.rpartition("/")[0]
            return {
                name: _tensor(entry, archive.read(f"{folder}/{entry['path_name']}"))
                for name, entry in entries.items()
            }
    except (zipfile.BadZipFile, StopIteration, KeyError, ValueError, TypeError) as error:
        raise NediffError(
            f"{path} is not a whole torch.export archive of plain weights: copy it anew."
        ) from error


def _tensor(entry: dict[str, Any], data: bytes) -> Tensor:
    """One row of the table: 6 and 7 are PyTorch's numbers for half and single precision."""
    if entry["use_pickle"]:
        raise ValueError("pickled")
    meta = entry["tensor_meta"]
    kind = {6: "<f2", 7: "<f4"}[meta["dtype"]]
    sizes = [size["as_int"] for size in meta["sizes"]]
    return torch.from_numpy(np.frombuffer(data, kind).reshape(sizes).astype(np.float32))


def _expect(weights: Weights, file: str, name: str, shape: tuple[int, ...]) -> None:
    if name not in weights or weights[name].shape != shape:
        raise NediffError(
            f"{file} is not the file that nediff expects: it has no {name} of shape {shape}."
        )
