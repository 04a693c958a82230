"""Several clients at once in one process: their networks are stacked, and one pass computes for all of them (vmap).

Every client runs its method's own code in a thread of its own, and only one thread runs at a time. Where a client asks
its network for logits or for a gradient it waits until the others have asked as well; then one stacked pass answers
all of them. So any method can be stacked and draws what it would draw alone; only sums are rounded in another order.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import pad
from torch.nn.modules.batchnorm import _BatchNorm

from fedfew.core.engine import precision
from fedfew.core.errors import FedfewError
from fedfew.core.layout import Vector
from fedfew.core.network import Network

NO_BATCH_NORM = "batch norm would count the black images that fill up a stack's short batches"
Result = TypeVar("Result")
Job = Callable[[Network], Result]
"""One client's work, given the network it may use."""


@dataclass(eq=False)
class Row:
    """One client's place in the stack: its weights, its thread's state, and what it waits for."""

    leaf: Tensor
    """The weights as autograd sees them; the client's ``network.vector`` is the same memory."""
    wake: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    batch: Tensor | None = None
    """Images it wants logits of."""
    grad: bool = False
    loss: Tensor | None = None
    """A loss it wants the gradient of."""
    answer: Tensor | None = None
    failure: BaseException | None = None
    done: bool = True


class Stack:
    """``size`` copies of a network's weights, each trained by one client at a time, all in the same passes."""

    def __init__(self, network: Network, size: int) -> None:
        self._network = network
        self._rows = [Row(network.vector.detach().clone().requires_grad_()) for _ in range(size)]
        self._back = threading.Semaphore(0)
        self._networks = [self._face(row) for row in self._rows]
        self._forward = torch.vmap(self._logits)

    def __len__(self) -> int:
        return len(self._rows)

    def _face(self, row: Row) -> Network:
        """The network as one client sees it."""
        row.leaf.grad = torch.zeros_like(row.leaf)

        def logits(batch: Tensor) -> Tensor:
            row.batch, row.grad = batch, torch.is_grad_enabled()
            return self._wait(row)

        def backward(loss: Tensor) -> None:
            row.loss = loss
            self._wait(row)

        return replace(
            self._network, vector=row.leaf.detach(), gradient=row.leaf.grad, backward=backward, _fast=logits
        )  # fmt: skip

    def _wait(self, row: Row) -> Tensor:
        """In a client's thread: give the turn back until there is an answer."""
        self._back.release()
        row.wake.acquire()
        if row.failure is not None:
            failure, row.failure = row.failure, None
            raise failure
        assert row.answer is not None
        return row.answer

    def train(self, jobs: Sequence[Job[Result]]) -> list[Result]:
        """The results of up to ``size`` jobs, in their order; an exception of a job or a pass is raised in that job."""
        results: dict[int, Result] = {}
        failures: list[BaseException] = []

        def live(number: int, row: Row) -> None:
            row.wake.acquire()
            try:
                if row.failure is None:
                    results[number] = jobs[number](self._networks[number])
            except BaseException as error:  # told to the caller below
                failures.append(error)
            row.done = True
            self._back.release()

        rows = self._rows[: len(jobs)]
        threads = [threading.Thread(target=live, args=job, daemon=True) for job in enumerate(rows)]
        for row, thread in zip(rows, threads, strict=True):
            row.done, row.batch, row.loss, row.failure = False, None, None, None
            thread.start()
        try:
            ready = rows
            while ready:
                for row in ready:
                    self._resume(row)
                ready = list(self._answer([row for row in rows if not row.done]))
        finally:
            for row in rows:  # Ctrl-C here ends the clients too
                while not row.done:
                    row.failure = row.failure or InterruptedError("the round was given up")
                    self._resume(row)
            for thread in threads:
                thread.join()
        if failures:
            raise failures[0]
        return [results[number] for number in range(len(jobs))]

    def _resume(self, row: Row) -> None:
        """Let a client run until it asks for something or has ended."""
        row.wake.release()
        self._back.acquire()

    def _answer(self, waiting: Sequence[Row]) -> Iterator[Row]:
        """Serve those that want logits; only when nobody does, the gradients: clients share the graph of a pass."""
        asking = [row for row in waiting if row.batch is not None]
        if not asking:
            self._gradients(waiting)
            yield from waiting
        for grad in (True, False):
            if group := [row for row in asking if row.grad is grad]:
                self._pass(group, grad=grad)
                yield from group

    def _pass(self, group: Sequence[Row], *, grad: bool) -> None:
        """One forward pass; short batches are filled up with black images, whose logits nobody sees."""
        batches = [row.batch for row in group if row.batch is not None]
        longest = max(len(batch) for batch in batches)
        try:
            with torch.set_grad_enabled(grad), precision(self._network.engine, self._network.device):
                weights = torch.stack([row.leaf for row in group])  # a copy: clients change their own meanwhile
                if len(group) == 1:
                    logits = self._logits(weights[0], batches[0])[None]
                else:
                    filled = [pad(batch, (0,) * (2 * batch.ndim - 1) + (longest - len(batch),)) for batch in batches]
                    logits = self._forward(weights, torch.stack(filled))
            for place, (row, batch) in enumerate(zip(group, batches, strict=True)):
                row.answer = logits[place, : len(batch)]
        except Exception as error:
            for row in group:
                row.failure = error
        for row in group:
            row.batch = None

    def _gradients(self, waiting: Sequence[Row]) -> None:
        losses = [row.loss for row in waiting if row.loss is not None]
        try:
            torch.autograd.backward(losses)
        except Exception as error:
            for row in waiting:
                row.failure = error
        for row, loss in zip(waiting, losses, strict=True):
            row.answer, row.loss = loss.detach(), None

    def _logits(self, weights: Vector, batch: Tensor) -> Tensor:
        logits: Tensor = functional_call(self._network.module, self._network.layout.views(weights), (batch,))
        return logits

    def check(self, shape: tuple[int, ...]) -> None:
        """E113 unless the model can be stacked at all: tried on two black images."""
        if any(isinstance(layer, _BatchNorm) for layer in self._network.module.modules()):
            raise FedfewError("E113", "engine.stack", NO_BATCH_NORM, 'Set engine.stack = 1, or model.norm = "group"')
        batch = torch.zeros(2, *shape, device=self._network.device)
        alone = self._logits(self._rows[0].leaf, batch)
        try:
            weights = torch.stack([row.leaf for row in self._rows])
            together = self._forward(weights, batch.expand(len(self), *batch.shape))
        except Exception as error:
            what = f"the model cannot be stacked: {type(error).__name__}: {error}"[:300]
            raise FedfewError("E113", "engine.stack", what, "Set engine.stack = 1") from error
        if not torch.allclose(alone.expand_as(together), together, rtol=1e-2, atol=1e-2):
            raise FedfewError("E113", "engine.stack", "the model computes something else when stacked")
