"""`nediff reproduce`: the tiny scale from nothing to every table, killed, verified, in parts."""

from __future__ import annotations

import json
import os
import random
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nediff.errors import NediffError, NediffWarning
from nediff.evaluation.library import LibraryMetrics
from nediff.experiments import (
    ablations,
    claims,
    complexity,
    examples,
    patches,
    printed,
    scoring,
    sets,
    spectra,
    table2,
)
from nediff.experiments.catalogue import EXPERIMENTS, all_pieces
from nediff.experiments.models import Model
from nediff.experiments.pieces import Piece, Workspace, as_json, run_piece, unfinished
from nediff.experiments.running import run_in_processes
from nediff.experiments.scales import CPU, PAPER, SCALES, TINY
from nediff.experiments.verify import verify_pictures
from nediff.networks import build_denoiser
from nediff.restorer import Restorer
from nediff.runs import save_weights
from tests.command import nediff, succeeded, tree

REPOSITORY = Path(__file__).parents[1]
SHARED = REPOSITORY.parent / "shared" / "data"
QUICK = "fig-patch-norms"
PICTURE = "examples-inpainting-afhq-0.075-default"


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All experiments at the tiny scale, without perceptual metrics."""
    out = tmp_path_factory.mktemp("reproduced")
    succeeded("reproduce", "all", "--out", out)
    return out


def test_all_experiments_leave_their_tables_and_figures(everything: Path) -> None:
    files = tree(everything)
    tables = {Path(f).stem for f in files if re.fullmatch(r"tables/[^/]+\.md", f)}
    assert tables == set(EXPERIMENTS) - {"fig-examples"}
    pictures = [f for f in files if f.startswith("figures/examples-")]
    assert len(pictures) == 2 * 3 + 1 + 2  # one-step and samples of each set, levels, operators
    for figure in ("fig-denoise-levels", "fig-sample-complexity", "fig-spectra", "theorem"):
        assert f"figures/{figure}.svg" in files


def test_no_row_is_missing(everything: Path) -> None:
    rows = {
        path.stem: json.loads(path.read_text())["rows"]
        for path in (everything / "tables").glob("*.json")
    }
    assert len(rows["table1"]) == 2 * 5 * 6  # variants, settings, solvers
    assert len(rows["fig-denoise-levels"]) == 3 * 5 * 5  # sets, methods, levels to σ_n
    assert len(rows["table2"]) == 2 * (1 + 2 * 2 + 3)  # EI has no samples, Ambient two
    assert len(rows["fig-sample-complexity"]) == 2 * 3 * len(complexity.LEVELS)
    assert len(rows["fig-spectra"]) == 2 * 3 * 5  # variants, levels, lines
    samplers = sum(len(settings) for settings in ablations.SAMPLERS.values())
    assert len(rows["ablations"]) == len(ablations.TRAINED) + samplers
    assert len(rows["claims"]) == len(claims.CLAIMS)


def test_what_few_images_cost_is_told_from_what_the_method_costs(everything: Path) -> None:
    found = complexity.rows(Workspace(TINY, everything, everything / "runs"))
    most = max(row["count"] for row in found)
    whole = {(r["method"], r["sigma"]): r["excess"] for r in found if r["count"] == most}
    for row in found:
        expected = row["excess"] - whole[row["method"], row["sigma"]]
        assert row["lost"] == pytest.approx(expected, abs=1e-12)


def test_figures_need_no_network(everything: Path, tmp_path: Path) -> None:
    """Pictures are drawn where a network was trained, and put together anywhere."""
    for folder in ("pieces", "examples"):
        shutil.copytree(everything / folder, tmp_path / folder)
    workspace = Workspace(TINY, tmp_path, tmp_path / "runs")
    paths = EXPERIMENTS["fig-examples"].write(workspace)
    assert len(paths) == 2 * 3 + 1 + 2
    for path in paths:
        assert path.read_bytes() == (everything / "figures" / path.name).read_bytes()
    (tmp_path / "pieces" / "examples-afhq-0.075-cd.json").unlink()
    fewer = {path.name for path in EXPERIMENTS["fig-examples"].write(workspace)}
    assert fewer == {path.name for path in paths}  # without the picture that is missing
    changed = {
        p.name for p in paths if p.read_bytes() != (everything / "figures" / p.name).read_bytes()
    }
    assert changed == {f"examples-afhq-{name}.png" for name in ("one-step", "samples", "levels")}
    assert not (tmp_path / "runs").exists()


def test_a_network_kept_with_the_results_is_not_trained_again(
    everything: Path, tmp_path: Path
) -> None:
    model = Model("afhq", 0.075, "default")
    for part in ("pieces", "models"):
        shutil.copytree(everything / part, tmp_path / part)
    workspace = Workspace(TINY, tmp_path, tmp_path / "runs")
    kept = model.train(workspace).denoiser.state_dict()
    assert not (tmp_path / "runs").exists()
    trained = model.train(Workspace(TINY, everything, everything / "runs")).denoiser.state_dict()
    assert all(torch.equal(kept[name], trained[name]) for name in trained)


def test_a_piece_says_what_made_it(everything: Path) -> None:
    piece = json.loads((everything / "pieces" / "afhq-0.075-default.json").read_text())
    assert piece["settings"]["steps"] == TINY.steps["default"]
    assert piece["settings"]["sigma"] == 0.075
    assert piece["settings"]["recipe"]["loss"] == "ne_r2r"
    assert piece["result"]["trained"]["made_by"]["commit"] == piece["made_by"]["commit"]
    made_by = {"nediff", "commit", "torch", "deepinv", "numpy", "python"}
    assert made_by <= piece["made_by"].keys()
    assert piece["settings"]["training"]["learning_rate"] == TINY.learning_rate
    assert piece["cpu_minutes"] >= 0
    assert 1 <= piece["result"]["trained"]["best_step"] <= piece["settings"]["steps"]
    assert len(piece["result"]["levels"]["0.02"]["psnr"]) == TINY.validation["afhq"]


def test_what_is_finished_is_not_run_again(everything: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in (everything / "pieces").iterdir()}
    outcome = succeeded("reproduce", "table1", "--out", everything)
    assert {p: p.stat().st_mtime_ns for p in (everything / "pieces").iterdir()} == before
    assert "table1.md" in outcome.out


def test_killed_at_random_moments_it_ends_in_the_same_table(
    everything: Path, tmp_path: Path
) -> None:
    """SIGKILL, not an interruption that could be heard; at least twice before it may finish."""
    command = [sys.executable, "-m", "nediff", "reproduce", "fig-spectra", "--out", str(tmp_path)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
    moments, killed, done = random.Random(0), 0, False
    while not done:
        before = len(list(tmp_path.rglob("*")))
        process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        # it has begun to work when it writes files
        wait_until(
            lambda p=process, n=before: p.poll() is not None or len(list(tmp_path.rglob("*"))) > n
        )
        if killed < 3:
            time.sleep(moments.uniform(0, 2))
            process.kill()
            killed += process.wait() != 0
        done = process.wait() == 0
    assert killed >= 2
    for name in ("fig-spectra.md", "fig-spectra.json"):
        again, whole = tmp_path / "tables" / name, everything / "tables" / name
        assert again.read_bytes() == whole.read_bytes()


def wait_until(condition: Callable[[], bool], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.05)


def test_several_processes_give_the_same_table(everything: Path, tmp_path: Path) -> None:
    succeeded("reproduce", QUICK, "--out", tmp_path, "--jobs", 2)
    for name in (f"{QUICK}.md", f"{QUICK}.json"):
        again, whole = tmp_path / "tables" / name, everything / "tables" / name
        assert again.read_bytes() == whole.read_bytes()


class _Silent:
    def begin(self, piece: Piece) -> None: ...

    def end(self, piece: Piece, well: bool) -> None: ...

    def tick(self) -> None: ...


def test_processes_keep_the_order_of_needs_and_report_failures(tmp_path: Path) -> None:
    """A piece waits for those it needs; one that fails does not stop those without need of it."""
    workspace = Workspace(TINY, tmp_path / "out", tmp_path / "runs")
    (tmp_path / "out" / "pieces").mkdir(parents=True)

    def piece(key: str, *needs: str) -> Piece:
        return Piece(key, 0.0, {}, lambda w: {}, needs)

    pieces = [piece("last", "first"), piece("first"), piece("bad"), piece("never", "bad")]

    def command(p: Piece) -> list[str]:
        needed = [str(workspace.piece_path(key)) for key in p.needs]
        code = (
            f"import pathlib, sys; sys.exit(3) if {p.key == 'bad'} else None; "
            f"assert all(pathlib.Path(n).exists() for n in {needed}); "
            f"pathlib.Path({str(workspace.piece_path(p.key))!r}).write_text('{{}}')"
        )
        return [sys.executable, "-c", code]

    assert run_in_processes(pieces, workspace, _Silent(), 2, command) == ["bad"]
    assert [p.key for p in pieces if workspace.finished(p.key)] == ["last", "first"]


def test_verify_does_not_pass_on_nothing(everything: Path, tmp_path: Path) -> None:
    (tmp_path / "pieces").mkdir()
    outcome = nediff("reproduce", "table1", "--out", tmp_path, "--verify")
    assert (outcome.code, "no pieces of this experiment" in outcome.err) == (2, True)
    shutil.copytree(everything / "tables", tmp_path / "tables")
    outcome = nediff("reproduce", "table1", "--out", tmp_path, "--verify")
    assert (outcome.code, "Not what the pieces say" in outcome.err) == (2, True)


def test_verify_accepts_the_tables_and_detects_a_changed_one(
    everything: Path, tmp_path: Path
) -> None:
    assert (
        "table1.md: as the pieces say"
        in succeeded("reproduce", "all", "--out", everything, "--verify").out
    )
    copy = tmp_path / "copy"
    for part in ("pieces", "tables"):
        for file in (everything / part).iterdir():
            (copy / part).mkdir(parents=True, exist_ok=True)
            (copy / part / file.name).write_bytes(file.read_bytes())
    changed = copy / "pieces" / "afhq-0.05-default.json"
    piece = json.loads(changed.read_text())
    piece["result"]["levels"]["0.05"]["psnr"][0] += 1.0
    changed.write_text(json.dumps(piece))
    outcome = nediff("reproduce", "table1", "--out", copy, "--verify")
    assert outcome.code == 2
    assert "table1.md" in outcome.err


def test_verify_refuses_pieces_of_other_settings(everything: Path, tmp_path: Path) -> None:
    """Tables that are made of them are theirs, and still not those of the plan."""
    for part in ("pieces", "tables"):
        shutil.copytree(everything / part, tmp_path / part)
    path = tmp_path / "pieces" / "afhq-0.05-default.json"
    record = json.loads(path.read_text())
    record["settings"]["steps"] += 1
    path.write_text(json.dumps(record))
    outcome = nediff("reproduce", "table1", "--out", tmp_path, "--verify")
    steps = TINY.steps["default"]
    assert outcome.code == 2
    assert f"steps {steps + 1} instead of {steps}" in outcome.err.replace("\n", " ")
    assert "afhq-0.05-default.json" in outcome.err.replace("\n", "")


def test_a_piece_that_lacks_something_is_named_where_it_is(
    everything: Path, tmp_path: Path
) -> None:
    """Not by the place where the tables are made to be compared."""
    for part in ("pieces", "tables"):
        shutil.copytree(everything / part, tmp_path / part)
    path = tmp_path / "pieces" / "afhq-0.05-default.json"
    record = json.loads(path.read_text())
    del record["result"]["levels"]
    path.write_text(json.dumps(record))
    damaged = "is damaged", '{"key": '
    for words, text in (("has no 'levels'", path.read_text()), damaged):
        path.write_text(text)
        for option in ("--verify", "--tables"):
            outcome = nediff("reproduce", "table1", "--out", tmp_path, option)
            assert outcome.code == 2
            assert f"{path} {words}".replace(" ", "") in "".join(outcome.err.split())


def test_verify_runs_the_kept_networks_and_detects_another_one(
    everything: Path, tmp_path: Path
) -> None:
    out = succeeded("reproduce", "all", "--out", everything, "--verify").out
    assert all(f"{key}: as the network gives" in out for key in TINY.keeps)
    for part in ("pieces", "tables", "models"):
        shutil.copytree(everything / part, tmp_path / part)
    weights = tmp_path / "models" / "afhq-0.075-default" / "model.safetensors"
    untrained = Model("afhq", 0.075, "default")
    workspace = Workspace(TINY, tmp_path, tmp_path / "runs")
    noisy = untrained.measurements(workspace, "train")
    config = untrained.config(workspace, noisy, untrained.instrument(workspace, noisy.channels))
    other = build_denoiser(config.network, seed=1)
    with torch.no_grad():  # a network begins as the identity
        for parameter in other.parameters():
            parameter.add_(0.02)
    save_weights(weights.parent, dict(other.named_parameters()))
    outcome = nediff("reproduce", "table1", "--out", tmp_path, "--verify")
    assert outcome.code == 2
    assert "afhq-0.075-default.json" in outcome.err


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the images of the cpu scale")
def test_our_own_results_are_those_of_the_networks_beside_them() -> None:
    """The committed tables against the pieces, and these against weights, on real images."""
    out = REPOSITORY / "docs" / "results" / "reproduce" / "cpu"
    options = ("--scale", "cpu", "--out", out, "--data", SHARED, "--verify")
    found = succeeded("reproduce", "all", *options).out
    kept = [key for key in CPU.keeps if (out / "models" / key).is_dir()]
    assert all(f"{key}: as the network gives" in found for key in kept)
    assert kept


@pytest.mark.parametrize(
    ("key", "name", "known"),
    [
        ("afhq-0.075-default", "step-0.075", 30.292105),
        ("inpainting-afhq-0.075-default", "restored", 25.949143),
        ("demosaicing-afhq-0.075-default", "restored", 24.212298),
    ],
)
def test_the_committed_networks_restore_the_cat_as_committed(
    key: str, name: str, known: float
) -> None:
    """From weights, on any clone: scikit-image's cat, one step and one posterior sample.

    Everything random is a function of its seed; another processor adds up in another order, which
    moves PSNR by far less than the 0.02 dB allowed.
    """
    out = REPOSITORY / "docs" / "results" / "reproduce" / "cpu"
    workspace = Workspace(CPU, out, out / "runs")
    model, folder = Model.of(workspace.record(key)["settings"]), workspace.kept_model(key)
    found = examples.psnr_again(model, Restorer.load(folder), workspace)
    told = workspace.result(f"examples-{key}")["psnr"]
    assert told[name] == pytest.approx(known, abs=1e-5)
    assert found == pytest.approx(told, abs=0.02)
    assert verify_pictures([EXPERIMENTS["table1"], EXPERIMENTS["table2"]], workspace) == sorted(
        CPU.keeps
    )


def test_a_network_that_draws_other_pictures_is_detected(everything: Path, tmp_path: Path) -> None:
    for part in ("pieces", "models"):
        shutil.copytree(everything / part, tmp_path / part)
    workspace = Workspace(TINY, tmp_path, tmp_path / "runs")
    assert verify_pictures([EXPERIMENTS["table1"]], workspace) == ["afhq-0.075-default"]
    path = tmp_path / "pieces" / "examples-afhq-0.075-default.json"
    record = json.loads(path.read_text())
    record["result"]["psnr"]["sample-default"] += 0.03
    path.write_text(json.dumps(record))
    with pytest.raises(NediffError, match=r"examples-afhq-0.075-default\.json"):
        verify_pictures([EXPERIMENTS["table1"]], workspace)


def test_what_is_half_finished_can_be_shown_and_verified(everything: Path, tmp_path: Path) -> None:
    """After a killed run: any pieces, with the tables of those there are."""
    keys = sorted(p.stem for p in (everything / "pieces").glob("*.json"))
    for seed in range(4):
        out = tmp_path / str(seed)
        (out / "pieces").mkdir(parents=True)
        for key in random.Random(seed).sample(keys, 10):
            source = everything / "pieces" / f"{key}.json"
            (out / "pieces" / source.name).write_bytes(source.read_bytes())
        succeeded("reproduce", "all", "--out", out, "--tables")
        assert any((out / "tables").glob("*.md"))
        assert len(list((out / "pieces").iterdir())) == 10  # nothing was run
        succeeded("reproduce", "all", "--out", out, "--verify")


def test_refusals_are_sentences(tmp_path: Path) -> None:
    for arguments, words in (
        (("table9",), "There is no experiment 'table9'"),
        (("table1", "--scale", "cpu", "--out", tmp_path), "needs images"),
        (("table1", "--scale", "cpu", "--data", tmp_path, "--out", tmp_path), "no folder"),
        (("table1", "--verify", "--out", tmp_path), "no results to verify"),
        (("table1", "--piece", "x", "--out", tmp_path), "no piece 'x'"),
        (("fig-examples", "--piece", PICTURE, "--out", tmp_path), "needs these"),
    ):
        outcome = nediff("reproduce", *arguments)
        assert outcome.code == 2, arguments
        assert words in outcome.err.replace("\n", " "), outcome.err


def test_the_plan_lists_every_piece_and_fits_twelve_hours() -> None:
    outcome = succeeded("reproduce", "all", "--scale", "cpu", "--plan")
    workspace = Workspace(SCALES["cpu"], Path("nowhere"), Path("nowhere"))
    pieces = all_pieces(list(EXPERIMENTS.values()), workspace)
    assert f"{len(pieces)} pieces" in outcome.out
    assert sum(piece.minutes for piece in pieces) <= 12 * 60


def test_the_plan_knows_how_little_the_tiny_scale_is() -> None:
    """Forty seconds of a core; judging takes as long as there are pixels to judge."""
    pieces = {}
    for name, scale in SCALES.items():
        workspace = Workspace(scale, Path("nowhere"), Path("nowhere"))
        pieces[name] = all_pieces(list(EXPERIMENTS.values()), workspace)
    assert 0.3 <= sum(piece.minutes for piece in pieces["tiny"]) <= 3
    judging = {
        name: next(p.minutes for p in found if p.key == "sampler-heun-25-7-0.133")
        for name, found in pieces.items()
    }
    assert judging["tiny"] / judging["cpu"] == pytest.approx(3 * 32**2 / (400 * 64**2))
    assert judging["paper"] / judging["cpu"] == pytest.approx(1500 * 128**2 / (400 * 64**2))


def test_a_damaged_piece_is_named(everything: Path, tmp_path: Path) -> None:
    (tmp_path / "pieces").mkdir()
    (tmp_path / "pieces" / "patches-nbu.json").write_text('{"key": ')
    outcome = nediff("reproduce", QUICK, "--out", tmp_path)
    assert outcome.code == 2
    assert "patches-nbu.json is damaged" in outcome.err.replace("\n", "")


# --- the paper's scale, with a few small images laid out as its sets are ---


@pytest.fixture(scope="module")
def paper_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from PIL import Image
    from scipy.io import savemat

    folder, rng = tmp_path_factory.mktemp("paper-sets"), np.random.default_rng(0)
    faces = folder / "ffhq" / "images1024x1024" / "00000"
    faces.mkdir(parents=True)
    for i in range(24):
        Image.fromarray(rng.integers(0, 256, (64, 64, 3), np.uint8)).save(faces / f"{i:05d}.png")
    for part, count in (("train", 6), ("val", 4)):
        for kind in ("cat", "dog"):
            animals = folder / "afhq" / part / kind
            animals.mkdir(parents=True)
            for i in range(count):
                pixels = rng.integers(0, 256, (60, 70, 3), np.uint8)
                Image.fromarray(pixels).save(animals / f"{kind}_{i}.jpg")
    for satellite, top in (("gaofen-1", 1023), ("worldview-2", 2047)):
        for part in ("PAN_1024", "MS_256"):
            images = folder / "nbu" / satellite / part
            images.mkdir(parents=True)
            for i in range(12):
                savemat(images / f"{i}.mat", {"imgPAN": rng.integers(0, top + 1, (96, 96))})
    return folder


def small_paper(paper_data: Path, out: Path) -> Workspace:
    """The paper's scale with little of everything, but its own code paths."""
    scale = replace(
        PAPER,
        side=32,
        operator_side=24,
        size="tiny",
        batch=2,
        crop=32,
        train=6,
        validation=dict.fromkeys(PAPER.validation, 3),
        steps=dict.fromkeys(PAPER.steps, 2),
        operator_steps={p: dict.fromkeys(s, 2) for p, s in PAPER.operator_steps.items()},
        counts=(2, None),
        count_steps=2,
        ablation_steps=dict.fromkeys(PAPER.ablation_steps, 2),
        calibrated=2,
    )
    return Workspace(scale, out, out / "runs", paper_data)


