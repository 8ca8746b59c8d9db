"""Table 1 of the paper: posterior sampling, once as printed and once with our defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from nediff.experiments.denoisers import denoiser_piece
from nediff.experiments.models import METHODS as GIVEN
from nediff.experiments.models import Model
from nediff.experiments.pieces import Experiment, Piece, Workspace
from nediff.experiments.printed import TABLE1, differences
from nediff.experiments.sets import WORDS
from nediff.experiments.tables import fid_heading, fid_words, markdown, number, write_table

NAME = "table1"
SETTINGS = (("afhq", 0.075), ("ffhq", 0.075), ("nbu", 0.075), ("afhq", 0.05), ("afhq", 0.1))
"""Image set and σ_n, most telling first."""
METHODS = ("default", "supervised", "paper", "cd")
VARIANTS = {"paper": "recipe and sampler of the paper", "default": "our defaults"}
SCORES = ("psnr", "ssim", "lpips")
FID_FACTS = ("fid_truth", "fid_name", "fid_reference", "images")


def pieces(workspace: Workspace) -> list[Piece]:
    """One network for each setting and method."""
    return [
        denoiser_piece(Model(images, sigma, method), workspace)
        for images, sigma in SETTINGS
        for method in METHODS
    ]


def rows(workspace: Workspace) -> list[dict[str, Any]]:
    """The five rows of the paper for each setting and CD's own one step, in both variants."""
    out = []
    for variant in VARIANTS:
        for images, sigma in SETTINGS:
            kinds = (
                ("MMSE (self-supervised)", variant, False),
                ("ours", variant, True),
                ("MMSE (CD)", "cd", False),
                ("CD", "cd", True),
                ("MMSE (supervised)", "supervised", False),
                ("EDM (supervised)", "supervised", True),
            )
            for words, method, sampled in kinds:
                key = Model(images, sigma, method).key
                result = workspace.result(key)
                if result is None:
                    continue
                row = {"variant": variant, "set": images, "sigma": sigma, "solver": words}
                row["given"] = GIVEN[method].given
                row |= _sampled(result, variant) if sampled else _one_step(result, sigma)
                place = ["samplers", variant] if sampled else ["levels", f"{sigma:g}"]
                row["where"] = [key, *place]
                out.append(row | {k: result[k] for k in FID_FACTS})
    return out


def _one_step(result: dict[str, Any], sigma: float) -> dict[str, Any]:
    scores = result["levels"][f"{sigma:g}"]
    return _means(scores) | {"sampler": False, "fid": result["fid"]}


def _sampled(result: dict[str, Any], sampler: str) -> dict[str, Any]:
    found = result["samplers"][sampler]
    calibration = found["calibration"]
    names = ("error2_over_variance", "psnr_drop", "coverage")
    spread = {name: calibration[name] for name in names}
    return _means(found) | {"sampler": True, "fid": found["fid"], **spread}


def _means(scores: dict[str, Any]) -> dict[str, float]:
    return {name: float(np.mean(scores[name])) for name in SCORES if name in scores}


def table(workspace: Workspace) -> str:
    """Markdown: both variants."""
    found = rows(workspace)
    lines = [
        "MMSE is one step of a network, the others one posterior sample of each image."
        f"{fid_words(found)} "
        "Of several samples of some images: error²/variance (1 is right), the PSNR that a sample "
        "loses to one step of the same network (3.01 dB is right), and how often the truth lies "
        "between the extreme samples (in brackets: how often it should).",
    ]
    head = [
        "images",
        "σ_n",
        "solver",
        "given",
        "PSNR",
        "SSIM",
        "LPIPS",
        fid_heading(found),
        "floor",
    ]
    head += ["error²/variance", "PSNR lost", "coverage (wanted)"]
    for variant, words in VARIANTS.items():
        body = [_cells(row) for row in found if row["variant"] == variant]
        lines += ["", f"## {words[0].upper()}{words[1:]}", "", *markdown(head, body)]
    return "\n".join([*lines, "", *beside_the_paper(found)]) + "\n"


def beside_the_paper(found: list[dict[str, Any]]) -> list[str]:
    """Differences between solvers, as the paper prints them and as we find them."""
    body = []
    for images, sigma in SETTINGS:
        printed = {solver: row._asdict() for solver, row in TABLE1[images, sigma].items()}
        mine = {
            variant: differences(
                {
                    row["solver"]: row
                    for row in found
                    if (row["variant"], row["set"], row["sigma"]) == (variant, images, sigma)
                }
            )
            for variant in VARIANTS
        }
        for pair, values in differences(printed).items():
            cells = [_difference(mine[variant].get(pair)) for variant in VARIANTS]
            if any(cells):
                body.append([WORDS[images], f"{sigma:g}", pair, _difference(values), *cells])
    head = ["images", "σ_n", "PSNR difference in dB (ratio of LPIPS)", "paper", *VARIANTS.values()]
    return [
        "## Beside what the paper prints",
        "",
        "With other images and networks than the paper's, only differences can be compared.",
        "",
        *markdown(head, body),
    ]


def _difference(values: tuple[float, float | None] | None) -> str:
    if values is None:
        return ""
    return f"{values[0]:+.2f}" + ("" if values[1] is None else f" ({values[1]:.2f})")


def _cells(row: dict[str, Any]) -> list[str]:
    promised, found = row["coverage"][-1] if row["sampler"] else (None, None)
    return [
        WORDS[row["set"]],
        f"{row['sigma']:g}",
        row["solver"],
        row["given"],
        number(row["psnr"], 2),
        number(row["ssim"], 3),
        number(row.get("lpips"), 3),
        number(row["fid"], 2),
        number(row["fid_truth"], 2),
        number(row.get("error2_over_variance"), 2),
        number(row.get("psnr_drop"), 2),
        f"{found:.2f} ({promised:.2f})" if row["sampler"] else "",
    ]


def show(workspace: Workspace) -> list[Path]:
    """The table."""
    return [write_table(workspace, NAME, table(workspace), rows(workspace))]


EXPERIMENT = Experiment(
    NAME, "posterior sampling: ours, CD, EDM and the one-step MMSE", pieces, show
)
