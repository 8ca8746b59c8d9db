"""What the paper claims, checked on our own numbers; each stated as confirmed or not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nediff.experiments import complexity, levels, spectra, table1, table2
from nediff.experiments.denoisers import LEVELS
from nediff.experiments.pieces import Experiment, Piece, Workspace
from nediff.experiments.scales import SETS
from nediff.experiments.tables import markdown, write_table

NAME = "claims"
SOURCES = (table1, levels, complexity, table2, spectra)
NEAR_HALF = 0.2
"""A slope within this of −1/2 counts as 1/√N."""
LARGEST_GAP = 0.52
"""dB: FFHQ in the paper's table 1, 34.20 − 33.68."""
Row = dict[str, Any]
HIGHER = ("psnr", "ssim")
LOWER = ("lpips", "fid")


@dataclass(frozen=True)
class Check:
    """One comparison: does it hold (None: not tested yet), and the figures."""

    of: str
    holds: bool | None = None
    figures: str = ""


def pieces(workspace: Workspace) -> list[Piece]:
    """Those of the tables and figures it reads."""
    found = [piece for source in SOURCES for piece in source.pieces(workspace)]
    return list({piece.key: piece for piece in found}.values())


def _better(of: str, a: Row | None, b: Row | None, score: str) -> Check:
    """Whether ``a`` beats ``b``."""
    if a is None or b is None or a.get(score) is None or b.get(score) is None:
        return Check(of)
    margin = (a[score] - b[score]) * (1 if score in HIGHER else -1)
    return Check(of, margin > 0, f"{a[score]:.3f} against {b[score]:.3f}")


def _by(rows: list[Row], *names: str) -> dict[tuple[Any, ...], Row]:
    return {tuple(row[name] for name in names): row for row in rows}


def below_noise(workspace: Workspace) -> Iterator[Check]:
    """Ours above SURE and CD below σ_n, in PSNR of one step."""
    found = _by(levels.rows(workspace), "images", "method", "sigma")
    for images in SETS:
        for sigma in (s for s in LEVELS if s < levels.SIGMA):
            for ours in ("paper", "default"):
                for other in ("sure", "cd"):
                    pair = found.get((images, ours, sigma)), found.get((images, other, sigma))
                    of = f"{images}, σ = {sigma:g}: {ours} over {other}"
                    yield _better(of, *pair, "psnr")


def _gap(workspace: Workspace, variant: str, sigma: float) -> float | None:
    """PSNR of supervised training over ours, one step at σ_n, AFHQ."""
    found = _by(table1.rows(workspace), "variant", "set", "sigma", "solver")
    best = found.get((variant, "afhq", sigma, "MMSE (supervised)"))
    ours = found.get((variant, "afhq", sigma, "MMSE (self-supervised)"))
    return None if best is None or ours is None else float(best["psnr"] - ours["psnr"])


def gap_small(workspace: Workspace) -> Iterator[Check]:
    """Ours close to supervised at σ_n: within 0.52 dB, the largest gap in the paper's table 1."""
    for variant in table1.VARIANTS:
        for sigma in spectra.SIGMAS:
            gap, of = _gap(workspace, variant, sigma), f"{variant}, σ_n = {sigma:g}"
            yield Check(of) if gap is None else Check(of, gap <= LARGEST_GAP, f"{gap:.2f} dB")


def gap_grows(workspace: Workspace) -> Iterator[Check]:
    """The gap to supervised training at σ_n grows with σ_n."""
    for variant in table1.VARIANTS:
        gaps = [_gap(workspace, variant, sigma) for sigma in spectra.SIGMAS]
        known = [gap for gap in gaps if gap is not None]
        if len(known) < len(gaps):
            yield Check(variant)
        else:
            words = ", ".join(f"{g:.2f}" for g in known)
            yield Check(variant, known == sorted(known), f"{words} dB at 0.05, 0.075, 0.1")


def perception(workspace: Workspace) -> Iterator[Check]:
    """Samples lose PSNR and SSIM to one step of the same network, and win LPIPS and FID."""
    found = _by(table1.rows(workspace), "variant", "set", "sigma", "solver")
    pairs = {"ours": "self-supervised", "CD": "CD", "EDM (supervised)": "supervised"}
    for variant in table1.VARIANTS:
        for images, sigma in table1.SETTINGS:
            for solver, network in pairs.items():
                sample = found.get((variant, images, sigma, solver))
                step = found.get((variant, images, sigma, f"MMSE ({network})"))
                for score in (*HIGHER, *LOWER):
                    of = f"{variant}: {solver}, {images} {sigma:g}, {score}"
                    first, second = (step, sample) if score in HIGHER else (sample, step)
                    yield _better(of, first, second, score)