@pytest.mark.parametrize("name", ["ffhq", "afhq", "nbu"])
def test_the_papers_sets_are_read_as_they_come(name: str, paper_data: Path, tmp_path: Path) -> None:
    workspace = small_paper(paper_data, tmp_path)
    train, val = (sets.open_set(workspace, name, part) for part in ("train", "val"))
    assert train.channels == (1 if name == "nbu" else 3)
    assert len(train) == 6
    assert 1 <= len(val) <= 3
    assert train.image(0).shape[-2:] == (32, 32)
    seen = {train.image(i).tobytes() for i in range(len(train))}
    assert seen.isdisjoint(val.image(i).tobytes() for i in range(len(val)))
    assert 0.2 < float(np.mean([train.image(i).mean() for i in range(6)])) < 0.8  # full range used


def test_every_piece_of_the_papers_scale_runs(paper_data: Path, tmp_path: Path) -> None:
    """All kinds of piece: networks, samplers, operators, counts, ablations, pictures."""
    workspace = small_paper(paper_data, tmp_path)
    pieces = {p.key: p for p in all_pieces(list(EXPERIMENTS.values()), workspace)}
    chosen = [
        *(f"{images}-0.075-{m}" for images in ("ffhq", "nbu") for m in ("supervised", "cd")),
        *(f"ffhq-0.075-{m}" for m in ("default", "paper", "sure")),
        *(f"inpainting-afhq-0.075-{m}" for m in ("ei", "paper", "default", "ambient")),
        "demosaicing-afhq-0.075-ambient",
        "afhq-0.05-complexity-paper-n2",
        "afhq-0.075-ablation-told-1.3",
        "afhq-0.075-default",
        "sampler-heun-25-7-0.133",
        "examples-ffhq",
        "examples-ffhq-0.075-default",
        "examples-inpainting",
        PICTURE,
        "patches-nbu",
    ]
    for key in chosen:
        run_piece(pieces[key], workspace)
        assert workspace.finished(key)
    assert not any(
        key.startswith("afhq-0.075-ablation-homogeneous")
        for key in (p.key for p in ablations.pieces(Workspace(PAPER, tmp_path, tmp_path)))
    )


