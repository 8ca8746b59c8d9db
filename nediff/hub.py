"""A run on the Hugging Face hub: settings, numbers and a card, and never any code."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

from nediff.card import card_text
from nediff.config import RunConfig
from nediff.correction import CALIBRATION_FILE
from nediff.errors import NediffError
from nediff.runs import CONFIG_FILE, HUB_CONFIG_FILE, OPERATOR_FILE, WEIGHTS_FILE
from nediff.unmeasured import SPREAD_FILE

CARD_FILE = "README.md"
PUBLISHED = (HUB_CONFIG_FILE, WEIGHTS_FILE, OPERATOR_FILE, SPREAD_FILE, CALIBRATION_FILE, CARD_FILE)
"""All files that are sent or fetched; whatever else a repository holds stays there."""


def upload_run(
    folder: Path,
    config: RunConfig,
    repo_id: str,
    private: bool = False,
    token: str | None = None,
    message: str = "A nediff restorer",
) -> str:
    """Publish a saved run; returns its address. config.yaml becomes config.json in ``folder``."""
    api = _hub().HfApi(token=token)
    public = for_publication(config)
    text = json.dumps(public.model_dump(mode="json"), indent=2) + "\n"
    (folder / HUB_CONFIG_FILE).write_text(text, encoding="utf-8")
    (folder / CONFIG_FILE).unlink(missing_ok=True)
    (folder / CARD_FILE).write_text(hub_card(public, repo_id), encoding="utf-8")
    try:
        address = str(api.create_repo(repo_id, private=private, exist_ok=True))
        api.upload_folder(
            repo_id=repo_id,
            folder_path=folder,
            allow_patterns=list(PUBLISHED),
            commit_message=message,
        )
    except _failures() as error:
        raise NediffError(f"{repo_id} was not published: {_reason(error)}.") from error
    return address


def download_run(repo_id: str, revision: str | None = None, token: str | None = None) -> Path:
    """Fetch the files of a run by their names; returns a folder that `Restorer.load` reads."""
    try:
        folder = _hub().snapshot_download(
            repo_id, revision=revision, token=token, allow_patterns=list(PUBLISHED)
        )
    except _failures() as error:
        raise NediffError(
            f"{repo_id} is no folder here, and could not be had from the hub: {_reason(error)}."
        ) from error
    return Path(folder)


def for_publication(config: RunConfig) -> RunConfig:
    """Without the path of the data, which is nobody's business; its last part stays."""
    data = config.data.model_copy(update={"source": Path(config.data.source).name})
    return config.model_copy(update={"data": data})


def hub_card(config: RunConfig, repo_id: str) -> str:
    """The card of the run with the hub's header, and how to use it from there."""
    head = "---\nlibrary_name: nediff\npipeline_tag: image-to-image\ntags:\n"
    tags = ("denoising", "diffusion", "self-supervised", "uncertainty", config.operator.kind)
    lines = "".join(f"- {tag}\n" for tag in dict.fromkeys(tags))
    use = (
        "```python\nimport nediff\n\n"
        f'restorer = nediff.Restorer.from_pretrained("{repo_id}")\n'
        "x_hat = restorer.restore(y)  # y in unit intensities: restorer.range.to_unit(values)\n"
        "samples = restorer.sample(y, n=16, seed=0)\n```\n"
    )
    text = card_text(config).replace("config.yaml", HUB_CONFIG_FILE)
    return f"{head}{lines}---\n\n{text}\n## From the hub\n\n{use}"


def _hub() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise NediffError("This needs huggingface_hub: pip install 'nediff[hub]'.") from error
    return huggingface_hub


def _failures() -> tuple[type[Exception], ...]:
    """What the hub's library raises: HTTP and network errors, bad names (ValueError).

    Which HTTP library it talks by differs by its version; its own error has that one's for a
    base, of which the errors without a network are others.
    """
    errors = importlib.import_module(f"{_hub().__name__}.errors")
    http: tuple[type[Exception], ...] = errors.HfHubHTTPError.__bases__
    return (*http, errors.HFValidationError, OSError, ValueError)


def _reason(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
