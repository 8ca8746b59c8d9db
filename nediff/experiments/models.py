"""Trained networks: which images, which noise, which method. Shared by all experiments."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nediff.config import RecipeConfig, RunConfig
from nediff.data import Measurements
from nediff.errors import NediffError
from nediff.experiments.pieces import Workspace
from nediff.experiments.sets import open_set
from nediff.problem import Problem, random_mask
from nediff.restorer import Restorer

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
    "default": Method("ours, the default", "default", "noisy images, σ_n"),
    "paper": Method("ours, as in the paper", "paper", "noisy images, σ_n"),
    "sure": Method("SURE", "sure", "noisy images, σ_n"),
    "cd": Method("CD", "cd", "noisy images, σ_n"),
    "ei": Method("EI", "ei", "noisy incomplete measurements, σ_n"),
    "ambient": Method("Ambient Diffusion", "ambient", "noise-free incomplete measurements"),
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
        """For the record."""
        return asdict(self) | {"steps": self._steps(workspace), "scale": workspace.scale.name}

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
            crop=scale.crop,
            batch=scale.batch,
            seed=SEED,
        )
        config = plan_run(noisy, problem, plan, f"{self.images} ({scale.name} scale)")
        if self.changes:
            recipe = config.recipe.model_dump() | dict(self.changes)
            config = config.model_copy(update={"recipe": RecipeConfig.model_validate(recipe)})
        return config

    def folder(self, workspace: Workspace) -> Path:
        """Of the run."""
        return workspace.runs / "models" / self.key

    def train(self, workspace: Workspace) -> Restorer:
        """Train it, or go on, or take what is finished."""
        from nediff.runs import CONFIG_FILE, load_config
        from nediff.training.fitting import run_training, start_folder

        folder = self.folder(workspace)
        noisy = self.measurements(workspace, "train")
        problem = self.instrument(workspace, (noisy.clean or noisy).channels)
        wanted = self.config(workspace, noisy, problem)
        if (folder / CONFIG_FILE).exists():
            config = load_config(folder)
            if (config.recipe, config.training.steps) != (wanted.recipe, wanted.training.steps):
                raise NediffError(
                    f"{folder} holds a run with other settings; remove it to train {self.key} anew."
                )
        else:
            config = wanted
            start_folder(folder, config, problem)
        restorer, _ = run_training(config, noisy, folder, workspace.observer, problem=problem)
        return restorer
