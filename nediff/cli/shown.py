"""How --help shows a command: whole paragraphs, and short words that 80 columns can hold."""

from __future__ import annotations

from enum import Enum
from typing import Any

from typer.core import TyperCommand, TyperGroup


def paragraphs(text: str) -> str:
    """Without the line breaks of the source, which do not fit into the lines of a terminal."""
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def one_of(choices: type[Enum]) -> str:
    """The choices of an option in words, for its help: a column for them would break them."""
    *others, last = (str(choice.value) for choice in choices)
    return f"{', '.join(others)} or {last}"


class Command(TyperCommand):
    """A command of nediff."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.help = paragraphs(self.help or "")

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters; that an option without a value is a <bool> tells the user nothing."""
        return _unmarked(super().get_params(ctx))


class Commands(TyperGroup):
    """All of them."""

    def get_params(self, ctx: Any) -> list[Any]:
        """As of a command."""
        return _unmarked(super().get_params(ctx))


def _unmarked(params: list[Any]) -> list[Any]:
    for param in params:
        if getattr(param, "is_flag", False) and param.metavar is None:
            param.metavar = ""
    return params
