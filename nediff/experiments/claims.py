"""What the paper claims, checked on our own numbers; each stated as confirmed or not."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nediff.experiments import complexity, levels, spectra, table1, table2
from nediff.experiments.denoisers import LEVELS
from nediff.experiments.models import Model
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
Values = NDArray[np.float64]
HIGHER = ("psnr", "ssim")
LOWER = ("lpips", "fid")


ERRORS = 2.0
"""A margin of fewer standard errors than this decides nothing."""


@dataclass(frozen=True)
class Check:
    """One comparison: does it hold (None: not tested yet), is that clear, and the figures."""

    of: str
    holds: bool | None = None
    figures: str = ""
    clear: bool = True


def _check(of: str, margin: float, error: float | None, figures: str, digits: int = 3) -> Check:
    """Whether ``margin`` is above zero, and by more than the chance of its standard error."""
    if error is not None:
        figures = f"{figures} ± {error:.{digits}f}"
    return Check(of, margin > 0, figures, error is None or abs(margin) > ERRORS * error)


def _each(workspace: Workspace, row: Row, score: str) -> Values | None:
    """The score of every image behind a row of a table; None for one of all together (FID)."""
    key, *place = row["where"]
    found: Any = workspace.result(key)
    for name in place:
        found = found[name]
    found = found.get(score)  # FID may be of the whole piece
    return np.asarray(found, float) if isinstance(found, list) else None


def _mean_error(values: Values) -> tuple[float, float]:
    """The mean of independent values (n,) and its standard error."""
    if len(values) < 2:
        return float(values.mean()), float("inf")
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values)))


def pieces(workspace: Workspace) -> list[Piece]:
    """Those of the tables and figures it reads."""
    found = [piece for source in SOURCES for piece in source.pieces(workspace)]
    return list({piece.key: piece for piece in found}.values())


def _better(workspace: Workspace, of: str, a: Row | None, b: Row | None, score: str) -> Check:
    """Whether ``a`` beats ``b``, image by image where there is a score of each."""
    if a is None or b is None or a.get(score) is None or b.get(score) is None:
        return Check(of)
    sign, digits = 1 if score in HIGHER else -1, 4 if score == "lpips" else 3
    figures = f"{a[score]:.{digits}f} against {b[score]:.{digits}f}"
    one, other = _each(workspace, a, score), _each(workspace, b, score)
    if one is None or other is None:
        return _check(of, sign * (a[score] - b[score]), None, figures)
    return _check(of, *_mean_error(sign * (one - other)), figures, digits)


def _by(rows: list[Row], *names: str) -> dict[tuple[Any, ...], Row]:
    return {tuple(row[name] for name in names): row for row in rows}


def _below(workspace: Workspace, scores: tuple[str, ...]) -> Iterator[Check]:
    """Ours against SURE and CD at the test levels below σ_n, one step."""
    found = _by(levels.rows(workspace), "images", "method", "sigma")
    below = [sigma for sigma in LEVELS if sigma < levels.SIGMA]
    rivals = list(itertools.product(("paper", "default"), ("sure", "cd")))
    for score, images, sigma in itertools.product(scores, SETS, below):
        for ours, other in rivals:
            pair = found.get((images, ours, sigma)), found.get((images, other, sigma))
            of = f"{score}, {images}, σ = {sigma:g}: {ours} over {other}"
            yield _better(workspace, of, *pair, score)


def below_noise(workspace: Workspace) -> Iterator[Check]:
    """Ours above SURE and CD below σ_n, in PSNR and SSIM of one step."""
    yield from _below(workspace, HIGHER)


def below_noise_lpips(workspace: Workspace) -> Iterator[Check]:
    """Ours above SURE and CD below σ_n, in LPIPS of one step."""
    yield from _below(workspace, ("lpips",))


def _gap(workspace: Workspace, variant: str, images: str, sigma: float, at: float) -> Values | None:
    """PSNR of supervised training at σ_n over ours, for each image (n,): one step at level ``at``.

    None while one of the two networks is to come.
    """
    networks = (Model(images, sigma, method).key for method in ("supervised", variant))
    best, ours = (workspace.result(key) for key in networks)
    if best is None or ours is None:
        return None
    gaps = np.subtract(best["levels"][f"{at:g}"]["psnr"], ours["levels"][f"{at:g}"]["psnr"])
    return np.asarray(gaps, float)


def _small(workspace: Workspace, below: bool) -> Iterator[Check]:
    """Whether the gap is within the paper's largest, at σ_n or at the test levels below it."""
    for variant in table1.VARIANTS:
        for images, sigma in table1.SETTINGS:
            for at in [s for s in LEVELS if s < sigma] if below else [sigma]:
                gaps = _gap(workspace, variant, images, sigma, at)
                of = f"{variant}, {images}, σ_n = {sigma:g}, at {at:g}"
                if gaps is None:
                    yield Check(of)
                else:
                    gap, error = _mean_error(gaps)
                    yield _check(of, LARGEST_GAP - gap, error, f"{gap:.3f} dB")


