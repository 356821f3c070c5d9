"""The checks of the coding exercises: stubs are left alone, typical mistakes are called by their names.

Right answers stand in the notebook and are tried in book/test_exercises.py.
"""

import inspect
from collections.abc import Callable
from dataclasses import fields, replace
from math import isqrt, sqrt
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from remat import exercises
from remat.advice import prices
from remat.chain import Backward, Drop, Fetch, Forward, Offload, Output, Tape
from remat.choice import kept, option, program, steady_wait
from remat.choices import every_choice
from remat.cost import flops, roofline
from remat.exercises.chains import _best_greedy
from remat.exercises.verdict import UNITS, Verdict, compare, judged
from remat.gpt import gpt_layer
from remat.pytorch import exercises as measured
from remat.pytorch import saved_tensors
from remat.replay import replay
from remat.schedules import greedy, uniform

CHECKS: dict[str, Callable[..., Verdict]] = {
    name: getattr(exercises, name) for name in exercises.__all__ if name not in ("Verdict", "swiglu", "saved")
} | {name: getattr(measured, name) for name in measured.__all__ if name != "GatedFeedForward"}

NEEDS = {"gate": "x", "up": "x", "silu": "g", "multiply": "a u", "down": "p", "add": ""}


def size(hidden: int, inner: int) -> Callable[..., int]:
    return lambda s, b, h, f: 2 * s * b * (hidden * h + inner * f)


def longest(h: int, a: int, L: int, budget: float) -> int:
    """The largest multiple of 128 below the root of a quadratic equation, by whole numbers alone."""
    s = 0
    while L * (s + 128) * h * 34 + 5 * L * a * (s + 128) ** 2 <= budget:
        s += 128
    return s


def core_alone(h: int, a: int, L: int, budget: float) -> int:
    return isqrt(int(budget / (5 * L * a))) // 128 * 128


def segments_of(n: int, k: int) -> list[tuple[int, int]]:
    return [(start, min(start + k, n)) for start in range(0, n, k)]


def algorithm_1(
    *, sweep: str = "nothing", one_more: bool = False, checkpoints: bool = True
) -> Callable[..., list]:
    """Algorithm 1 with a mistake."""

    def plan(n: int, k: int) -> list:
        ends = {end for _, end in segments_of(n, k)} if checkpoints else {n}
        actions: list = [Forward(i, "output" if i in ends else sweep) for i in range(1, n + 1)]
        for start, end in reversed(segments_of(n, k)):
            if one_more:
                actions.append(Drop(Output(end)))
            actions += [Forward(i, "output") for i in range(start + 1, end + one_more)]
            actions += [Backward(i) for i in range(end, start, -1)]
        return actions

    return plan


def keep_everything(n: int, k: int) -> list:
    return [Forward(i, "output") for i in range(1, n + 1)] + [Backward(i) for i in range(n, 0, -1)]


def off_peak(event_share: float) -> Callable[..., list[int]]:
    """The least work at a peak that leaves something out."""

    def plan(chain, budget):
        from remat.cuts import every_cut

        cuts = every_cut(chain)
        near = [p for p in cuts.frontier if p.peak <= budget + event_share]
        return near[-1].lengths

    return plan


def least_peak(chain, budget):
    from remat.cuts import every_cut

    return every_cut(chain).frontier[0].lengths


def equal_segments(chain, budget):
    plans = [uniform(chain, k) for k in range(1, len(chain) + 1)]
    fitting = [p for p in plans if replay(chain, p).peak <= budget]
    if not fitting:
        return least_peak(chain, budget)
    return min(fitting, key=lambda p: replay(chain, p).work).lengths


def run_again(rule: str) -> Callable[..., list[str]]:
    def names(layer, kept):
        held = {layer.input, *kept}
        needed = {tensor.name for tensor in layer.saved} - held
        rules = {
            "all": lambda op: True,
            "not kept": lambda op: not held.issuperset(op.outputs),
            "makers": lambda op: bool(needed.intersection(op.outputs)),
        }
        found = [op.name for op in layer.operations if rules[rule](op)]
        return found

    return names