def names(folder: Path, part: str) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in sets._files(folder, part)]


def empty_pictures(folder: Path, count: int = 60) -> set[str]:
    folder.mkdir(parents=True)
    for i in range(count):
        (folder / f"{i}.png").touch()
    return {f"{i}.png" for i in range(count)}


@pytest.mark.parametrize("validation", ["val", "validation", "test"])
def test_a_split_by_any_of_its_names_is_kept(validation: str, tmp_path: Path) -> None:
    """AFHQ has train/ and val/, its second version train/ and test/."""
    for part in ("train", validation):
        for kind in ("cat", "wild"):
            empty_pictures(tmp_path / part / kind, 5)
    train, val = names(tmp_path, "train"), names(tmp_path, "val")
    assert len(train) == len(val) == 10
    assert all(name.startswith("train/") for name in train)
    assert all(name.startswith(f"{validation}/") for name in val)


def test_what_comes_unsplit_is_divided_once(tmp_path: Path) -> None:
    """A folder of pictures, train/ without validation, validation/ beside the pictures."""
    flat = empty_pictures(tmp_path / "flat")
    train, val = (set(names(tmp_path / "flat", part)) for part in ("train", "val"))
    assert train | val == flat
    assert train.isdisjoint(val)
    assert 1 <= len(val) <= 20
    alone = tmp_path / "alone"
    empty_pictures(alone / "train")
    (alone / "preview.png").touch()
    train, val = (set(names(alone, part)) for part in ("train", "val"))
    assert train | val == {f"train/{name}" for name in flat}
    assert train.isdisjoint(val)
    assert val
    beside = tmp_path / "beside"
    empty_pictures(beside / "validation", 4)
    empty_pictures(beside / "faces", 6)
    assert len(names(beside, "val")) == 4
    assert set(names(beside, "train")) == {f"faces/{i}.png" for i in range(6)}


