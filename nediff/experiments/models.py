"""Trained networks: which images, which noise, which method. Shared by all experiments."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from nediff.config import RecipeConfig, RunConfig
from nediff.data import Measurements
from nediff.errors import NediffError
from nediff.experiments.pieces import Workspace, as_json, provenance, write_text
from nediff.experiments.sets import open_set
from nediff.problem import Problem, random_mask
from nediff.recipes import recipe_named
from nediff.restorer import Restorer
from nediff.training.schedule import ema_of

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

TRAINED_FILE = "trained.json"
SEED = 0
"""Of the noise of the training images, the split and the training; validation has SEED + 1."""


@dataclass(frozen=True)
class Method:
    """A way to train, and what it is given."""

    words: str
    recipe: str
    given: str


METHODS = {
    "supervised": Method("supervised", "supervised", "clean images"),
    "default": Method("ours, the default", "default", "noisy measurements, σ_n"),
    "paper": Method("ours, as in the paper", "paper", "noisy measurements, σ_n"),
    "sure": Method("SURE", "sure", "noisy measurements, σ_n"),
    "cd": Method("CD", "cd", "noisy measurements, σ_n"),
    "ei": Method("EI", "ei", "noisy measurements, σ_n"),
    "ambient": Method("Ambient Diffusion", "ambient", "noise-free measurements"),
}


@dataclass(frozen=True)
class Model:
    """One training run, a function of these settings alone."""

    images: str
    """The set: ffhq, nbu or afhq."""
    sigma: float
    method: str
    problem: str = "denoising"
    count: int | None = None
    """How many training images; None for all."""
    steps: int | None = None
    """None for those of the scale."""
    kind: str = "edm"
    told: float = 1.0
    """The noise level that the training is told, divided by the true one."""
    changes: tuple[tuple[str, Any], ...] = ()
    """Of the recipe."""
    name: str = ""
    """Of an ablation; otherwise the method's."""

    @classmethod
    def of(cls, settings: dict[str, Any]) -> Model:
        """The one whose `settings` these are."""
        own = {field.name: settings[field.name] for field in fields(cls)}
        return cls(**own | {"changes": tuple((name, value) for name, value in own["changes"])})

    @property
    def key(self) -> str:
        """A file name."""
        parts = [self.images, f"{self.sigma:g}", self.name or self.method]
        if self.problem != "denoising":
            parts.insert(0, self.problem)
        if self.count is not None:
            parts.append(f"n{self.count}")
        return "-".join(parts)

    def settings(self, workspace: Workspace) -> dict[str, Any]:
        """All that the result depends on, for the record."""
        scale = workspace.scale
        recipe = recipe_named(METHODS[self.method].recipe, self.problem).model_dump(mode="json")
        return asdict(self) | {
            "steps": self._steps(workspace),
            "recipe": recipe | dict(self.changes),
            "size": scale.size,
            "batch": scale.batch,
            "crop": scale.crop,
            "seed": SEED,
            "validation_images": scale.validation[self.images],
            "training": self._training(workspace),
        }

    def _training(self, workspace: Workspace) -> dict[str, Any]:
        """How its weights are found."""
        scale = workspace.scale
        return {
            "optimizer": scale.optimizer,
            "learning_rate": scale.learning_rate,
            "warmup": scale.warmup,
            "ema": ema_of(self._steps(workspace)),
        }

    def _steps(self, workspace: Workspace) -> int:
        scale = workspace.scale
        if self.steps is not None:
            return self.steps
        table = scale.steps if self.problem == "denoising" else scale.operator_steps[self.problem]
        return table[self.method]

    def share(self, workspace: Workspace) -> float:
        """How long its training is, as a share of the scale's minutes."""
        table = workspace.scale.steps if self.problem == "denoising" else {}
        return self._steps(workspace) / table.get(self.method, self._steps(workspace))

    def instrument(self, workspace: Workspace, channels: int, told: bool = True) -> Problem:
        """What measures the images; with the noise level that training is told, or the true one."""
        sigma = self.sigma * (self.told if told else 1.0)
        if self.problem == "inpainting":
            side = workspace.scale.operator_side
            return Problem.inpainting(random_mask(0.7, (side, side), SEED), sigma, channels)
        if self.problem == "demosaicing":
            return Problem.demosaicing(sigma)
        return Problem.denoising(sigma, channels)

    def measurements(self, workspace: Workspace, part: str) -> Measurements:
        """The images of a part, measured once with the true noise; `.clean` are the images."""
        scale = workspace.scale
        side = scale.side if self.problem == "denoising" else scale.operator_side
        clean = open_set(workspace, self.images, part, side)
        if part == "train" and self.count is not None:
            clean = clean.select(range(min(self.count, len(clean))))
        seed = SEED if part == "train" else SEED + 1
        if self.problem == "denoising":
            return clean.simulate(self.sigma, seed)
        return clean.simulate(
            self.sigma, seed, self.instrument(workspace, clean.channels, told=False)
        )

    def config(self, workspace: Workspace, noisy: Measurements, problem: Problem) -> RunConfig:
        """The run: our defaults at this scale with this method's recipe."""
        from nediff.training.fitting import Plan, plan_run

        scale = workspace.scale
        plan = Plan(
            steps=self._steps(workspace),
            recipe=METHODS[self.method].recipe,
            size=scale.size,
            kind=self.kind,
            crop=min(scale.crop, noisy.min_size),
            batch=scale.batch,
            seed=SEED,
        )
        config = plan_run(noisy, problem, plan, f"{self.images} ({scale.name} scale)")
        training = config.training.model_copy(update=self._training(workspace))
        config = config.model_copy(update={"training": training})
        if self.changes:
            recipe = config.recipe.model_dump() | dict(self.changes)
            config = config.model_copy(update={"recipe": RecipeConfig.model_validate(recipe)})
        return config

    def folder(self, workspace: Workspace) -> Path:
        """Of the run."""
        return workspace.runs / "models" / self.key

    def lock(self, workspace: Workspace) -> Path:
        """The file held by the process that trains it; keys have dots, so no suffix is replaced."""
        return workspace.runs / "models" / f"{self.key}.lock"

    def train(self, workspace: Workspace) -> Restorer:
        """Train it, or go on, or take what is finished; by one process at a time.

        What was trained elsewhere, and is kept with the results, is not trained again.
        """
        folder, kept = self.folder(workspace), workspace.kept_model(self.key)
        if not folder.exists() and workspace.finished(self.key) and kept.is_dir():
            return Restorer.load(kept)
        with only_one(self.lock(workspace)):
            if not (folder / TRAINED_FILE).is_file():
                self._train(folder, workspace)
        return Restorer.load(folder)

    def keep(self, restorer: Restorer, workspace: Workspace) -> None:
        """Its weights beside the results, if it is one of those kept there."""
        if self.key in workspace.scale.keeps:
            restorer.save(workspace.kept_model(self.key))

    def _train(self, folder: Path, workspace: Workspace) -> None:
        from nediff.runs import CONFIG_FILE, load_config
        from nediff.training.fitting import run_training, start_folder

        noisy = self.measurements(workspace, "train")
        problem = self.instrument(workspace, (noisy.clean or noisy).channels)
        config = self.config(workspace, noisy, problem)
        if not (folder / CONFIG_FILE).exists():
            start_folder(folder, config, problem)
        begun = load_config(folder)
        for (name, then), now in zip(_parts(begun), _parts(config), strict=True):
            if then != now[1]:
                raise NediffError(
                    f"{folder} was begun with another {name}; remove it to train {self.key} anew."
                )
        run_training(begun, noisy, folder, workspace.observer, problem=problem)
        record = {"made_by": provenance(), **_course(folder)}
        write_text(folder / TRAINED_FILE, as_json(record))

    def record(self, workspace: Workspace) -> dict[str, Any]:
        """By which code it was trained, how long, interruptions left out, and when it was best."""
        path = self.folder(workspace) / TRAINED_FILE
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found


def _parts(config: RunConfig) -> list[tuple[str, Any]]:
    """What a run must agree in to be gone on with."""
    return [
        ("noise level", config.data.sigma),
        ("number of images", config.data.images),
        ("operator", config.operator),
        ("network", config.network),
        ("recipe", config.recipe),
        ("training", config.training),
    ]


def _course(folder: Path) -> dict[str, Any]:
    """Minutes of the clock, and after which step the network was best on held-out noisy images."""
    from nediff.training.metrics import read_metrics

    rows = read_metrics(folder)
    best = max(rows, key=lambda row: float(row["estimated_psnr"]), default=None)
    return {
        "minutes": round(float(rows[-1]["seconds"]) / 60, 2) if rows else 0.0,
        "best_step": int(best["step"]) if best else 0,
    }


@contextmanager
def only_one(path: Path) -> Iterator[None]:
    """Wait until no other process is in here; where the system has such locks."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