def twice(layer, kept):
    return 2 * [op.name for op in program(layer, kept=kept).recomputed]


def by_flops(layer, costs, budget):
    points = every_choice(layer, flops(layer)).frontier
    return [point for point in points if point.kept_bytes <= budget][-1].kept


def largest_first(layer, costs, budget):
    room, names = budget - layer[layer.input].bytes, [layer.input]
    for tensor in sorted(layer.saved, key=lambda tensor: -tensor.bytes):
        if tensor.name != layer.input and tensor.bytes <= room:
            room, names = room - tensor.bytes, [*names, tensor.name]
    return names


def without_input(layer, costs, budget):
    points = every_choice(layer, costs).frontier
    return [p for p in points if p.kept_bytes <= budget + layer[layer.input].bytes][-1].kept


def nothing_kept_but_input(layer, costs, budget):
    return [layer.input]


def hides(late: Callable[..., float], *, names: str = "selective", split: bool = True) -> Callable[..., int]:
    def find(h, a, t, device, link):
        def waits(s):
            layer = gpt_layer(s=s, b=1, h=h, a=a, t=t, sequence_parallel=split)
            held = kept(layer, recompute=names)
            way = option(layer, roofline(layer, device, residual_traffic=False), kept=held)
            copy = layer.bytes_of(held) / link.bandwidth
            return late(copy, way.forward_s, way.backward_s - 2 * way.forward_s) > 0

        s = 1024
        for step in (64 * 64, 64):  # in large steps first, then from the last one that waits
            while waits(s):
                s += step
            s = max(1024, s - step if step > 64 else s)
        return s

    return find


def record(i: int) -> list:
    return [Tape(i), Output(i - 1)] if i > 1 else [Tape(i)]


def offload(
    *, drop: bool = True, ahead: int = 0, last: bool = False, order: int = 1, fetch: bool = True
) -> Callable[[int], list]:
    """The plan with one buffer, with a mistake."""

    def plan(n: int) -> list:
        actions: list = []
        leaving = n if last else n - 1
        for i in range(1, n + 1):
            actions.append(Forward(i, "tape"))
            if i <= leaving:
                actions += [Offload(thing) for thing in record(i)]
                if drop:
                    actions += [Drop(thing) for thing in record(i)[::order]]
        fetched = set()
        for i in range(n, 0, -1):
            for j in range(i, max(0, i - 1 - ahead), -1):
                if fetch and drop and j <= leaving and j not in fetched:
                    fetched.add(j)
                    actions += [Fetch(thing) for thing in record(j)]
            actions.append(Backward(i))
        return actions

    return plan


def tapes(n: int) -> list:
    return [Forward(i, "tape") for i in range(1, n + 1)] + [Backward(i) for i in range(n, 0, -1)]


def recompute_tapes(n: int) -> list:
    actions: list = [Forward(i, "output") for i in range(1, n + 1)]
    for i in range(n, 0, -1):
        actions += [Drop(Output(i)), Forward(i, "tape"), Backward(i)]
    return actions


def pick(fits: Callable[..., bool], *, first: bool = False) -> Callable[..., str]:
    def name(setting):
        fitting = [price for price in prices(setting) if fits(price, setting)]
        if not fitting:
            return "nothing fits"
        return (fitting[0] if first else min(fitting, key=lambda price: price.layer_s)).strategy.name

    return name


def remember(restore: str) -> Callable[..., tuple]:
    def answer(function, x):
        if restore == "seed":
            torch.manual_seed(7)
        before = torch.get_rng_state()
        y = function(x)
        after = torch.get_rng_state()

        def again():
            now = torch.get_rng_state()
            if restore != "nothing":
                torch.set_rng_state(after if restore == "late" else before)
            result = function(x)
            if restore != "rewound":
                torch.set_rng_state(now)
            return result

        return y, again

    return answer


PLANNED_WITH_VALUES = [1, 5, 4, 3, 2, 1]