def test_the_first_files_are_of_all_kinds(tmp_path: Path) -> None:
    """There are more tiles of NBU than are asked for; of AFHQ the first hundreds would be cats."""
    kinds = [f"satellite-{i}" for i in range(4)]
    for kind in kinds:
        empty_pictures(tmp_path / kind, 40)
    first = names(tmp_path, "train")[:40]
    assert {name.split("/")[0] for name in first} == set(kinds)
    assert first == names(tmp_path, "train")[:40]


@pytest.mark.parametrize("saved", ["disk", "parquet", "bare parquet"])
@pytest.mark.parametrize("split", [True, False])
def test_hugging_face_sets_are_read(saved: str, split: bool, tmp_path: Path) -> None:
    """As saved by `save_to_disk`, and the parquet files of a snapshot of the Hub."""
    datasets = pytest.importorskip("datasets")
    rng = np.random.default_rng(0)
    parts = {"train": 40, "test": 6} if split else {"train": 40}
    values = {name: [int(v) for v in rng.permutation(256)[:n]] for name, n in parts.items()}
    made = datasets.DatasetDict(
        {
            name: datasets.Dataset.from_dict(
                {"image": [png(value) for value in grey]},
                features=None
                if saved == "bare parquet"
                else datasets.Features({"image": datasets.Image()}),
            )
            for name, grey in values.items()
        }
    )
    folder = tmp_path / "afhq"
    if saved == "disk":
        made.save_to_disk(str(folder))
    else:
        (folder / "data").mkdir(parents=True)
        for name, rows in made.items():
            rows.to_parquet(str(folder / "data" / f"{name}-00000-of-00001.parquet"))
    workspace = small_paper(tmp_path, tmp_path / "out")
    scale = replace(workspace.scale, train=50, validation=dict.fromkeys(PAPER.validation, 50))
    found = {}
    for part in ("train", "val"):
        with pytest.warns(NediffWarning, match="AFHQ has"):
            images = sets.open_set(replace(workspace, scale=scale), "afhq", part)
        sets._warn_of_few.cache_clear()
        assert images.channels == 3
        found[part] = {round(255 * float(images.image(i).mean())) for i in range(len(images))}
    assert found["train"].isdisjoint(found["val"]) or split
    if split:
        assert found == {"train": set(values["train"]), "val": set(values["test"])}
    else:
        assert found["train"] | found["val"] == set(values["train"])
        assert found["val"]


