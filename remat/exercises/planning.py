"""Checks of the exercises of chapters 4 and 5: copies that hide, and strategies that fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from random import Random

from remat.advice import STRATEGIES, Price, Setting, prices
from remat.chain import Fetch, Offload, chain_of
from remat.choice import kept, option, steady_wait
from remat.cost import roofline
from remat.exercises.plans import replayed
from remat.exercises.verdict import Verdict, called, compare, judged, number, right, wrong
from remat.gpt import SHAPES, gpt_layer
from remat.hardware import DEVICES, LINKS, Device, Link
from remat.offload import offload_all
from remat.replay import replay

STEP, START = 64, 1024  # tokens; below, reading the weights takes so long that much hides behind it


def _copy_and_compute(
    s: int, *, h: int, a: int, t: int, device: Device, core: bool = False, whole: bool = False
) -> tuple[float, float, float]:
    """Give the bytes that a layer copies, its forward and its recompute in seconds."""
    layer = gpt_layer(s=s, b=1, h=h, a=a, t=t, sequence_parallel=not whole)
    costs = roofline(layer, device, residual_traffic=False)
    names = kept(layer, recompute="none" if core else "selective")
    way = option(layer, costs, kept=names)
    return layer.bytes_of(names), way.forward_s, (way.backward_s or 0) - 2 * way.forward_s


def _first(hides: Callable[[int], bool]) -> int:
    """Find the first multiple of 64 from 1024 for which something hides, given that it does from there on."""
    low, high = START - STEP, START
    while not hides(high):
        low, high = high, 2 * high
        if high > 2**22:
            return high
    while high - low > STEP:
        middle = (low + high) // 2 // STEP * STEP
        low, high = (low, middle) if hides(middle) else (middle, high)
    return high


@judged
def shortest(function: object, *, seed: int = 0) -> Verdict:
    """Check a function that finds the shortest sequence at which the copies hide.

    Args:
        function: of h, a, t, a device and a link; returns tokens, a multiple of 64 and
            at least 1024.
        seed: of the settings that it is tried on.

    >>> shortest(lambda h, a, t, device, link: ...)
    Not solved yet: put a sequence length in place of the three dots and run both cells again.
    """
    draw, cases = Random(seed), []
    for wire in ("PCIe 4", "PCIe 5", "PCIe 4", "PCIe 4"):
        shape = draw.choice([SHAPES["22B"], SHAPES["GPT-3 175B"], SHAPES["MT-NLG 530B"]])
        device = DEVICES[draw.choice(["A100", "H100"])]
        cases.append((shape.h, shape.a, draw.choice([4, 8]), device, LINKS[wire]))
    for case in cases:
        s = called(function, "a sequence length", *case)
        if number(s, "a sequence length") % STEP or s < START:
            wrong(f"{s:,} is not a multiple of {STEP} from {START:,} on.", "not a multiple")

    def rule(late: Callable[[float, float, float, Link], float], **options: bool) -> Callable[..., float]:
        def find(h: int, a: int, t: int, device: Device, link: Link) -> int:
            def hides(s: int) -> bool:
                copied, forward_s, again_s = _copy_and_compute(s, h=h, a=a, t=t, device=device, **options)
                return bool(late(copied, forward_s, again_s, link) <= 0)

            return _first(hides)

        return find

    def waits(copied: float, forward_s: float, again_s: float, link: Link) -> float:
        return float(steady_wait(copied, forward_s, again_s, link=link))

    suspects = {
        "added both directions up": (
            rule(lambda c, f, r, link: 2 * c / link.bandwidth - 3 * f - r),
            "a copy out hides behind a forward only, and a forward is the shorter half: compare each "
            "direction with its own compute.",
        ),
        "looked at the way back only": (
            rule(lambda c, f, r, link: c / link.bandwidth - 2 * f - r),
            "the way out has only a forward to hide behind, and that is where compute waits first.",
        ),
        "copied the attention core too": (
            rule(waits, core=True),
            "selective recompute drops the core; only what it keeps is copied.",
        ),
        "forgot sequence parallelism": (
            rule(waits, whole=True),
            "with sequence parallelism each GPU copies its own part of everything, 34·sbh/t.",
        ),
        "put both copies behind the forward": (
            rule(lambda c, f, r, link: 2 * c / link.bandwidth - f),
            "the copy back happens during backward, and hides behind that.",
        ),
    }
    compare(function, "a sequence length", cases, rule(waits), suspects, units=False)
    return right("Forward is what the copies must hide behind. Whatever is longer there is waited for.")


@judged
def one_buffer(function: object, *, seed: int = 0) -> Verdict:
    """Check a function that writes an offload plan with room for one stage's record on the device.

    Args:
        function: of n, the number of stages; returns a list of actions for a chain of tapes.
        seed: of the chains that it is tried on.

    >>> one_buffer(lambda n: ...)
    Not solved yet: put a list of actions in place of the three dots and run both cells again.
    """
    draw = Random(seed)
    link = Link("a wire", 2, 2, "made up for this check")
    for n in (2, 3, 5, 8):
        sizes = [draw.randrange(1, 5) for _ in range(n)]
        chain = chain_of(sizes, saved=[draw.randrange(2, 9) for _ in range(n)], needs="tape")
        due = replay(chain, offload_all(chain, buffers=1), link=link)
        plan = called(function, "a list of actions", n)
        counted = replayed(chain, plan, link=link)
        actions = [event.action for event in counted.events]
        if counted.work:
            wrong(
                f"with {n} stages {counted.recomputed} run again; everything is to come back from the host.",
                "recomputed",
            )
        if not any(isinstance(action, Offload) for action in actions):
            wrong("nothing goes to the host, so everything is on the device at once.", "kept everything")
        if counted.peak > due.peak:
            first = next(
                (i for i, event in enumerate(counted.events) if isinstance(event.action, Fetch)), len(actions)
            )
            early = max(event.during.total for event in counted.events[:first])
            wrong(
                f"with {n} stages it peaks at {counted.peak:g}, and {due.peak:g} is possible.",
                "never dropped what it copied" if early > due.peak else "fetched too early",
            )
        if counted.time_s > due.time_s:
            wrong(
                f"with {n} stages it takes {counted.time_s:g} s, and {due.time_s:g} s are enough: "
                f"{counted.host_peak:g} bytes go to the host, where {due.host_peak:g} suffice.",
                "copied what never leaves" if counted.host_peak > due.host_peak else "waited without need",
            )
    return right(
        "One record at a time, nothing recomputed. With one buffer nothing overlaps; a second one buys that."
    )


NOTHING = "nothing fits"
_prices = lru_cache(maxsize=64)(prices)


def _fastest(priced: list[Price]) -> str:
    return min(priced, key=lambda price: price.layer_s).strategy.name if priced else NOTHING


def _settings(draw: Random) -> list[Setting]:
    """Draw settings in which the card is just large enough for a strategy, or holds all but its peak."""
    settings = []
    for _ in range(6):
        spare, card = draw.choice([2e9, 5e9, 10e9]), DEVICES[draw.choice(["A100", "H100", "H200"])]
        setting = Setting(
            SHAPES[draw.choice(["22B", "22B", "GPT-3 175B"])],
            s=draw.choice([2048, 4096, 8192]),
            device=card,
            link=LINKS[draw.choice(["PCIe 4", "PCIe 5", "NVLink-C2C"])],
            t=8,
            p=draw.choice([4, 8]),
            spare=spare,
        )
        price = draw.choice(_prices(setting))
        share = draw.choice([0.5, 0.5, 1.02])  # of what the peak needs beyond what is kept
        room = price.kept + share * (price.activations - price.kept)
        card = replace(card, name=f"a card like {card.name}", memory=round(price.state + room + spare))
        settings.append(replace(setting, device=card))
    return settings


@judged
def strategy(function: object, *, seed: int = 0) -> Verdict:
    """Check a function that chooses the fastest strategy that fits.

    Args:
        function: of a setting; returns the name of a strategy, or "nothing fits".
        seed: of the settings that it is tried on.

    >>> strategy(lambda setting: ...)
    Not solved yet: put the name of a strategy in place of the three dots and run both cells again.
    """
    cases = _settings(Random(seed))
    mistakes: dict[str, Callable[[Price, Setting], bool]] = {
        "took the first that fits": lambda p, g: p.fits,
        "priced what is kept, not the peak": lambda p, g: p.state + p.kept <= p.capacity,
        "forgot the model state": lambda p, g: p.activations <= p.capacity,
        "forgot the spare": lambda p, g: p.total <= g.device.memory,
    }
    failed = []
    for setting in cases:
        name = called(function, "the name of a strategy", setting)
        names = [known.name for known in STRATEGIES]
        if name not in [*names, NOTHING]:
            wrong(f"{name!r} is none of {', '.join(names)}, nor {NOTHING!r}.", "unknown names")
        priced = list(_prices(setting))
        due = _fastest([price for price in priced if price.fits])
        times = {price.strategy.name: price.layer_s for price in priced}
        if name != due and not (name in times and due in times and times[name] == times[due]):
            failed.append((setting, name, due))
        for trap, fits in list(mistakes.items()):
            fitting = [price for price in priced if fits(price, setting)]
            made = fitting[0].strategy.name if fitting and trap.startswith("took") else _fastest(fitting)
            if made != name:
                del mistakes[trap]
    if failed:
        setting, name, due = failed[0]
        where = (
            f"{setting.shape.name}, s = {setting.s}, p = {setting.p}, "
            f"{setting.device.name} with {setting.device.memory / 1e9:.1f} GB, {setting.link.name}"
        )
        price = next((price for price in _prices(setting) if price.strategy.name == name), None)
        reason = "something does fit"
        if price is not None:
            reason = (
                f"it is {price.short / 1e9:.1f} GB short"
                if not price.fits
                else "it fits, but a faster one does too"
            )
        wrong(f"{where}: you say {name}, and {reason}.", next(iter(mistakes), ""))
    return right("It always fits, and nothing that fits is faster.")
