"""What the paper claims, checked on our own numbers; each stated as confirmed or not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nediff.experiments import complexity, levels, spectra, table1, table2
from nediff.experiments.pieces import Experiment, Piece, Workspace
from nediff.experiments.tables import markdown, write_table

NAME = "claims"
SOURCES = (table1, levels, complexity, table2, spectra)
NEAR_HALF = 0.2
"""A slope within this of −1/2 counts as 1/√N."""
HIGHER = ("psnr", "ssim")
LOWER = ("lpips", "fid")


@dataclass(frozen=True)
class Check:
    """One comparison: does it hold, and the figures."""

    holds: bool
    figures: str


def pieces(workspace: Workspace) -> list[Piece]:
    """Those of the tables and figures it reads."""
    found = [piece for source in SOURCES for piece in source.pieces(workspace)]
    return list({piece.key: piece for piece in found}.values())


def _better(a: dict[str, Any], b: dict[str, Any], score: str) -> Check | None:
    """Whether ``a`` beats ``b``."""
    if a.get(score) is None or b.get(score) is None:
        return None
    margin = (a[score] - b[score]) * (1 if score in HIGHER else -1)
    return Check(margin > 0, f"{a[score]:.3f} against {b[score]:.3f}")


def below_noise(workspace: Workspace) -> Iterator[tuple[str, Check]]:
    """Ours above SURE and CD below σ_n, as printed and by default."""
    found = {(r["images"], r["method"], r["sigma"]): r for r in levels.rows(workspace)}
    for (images, method, sigma), row in found.items():
        if method in ("paper", "default") and sigma < levels.SIGMA:
            for other in ("sure", "cd"):
                rival = found.get((images, other, sigma))
                check = None if rival is None else _better(row, rival, "psnr")
                if check is not None:
                    yield f"{images}, σ = {sigma:g}: {method} over {other}", check


def gap_grows(workspace: Workspace) -> Iterator[tuple[str, Check]]:
    """The gap to supervised training, one step at σ_n, grows with σ_n."""
    found = table1.rows(workspace)
    for variant in table1.VARIANTS:
        gaps = []
        for sigma in (0.05, 0.075, 0.1):
            here = {
                r["solver"]: r["psnr"]
                for r in found
                if (r["variant"], r["images"], r["sigma"]) == (variant, "afhq", sigma)
            }
            if {"MMSE (supervised)", "MMSE (self-supervised)"} <= here.keys():
                gaps.append(here["MMSE (supervised)"] - here["MMSE (self-supervised)"])
        if len(gaps) == 3:
            words = ", ".join(f"{g:.2f}" for g in gaps)
            yield variant, Check(gaps[0] < gaps[1] < gaps[2], f"{words} dB at 0.05, 0.075, 0.1")


def perception(workspace: Workspace) -> Iterator[tuple[str, Check]]:
    """Samples lose PSNR and SSIM to one step of the same network, and win LPIPS and FID."""
    found = {
        (r["variant"], r["images"], r["sigma"], r["solver"]): r for r in table1.rows(workspace)
    }
    pairs = (("ours", "MMSE (self-supervised)"), ("EDM (supervised)", "MMSE (supervised)"))
    for (variant, images, sigma, solver), row in found.items():
        for sampler, one_step in pairs:
            rival = found.get((variant, images, sigma, one_step))
            if solver != sampler or rival is None:
                continue
            for score in (*HIGHER, *LOWER):
                check = (
                    _better(rival, row, score) if score in HIGHER else _better(row, rival, score)
                )
                if check is not None:
                    yield f"{variant}: {solver}, {images} {sigma:g}, {score}", check


def incomplete(workspace: Workspace) -> Iterator[tuple[str, Check]]:
    """EI wins PSNR and SSIM over our samples; they win LPIPS and FID over EI and Ambient."""
    found = {(r["problem"], r["method"], r["kind"]): r for r in table2.rows(workspace)}
    for problem in table2.PROBLEMS:
        for method in ("paper", "default"):
            ours = found.get((problem, method, "sample"))
            ei = found.get((problem, "ei", "estimate"))
            ambient = found.get((problem, "ambient", "sample"))
            for score in (*HIGHER, *LOWER):
                rivals = [("EI", ei)] if score in HIGHER else [("EI", ei), ("Ambient", ambient)]
                for name, rival in rivals:
                    if ours is None or rival is None:
                        continue
                    pair = (rival, ours) if score in HIGHER else (ours, rival)
                    check = _better(*pair, score)
                    if check is not None:
                        yield f"{problem}, {method}, {score} against {name}", check


def cd_noise(workspace: Workspace) -> Iterator[tuple[str, Check]]:
    """CD keeps high-frequency noise: more power than the truth in the upper half of frequencies."""
    for row in spectra.rows(workspace):
        if row["line"].startswith("CD"):
            yield f"σ_n = {row['sigma']:g}", Check(row["high"] > 0, f"{row['high']:+.2f} dB")


def nearest_spectrum(workspace: Workspace) -> Iterator[tuple[str, Check]]:
    """Of what learned from noisy images alone, our samples have the spectrum nearest the truth."""
    found = spectra.rows(workspace)
    for sigma in spectra.SIGMAS:
        here = {r["line"]: r["distance"] for r in found if r["sigma"] == sigma}
        rivals = [here[k] for k in ("MMSE (ours)", "CD, samples") if k in here]
        for ours in ("ours, samples", "ours as in the paper, samples"):
            if ours in here and rivals:
                figures = f"{here[ours]:.2f} dB against {min(rivals):.2f}"
                yield f"{ours}, σ_n = {sigma:g}", Check(here[ours] < min(rivals), figures)


def root_n(workspace: Workspace) -> Iterator[tuple[str, Check]]:
    """The excess error falls like 1/√N, below σ_n too."""
    found = complexity.rows(workspace)
    for method in complexity.COMPARED:
        for sigma in complexity.LEVELS:
            mine = [r for r in found if (r["method"], r["sigma"]) == (method, sigma)]
            steep = complexity.slope([r["count"] for r in mine], [r["excess"] for r in mine])
            if steep is not None:
                holds = abs(steep + 0.5) <= NEAR_HALF
                yield f"{method}, σ = {sigma:g}", Check(holds, f"slope {steep:.2f}")


CLAIMS = (below_noise, gap_grows, perception, incomplete, cd_noise, nearest_spectrum, root_n)


def rows(workspace: Workspace) -> list[dict[str, Any]]:
    """Each claim with its comparisons."""
    out = []
    for claim in CLAIMS:
        checks = list(claim(workspace))
        if not checks:
            continue
        held = sum(check.holds for _, check in checks)
        words = " ".join((claim.__doc__ or "").split())
        verdict = {len(checks): "confirmed", 0: "not confirmed"}.get(held, "confirmed in part")
        listed = [{"of": of, "holds": c.holds, "figures": c.figures} for of, c in checks]
        out.append({"claim": words, "verdict": verdict, "held": held, "checks": listed})
    return out


def table(workspace: Workspace) -> str:
    """Markdown: the verdicts, then what did not hold."""
    found = rows(workspace)
    body = [[r["claim"], r["verdict"], f"{r['held']} of {len(r['checks'])}"] for r in found]
    lines = markdown(["claim of the paper", "on our numbers", "comparisons that hold"], body)
    for row in (r for r in found if r["held"] < len(r["checks"])):
        failed = [f"{c['of']} ({c['figures']})" for c in row["checks"] if not c["holds"]]
        lines += ["", f"**{row['claim']}** Not so: {'; '.join(failed)}."]
    return "\n".join(lines) + "\n"


def show(workspace: Workspace) -> list[Path]:
    """The verdicts."""
    return [write_table(workspace, NAME, table(workspace), rows(workspace))]


EXPERIMENT = Experiment(
    NAME, "the orderings the paper claims, checked on our numbers", pieces, show
)