def png(value: int) -> dict[str, object]:
    """A grey picture as a parquet file of pictures holds it."""
    from io import BytesIO

    from PIL import Image

    file = BytesIO()
    Image.new("RGB", (40, 36), (value, value, value)).save(file, "PNG")
    return {"bytes": file.getvalue(), "path": None}


def test_damaged_files_of_the_papers_sets_are_named(paper_data: Path, tmp_path: Path) -> None:
    """Not a traceback of the library that reads them."""
    from scipy.io import savemat

    for number, name in enumerate(("ffhq", "afhq", "nbu")):
        data = tmp_path / str(number)
        shutil.copytree(paper_data / name, data / name)
        for path in (data / name).rglob("*.*"):
            if path.suffix == ".mat":
                whole = path.read_bytes()
                path.write_bytes(whole[: len(whole) // 2] if int(path.stem) % 2 else b"no")
            elif path.suffix in (".png", ".jpg"):
                path.write_bytes(path.read_bytes()[:200] if "1" in path.stem else b"nothing")
        workspace = small_paper(data, tmp_path / "out" / str(number))
        with pytest.raises(NediffError, match=r"\.(png|jpg|mat) cannot be read"):
            sets.open_set(workspace, name, "train")
    for record in ({"other": np.ones((96, 96))}, {"imgPAN": np.ones((2, 96, 96))}):
        path = tmp_path / "PAN_1024" / "1.mat"
        path.parent.mkdir(exist_ok=True)
        savemat(path, record)
        with pytest.raises(NediffError, match=r"1\.mat cannot be read as an image of NBU"):
            list(sets._tiles(path, 32))
    datasets = pytest.importorskip("datasets")
    for number, (image, words) in enumerate(
        (({"bytes": b"no", "path": None}, "cannot be read"), ("a.png", "holds no pictures"))
    ):
        folder = tmp_path / "pictures" / str(number)
        rows = datasets.Dataset.from_dict({"image": [image] * 30})
        datasets.DatasetDict({"train": rows}).save_to_disk(str(folder))
        with pytest.raises(NediffError, match=words):
            list(sets._squares(folder, "train", 32, tmp_path / "cache"))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "train.parquet").write_bytes(b"no parquet")
    with pytest.raises(NediffError, match="cannot be read"):
        list(sets._squares(tmp_path / "broken", "train", 32, tmp_path / "cache"))


def test_missing_sets_say_how_to_get_them(tmp_path: Path) -> None:
    workspace = small_paper(tmp_path, tmp_path / "out")
    with pytest.raises(NediffError, match="stargan-v2"):
        sets.open_set(workspace, "afhq", "train")
    (tmp_path / "nbu").mkdir()
    with pytest.raises(NediffError, match="NBUDataset"):
        sets.open_set(workspace, "nbu", "train")


# --- the parts ---


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"steps": 7}, "training"),
        ({"changes": (("tau", 0.7),)}, "recipe"),
        ({"told": 1.1}, "noise level"),
        ({"kind": "standardised"}, "network"),
    ],
)
def test_a_run_begun_with_other_settings_is_refused(
    everything: Path, tmp_path: Path, change: dict[str, object], part: str
) -> None:
    """It would otherwise be gone on with."""
    whole, model = everything / "runs" / "models", Model("afhq", 0.05, "default")
    shutil.copytree(whole / model.key, tmp_path / "models" / model.key)
    (tmp_path / "models" / model.key / "trained.json").unlink()
    with pytest.raises(NediffError, match=f"begun with another {part}"):
        replace(model, **change).train(Workspace(TINY, tmp_path, tmp_path))  # type: ignore[arg-type]


