"""One training step under way, action by action."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from remat.chain import Action, Backward, Fetch, Forward, Offload, Output
from remat.chain import Tape as TapeOf
from remat.machine import Thing
from remat.pytorch.again import Again
from remat.pytorch.slots import Host, Place, Recorder, Slot, storages_of
from remat.pytorch.tape import Stage, Tape, needs_gradient, run_forward, run_loss, run_taping


class Step:
    """One training step under way."""

    def __init__(
        self,
        actions: tuple[Action, ...],
        stages: Sequence[Stage],
        x: Tensor,
        loss: Callable[[Tensor], Tensor],
        *,
        restore_buffers: bool,
    ) -> None:
        n = len(stages)
        self.stages, self.x, self.loss = stages, x, loss
        self.needs = needs_gradient(stages, x)
        runs = Counter(action.stage for action in actions if isinstance(action, Forward))
        self.again = Again(stages, [runs[i] for i in range(n + 1)], restore_buffers=restore_buffers)
        self.slots = [Slot() for _ in range(n + 1)]  # one an output, the same each time that it is made
        self.slots[0].storage = x.untyped_storage()
        self.outputs: dict[int, Place] = {}
        self.tapes: dict[int, tuple[Tape, tuple[Slot, ...]]] = {}
        self.away: dict[Thing, list[tuple[Slot, Tensor]]] = {}
        self.tapes_away: dict[int, tuple[Tape, tuple[Slot, ...]]] = {}
        self.moves_tapes = any(isinstance(a, Offload) and isinstance(a.what, TapeOf) for a in actions)
        self.fixed = storages_of(stages) if self.moves_tapes else set()
        self.host = Host(x.device)
        self.gradient: Tensor | None = None
        self.value: Tensor | None = None

    def do(self, action: Action, frees: Sequence[Thing]) -> None:
        """Do one action of the plan, then free what the machine of the replay says it frees."""
        if isinstance(action, Forward):
            self._forward(action)
        elif isinstance(action, Backward):
            self._backward(action.stage)
        elif isinstance(action, Offload):
            self.away[action.what] = self.host.take(self._slots_of(action.what))
            if isinstance(action.what, TapeOf):
                self.tapes_away[action.what.stage] = self.tapes[action.what.stage]
        elif isinstance(action, Fetch):
            self.host.give(self.away.pop(action.what))
            if isinstance(action.what, TapeOf):
                self.tapes[action.what.stage] = self.tapes_away.pop(action.what.stage)
        for thing in frees:
            self._free(thing)

    def _input(self, i: int) -> Tensor:
        self.host.wait()
        return self.x if i == 1 else self.outputs[i - 1].tensor()

    def _forward(self, action: Forward) -> None:
        i = action.stage
        x, stage = self._input(i), self.stages[i - 1]
        with self.again.around(i, x.device):
            if action.keep == "tape":
                recorder = Recorder(self.slots[i - 1], self.fixed) if self.moves_tapes else None
                with recorder.hooks() if recorder else nullcontext():
                    y, tape = run_taping(stage, x, i, track=self.needs[i - 1])
                own = recorder.finish(y, self.slots[i]) if recorder else ()
                self.tapes[i] = (tape, own)
            else:
                y = run_forward(stage, x, i)
        self.slots[i].storage = y.untyped_storage()
        self.outputs[i] = Place.of(y, self.slots[i])
        del x
        if i == len(self.stages) and self.value is None:
            self._differentiate_loss(y)

    def _differentiate_loss(self, y: Tensor) -> None:
        self.value, tape = run_loss(self.loss, y)
        if not self.needs[-1]:
            raise ValueError("stages must have a parameter that requires a gradient, or x must require one")
        self.gradient = tape.backward(torch.ones_like(self.value))

    def _backward(self, i: int) -> None:
        self.host.wait()
        tape = self.tapes.pop(i)[0]  # its slots are now the graph's alone, which lets go of them on its way
        if TapeOf(i) in self.away:  # the host's copy must not hold the device's
            self.away[TapeOf(i)] = [(Slot(), there) for _, there in self.away[TapeOf(i)]]
            self.tapes_away[i] = (Tape(None), ())
        self.gradient = tape.backward(self.gradient)
        self.again.forget(i)

    def _slots_of(self, thing: Thing) -> tuple[Slot, ...]:
        return (self.slots[thing.stage],) if isinstance(thing, Output) else self.tapes[thing.stage][1]

    def _free(self, thing: Thing) -> None:
        if isinstance(thing, Output):
            if thing.stage:
                self.slots[thing.stage].storage = None
            return
        _, slots = self.tapes.pop(thing.stage, (None, ()))
        if thing in self.away:
            for slot in slots:
                slot.storage = None

    def clear(self) -> None:
        """Let go of every tensor, also after an error, whose traceback may live on."""
        for held in (self.outputs, self.tapes, self.away, self.tapes_away, self.slots, self.again.buffers):
            held.clear()
        self.again.random.clear()
        self.gradient = None
        self.host.arriving.clear()
