"""Which error bars can be believed where nothing was measured? Four candidates, against truth.

    NEDIFF_DATA=FOLDER python -m benchmarks.unmeasured [inpainting ...]
    python -m benchmarks.unmeasured --table

Takes the finished runs of `python -m benchmarks.operators` (method `default`). All candidates use
the same denoiser and only differ in how they spread the part of the image that was not measured:

- none: the sampler of the paper, which gives that part its conditional mean;
- bootstrap: the equivariant bootstrap. The estimate x̂ is moved (shifted or turned, as the
  operator's group says), measured again, restored and moved back: x̂ + (T⁻¹ D(A T x̂ + σ η) − x̂);
- bootstrap of samples: the same with a posterior sample in place of x̂ inside the brackets;
- learned: a small network that was shown where the restorer misses (training/spread.py).
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.operators import PROBLEMS, SEED, SIGMA, TITLES, WORK, open_images, problem_of
from nediff.experiments.pieces import provenance

OUT = Path("docs/results/unmeasured")
SAMPLES = 16
IMAGES = {"inpainting": 48, "demosaicing": 48, "blur": 48, "mri": 12}
"""A scan takes long: it has four times the pixels, and its network calls the operator."""
WORDS = {
    "none": "none (conditional mean)",
    "bootstrap": "equivariant bootstrap",
    "bootstrap of samples": "equivariant bootstrap of samples",
    "learned": "**learned** (the default)",
}


def plain_samples(restorer: Any, y: Any, seed: int) -> Any:
    from nediff.restorer import Restorer

    bare = Restorer(restorer.problem, restorer.denoiser, restorer.config)
    return bare.sample(y, SAMPLES, seed)


def learned_samples(restorer: Any, y: Any, seed: int) -> Any:
    return restorer.sample(y, SAMPLES, seed)


def bootstrap(restorer: Any, y: Any, seed: int) -> Any:
    estimate = restorer.restore(y)
    return moved_and_back(restorer, y, np.repeat(estimate[None], SAMPLES, axis=0), estimate, seed)


def bootstrap_of_samples(restorer: Any, y: Any, seed: int) -> Any:
    drawn = plain_samples(restorer, y, seed)
    return moved_and_back(restorer, y, drawn, restorer.restore(y), seed)


CANDIDATES: dict[str, Callable[[Any, Any, int], Any]] = {
    "none": plain_samples,
    "bootstrap": bootstrap,
    "bootstrap of samples": bootstrap_of_samples,
    "learned": learned_samples,
}


def moved_and_back(
    restorer: Any, y: Any, images: Any, estimate: Any, seed: int, sigma: float = SIGMA
) -> Any:
    """x̂ + T⁻¹ D(A T x + σ η) − x for each x of ``images`` and a T of its own."""
    import torch

    from nediff.operators import turn

    _, problem = restorer.measured(y)
    rng = np.random.default_rng(seed)
    shifted = problem.operator.group == "shifts"
    out = []
    for x in torch.from_numpy(np.asarray(images)):
        by = [int(rng.integers(0, n)) for n in x.shape[-2:]] if shifted else [0, 0]
        k = 0 if shifted else int(rng.integers(1, 8))
        moved = turn(x.roll(by, (-2, -1)), k)[None]
        clear = problem.A(moved)
        noise = torch.from_numpy(rng.standard_normal(clear.shape, dtype=np.float32))
        again = clear + sigma * problem.mask_noise(noise)
        with torch.no_grad():
            restored = restorer.denoiser(again, torch.tensor([sigma]), problem.operator)[0]
        straight = torch.rot90(restored.flip(-1) if k >= 4 else restored, -(k % 4), (-2, -1))
        back = straight.roll([-b for b in by], (-2, -1))
        out.append(estimate + (back - x).numpy())
    return np.stack(out)


def run_problem(name: str, data: Path) -> dict[str, Any]:
    """Calibration of every candidate on unmeasured pixels (all pixels for blur and MRI)."""
    import torch

    from nediff.evaluation.calibration import Calibration
    from nediff.evaluation.views import View
    from nediff.restorer import Restorer

    torch.set_num_threads(1)
    restorer = Restorer.load(WORK / name / "default")
    clean = open_images(data, name, "val").select(range(IMAGES[name]))
    noisy = clean.simulate(SIGMA, SEED + 1, problem_of(name))
    results: dict[str, Any] = {}
    for method, draw in CANDIDATES.items():
        calibration = Calibration(SAMPLES)
        for i in range(len(noisy)):
            view = View(restorer, clean.image(i), noisy.size(i))
            y, where = noisy.image(i), view.unmeasured
            drawn, estimate = draw(restorer, y, i), restorer.restore(y)
            calibration.add(view.x[0].numpy()[where], drawn[:, where], estimate[where])
        results[method] = {
            "error2_over_variance": calibration.ratio,
            "coverage": calibration.coverage(),
            "reliability": calibration.reliability(),
        }
        print(name, method, calibration.ratio, calibration.coverage()[-1], flush=True)
    return {"problem": name, "images": len(noisy), "results": results, "by": provenance()}


def write_table() -> None:
    """docs/results/unmeasured/README.md from the pieces there are."""
    lines = [
        "# Error bars where nothing was measured",
        "",
        f"Calibration against the truth at σ_n = {SIGMA}, on the unmeasured pixels of some "
        "validation images (for blur and MRI, which measure no pixel as such, on all pixels): "
        "error²/variance (1 is right, more is too narrow), and how many true values the central "
        f"intervals of {SAMPLES} samples hold. No candidate was shown any truth.",
        "",
        "Made by `python -m benchmarks.unmeasured` from the `default` runs of "
        "`python -m benchmarks.operators`; every number is in `pieces/`.",
    ]
    for name in PROBLEMS:
        path = OUT / "pieces" / f"{name}.json"
        if not path.exists():
            continue
        piece = json.loads(path.read_text(encoding="utf-8"))
        shown = [k for k in (3, 6, 7) if k < SAMPLES // 2]
        promised = [piece["results"]["none"]["coverage"][k][0] for k in shown]
        head = ["", "error²/variance", *(f"{p:.0%} interval" for p in promised)]
        rows = [head, ["---"] * len(head)]
        for method, result in piece["results"].items():
            found = [f"{result['coverage'][k][1]:.0%}" for k in shown]
            rows.append([WORDS[method], f"{result['error2_over_variance']:.2f}", *found])
        lines += ["", f"## {TITLES[name]} ({piece['images']} images)", ""]
        lines += ["| " + " | ".join(row) + " |" for row in rows]
    (OUT / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("problems", nargs="*", choices=[*PROBLEMS, []])
    parser.add_argument("--data", type=Path, default=os.environ.get("NEDIFF_DATA"))
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    if not arguments.table:
        if arguments.data is None:
            parser.error("give --data FOLDER or set NEDIFF_DATA")
        for name in arguments.problems or [n for n in PROBLEMS if (WORK / n / "default").exists()]:
            path = OUT / "pieces" / f"{name}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            piece = run_problem(name, Path(arguments.data))
            path.write_text(json.dumps(piece, indent=1) + "\n", encoding="utf-8")
    write_table()


if __name__ == "__main__":
    main()