def test_networks_of_the_metrics_are_asked_for_before_the_first_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are used after it: hours later at the scale of the paper."""
    monkeypatch.setattr(Model, "train", lambda *_: pytest.fail("trained"))
    empty = tmp_path / "empty"
    empty.mkdir()
    piece = ("--piece", "afhq-0.075-default")
    for weights, words in ((tmp_path / "no", "no folder"), (empty, "has no lpips_alexnet")):
        for more in ((), piece):
            options = ("--out", tmp_path / "out", "--weights", weights, *more)
            outcome = nediff("reproduce", "table1", *options)
            assert outcome.code == 2
            assert words in outcome.err.replace("\n", " ")
    outcome = nediff("reproduce", QUICK, "--out", tmp_path / "out", "--weights", empty)
    assert outcome.code == 0  # which needs none

    def absent(make: object) -> None:
        raise NediffError("FID needs torch-fidelity")

    monkeypatch.setattr(LibraryMetrics, "_obtained", staticmethod(absent))
    outcome = nediff("reproduce", "table1", "--out", tmp_path / "out", "--download")
    assert (outcome.code, "torch-fidelity" in outcome.err) == (2, True)


def test_a_piece_says_how_its_network_was_trained(tmp_path: Path) -> None:
    """As it is: what the run is begun with, at each scale."""
    model = Model("afhq", 0.075, "default")
    rates = {}
    for name, scale in SCALES.items():
        # the settings of the scale with the pictures of the tiny one, whose network is quick
        tried = replace(TINY, **{k: getattr(scale, k) for k in ("optimizer", "warmup", "steps")})
        tried = replace(tried, learning_rate=scale.learning_rate)
        workspace = Workspace(tried, tmp_path, tmp_path / "runs")
        noisy = model.measurements(workspace, "train")
        config = model.config(workspace, noisy, model.instrument(workspace, noisy.channels))
        told = model.settings(workspace)["training"]
        assert told == {key: getattr(config.training, key) for key in told}
        rates[name] = told["learning_rate"], told["warmup"], told["optimizer"]
    assert rates["cpu"] == rates["tiny"] == (1e-3, 50, "muon")
    assert rates["paper"] == (2e-4, 5000, "adam")


def test_pieces_from_before_that_was_said_are_finished(everything: Path, tmp_path: Path) -> None:
    """They were all trained as the small scales still are; with another rate they are refused."""
    shutil.copytree(everything / "pieces", tmp_path / "pieces")
    for path in (tmp_path / "pieces").glob("*.json"):
        record = json.loads(path.read_text())
        if record["settings"].pop("training", None):
            path.write_text(json.dumps(record))
    workspace = Workspace(TINY, tmp_path, tmp_path / "runs")
    pieces = all_pieces(list(EXPERIMENTS.values()), workspace)
    assert unfinished(pieces, workspace) == []
    slower = replace(workspace, scale=replace(TINY, learning_rate=5e-4))
    with pytest.raises(NediffError, match=r"learning_rate 0\.001 instead of 0\.0005"):
        unfinished(EXPERIMENTS["table1"].pieces(slower), slower)


def test_a_piece_made_with_other_settings_is_refused(everything: Path, tmp_path: Path) -> None:
    shutil.copytree(everything / "pieces", tmp_path / "pieces")
    workspace = Workspace(replace(TINY, count_steps=9), tmp_path, tmp_path / "runs")
    with pytest.raises(NediffError, match=r"complexity.*other settings"):
        unfinished(complexity.pieces(workspace), workspace)


def test_metrics_that_were_left_out_are_made_up_for(everything: Path, tmp_path: Path) -> None:
    """Pieces made without LPIPS and FID are not finished where these can be had."""
    without = Workspace(TINY, everything, everything / "runs")
    pieces = EXPERIMENTS["table1"].pieces(without)
    assert unfinished(pieces, without) == []
    with_networks = replace(without, weights=tmp_path)
    assert [p.key for p in unfinished(pieces, with_networks)] == [p.key for p in pieces]
    assert unfinished(EXPERIMENTS["theorem"].pieces(without), with_networks) == []


def test_one_process_at_a_time_trains_a_model(tmp_path: Path) -> None:
    pytest.importorskip("fcntl", reason="this system has no such locks")
    code = (
        "import sys, time; from pathlib import Path\n"
        "from nediff.experiments.models import only_one\n"
        "with only_one(Path(sys.argv[1])): print('in', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "lock")]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    first, second = (
        subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) for _ in range(2)
    )
    try:
        ready = select.select([first.stdout, second.stdout], [], [], 60)[0]
        assert len(ready) == 1
        assert not select.select([p.stdout for p in (first, second)], [], [], 1)[0][1:]
        holder, waiter = (first, second) if first.stdout in ready else (second, first)
        holder.kill()
        assert select.select([waiter.stdout], [], [], 60)[0]
    finally:
        for process in (first, second):
            process.kill()
            process.communicate()


def test_different_models_do_not_wait_for_each_other(tmp_path: Path) -> None:
    workspace = Workspace(CPU, tmp_path, tmp_path / "runs")
    keys = {
        p.key for e in EXPERIMENTS.values() for p in e.pieces(workspace) if "method" in p.settings
    }
    found = [p for e in EXPERIMENTS.values() for p in e.pieces(workspace) if p.key in keys]
    locks = {Model.of(piece.settings).lock(workspace) for piece in found}
    assert len(locks) == len(keys) > 40


def test_only_our_default_has_our_spread_in_its_samples(everything: Path) -> None:
    workspace = Workspace(TINY, everything, everything / "runs")
    for method in table2.COMPARED:
        restorer = table2.judged(table2.model_of("inpainting", method), workspace)
        assert (restorer.unmeasured is not None) == (method == "default")


def test_grey_sets_have_one_channel_though_stored_as_colours(tmp_path: Path) -> None:
    """WebP has no grey form; noise on three equal channels would be averaged away."""
    from PIL import Image

    rng = np.random.default_rng(0)
    folder = tmp_path / "aerial64" / "val"
    folder.mkdir(parents=True)
    pixels = rng.integers(0, 256, (3, 64, 64), np.uint8)
    for i, picture in enumerate(pixels):
        Image.fromarray(picture).convert("RGB").save(folder / f"{i}.webp", lossless=True)
    workspace = Workspace(SCALES["cpu"], tmp_path, tmp_path, tmp_path)
    images = sets.open_set(workspace, "nbu", "val")
    assert images.channels == 1
    assert np.allclose(images.image(1)[0], pixels[1] / 255, atol=1e-6)


def test_a_hugging_face_set_without_validation_is_divided(tmp_path: Path) -> None:
    rows = [{"image": number} for number in range(200)]
    both = {"train": rows[:5], "validation": rows[5:]}
    assert sorted(sets.part_of(both, "val", tmp_path)) == list(range(5, 200))
    assert sorted(sets.part_of(both, "train", tmp_path)) == list(range(5))
    few = list(sets.part_of(both, "val", tmp_path))[:20]
    assert few == list(sets.part_of(both, "val", tmp_path))[:20]
    assert max(few) - min(few) > 100  # sets are often stored by kind: the first are of all
    train, val = (set(sets.part_of({"train": rows}, p, tmp_path)) for p in ("train", "val"))
    assert train | val == set(range(200))
    assert train.isdisjoint(val)
    assert 8 <= len(val) <= 40  # one in ten, by a hash
    with pytest.raises(NediffError, match="no column 'image' but img"):
        list(sets.part_of({"train": [{"img": 1}]}, "train", tmp_path))


def test_estimates_above_the_noise_of_training_use_the_invariance(everything: Path) -> None:
    """D(y, σ) = D(αy, ασ)/α with ασ = σ_n."""
    workspace = Workspace(TINY, everything, everything / "runs")
    restorer = Model("afhq", 0.05, "default").train(workspace)
    y = np.random.default_rng(0).random((2, 3, 32, 32)).astype(np.float32)
    found = scoring.estimates(restorer, y, 0.1)
    assert np.allclose(found, 2 * restorer.restore(y / 2, 0.05), atol=1e-6)
    assert np.array_equal(scoring.estimates(restorer, y, 0.02), restorer.restore(y, 0.02))


def test_the_spectrum_of_white_noise_is_flat() -> None:
    """Power σ² at every frequency; 400 images leave 1 % in the ring with the fewest pixels (8)."""
    noise = np.random.default_rng(0).normal(0, 0.3, (400, 1, 32, 32)).astype(np.float32)
    rings = np.array(scoring.radial_spectrum(noise))
    assert len(rings) == 17
    assert np.allclose(rings[1:], 0.09, rtol=4 * np.sqrt(2 / (400 * 8)))
    assert rings[0] == pytest.approx(0, abs=1e-6)


def test_patch_norms_are_those_of_the_patches() -> None:
    images = np.random.default_rng(0).normal(size=(2, 3, 9, 8)).astype(np.float32)
    first = images[0, :, :4, 4:8].astype(np.float64)
    assert patches.norms(images, 4, centred=False)[1] == pytest.approx(np.sqrt((first**2).mean()))
    flat = first - first.mean(axis=(1, 2), keepdims=True)
    assert patches.norms(images, 4, centred=True)[1] == pytest.approx(np.sqrt((flat**2).mean()))
    assert len(patches.norms(images, 4, centred=True)) == 2 * 2 * 2
    assert np.allclose(patches.norms(7 + 0 * images, 4, centred=True), 0)


def test_json_keeps_every_number() -> None:
    record = {"a": [0.1, -2e-05, 3], "b": {"c": [[1.5, 2.5]], "d": "[ 1 ]"}, "e": []}
    assert json.loads(as_json(record)) == record
    assert "[0.1, -2e-05, 3]" in as_json(record)
    with pytest.raises(ValueError, match="JSON"):
        as_json({"a": float("nan")})


def kept_levels(folder: Path, pieces: dict[str, dict[str, list[float]]]) -> Workspace:
    """A workspace with finished networks, judged in PSNR at some test levels."""
    workspace = Workspace(TINY, folder, folder)
    (folder / "pieces").mkdir()
    for key, values in pieces.items():
        result = {"levels": {sigma: {"psnr": psnr} for sigma, psnr in values.items()}}
        record = {"settings": {}, "perceptual": True, "result": result}
        workspace.piece_path(key).write_text(json.dumps(record))
    return workspace


def test_the_gap_may_grow_at_lower_noise_and_not_at_the_noise_itself(tmp_path: Path) -> None:
    """0.3 dB at every σ_n, and at a lower level the more, the noisier the training data."""
    pieces = {}
    for sigma in claims.spectra.SIGMAS:
        best = {f"{at:g}": [40.0, 38.0] for at in claims.LEVELS}
        gap = {f"{at:g}": 0.3 if at >= sigma else 5 * (sigma - at) for at in claims.LEVELS}
        pieces[f"afhq-{sigma:g}-supervised"] = best
        for method in ("paper", "default"):
            pieces[f"afhq-{sigma:g}-{method}"] = {at: [40 - gap[at], 38 - gap[at]] for at in gap}
    workspace = kept_levels(tmp_path, pieces)
    below = [c for c in claims.gap_grows(workspace) if not c.of.endswith(("at 0.05", "at 0.075"))]
    assert len(below) == 2 * (3 + 3)
    lower = [check for check in below if "at 0.035" in check.of]
    assert all(check.holds for check in lower)
    assert {check.figures for check in lower} >= {"+0.125 dB ± 0.000"}
    assert len(list(claims.gap_grows_at_noise(workspace))) == 2 * 2
    assert not any(check.holds for check in claims.gap_grows_at_noise(workspace))
    afhq = [check for check in claims.gap_small(workspace) if "afhq" in check.of]
    assert [check.holds for check in afhq] == [True] * 6
    others = [check for check in claims.gap_small(workspace) if "afhq" not in check.of]
    assert [check.holds for check in others] == [None] * 4  # both other sets are asked for


def test_ours_is_compared_below_the_noise_in_every_score(tmp_path: Path) -> None:
    """LPIPS may say something else than PSNR and SSIM."""
    workspace = Workspace(TINY, tmp_path, tmp_path)
    (tmp_path / "pieces").mkdir()
    for images in claims.SETS:
        for method in claims.levels.COMPARED:
            better = method in ("paper", "default")
            scores = {"psnr": [30.0 + better] * 2, "ssim": [0.9 + 0.01 * better] * 2}
            scores["lpips"] = [0.02 + 0.01 * better] * 2  # more of it is worse
            result = {"levels": {f"{sigma:g}": scores for sigma in claims.LEVELS}}
            record = {"settings": {}, "perceptual": True, "result": result}
            workspace.piece_path(f"{images}-0.075-{method}").write_text(json.dumps(record))
    assert [check.holds for check in claims.below_noise(workspace)] == [True] * 96
    lpips = list(claims.below_noise_lpips(workspace))
    assert [check.holds for check in lpips] == [False] * 48
    assert lpips[0].figures == "0.0300 against 0.0200 ± 0.0000"


def test_the_slope_over_the_same_method_is_judged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Beside the one over supervised training: 1/N is no 1/√N, and keeps to it as a bound."""
    workspace = Workspace(CPU, tmp_path, tmp_path)
    counts = [*CPU.counts[:-1], 4450]
    for power, like, bound in ((0.5, True, True), (1.0, False, True), (0.2, False, False)):
        rows = [
            {"method": m, "sigma": s, "count": n, "excess": n**-power, "lost": lost}
            for m in complexity.COMPARED
            for s in complexity.LEVELS
            for n in counts
            for lost in [n**-power - counts[-1] ** -power]
        ]
        monkeypatch.setattr(claims.complexity, "rows", lambda w, r=rows: r)
        assert {check.holds for check in claims.root_n_own(workspace)} == {like}
        assert {check.holds for check in claims.root_n_at_least(workspace)} == {bound}


