"""The processes of one run: which one is this, and how do they agree?

`torchrun` or `accelerate launch` start them, on one machine or on many; Accelerate joins them.
What goes from one to another are tensors and JSON, never a pickle. A process that was started
alone is all of them, and every function here then does nothing but return.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from nediff.errors import NediffError

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.distributed.distributed_c10d import Store

Item = TypeVar("Item")

PATIENCE = timedelta(minutes=30)
"""So long a process waits for the others; if one of them ends, it hears of that at once."""
ASK_AGAIN = 0.05
"""Seconds between two looks at what the others have said while they are being joined."""
BUCKET = 2**22
"""Values that are added up over the processes in one go."""


def launched() -> int:
    """How many processes were started together: what torchrun and Accelerate say."""
    count = os.environ.get("WORLD_SIZE", "1")
    return int(count) if count.isdigit() else 1


def first() -> bool:
    """Whether this is the process that speaks and writes; known before they are joined."""
    return os.environ.get("RANK", "0") == "0"


class OthersGone(NediffError):
    """Another process ended, or nothing was heard of it for long; this one cannot go on."""

    def __init__(self) -> None:
        super().__init__(
            "Another process of this run has ended, so this one ends too; what that one said "
            "tells why."
        )


@dataclass(frozen=True)
class Processes:
    """This process is number ``number`` of ``count``; number 0, the main one, speaks and writes.

    ``device`` is where what they send each other must be.
    """

    number: int = 0
    count: int = 1
    device: torch.device | str = "cpu"

    @property
    def main(self) -> bool:
        """Whether this is the one that speaks and writes."""
        return self.number == 0

    @property
    def several(self) -> bool:
        """Whether there is anybody to agree with."""
        return self.count > 1

    def share(self, items: Sequence[Item]) -> Sequence[Item]:
        """This process's part of them: every item is in one part."""
        return items[self.number :: self.count]

    def wait(self) -> None:
        """Until all have come here."""
        self.largest(0.0)

    def largest(self, value: float) -> float:
        """Of the values of all."""
        if not self.several:
            return value
        import torch
        from torch import distributed

        number = torch.tensor(value, dtype=torch.float64, device=self.device)
        with _together():
            distributed.all_reduce(number, distributed.ReduceOp.MAX)
        return float(number)

    def any(self, value: bool) -> bool:
        """Whether it is true for any of them."""
        return self.largest(float(value)) > 0

    def add(self, tensor: Tensor) -> Tensor:
        """tensor ← its sum over all processes, the same in each."""
        if self.several:
            from torch import distributed

            with _together():
                distributed.all_reduce(tensor)
        return tensor

    def add_gradients(self, parameters: Sequence[Tensor]) -> None:
        """The gradients of all processes summed; one that has none counts as zero.

        Once a step, however many backward passes each process made for it.
        """
        if not self.several:
            return
        import torch

        for bucket in _buckets(parameters, BUCKET):
            for p in bucket:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            gradients = [p.grad for p in bucket if p.grad is not None]
            flat = self.add(torch.cat([g.reshape(-1) for g in gradients]))
            parts = torch.split(flat, [g.numel() for g in gradients])
            for gradient, part in zip(gradients, parts, strict=True):
                gradient.copy_(part.view(gradient.shape))

    def collect(self, mine: Mapping[int, Tensor], count: int) -> Tensor:
        """Rows 0 … count − 1, of one shape, each from the process that has it: (count, ...)."""
        import torch

        if not self.several:
            return torch.stack([mine[k] for k in range(count)])
        axes = int(self.largest(max((row.ndim for row in mine.values()), default=0)))
        shape = torch.zeros(axes, dtype=torch.int64)
        for row in mine.values():
            shape = torch.tensor(row.shape, dtype=torch.int64)
        sizes = [int(self.largest(float(n))) for n in shape.tolist()]
        exact = self.any(any(row.dtype == torch.float64 for row in mine.values()))
        kind = torch.float64 if exact else torch.float32
        rows = torch.zeros(count, *sizes, dtype=kind, device=self.device)
        for k, row in mine.items():
            rows[k] = row.to(self.device)
        return self.add(rows).cpu()

    def told(self, make: Callable[[], Any]) -> Any:
        """What the main process makes (anything JSON can hold), told to all.

        A `NediffError` there is one everywhere.
        """
        if not self.several:
            return make()
        said: dict[str, Any] = {}
        if self.main:
            try:
                said = {"value": make()}
            except NediffError as error:
                said = {"error": str(error)}
        heard = json.loads(self._text(json.dumps(said)))
        if "error" in heard:
            raise NediffError(heard["error"])
        return heard["value"]

    def given(self, make: Callable[[], Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """The tensors that the main process makes, copied to all, in the memory of the CPU."""
        import torch
        from torch import distributed

        if not self.several:
            return dict(make())
        mine: dict[str, Tensor] = {}

        def listing() -> list[Any]:
            mine.update(make())
            return [[k, list(t.shape), str(t.dtype).split(".")[-1]] for k, t in mine.items()]

        out = {}
        for name, shape, kind in self.told(listing):
            value = torch.empty(shape, dtype=getattr(torch, kind), device=self.device)
            if self.main:
                value.copy_(mine[name])
            with _together():
                distributed.broadcast(value, 0)
            out[name] = value.cpu()
        return out

    def _text(self, text: str) -> str:
        """That of the main process."""
        import torch
        from torch import distributed

        sent = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).to(self.device)
        length = torch.tensor(len(sent), device=self.device)
        with _together():
            distributed.broadcast(length, 0)
            letters = sent if self.main else sent.new_empty(int(length))
            distributed.broadcast(letters, 0)
        return bytes(letters.cpu().tolist()).decode()


ALONE = Processes()


@cache
def joined() -> Processes:
    """The processes that were started together, joined; one that was started alone is alone."""
    if launched() == 1:
        return ALONE
    import torch
    from accelerate import PartialState
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    with _together():
        store, rank, count = next(rendezvous("env://", timeout=PATIENCE))
        place = PrefixStore(agreed_name(store, rank, count), store)
        state = PartialState(
            cpu=not torch.cuda.is_available(),
            timeout=PATIENCE,
            store=place,
            rank=rank,
            world_size=count,
        )
    atexit.register(leave)
    return Processes(state.process_index, state.num_processes, state.device)


def leave() -> None:
    """End what the processes are joined by, at the end of this one.

    The threads of Gloo, which joins CPUs, must end before Python does: if one is left, the process
    is aborted after all its work is done, and torchrun counts it as failed.
    """
    from torch import distributed

    if distributed.is_initialized() and distributed.get_backend() == "gloo":
        with suppress(RuntimeError):  # the others may be gone
            distributed.destroy_process_group()


def agreed_name(store: Store, rank: int, count: int) -> str:
    """A name that these processes have in common, and no others that used the store before.

    torchrun keeps its store when it starts the processes anew, so there are the addresses of
    the dead ones in it, and who reads such an address waits for ever (pytorch/pytorch#135712).
    Its count of restarts is each machine's own, so that is no name. Instead every process asks
    the main one in a word nobody used before; who gets an answer to that is not mistaken.
    """
    if rank > 0:
        word = uuid.uuid4().hex
        store.set(f"nediff asks {rank}", word)
        _wait_until(lambda: store.check([f"nediff answers {word}"]))
        name = store.get(f"nediff answers {word}").decode()
        store.set(f"{name} heard by {rank}", "")
        return name
    name = f"nediff {uuid.uuid4().hex}"
    waiting = set(range(1, count))

    def all_heard() -> bool:
        for other in [k for k in waiting if store.check([f"{name} heard by {k}"])]:
            waiting.discard(other)
        for other in [k for k in waiting if store.check([f"nediff asks {k}"])]:
            word = store.get(f"nediff asks {other}").decode()  # perhaps of one that is dead
            store.set(f"nediff answers {word}", name)
        return not waiting

    _wait_until(all_heard)
    return name


def _wait_until(true: Callable[[], bool]) -> None:
    """As long as processes wait for each other."""
    until = time.monotonic() + PATIENCE.total_seconds()
    while not true():
        if time.monotonic() > until:
            raise OthersGone
        time.sleep(ASK_AGAIN)


def one_host() -> bool:
    """Whether all of them are on one machine."""
    return os.environ.get("LOCAL_WORLD_SIZE", "1") == os.environ.get("WORLD_SIZE", "1")


def first_to_say(sentence: str) -> bool:
    """Whether no other process has said this yet; without a way to ask, the main one says it."""
    if launched() == 1:
        return True
    from torch import distributed

    if not distributed.is_initialized():
        return first()
    with suppress(Exception):  # whoever kept the list may be gone
        store: Any = distributed.distributed_c10d._get_default_store()
        mark = hashlib.blake2b(sentence.encode(), digest_size=8).hexdigest()
        said: int = store.add(f"nediff said {mark}", 1)
        return said == 1
    return first()


def _buckets(parameters: Sequence[Tensor], size: int) -> Iterator[list[Tensor]]:
    """In their order, of about so many values each."""
    bucket: list[Tensor] = []
    for parameter in parameters:
        bucket.append(parameter)
        if sum(p.numel() for p in bucket) >= size:
            yield bucket
            bucket = []
    if bucket:
        yield bucket


@contextmanager
def _together() -> Iterator[None]:
    """A failure of what all must do together means that one of them is gone."""
    try:
        yield
    except RuntimeError as error:
        if "memory" in str(error):
            raise
        raise OthersGone from error
