"""A chain of stages, and the small actions that a plan is made of.

Stages are numbered 1 to n. Output 0 is the chain's input, output i what stage i makes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Literal, get_args

from remat import _check

Needs = Literal["values", "tape"]
Keep = Literal["nothing", "output", "tape"]


@dataclass(frozen=True)
class Stage:
    """One stage of a chain, measured or described.

    Attributes:
        out: bytes of its output.
        saved: bytes that a taping forward holds besides input and output.
        scratch_forward: bytes that forward needs for a while beyond its output.
        scratch_backward: bytes that backward needs for a while beyond the gradient that it receives.
        forward_s: seconds of one forward.
        backward_s: seconds of one backward; twice the forward if left out.
        scratch_taping: bytes that a taping forward needs for a while beyond its output and ``saved``; as
            ``scratch_forward`` if left out. Measured stages need less here, where most of what forward
            makes on its way is saved.
        name: what to call it in a table.
    """

    out: float
    saved: float = 0
    scratch_forward: float = 0
    scratch_backward: float = 0
    forward_s: float = 1
    backward_s: float | None = None
    scratch_taping: float | None = None
    name: str = ""

    def __post_init__(self) -> None:
        for figure in ("out", "saved", "scratch_forward", "scratch_backward", "forward_s"):
            object.__setattr__(self, figure, _check.amount(figure, getattr(self, figure)))
        for figure, instead in (("backward_s", 2 * self.forward_s), ("scratch_taping", self.scratch_forward)):
            given = getattr(self, figure)
            object.__setattr__(self, figure, _check.amount(figure, instead if given is None else given))


@dataclass(frozen=True)
class Option:
    """One way to run a stage: what a choice inside a layer amounts to, seen from the chain.

    Attributes:
        saved: bytes that its taping forward holds besides input and output.
        copied: bytes that go to the host and come back.
        forward_s: seconds of one forward.
        backward_s: seconds of one backward, the recompute before it included.
        scratch_backward: bytes that the recompute and the backward need for a while beyond ``saved``, the
            stage's input and output, and the gradient received.
        name: what to call it in a table.
    """

    saved: float
    copied: float
    forward_s: float
    backward_s: float
    scratch_backward: float
    name: str = ""

    def __post_init__(self) -> None:
        for figure in ("saved", "copied", "forward_s", "backward_s", "scratch_backward"):
            object.__setattr__(self, figure, _check.amount(figure, getattr(self, figure)))

    def stage(self, out: float) -> Stage:
        """Return the stage that runs this way; its output takes out bytes."""
        return Stage(
            out=out,
            saved=self.saved,
            scratch_backward=self.scratch_backward,
            forward_s=self.forward_s,
            backward_s=self.backward_s,
            name=self.name,
        )


@dataclass(frozen=True)
class Chain:
    """Stages in a row, and what a backward needs.

    Attributes:
        stages: in the order of forward.
        input: bytes of the chain's input, which stays for the whole step.
        needs: "values": the backward of a stage reads its input and its output, whoever made them (Chen et
            al. 2016). "tape": it reads the record left by a forward that taped, which holds the input, the
            output and ``saved`` bytes (PyTorch; Beaumont et al. 2019).
        scratch_loss: bytes that the loss needs for a while beyond the last output, the gradient that it
            makes included; it follows the first forward of the last stage at once.

    Raises:
        ValueError: if there is no stage, a size is negative, or needs is another word.
    """

    stages: tuple[Stage, ...]
    input: float = 1
    needs: Needs = "values"
    scratch_loss: float = 0

    def __post_init__(self) -> None:
        if not isinstance(self.stages, Iterable):
            raise ValueError(f"stages must hold at least one Stage, got {self.stages!r}")
        stages: tuple[object, ...] = tuple(self.stages)
        if not stages:
            raise ValueError("stages must hold at least one Stage, got none")
        if strange := [stage for stage in stages if not isinstance(stage, Stage)]:
            raise ValueError(f"stages must hold only Stage, got {strange[0]!r}")
        object.__setattr__(self, "stages", stages)
        for figure in ("input", "scratch_loss"):
            object.__setattr__(self, figure, _check.amount(figure, getattr(self, figure)))
        _check.one_of("needs", self.needs, get_args(Needs))

    def __len__(self) -> int:
        return len(self.stages)

    @property
    def forward_s(self) -> float:
        """Seconds of one forward through all stages."""
        return sum(stage.forward_s for stage in self.stages)


def _column(name: str, values: Iterable[float] | float, n: int | None = None) -> list[float]:
    """Check that there is one number per stage; where n is known, one number may stand for all."""
    if n is not None and isinstance(values, Real):
        values = [_check.amount(name, values)] * n
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ValueError(f"{name} must be numbers, one per stage, got {values!r}")
    column = [_check.amount(f"{name}[{i}]", value) for i, value in enumerate(values)]
    if n is not None and len(column) != n:
        raise ValueError(f"{name} must have one entry per stage: {len(column)} {name}, {n} sizes")
    return column


def chain_of(
    sizes: Sequence[float],
    costs: Sequence[float] | None = None,
    *,
    input: float = 1,
    saved: Sequence[float] | float = 0,
    scratch_backward: Sequence[float] | float = 0,
    needs: Needs = "values",
) -> Chain:
    """Build a chain from the sizes of its outputs and the costs of its forwards.

    Args:
        sizes: bytes of each output.
        costs: seconds of each forward; 1 each if left out.
        input: bytes of the chain's input.
        saved: bytes that each taping forward holds besides input and output, one for all or one a stage.
        scratch_backward: bytes that each backward needs for a while, likewise.
        needs: "values" or "tape", see ``Chain``.

    Raises:
        ValueError: if the lists differ in length or a number is negative.

    >>> chain_of([1, 4, 1, 4], costs=[4, 1, 4, 1]).forward_s
    10
    """
    out = _column("sizes", sizes)
    columns = zip(
        out,
        _column("costs", 1 if costs is None else costs, len(out)),
        _column("saved", saved, len(out)),
        _column("scratch_backward", scratch_backward, len(out)),
        strict=True,
    )
    stages = tuple(Stage(out=o, saved=s, scratch_backward=b, forward_s=c) for o, c, s, b in columns)
    return Chain(stages, input=input, needs=needs)


@dataclass(frozen=True, slots=True)
class Output:
    """The output of a stage, or with stage 0 the chain's input."""

    stage: int


@dataclass(frozen=True, slots=True)
class Tape:
    """The record that a taping forward of a stage leaves for its backward."""

    stage: int


@dataclass(frozen=True, slots=True)
class Forward:
    """Run a stage's forward.

    With keep="nothing" the output lasts until the next forward has read it; with "output" until it is
    dropped or its stage's backward has run; with "tape" the record for backward stays too.
    """

    stage: int
    keep: Keep = "nothing"


@dataclass(frozen=True, slots=True)
class Backward:
    """Run a stage's backward, which frees its output and tape and turns its gradient into the next."""

    stage: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Free an output or a tape."""

    what: Output | Tape


@dataclass(frozen=True, slots=True)
class Offload:
    """Copy an output or a tape to the host."""

    what: Output | Tape


@dataclass(frozen=True, slots=True)
class Fetch:
    """Copy an output or a tape back from the host."""

    what: Output | Tape


Action = Forward | Backward | Drop | Offload | Fetch
