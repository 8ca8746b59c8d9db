"""A mistake in what was typed, as one sentence that says what was probably meant."""

from __future__ import annotations

import re
from typing import Any, cast

import typer

from nediff.errors import did_you_mean

USAGE_ERROR = cast(type[Exception], typer.BadParameter.__mro__[1])
"""The class of them all. Typer brings its own copy of click, or not, by its version; only
`BadParameter` has the same name in all of them."""


def typed(context: typer.Context) -> frozenset[str]:
    """The names of the parameters that were given, also where the value is their default."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return frozenset(
        n for n, how in sources.items() if how is not None and how.name == "COMMANDLINE"
    )


def usage_sentence(error: Any) -> str:
    """What was wrong, the likeliest of what there is, and where to read on."""
    message = str(error.format_message()).replace("Value error, ", "")
    message = re.sub(r"\s*\((Possible options|Did you mean).*\)$", "", message)
    message = re.sub(r" Did you mean .*$", "", message).rstrip(".")
    where = "nediff" if error.ctx is None else str(error.ctx.command_path)
    hint = _likely(error, message)
    message = re.sub(r"(extra argument.*\(\S+ \S+ \S+) .*\)$", r"\1 …)", message)
    return f"{message}.{hint} See {where} --help." if not hint else f"{message}.{hint}"


def _likely(error: Any, message: str) -> str:
    """Among options, commands or the choices of an option; or what --json took for its file."""
    taken = None if error.ctx is None else error.ctx.params.get("json_file")
    if message.startswith("Missing argument") and str(taken) not in ("None", "-"):
        return f" --json took {taken} for the file to write; put --json at the end."
    if "unexpected extra argument" in message:
        return " Several images are named by one folder, or by a pattern in quotes: 'images/*.tif'."
    if (option := getattr(error, "option_name", None)) and "No such option" in message:
        names = [name for p in error.ctx.command.params for name in getattr(p, "opts", ())]
        return did_you_mean(option, [name for name in names if name.startswith("--")])
    if found := re.search(r"No such command '(.*)'", message):
        return did_you_mean(found[1], error.ctx.command.commands)
    if found := re.search(r"'([^']*)' is not one of (.*)", message):
        return did_you_mean(found[1], re.findall(r"'([^']*)'", found[2]))
    return ""