def incomplete(workspace: Workspace) -> Iterator[Check]:
    """EI wins PSNR and SSIM over all samples; ours win LPIPS and FID over EI and Ambient."""
    found = _by(table2.rows(workspace), "problem", "method", "kind")
    for problem in table2.PROBLEMS:
        ei = found.get((problem, "ei", "estimate"))
        ambient = found.get((problem, "ambient", "sample"))
        for score in HIGHER:
            yield _better(f"{problem}, {score}: EI over Ambient", ei, ambient, score)
        for method in ("paper", "default"):
            ours = found.get((problem, method, "sample"))
            for score in HIGHER:
                yield _better(f"{problem}, {score}: EI over {method}", ei, ours, score)
            for score in LOWER:
                yield _better(f"{problem}, {score}: {method} over EI", ours, ei, score)
                yield _better(f"{problem}, {score}: {method} over Ambient", ours, ambient, score)


def cd_noise(workspace: Workspace) -> Iterator[Check]:
    """CD keeps high-frequency noise: more power than the truth in the upper half of frequencies."""
    found = _by(spectra.rows(workspace), "variant", "sigma", "line")
    for variant in spectra.VARIANTS:
        for sigma in spectra.SIGMAS:
            row, of = found.get((variant, sigma, "CD")), f"{variant}, σ_n = {sigma:g}"
            yield Check(of) if row is None else Check(of, row["high"] > 0, f"{row['high']:+.2f} dB")


def nearest_spectrum(workspace: Workspace) -> Iterator[Check]:
    """Of what learned from noisy images alone, our samples have the spectrum nearest the truth."""
    found = _by(spectra.rows(workspace), "variant", "sigma", "line")
    for variant in spectra.VARIANTS:
        for sigma in spectra.SIGMAS:
            ours = found.get((variant, sigma, "ours"))
            for line in ("MMSE (self-supervised)", "CD"):
                rival, of = found.get((variant, sigma, line)), f"{variant}, {sigma:g}: over {line}"
                if ours is None or rival is None:
                    yield Check(of)
                else:
                    near, far = ours["distance"], rival["distance"]
                    yield Check(of, near < far, f"{near:.2f} dB against {far:.2f}")


def root_n(workspace: Workspace) -> Iterator[Check]:
    """The excess error falls like 1/√N (a slope of −0.5 ± 0.2), below σ_n too."""
    found = complexity.rows(workspace)
    for method in complexity.COMPARED:
        for sigma in complexity.LEVELS:
            mine = [r for r in found if (r["method"], r["sigma"]) == (method, sigma)]
            used = sum(r["excess"] > 0 for r in mine)
            steep = complexity.slope([r["count"] for r in mine], [r["excess"] for r in mine])
            of = f"{method}, σ = {sigma:g}"
            if steep is None or used < 3:
                yield Check(of)
            else:
                figures = f"slope {steep:.2f} by {used} of {len(mine)} points"
                yield Check(of, abs(steep + 0.5) <= NEAR_HALF, figures)


CLAIMS = (
    below_noise,
    gap_small,
    gap_grows,
    perception,
    incomplete,
    cd_noise,
    nearest_spectrum,
    root_n,
)


def rows(workspace: Workspace) -> list[Row]:
    """Each claim with its comparisons; confirmed if every one of them was made and holds."""
    out = []
    for claim in CLAIMS:
        checks = list(claim(workspace))
        tested = [check for check in checks if check.holds is not None]
        held = sum(check.holds is True for check in tested)
        verdict = "confirmed in part" if held else "not confirmed"
        if held == len(tested):
            verdict = "confirmed"
        if len(tested) < len(checks):
            verdict = f"not tested in full ({len(tested)} of {len(checks)})"
        row = {"claim": " ".join((claim.__doc__ or "").split()), "verdict": verdict}
        out.append(row | {"held": held, "checks": [asdict(check) for check in checks]})
    return out


def table(workspace: Workspace) -> str:
    """Markdown: the verdicts, then what did not hold."""
    found = rows(workspace)
    body = [[r["claim"], r["verdict"], f"{r['held']} of {len(r['checks'])}"] for r in found]
    lines = [
        "One seed; a comparison holds by however little; its figures are in the JSON file.",
        "",
    ]
    lines += markdown(["claim of the paper", "on our numbers", "comparisons that hold"], body)
    for row in found:
        failed = [f"{c['of']} ({c['figures']})" for c in row["checks"] if c["holds"] is False]
        if failed:
            lines += ["", f"**{row['claim']}** Not so: {'; '.join(failed)}."]
    return "\n".join(lines) + "\n"


def show(workspace: Workspace) -> list[Path]:
    """The verdicts."""
    return [write_table(workspace, NAME, table(workspace), rows(workspace))]


EXPERIMENT = Experiment(
    NAME, "the orderings the paper claims, checked on our numbers", pieces, show
)