def test_a_claim_that_fails_is_said_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    workspace = Workspace(TINY, tmp_path, tmp_path)
    lines = [
        {"variant": variant, "sigma": sigma, "line": "CD", "distance": 2.0}
        for variant in claims.spectra.VARIANTS
        for sigma in claims.spectra.SIGMAS
    ]
    for highs, verdict in (
        ([0.4] * 6, "confirmed"),
        ([-0.4] * 6, "not confirmed"),
        ([-0.4] + [0.4] * 5, "confirmed in part"),
        ([0.4] * 5, "not tested in full (1 to come)"),
    ):
        rows = [line | {"high": h} for line, h in zip(lines, highs, strict=False)]
        monkeypatch.setattr(claims.spectra, "rows", lambda w, r=rows: r)
        found = {r["claim"][:8]: r for r in claims.rows(workspace)}
        assert found["CD keeps"]["verdict"] == verdict
        assert found["Of what "]["verdict"].startswith("not tested")
        assert ("σ_n = 0.05 (-0.40 dB)" in claims.table(workspace)) == (highs[0] < 0)


def kept_scores(folder: Path, **pieces: list[float]) -> Workspace:
    """A workspace with finished pieces: the same score of each image in all metrics but FID."""
    workspace = Workspace(TINY, folder, folder)
    (folder / "pieces").mkdir()
    for key, values in pieces.items():
        result = {"sample": dict.fromkeys((*claims.HIGHER, "lpips"), values)}
        result["sample"]["fid"] = float(np.mean(values))
        record = {"settings": {}, "perceptual": True, "result": result}
        workspace.piece_path(key).write_text(json.dumps(record))
    return workspace


def row_of(workspace: Workspace, key: str) -> dict[str, Any]:
    scores = workspace.result(key)["sample"]
    return {name: float(np.mean(v)) for name, v in scores.items()} | {"where": [key, "sample"]}


def test_scores_are_compared_the_right_way_round(tmp_path: Path) -> None:
    workspace = kept_scores(tmp_path, a=[2.0, 2.1], b=[1.0, 1.1])
    a, b = row_of(workspace, "a"), row_of(workspace, "b")
    for score in (*claims.HIGHER, *claims.LOWER):
        check = claims._better(workspace, "", a, b, score)
        assert check.holds is (score in claims.HIGHER)
        assert check.clear
    assert claims._better(workspace, "", a, {"psnr": None}, "psnr").holds is None
    assert claims._better(workspace, "", None, b, "psnr").holds is None


def test_differences_of_the_papers_table_are_the_papers() -> None:
    """Its text: samples lose 0.5 to 0.9 dB to one step, and the gap to supervised is 0.52 dB."""
    rows = {k: {s: r._asdict() for s, r in v.items()} for k, v in printed.TABLE1.items()}
    found = {key: printed.differences(value) for key, value in rows.items()}
    gaps = [-f["MMSE (self-supervised) − MMSE (supervised)"][0] for f in found.values()]
    assert max(gaps) == pytest.approx(claims.LARGEST_GAP)
    losses = [-f["ours − MMSE (self-supervised)"][0] for f in found.values()]
    assert 0.5 <= min(losses) <= max(losses) <= 0.93
    assert found["afhq", 0.1]["CD − ours"] == pytest.approx((27.01 - 30.38, 0.064 / 0.034))