def gap_small(workspace: Workspace) -> Iterator[Check]:
    """Ours close to supervised at σ_n: within 0.52 dB, the largest gap in the paper's table 1."""
    yield from _small(workspace, below=False)


def gap_small_below(workspace: Workspace) -> Iterator[Check]:
    """Ours close to supervised below σ_n too: within the same 0.52 dB at every lower test level."""
    yield from _small(workspace, below=True)


def _growth(workspace: Workspace, low: float, high: float, at: float) -> Iterator[Check]:
    """Whether the gap at a test level is larger with σ_n = ``high`` than with ``low``, on AFHQ.

    ``at`` 0 stands for each network's own σ_n.
    """
    for variant in table1.VARIANTS:
        first = _gap(workspace, variant, spectra.IMAGES, low, at or low)
        second = _gap(workspace, variant, spectra.IMAGES, high, at or high)
        of = f"{variant}, from σ_n = {low:g} to {high:g}" + (f", at {at:g}" if at else "")
        if first is None or second is None:
            yield Check(of)
        else:
            growth, error = _mean_error(second - first)
            yield _check(of, growth, error, f"{growth:+.3f} dB")


def gap_grows(workspace: Workspace) -> Iterator[Check]:
    """At lower noise the gap to supervised training is larger for noisier training data: at every
    test level up to the lower of two σ_n, on AFHQ.
    """
    for low, high in itertools.pairwise(spectra.SIGMAS):
        for at in (sigma for sigma in LEVELS if sigma <= low):
            yield from _growth(workspace, low, high, at)


def gap_grows_at_noise(workspace: Workspace) -> Iterator[Check]:
    """The gap at σ_n itself grows with σ_n, as in the paper's table 1, on AFHQ."""
    for low, high in itertools.pairwise(spectra.SIGMAS):
        yield from _growth(workspace, low, high, at=0)


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
                    yield _better(workspace, of, first, second, score)


def incomplete(workspace: Workspace) -> Iterator[Check]:
    """EI wins PSNR and SSIM over all samples; ours win LPIPS and FID over EI and Ambient."""
    found = _by(table2.rows(workspace), "problem", "method", "kind")
    for problem in table2.PROBLEMS:
        ei = found.get((problem, "ei", "estimate"))
        ambient = found.get((problem, "ambient", "sample"))
        for score in HIGHER:
            yield _better(workspace, f"{problem}, {score}: EI over Ambient", ei, ambient, score)
        for method in ("paper", "default"):
            ours = found.get((problem, method, "sample"))
            for score in HIGHER:
                yield _better(workspace, f"{problem}, {score}: EI over {method}", ei, ours, score)
            for score in LOWER:
                yield _better(workspace, f"{problem}, {score}: {method} over EI", ours, ei, score)
                yield _better(
                    workspace, f"{problem}, {score}: {method} over Ambient", ours, ambient, score
                )


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


