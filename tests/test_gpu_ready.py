"""What GPUs need of the training loop, as far as a CPU can tell: bf16, kernels, no waiting."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from nediff.data import open_measurements
from nediff.errors import NediffError
from nediff.networks import build_denoiser, compile_networks
from nediff.problem import Problem
from nediff.training.fitting import Plan, make_trainer, plan_run, steps_within
from nediff.training.loop import Trainer
from nediff.training.precision import bf16_works
from tests.command import SIGMA, TINY, float_folder, nediff

STEPS = 8
"""Half of them with samples of its own in the batch."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return float_folder(tmp_path_factory.mktemp("gpu") / "data", count=4)


def trainer_of(data: Path, **options: Any) -> Trainer:
    measurements = open_measurements(data)
    plan = Plan(steps=STEPS, size="tiny", crop=24, batch=4, **options)
    config = plan_run(measurements, Problem.denoising(SIGMA, 1), plan, str(data))
    return make_trainer(config, measurements, None)


def trained(data: Path, **options: Any) -> tuple[list[float], Trainer]:
    trainer = trainer_of(data, **options)
    return [trainer.step(k).item() for k in range(STEPS)], trainer


def test_a_processor_that_dies_of_bf16_is_refused(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some virtual machines promise instructions that they do not have."""
    dying = "import os; os.abort()"
    assert not bf16_works(dying)
    monkeypatch.setattr("nediff.training.precision.bf16_works", lambda: bf16_works(dying))
    with pytest.raises(NediffError, match="cannot compute in bf16"):
        trainer_of(data, precision="bf16")
    assert trainer_of(data).config.training.precision == "fp32"


def test_bf16_learns_the_same_to_its_precision_and_keeps_weights_in_fp32(data: Path) -> None:
    if not bf16_works():
        pytest.skip("this processor does not compute in bf16")
    exact, _ = trained(data)
    rounded, trainer = trained(data, precision="bf16")
    assert exact != rounded
    # eight bits are 0.4 % in each of some twenty layers; errors of both signs in a sum of squares
    assert rounded == pytest.approx(exact, rel=0.05)
    tensors = [*trainer.model.parameters(), *trainer.ema.weights.values()]
    assert {t.dtype for t in tensors} == {torch.float32}


def test_validation_is_not_in_bf16(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SURE takes the difference of two answers that are nearly equal."""
    monkeypatch.setattr("nediff.training.fitting.check_precision", lambda *_: None)
    exact, rounded = trainer_of(data), trainer_of(data, precision="bf16")
    assert exact.validate(None) == rounded.validate(None)


@pytest.mark.parametrize("recipe", ["paper", "sure"])
def test_losses_that_bf16_would_spoil_are_refused(data: Path, tmp_path: Path, recipe: str) -> None:
    options = ("--recipe", recipe, "--precision", "bf16", "--steps", 2, *TINY)
    outcome = nediff("train", data, "--sigma", SIGMA, "--out", tmp_path / "run", *options)
    assert outcome.code == 2
    assert "train with --precision fp32" in outcome.err
    assert not (tmp_path / "run").exists()


def test_a_compiled_network_is_the_same_network(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Traced and differentiated ahead of time; only the making of kernels, slow, is left out."""
    seen: list[torch.nn.Module] = []

    def traced(denoiser: Any) -> None:
        seen.append(denoiser)
        compile_networks(denoiser, backend="aot_eager")

    monkeypatch.setattr("nediff.training.loop.compile_networks", traced)
    plain, one = trained(data)
    compiled, other = trained(data, compiled=True)
    assert seen == [other.bare_model]
    assert compiled == pytest.approx(plain, rel=1e-4)
    assert other.bare_model.state_dict().keys() == one.bare_model.state_dict().keys()


def test_minutes_count_the_time_of_compiling(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock on which each of the four rounds of the trial takes 100 s, a step one second."""
    clock = [0.0]

    class SlowAtFirst:
        """A stand-in for Pace."""

        def __init__(self, trainer: Any) -> None:
            pass

        def measure(self) -> float:
            clock[0] += 100.0
            return 100.0

        def seconds_per_step(self) -> float:
            return 1.0

    monkeypatch.setattr("nediff.training.fitting.Pace", SlowAtFirst)
    monkeypatch.setattr(
        "nediff.training.fitting.time", SimpleNamespace(perf_counter=lambda: clock[0])
    )
    monkeypatch.setattr("nediff.training.loop.compile_networks", lambda denoiser: None)
    noisy, problem = open_measurements(data), Problem.denoising(SIGMA)
    steps = []
    for compiled in (False, True):
        plan = Plan(steps=1, size="tiny", batch=2, crop=24, compiled=compiled)
        config = plan_run(noisy, problem, plan, "test")
        steps.append(steps_within(20.0, config, noisy))
    assert steps == [1200, 1200 - 4 * 100]


def test_where_compiling_fails_the_network_runs_as_it_is() -> None:
    network = build_denoiser(_tiny())
    y, sigma = torch.rand(2, 1, 24, 24), torch.full((2,), SIGMA)
    plain = network(y, sigma)

    def broken(*_: Any) -> Callable[..., Tensor]:
        raise RuntimeError("no compiler here")

    compile_networks(network, backend=broken)  # type: ignore[arg-type]
    torch.testing.assert_close(network(y, sigma), plain)


def _tiny() -> Any:
    from nediff.config import NetworkConfig

    return NetworkConfig(channels=1, size="tiny", sigma_data=0.2)


def test_a_step_never_asks_the_device_for_a_number(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each such question would make the CPU wait until a GPU has done all it was given.

    Batches are made on the CPU, so here they are made before.
    """
    trainer = trainer_of(data)
    passes = {step: trainer._passes(step) for step in (1, STEPS // 2)}
    assert {rehearsed for groups in passes.values() for _, rehearsed, *_ in groups} == {False, True}
    monkeypatch.setattr(trainer, "_passes", lambda step: passes[step])
    trainer.step(1)  # what is made once is made
    on_cpu = {id(s["count"]) for s in trainer.bare_optimizer.state.values() if "count" in s}
    asked: list[str] = []
    for name in ("item", "tolist", "__float__", "__bool__", "__int__", "cpu", "numpy"):
        original = getattr(Tensor, name)

        def noted(self: Tensor, *args: Any, _name: str = name, _do: Any = original) -> Any:
            if id(self) not in on_cpu:  # Adam counts its steps there wherever it runs
                asked.append(_name)
            return _do(self, *args)

        monkeypatch.setattr(Tensor, name, noted)
    for step in passes:
        trainer.step(step)
    monkeypatch.undo()
    assert asked == []
