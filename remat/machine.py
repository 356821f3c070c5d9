"""What is where: the state of a device and its host while a plan runs, and what each action needs.

It knows sizes and rules, not time. ``replay`` asks it for the effect of one action after the other and puts
the effects on a clock. Inside, bytes and seconds are whole numbers of a small part, so that sums are exact.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from numbers import Integral
from typing import Literal

from remat import _check
from remat.chain import Action, Backward, Chain, Drop, Fetch, Forward, Offload, Output, Tape
from remat.hardware import Link

Thing = Output | Tape
Stream = Literal["compute", "copy"]
Purpose = Literal["kept", "recomputed", "fetched", "gradient", "scratch"]


class ReplayError(ValueError):
    """A plan uses what is not there; the message names the action and says what is missing."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What one action does, in the machine's parts of a byte and of a second.

    Attributes:
        stream: "compute" or "copy".
        seconds: how long it takes.
        reads: what must be ready before it starts.
        makes: what it makes on the device; takes memory from its start, is ready at its end.
        frees: what it frees on the device at its end, or once it is copied out if that is later.
        waits: whether it starts only when what it frees is copied out (a Drop does).
        host: bytes that the host holds more from its start (Offload) or less from its end (Fetch).
        purpose: what the things made are there for.
        scratch: bytes on the device while it runs.
        gradient: change of the gradient's bytes at its end.
    """

    stream: Stream
    seconds: int = 0
    reads: tuple[Thing, ...] = ()
    makes: tuple[Thing, ...] = ()
    frees: tuple[Thing, ...] = ()
    waits: bool = False
    host: int = 0
    purpose: Purpose = "kept"
    scratch: int = 0
    gradient: int = 0


def in_parts(columns: Iterable[Iterable[float | Fraction]]) -> tuple[int, list[list[int]]]:
    """Turn numbers into whole multiples of one part, exactly; also return how many parts make 1.

    >>> in_parts([[0.5, 2], [0.75]])
    (4, [[2, 8], [3]])
    """
    ratios = [[number.as_integer_ratio() for number in column] for column in columns]
    parts = lcm(*(below for column in ratios for _, below in column))
    return parts, [[above * (parts // below) for above, below in column] for column in ratios]


class Machine:
    """The state between two actions of a plan.

    Attributes:
        byte_parts: how many parts make one byte.
        second_parts: how many parts make one second.
    """

    def __init__(self, chain: Chain, link: Link | None) -> None:
        if not isinstance(link, Link | None):
            raise ValueError(f"link must be a Link, such as hardware.link(...) looks up, got {link!r}")
        n, stages = len(chain), chain.stages
        self.chain, self.link, self.taping = chain, link, chain.needs == "tape"
        out, saved = [chain.input, *(stage.out for stage in stages)], [0, *(stage.saved for stage in stages)]
        # The lists have an entry 0, for the chain's input or for nothing, so that entry i is stage i's.
        self.byte_parts, columns = in_parts(
            [
                out,
                saved,
                [0, *(stage.scratch_forward for stage in stages)],
                [0, *(stage.scratch_taping or 0 for stage in stages)],
                [0, *(stage.scratch_backward for stage in stages)],
                [chain.scratch_loss],
            ]
        )
        self.scratch_loss = columns.pop()[0]
        self.out, self.saved, self.scratch_forward, self.scratch_taping, self.scratch_backward = columns
        copies: list[list[Fraction]] = [[], []]
        if link is not None:
            bandwidth = Fraction(_check.amount("link.bandwidth", link.bandwidth, positive=True))
            copies = [[Fraction(size) / bandwidth for size in sizes] for sizes in (out, saved)]
        self.second_parts, (self.forward_s, self.backward_s, self.copy_out_s, self.copy_saved_s) = in_parts(
            [
                [0, *(stage.forward_s for stage in stages)],
                [0, *(stage.backward_s or 0 for stage in stages)],
                *copies,
            ]
        )
        self.live: set[Thing] = {Output(0)}
        self.host: set[Thing] = set()
        self.running: Output | None = None  # the output that lasts only until the next forward
        self.seen = [False] * (n + 1)
        self.next_backward = n
        self.work = self.again = self.forwards = 0

    def size(self, thing: Thing) -> int:
        """Return how much an output or a tape takes, in parts of a byte."""
        return self.out[thing.stage] if isinstance(thing, Output) else self.saved[thing.stage]

    def step(self, action: Action) -> Effect:
        """Do one action and say what it did.

        Raises:
            ReplayError: if it uses what is not there.
        """
        if isinstance(action, Forward):
            return self._forward(action)
        if isinstance(action, Backward):
            return self._backward(action)
        if isinstance(action, Drop):
            return self._drop(action)
        if isinstance(action, Offload):
            return self._offload(action)
        if isinstance(action, Fetch):
            return self._fetch(action)
        raise TypeError(f"not an action: {action!r}")

    def _forward(self, action: Forward) -> Effect:
        i = self._stage(action.stage)
        if action.keep == "tape" and not self.taping:
            raise ReplayError('keep="tape" needs a chain with needs="tape"; a chain of values has no tapes')
        if action.keep not in ("nothing", "output", "tape"):
            raise ReplayError(f'keep must be "nothing", "output" or "tape", got {action.keep!r}')
        if i > self.next_backward:
            raise ReplayError(f"the backward of stage {i} has run, so nothing needs its output any more")
        self._require(Output(i - 1))
        if Output(i) in self.live:
            raise ReplayError(f"it makes output {i}, which is there already: drop that first")
        if action.keep == "tape" and Tape(i) in self.live:  # fetched without its output
            raise ReplayError(f"it makes tape {i}, which is there already: drop that first")
        again, finished = self.seen[i], self.running
        makes: tuple[Thing, ...] = (Output(i), Tape(i)) if action.keep == "tape" else (Output(i),)
        self.live.update(makes)
        frees: tuple[Thing, ...] = ()
        if finished is not None and self._holder(finished) is None:
            frees = (finished,)
            self.live.remove(finished)
        self.running = Output(i) if action.keep == "nothing" else None
        self.seen[i] = True
        self.forwards += 1
        scratch = (self.scratch_taping if action.keep == "tape" else self.scratch_forward)[i]
        # The loss follows the first forward of the last stage at once, and with it the first gradient.
        loss = i == len(self.chain) and not again
        if again:
            self.again += 1
            self.work += self.forward_s[i]
        return Effect(
            "compute",
            self.forward_s[i],
            reads=(Output(i - 1),),
            makes=makes,
            frees=frees,
            purpose="recomputed" if again else "kept",
            scratch=max(scratch, self.scratch_loss) if loss else scratch,
            gradient=self.out[i] if loss else 0,
        )

    def _backward(self, action: Backward) -> Effect:
        i = self._stage(action.stage)
        if i != self.next_backward:
            raise ReplayError(f"the next backward is that of stage {self.next_backward}")
        if not self.seen[len(self.chain)]:
            raise ReplayError(f"there is no gradient before stage {len(self.chain)} has run forward")
        needed: tuple[Thing, ...] = (Output(i - 1), Output(i))
        if self.taping:
            needed = (*needed, Tape(i))
        for thing in needed:
            self._require(thing)
        for thing in needed[1:]:
            self._free(thing)
        self.next_backward -= 1
        received, handed_on = self.out[i], self.out[i - 1] if i > 1 else 0
        return Effect(
            "compute",
            self.backward_s[i],
            reads=needed,
            frees=needed[1:],
            scratch=self.scratch_backward[i],
            gradient=handed_on - received,
        )

    def _drop(self, action: Drop) -> Effect:
        thing = self._thing(action.what)
        if thing not in self.live:
            raise ReplayError(f"{thing} is not there")
        if thing == Output(0):
            raise ReplayError("Output(stage=0) is the chain's input, which stays for the whole step")
        if tape := self._holder(thing):
            raise ReplayError(f"{tape} still holds {thing}")
        self._free(thing)
        return Effect("compute", reads=(thing,), frees=(thing,), waits=True)

    def _offload(self, action: Offload) -> Effect:
        thing, seconds = self._copy(action)
        self._require(thing)
        if thing in self.host:
            raise ReplayError(f"the host has {thing} already")
        self.host.add(thing)
        return Effect("copy", seconds, reads=(thing,), host=self.size(thing))

    def _fetch(self, action: Fetch) -> Effect:
        thing, seconds = self._copy(action)
        if thing not in self.host:
            raise ReplayError(f"the host does not have {thing}")
        if thing in self.live:
            raise ReplayError(f"{thing} is on the device already: drop that first")
        self.host.remove(thing)
        self.live.add(thing)
        return Effect("copy", seconds, makes=(thing,), host=-self.size(thing), purpose="fetched")

    def _copy(self, action: Offload | Fetch) -> tuple[Thing, int]:
        """Say what is copied and how long that takes."""
        thing = self._thing(action.what)
        if self.link is None:
            raise ReplayError("there is no link to the host in this replay: pass link=")
        return thing, (self.copy_out_s if isinstance(thing, Output) else self.copy_saved_s)[thing.stage]

    def _holder(self, thing: Thing) -> Tape | None:
        """Find the live tape that holds an output: its own stage's, or that of the stage that read it."""
        if isinstance(thing, Output):
            for tape in (Tape(thing.stage), Tape(thing.stage + 1)):
                if tape in self.live:
                    return tape
        return None

    def _free(self, thing: Thing) -> None:
        if thing == self.running:
            self.running = None
        self.live.remove(thing)

    def _require(self, thing: Thing) -> None:
        if thing not in self.live:
            place = " but on the host: fetch it first" if thing in self.host else ""
            raise ReplayError(f"it reads {thing}, which is not there{place}")

    def _thing(self, thing: object) -> Thing:
        if isinstance(thing, Output):
            return Output(self._stage(thing.stage, least=0))
        if isinstance(thing, Tape):
            return Tape(self._stage(thing.stage))
        raise ReplayError(f"what must be an Output or a Tape, got {thing!r}")

    def _stage(self, stage: object, *, least: int = 1) -> int:
        whole = isinstance(stage, Integral) and not isinstance(stage, bool)
        if not whole or not least <= int(stage) <= len(self.chain):  # type: ignore[call-overload]
            raise ReplayError(f"stage must be from {least} to {len(self.chain)}, got {stage!r}")
        return int(stage)  # type: ignore[call-overload, no-any-return]
