"""Which values of a program may stand in the same memory: in-place operation and sharing by lifetime.

Follows Chen et al. 2016, section 3. Nothing is recomputed here; a result that backward reads stays until
backward has read it, which is why sharing alone leaves training at O(n).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

from remat import _check
from remat.steps import Program, Step

POLICIES = ("none", "in place", "sharing", "both")

# Kinds of operation whose every output element depends on the input elements at its own place alone, so
# that forward and backward may overwrite what they read. Batch norm, layer norm and softmax are not among
# them: they read all of a channel or row before they write. A reshaping kernel (pooling) is not either.
ELEMENTWISE = frozenset({"relu", "sigmoid", "tanh", "gelu", "dropout", "residual"})


@dataclass(frozen=True, slots=True)
class Life:
    """From the step that writes a value to the last that reads it, both counted.

    The layer's input is there from step 0; what the program hands on lives to ``len(steps)``, one past the
    last step, and so does the input, which is the caller's.
    """

    first: int
    last: int


@dataclass(frozen=True)
class Assignment:
    """A buffer for every value of a program.

    Attributes:
        policy: the word that ``share`` was given.
        buffer: the number of each value's buffer, by the value's name.
        sizes: bytes of each buffer, that of its largest value.
        lives: the life of each value.
        bound: the most bytes alive at any step; with in-place operation an overwritten value and its
            overwriter count once. No assignment under the policy needs less.
    """

    policy: str
    buffer: Mapping[str, int]
    sizes: tuple[float, ...]
    lives: Mapping[str, Life]
    bound: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "buffer", MappingProxyType(dict(self.buffer)))
        object.__setattr__(self, "lives", MappingProxyType(dict(self.lives)))

    @property
    def bytes(self) -> float:
        """Bytes of all buffers."""
        return sum(self.sizes)


def lifetimes(program: Program) -> dict[str, Life]:
    """Find when each value of a program is written and last read, by name.

    A value that nothing reads lives in the step that writes it.

    Source: Chen et al. 2016, section 3.

    >>> from remat.convnet import mlp_net
    >>> from remat.steps import training
    >>> lifetimes(training(mlp_net(layers=1, width=8, batch=1)))["sigmoid1"]
    Life(first=1, last=3)
    """
    first = {program.input.name: 0}
    last = dict(first)
    for index, step in enumerate(program.steps):
        first.update((value.name, index) for value in step.writes)
        last.update((value.name, index) for value in step.reads + step.writes)
    last.update((value.name, len(program.steps)) for value in (program.input, *program.handed_on))
    return {name: Life(first[name], last[name]) for name in first}


def overwrites(program: Program, lives: Mapping[str, Life] | None = None) -> dict[str, str]:
    """Say which values may be written over which: for each such value, the one that it overwrites.

    A step may write over a value that it is the last to read, if it works element by element and both have
    the same size. Each value is overwritten at most once; of two that would do, the one read first (in
    backward the gradient) is.

    >>> from remat.convnet import mlp_net
    >>> from remat.steps import training
    >>> overwrites(training(mlp_net(layers=1, width=8, batch=1)))
    {'sigmoid1': 'linear1', '∂linear1': '∂sigmoid1'}
    """
    lives = lifetimes(program) if lives is None else lives
    pairs: dict[str, str] = {}
    for index, step in enumerate(program.steps):
        if not _elementwise(step):
            continue
        dying = [value for value in step.reads if lives[value.name].last == index]
        for value in step.writes:
            victim = next((old for old in dying if old.bytes == value.bytes), None)
            if victim is not None:
                dying.remove(victim)
                pairs[value.name] = victim.name
    return pairs


def _elementwise(step: Step) -> bool:
    return step.phase == "accumulate" or (step.operation is not None and step.operation.kind in ELEMENTWISE)


def live_bytes(program: Program, *, in_place: bool = False) -> list[float]:
    """Count the bytes alive during each step: written or still to be read, what the step reads included.

    Args:
        program: the steps.
        in_place: whether a value that may overwrite another counts once with it in the step that does.

    >>> from remat.convnet import mlp_net
    >>> from remat.steps import training
    >>> program = training(mlp_net(layers=1, width=1, batch=1, element_bytes=1))
    >>> live_bytes(program), live_bytes(program, in_place=True)
    ([2, 3, 3, 4, 3], [2, 2, 3, 3, 3])
    """
    lives = lifetimes(program)
    size = {value.name: value.bytes for value in program.values}
    changes: list[float] = [0] * (len(program.steps) + 2)
    for name, life in lives.items():
        changes[life.first] += size[name]
        changes[life.last + 1] -= size[name]
    live, total = [], changes[0] - changes[0]
    for change in changes[: len(program.steps)]:
        total += change
        live.append(total)
    if in_place:
        for name in overwrites(program, lives):
            live[lives[name].first] -= size[name]
    return live


def share(program: Program, policy: str) -> Assignment:
    """Give every value of a program a buffer.

    One pass over the steps. A value takes the smallest free buffer that holds it, else the largest free
    one, which grows (buffers are laid out before the program runs), else a new one. A buffer is free when
    its value has been read for the last time.

    Args:
        program: the steps; weights and their gradients are not in it.
        policy: "none" gives every result and every gradient a buffer of its own; "in place" lets
            element-by-element steps overwrite what they are the last to read; "sharing" hands a freed
            buffer to a later step; "both" does both.

    Returns:
        The assignment, deterministic. It need not be the best; ``bound`` says how far off it can be.

    Raises:
        ValueError: if policy is another word.

    Source: Chen et al. 2016, section 3 (the linear-time heuristic).

    >>> from remat.convnet import mlp_net
    >>> from remat.steps import training
    >>> program = training(mlp_net(layers=8, width=1, batch=1, element_bytes=1))
    >>> [share(program, policy).bytes for policy in POLICIES]
    [34, 18, 11, 10]
    """
    _check.one_of("policy", policy, POLICIES)
    in_place, by_lifetime = policy in ("in place", "both"), policy in ("sharing", "both")
    lives = lifetimes(program)
    over = overwrites(program, lives) if in_place else {}
    handed_over = set(over.values())
    sizes: list[float] = [program.input.bytes]
    buffer = {program.input.name: 0}
    free: list[tuple[float, int]] = []  # (bytes, number), sorted

    def take(bytes: float) -> int:
        if not free:
            sizes.append(bytes)
            return len(sizes) - 1
        _, number = free.pop(min(bisect_left(free, (bytes, 0)), len(free) - 1))
        sizes[number] = max(sizes[number], bytes)
        return number

    for index, step in enumerate(program.steps):
        for value in step.writes:
            victim = over.get(value.name)
            buffer[value.name] = take(value.bytes) if victim is None else buffer[victim]
        if by_lifetime:
            for name in dict.fromkeys(value.name for value in step.reads + step.writes):
                if lives[name].last == index and name not in handed_over:
                    insort(free, (sizes[buffer[name]], buffer[name]))
    bound = max(live_bytes(program, in_place=in_place), default=program.input.bytes)
    return Assignment(policy, buffer, tuple(sizes), lives, bound)


def check(program: Program, assignment: Assignment) -> None:
    """Judge an assignment: every value has room, and no two alive at the same step share a buffer.

    The one exception is a step that may overwrite what it reads (see ``overwrites``).

    Raises:
        ValueError: naming the values and the buffer.

    >>> from remat.convnet import mlp_net
    >>> from remat.steps import training
    >>> program = training(mlp_net(layers=8, width=64, batch=16))
    >>> for policy in POLICIES:
    ...     check(program, share(program, policy))
    """
    lives = lifetimes(program)
    over = overwrites(program, lives)
    tenants: dict[int, list[str]] = {}
    for value in program.values:
        if value.name not in assignment.buffer:
            raise ValueError(f"buffer must name every value, got none for {value.name!r}")
        number = assignment.buffer[value.name]
        room = assignment.sizes[number]
        if value.bytes > room:
            raise ValueError(f"buffer {number} must hold {value.name!r}: {value.bytes} bytes in {room}")
        tenants.setdefault(number, []).append(value.name)
    for number, names in tenants.items():
        names.sort(key=lambda name: (lives[name].first, lives[name].last))
        for old, new in pairwise(names):
            a, b = lives[old], lives[new]
            if a.last > b.first or (a.last == b.first and over.get(new) != old):
                raise ValueError(f"buffer {number} holds {old!r} and {new!r}, both alive at step {b.first}")