def _slopes(workspace: Workspace, over: str, margin: Callable[[float], float]) -> Iterator[Check]:
    """The slope of every method and level; ``margin`` is above zero where it is as claimed."""
    found = complexity.rows(workspace)
    for method in complexity.COMPARED:
        for sigma in complexity.LEVELS:
            counts, excess = complexity.curve(found, method, sigma, over)
            steep, of = complexity.slope(counts, excess), f"{method}, σ = {sigma:g}"
            wanted = len(workspace.scale.counts) - (over == "lost")
            if len(counts) < wanted:
                yield Check(of)
            elif steep is None:  # nothing to fit
                used = sum(value > 0 for value in excess)
                yield Check(of, False, f"an excess at {used} of {len(excess)} points only", False)
            else:
                inside = margin(steep.value)
                figures = f"slope {steep.value:.2f} ± {steep.error:.2f}"
                yield Check(of, inside >= 0, figures, abs(inside) >= ERRORS * steep.error)


def _exact(workspace: Workspace) -> float:
    """The slope of an exact 1/√N over its own last point."""
    return complexity.own_slope_of_root_n(sorted({r["count"] for r in complexity.rows(workspace)}))


def root_n(workspace: Workspace) -> Iterator[Check]:
    """The excess error over supervised training falls like 1/√N (a slope of −0.5 ± 0.2), below σ_n
    too."""
    yield from _slopes(workspace, "excess", lambda slope: NEAR_HALF - abs(slope + 0.5))


def root_n_own(workspace: Workspace) -> Iterator[Check]:
    """The excess over the same method on all images falls like 1/√N: `own slope` within 0.2 of what
    an exact 1/√N has there."""
    exact = _exact(workspace)
    yield from _slopes(workspace, "lost", lambda slope: NEAR_HALF - abs(slope - exact))


def root_n_at_least(workspace: Workspace) -> Iterator[Check]:
    """The same excess falls like 1/√N or faster, as an upper bound asks."""
    exact = _exact(workspace)
    yield from _slopes(workspace, "lost", lambda slope: exact + NEAR_HALF - slope)


CLAIMS = (
    below_noise,
    below_noise_lpips,
    gap_small,
    gap_small_below,
    gap_grows,
    gap_grows_at_noise,
    perception,
    incomplete,
    cd_noise,
    nearest_spectrum,
    root_n,
    root_n_own,
    root_n_at_least,
)


def rows(workspace: Workspace) -> list[Row]:
    """Each claim with its comparisons: how many hold, how many are undecided, how many fail."""
    out = []
    for claim in CLAIMS:
        checks = list(claim(workspace))
        tested = [check for check in checks if check.holds is not None]
        held = sum(check.holds is True and check.clear for check in tested)
        failed = sum(check.holds is False and check.clear for check in tested)
        counts = {"held": held, "undecided": len(tested) - held - failed, "failed": failed}
        row = {"claim": " ".join((claim.__doc__ or "").split())}
        row["verdict"] = _verdict(len(checks) - len(tested), **counts)
        out.append(row | counts | {"checks": [asdict(check) for check in checks]})
    return out


def _verdict(untested: int, held: int, undecided: int, failed: int) -> str:
    if untested:
        return f"not tested in full ({untested} to come)"
    if failed:
        return "confirmed in part" if held else "not confirmed"
    if undecided:
        return "confirmed where decided" if held else "undecided"
    return "confirmed"


def table(workspace: Workspace) -> str:
    """Markdown: the verdicts, then what did not hold."""
    found = rows(workspace)
    counts = ("held", "undecided", "failed")
    body = [[r["claim"], r["verdict"], *(str(r[name]) for name in counts)] for r in found]
    lines = [
        f"A comparison within {ERRORS:g} standard errors decides "
        "nothing; they are over the validation images, those of slopes by how far the points are "
        "off the line, and FID and spectra have none. One training each: how much another seed "
        "would change is not in them. All figures are in the JSON file.",
        "",
    ]
    lines += markdown(["claim of the paper", "on our numbers", "hold", "undecided", "fail"], body)
    for row in found:
        failed = [c for c in row["checks"] if c["holds"] is False and c["clear"]]
        if failed:
            lines += ["", f"**{row['claim']}** Not so:", ""]
            lines += [f"- {c['of']} ({c['figures']})" for c in failed]
    return "\n".join(lines) + "\n"


def show(workspace: Workspace) -> list[Path]:
    """The verdicts."""
    return [write_table(workspace, NAME, table(workspace), rows(workspace))]


EXPERIMENT = Experiment(
    NAME, "the orderings the paper claims, checked on our numbers", pieces, show
)