# exercise, wrong answer, the name of the mistake
MISTAKES = [
    ("needs", NEEDS | {"silu": "a"}, "took the output for the input"),
    ("needs", NEEDS | {"add": "x d"}, "kept a sum's terms"),
    ("needs", NEEDS | {"multiply": "u"}, "forgot the other factor"),
    ("needs", NEEDS | {"gate": "W1 x"}, "counted weights"),
    ("needs", NEEDS | {"down": ""}, "forgot the input"),
    ("needs", NEEDS | {"down": "p d"}, "kept more than backward reads"),
    ("needs", NEEDS | {"down": "q"}, "unknown tensors"),
    ("needs", 7, "not a dict"),
    ("saved", size(2, 4), "counted a storage twice"),
    ("saved", size(0, 4), "forgot the input"),
    ("saved", size(1, 3), "forgot a tensor"),
    ("saved", size(3, 4), "counted a storage twice, and one that nobody reads"),
    ("saved", lambda *at: size(1, 4)(*at) / 2, "counted elements, not bytes"),
    ("saved", lambda *at: size(1, 4)(*at) * 2, "counted 32-bit numbers"),
    ("saved", lambda *at: size(1, 4)(*at) / 2**20, "gave MiB"),
    ("saved", lambda *at: size(1, 4)(*at) / 1e6, "gave MB"),
    ("saved", lambda *at: "many", "not a number"),
    ("longest", lambda h, a, L, budget: longest(h, a, 1, budget), "forgot that there are L layers"),
    ("longest", lambda h, a, L, budget: budget // (L * 34 * h * 128) * 128, "forgot the attention core"),
    ("longest", lambda h, a, L, budget: longest(h, a, L, budget) + 128, "rounded up"),
    ("longest", lambda h, a, L, budget: longest(h, a, L, budget * 2**30 / 1e9), "took a GB for a GiB"),
    ("longest", core_alone, "counted the attention core alone"),
    ("longest", lambda h, a, L, budget: longest(h, a, L, budget) + 1, "not a multiple"),
    ("every_k", algorithm_1(one_more=True), "replayed the last stage"),
    ("every_k", keep_everything, "kept everything"),
    ("every_k", algorithm_1(sweep="output"), "replayed what was still there"),
    ("every_k", algorithm_1(checkpoints=False), "used what was not there"),
    ("every_k", lambda n, k: keep_everything(n, k)[:-1], "stopped early"),
    ("every_k", lambda n, k: ["F1", "B1"], "not an action"),
    ("best_spacing", lambda n, out, saved: round(sqrt(n)), "took the square root of n"),
    ("best_spacing", lambda n, out, saved: round(sqrt(n * (out + saved) / out)), "turned the ratio around"),
    ("best_spacing", lambda n, out, saved: 0, "no spacing"),
    ("within", least_peak, "sought the least peak, not the least work"),
    ("within", equal_segments, "cut into equal segments"),
    ("within", off_peak(2), "forgot the gradient"),
    ("within", lambda chain, budget: [len(chain)], "broke the budget"),
    ("within", lambda chain, budget: list(range(1, len(chain))), "gave the cuts, not the lengths"),
    ("within", lambda chain, budget: [1], "lengths do not add up"),
    ("fooled", [5] * 16, "all sizes alike"),
    ("fooled", [1, 4] * 8, "fooled one threshold, not all"),
    ("fooled", [1, 2, 3], "not sixteen sizes"),
    ("fooled", [10] * 16, "not sixteen sizes"),
    ("again", run_again("all"), "ran the whole layer"),
    ("again", run_again("not kept"), "ran what nobody reads"),
    ("again", run_again("makers"), "stopped one step short"),
    ("again", twice, "ran something twice"),
    ("again", lambda layer, kept: ["multiply"], "unknown names"),
    ("choose", by_flops, "counted FLOPs, not seconds"),
    ("choose", largest_first, "kept the largest first"),
    ("choose", without_input, "forgot the input"),
    ("choose", nothing_kept_but_input, "not the least time"),
    ("choose", lambda layer, costs, budget: [t.name for t in layer.saved], "broke the budget"),
    ("shortest", hides(lambda c, f, r: 2 * c - 3 * f - r), "added both directions up"),
    ("shortest", hides(lambda c, f, r: c - 2 * f - r), "looked at the way back only"),
    ("shortest", hides(lambda c, f, r: c - f, split=False), "forgot sequence parallelism"),
    ("shortest", hides(lambda c, f, r: 2 * c - f), "put both copies behind the forward"),
    ("shortest", lambda h, a, t, device, link: 100, "not a multiple"),
    ("one_buffer", tapes, "kept everything"),
    ("one_buffer", offload(drop=False), "never dropped what it copied"),
    ("one_buffer", offload(ahead=2), "fetched too early"),
    ("one_buffer", offload(last=True), "copied what never leaves"),
    ("one_buffer", offload(order=-1), "dropped what a tape holds"),
    ("one_buffer", offload(fetch=False), "did not fetch in time"),
    ("one_buffer", recompute_tapes, "recomputed"),
    ("strategy", pick(lambda p, g: p.fits, first=True), "took the first that fits"),
    ("strategy", pick(lambda p, g: p.state + p.kept <= p.capacity), "priced what is kept, not the peak"),
    ("strategy", pick(lambda p, g: p.activations <= p.capacity), "forgot the model state"),
    ("strategy", pick(lambda p, g: p.total <= g.device.memory), "forgot the spare"),
    ("strategy", lambda setting: "hope", "unknown names"),
    ("worth", {"linear": True}, "wrapped a lone operation"),
    ("worth", {"linear": False, "gelu": False, "linear, gelu": False}, "forgot what is saved inside"),
    ("segments", [4, 4, 4, 4], "cut into equal segments"),
    ("segments", [16], "one segment over everything"),
    ("segments", PLANNED_WITH_VALUES, "planned with values"),
    ("segments", [2, 3, 4, 7], "the long segment came last"),
    ("segments", [4, 4], "lengths do not add up"),
    ("remember", remember("nothing"), "did not restore the state"),
    ("remember", remember("late"), "saved the state too late"),
    ("remember", remember("rewound"), "left the generator rewound"),
    ("remember", remember("seed"), "seeded with a constant"),
    ("remember", lambda function, x: function(x), "not a pair"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(("name", "answer", "trap"), MISTAKES, ids=[f"{n}: {t}" for n, _, t in MISTAKES])
def test_a_typical_mistake_is_called_by_its_name(name: str, answer: object, trap: str) -> None:
    verdict = CHECKS[name](answer)
    assert (verdict.kind, verdict.trap) == ("wrong", trap), verdict
    assert len(verdict.why) > 20
    assert repr(verdict).startswith(f"✗ Wrong ({trap}): ")
    assert verdict._repr_markdown_().startswith(f"**✗ Wrong ({trap}):** ")


def test_every_exercise_knows_two_mistakes_at_least() -> None:
    for name in CHECKS:
        assert len({trap for exercise, _, trap in MISTAKES if exercise == name}) >= 2, name


FUNCTIONS = {"saved", "longest", "every_k", "best_spacing", "within", "again", "choose", "shortest"}
FUNCTIONS |= {"one_buffer", "strategy", "remember"}


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("answer", [..., None], ids=["dots", "None"])
def test_no_answer_is_not_a_wrong_answer(name: str, answer: object) -> None:
    for stub in [answer, *([lambda *args, **kwargs: answer] if name in FUNCTIONS else [])]:
        verdict = CHECKS[name](stub)
        assert verdict.kind == "not solved yet"
        assert "three dots" in verdict.why
        assert repr(verdict).startswith("Not solved yet: put ")


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_an_error_in_the_answer_is_told_and_not_raised(name: str) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise ZeroDivisionError("division by zero")

    verdict = CHECKS[name](broken)
    assert (verdict.kind, verdict.trap) == ("wrong", "raised an error")
    assert "ZeroDivisionError: division by zero" in verdict.why
    assert CHECKS[name](7).trap == "not a function"


def test_an_answer_is_not_changed_by_its_check() -> None:
    answer = {name: names.split() for name, names in NEEDS.items()}
    before = {name: list(names) for name, names in answer.items()}
    assert exercises.needs(answer).kind == "right"
    assert answer == before


# --- the judges against something independent ---


@given(st.integers(1, 9), st.integers(1, 3), st.integers(2, 20), st.integers(2, 40))
def test_the_described_feed_forward_saves_what_pytorch_saves(s: int, b: int, h: int, f: int) -> None:
    layer = measured.GatedFeedForward(h, f)
    with saved_tensors(layer) as record:
        layer(torch.randn(s, b, h))
    described = exercises.swiglu(s=s, b=b, h=h, f=f)
    assert described.saved_bytes == record.bytes_as()
    assert described.saved_bytes == 2 * s * b * (h + 4 * f)


@settings(max_examples=15)
@given(st.integers(0, 10**6))
def test_the_longest_sequence_is_that_of_the_formula(seed: int) -> None:
    assert exercises.longest(longest, seed=seed).kind == "right"


@settings(max_examples=15)
@given(st.lists(st.integers(1, 9), min_size=16, max_size=16), st.floats(0, 150))
def test_no_threshold_beats_the_best_one(sizes: list[int], threshold: float) -> None:
    from remat.chain import chain_of

    chain = chain_of(sizes)
    assert _best_greedy(chain)[0] <= replay(chain, greedy(chain, threshold)).peak


def test_the_random_numbers_of_the_reader_are_left_alone() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    assert measured.remember(remember("all")).kind == "right"
    assert torch.equal(torch.get_rng_state(), before)


def test_a_mistake_is_named_only_if_it_explains_every_case() -> None:
    """One formula on some inputs and another on the rest is wrong, but nothing in particular."""
    draw = Random(0)

    def now_and_then(s: int, b: int, h: int, f: int) -> int:
        return size(2, 4)(s, b, h, f) if draw.random() < 0.5 else size(1, 4)(s, b, h, f)

    verdict = exercises.saved(now_and_then)
    assert (verdict.kind, verdict.trap) == ("wrong", "")
    assert "too large by a factor of" in verdict.why


def test_units_are_told_apart() -> None:
    factors = sorted(UNITS)
    assert all(b / a > 1.01 for a, b in zip(factors, factors[1:], strict=False))

    @judged
    def check(factor: float) -> Verdict:
        compare(lambda x: factor * x, "bytes", [(3.0,), (7e9,)], lambda x: x, {})
        return Verdict("right", "")

    for factor, (name, _) in UNITS.items():
        assert check(factor).trap == name
    assert check(1.0).kind == "right"
    assert check(1.003).trap == ""
    assert check(-1.0).trap == ""


def test_right_and_wrong_strategies_are_not_the_same_at_every_setting() -> None:
    """A check that no wrong answer fails would be worth nothing; here each fails for one of two seeds."""
    wrong = [answer for name, answer, trap in MISTAKES if name == "strategy" and trap != "unknown names"]
    for answer in wrong:
        assert "wrong" in [exercises.strategy(answer, seed=seed).kind for seed in (0, 5)]


def test_a_verdict_holds_text_alone() -> None:
    assert [field.type for field in fields(Verdict)] == ["Kind", "str", "str"]
    assert replace(Verdict("right", "Yes."), why="No.").why == "No."
    assert all(len(inspect.signature(check).parameters) >= 1 for check in CHECKS.values())


def test_the_price_of_waiting_is_that_of_the_formula() -> None:
    """The judge of `shortest` sees no wait at the answer and some wait one step before."""

    def answer(h, a, t, device, link):
        s = hides(lambda c, f, r: max(c - f, c - 2 * f - r))(h, a, t, device, link)
        for at, waits in ((s, False), (s - 64, True)):
            if at >= 1024:
                layer = gpt_layer(s=at, b=1, h=h, a=a, t=t, sequence_parallel=True)
                names = kept(layer, recompute="selective")
                way = option(layer, roofline(layer, device, residual_traffic=False), kept=names)
                r = way.backward_s - 2 * way.forward_s
                assert (steady_wait(layer.bytes_of(names), way.forward_s, r, link=link) > 0) == waits
        return s

    assert exercises.shortest(answer).kind == "right"