def test_a_margin_of_chance_decides_nothing(tmp_path: Path) -> None:
    """Images differ by 5 dB, methods by 0.1 dB: clear if it is so on every image alike.

    With differences of ±1 dB on 100 images the standard error is 0.1 dB: 0.1 is undecided,
    0.5 is clear.
    """
    rng = np.random.default_rng(0)
    images, chance = rng.normal(30, 5, 100), rng.permutation([-1.0, 1.0] * 50)
    pieces = {"b": images, "alike": images + 0.1, "noisy": images + 0.1 + chance}
    pieces["better"] = images + 0.5 + chance
    workspace = kept_scores(tmp_path, **{key: list(v) for key, v in pieces.items()})
    b = row_of(workspace, "b")
    found = {k: claims._better(workspace, "", row_of(workspace, k), b, "psnr") for k in pieces}
    assert [k for k, check in found.items() if check.clear and check.holds] == ["alike", "better"]
    assert found["noisy"].holds
    assert not found["noisy"].clear
    assert found["noisy"].figures.endswith("± 0.101")  # 1/√99, the sample's own deviation
    assert claims._verdict(0, held=3, undecided=1, failed=0) == "confirmed where decided"
    assert claims._verdict(0, held=0, undecided=2, failed=0) == "undecided"


def test_offsets_are_drawn_from_the_range_asked_for() -> None:
    """For the ablation of μ: what the network is given of black images is the offset."""

    from nediff.problem import Problem
    from nediff.randomness import Draws
    from nediff.recipes import RECIPES, Batch, training_loss

    y = torch.zeros(64, 1, 8, 8)
    batch = Batch(y, torch.full((64,), 0.1), Problem.denoising(0.1, 1))
    for most in (0.0, 0.3, 1.0):
        recipe = RECIPES["paper"].model_copy(update={"mu_max": most})
        heard: list[torch.Tensor] = []

        def network(u, sigma, operator, heard=heard):  # type: ignore[no-untyped-def]
            heard.append(u.mean((1, 2, 3)))
            return u * 0

        training_loss(recipe, network, batch, Draws(0, "test", 64))
        found = heard[0][:64]  # then the probes of the divergence
        assert found.min() >= 0
        assert float(found.max()) <= most + 1e-6
        # the largest of 64 uniform draws is below 0.9 of the top with chance 0.9^64 = 0.1 %
        assert float(found.max()) >= 0.9 * most - 1e-6


def test_pictures_of_incomplete_measurements_say_what_they_are(everything: Path) -> None:
    """An estimate is no sample, and what was given less noise is not given what the others are."""
    workspace = Workspace(TINY, everything, everything / "runs")
    for problem in table2.PROBLEMS:
        words = [
            " ".join(caption.split()) for caption, _ in examples.completed(workspace, problem)[0]
        ]
        kinds = ["estimate", "estimate", "sample", "sample", "without noise: sample"]
        assert len(words) == 2 + len(kinds)
        for caption, kind in zip(words[2:], kinds, strict=True):
            assert kind in caption
        assert [caption.startswith("ours, the default") for caption in words].count(True) == 2


def test_spectra_are_drawn_over_that_of_the_truth() -> None:
    """In dB and without the lowest frequency; the spectra themselves cannot be told apart."""
    row = {"spectrum": [9.0, 2.0, 20.0, 0.2], "truth": [1.0, 2.0, 2.0, 2.0]}
    assert spectra.ratio(row) == pytest.approx([0, 10, -10])


def test_points_without_an_excess_are_marked() -> None:
    """A curve that ends is not left unexplained, and the line beside the curves has a name."""
    from matplotlib.figure import Figure

    rows = [
        {"method": "paper", "sigma": sigma, "count": n, "excess": value, "lost": value}
        for sigma in complexity.LEVELS
        for n, value in ((10, 4e-4), (100, 1e-4), (1000, -1e-5 if sigma == 0.1 else 5e-5))
    ]
    chart = Figure().subplots()
    complexity._draw(chart, rows, "paper", "excess")
    marks = [line for line in chart.lines if line.get_marker() == "v" and len(line.get_xdata())]
    assert [list(line.get_xdata()) for line in marks] == [[1000]]
    names = chart.get_legend_handles_labels()[1]
    assert {"1/√N", "no excess"} <= set(names)
    guide = next(line for line in chart.lines if line.get_label() == "1/√N")
    x, y = np.asarray(guide.get_xdata()), np.asarray(guide.get_ydata())
    assert y * np.sqrt(x) == pytest.approx(y[0] * np.sqrt(x[0]))


def test_the_same_figure_is_the_same_file(everything: Path, tmp_path: Path) -> None:
    shutil.copytree(everything / "pieces", tmp_path / "pieces")
    for name in (QUICK, "theorem"):
        EXPERIMENTS[name].write(Workspace(TINY, tmp_path, tmp_path / "runs"))
        again, first = (out / "figures" / f"{name}.svg" for out in (tmp_path, everything))
        assert again.read_bytes() == first.read_bytes()


def test_a_score_of_all_images_together_has_no_score_of_each(tmp_path: Path) -> None:
    """FID belongs to the piece, not to the level that a row is about."""
    workspace = Workspace(TINY, tmp_path, tmp_path / "runs")
    record = {"levels": {"0.1": {"psnr": [1.0, 2.0]}}, "fid": 3.0}
    path = workspace.piece_path("k")
    path.parent.mkdir()
    path.write_text(json.dumps({"settings": {}, "perceptual": True, "result": record}))
    row = {"where": ("k", "levels", "0.1"), "fid": 3.0}
    assert claims._each(workspace, row, "fid") is None
    assert claims._better(workspace, "", row, row | {"fid": 4.0}, "fid").holds
    np.testing.assert_array_equal(claims._each(workspace, row, "psnr"), [1.0, 2.0])


def test_a_slope_is_that_of_all_points_and_says_how_sure_it_is() -> None:
    counts = [10, 30, 100, 300, 1000]
    exact = complexity.slope(counts, [3 * n**-0.5 for n in counts])
    assert exact is not None
    assert exact.value == pytest.approx(-0.5)
    assert exact.error == pytest.approx(0.0, abs=1e-9)
    # an error that ends at what the training costs is no power law: points are off the line
    ending = complexity.slope(counts, [3 * n**-0.5 + 0.2 for n in counts])
    assert ending is not None
    assert ending.error > 0.01
    assert complexity.slope(counts, [1.0, 0.5, 0.2, -0.1, 0.1]) is None
    assert complexity.slope(counts[:2], [1.0, 0.5]) is None
    # over the same method on all images, an exact 1/√N is steeper than −1/2
    assert complexity.own_slope_of_root_n([*counts, 4450]) == pytest.approx(-0.62, abs=0.005)
