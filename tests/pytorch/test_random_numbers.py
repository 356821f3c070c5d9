from collections.abc import Callable
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch import nn
from torch._dynamo.backends.common import aot_autograd

from remat.pytorch.checkpointing.random_numbers import SOURCES, global_generator, state_bytes, wrong_share
from remat.pytorch.checkpointing.trial import Checkpoint, non_reentrant, plain, reentrant


@pytest.mark.parametrize("under", [reentrant, non_reentrant])
@pytest.mark.parametrize("p", [0.1, 0.25, 0.5])
def test_the_share_of_wrong_entries_is_that_of_two_masks_that_differ(p: float, under: Checkpoint) -> None:
    n, runs = 10_000, 4
    for preserve, expected in ((True, 0.0), (False, 2 * p * (1 - p))):
        found = [
            wrong_share(lambda _: nn.Dropout(p), preserve=preserve, seed=s, entries=n, checkpoint=under)
            for s in range(runs)
        ]
        spread = (expected * (1 - expected) / (n * runs)) ** 0.5
        assert abs(sum(found) / runs - expected) <= 5 * spread


EXPECTED = [(0, 0.5), (0.5, 0.5), (0, 0), (0.5, 0.5), (0.5, 0.5), (1, 1)]


@pytest.mark.parametrize("under", [reentrant, non_reentrant])
@pytest.mark.parametrize(("source", "shares"), list(zip(SOURCES, EXPECTED, strict=True)))
def test_what_the_flag_protects(source: str, shares: tuple[float, float], under: Checkpoint) -> None:
    for preserve, share in zip((True, False), shares, strict=True):
        found = wrong_share(SOURCES[source], preserve=preserve, checkpoint=under)
        assert found == share if share in (0, 1) else abs(found - share) < 0.03


@pytest.mark.parametrize("source", SOURCES)
def test_a_plain_run_has_no_wrong_entry(source: str) -> None:
    assert wrong_share(SOURCES[source], preserve=False, checkpoint=plain) == 0


def test_wrong_share_leaves_the_global_state() -> None:
    before = torch.get_rng_state()
    wrong_share(global_generator, preserve=False)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("preserve", [True, False])
def test_compiled_the_mask_is_right_because_its_draw_is_repeated_with_its_state(preserve: bool) -> None:
    assert wrong_share(global_generator, preserve=preserve, backend="aot_eager") == 0
    graphs: list[list[str]] = []

    def note(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append([str(node.target) for node in graph.graph.nodes])
        return make_boxed_func(graph.forward)

    torch.compiler.reset()
    backend = aot_autograd(
        fw_compiler=note, bw_compiler=note, partition_fn=min_cut_rematerialization_partition
    )
    assert wrong_share(global_generator, preserve=preserve, backend=backend) == 0
    forward, backward = graphs
    assert "run_and_save_rng_state" in forward  # not the mask is kept, but the state it came from
    assert "run_with_rng_state" in backward


@pytest.mark.parametrize("regions", [1, 3])
@pytest.mark.parametrize("under", [reentrant, non_reentrant])
def test_a_region_holds_one_state(regions: int, under: Checkpoint) -> None:
    assert state_bytes(regions, checkpoint=under) == torch.get_rng_state().nbytes == 5056


def test_a_plain_run_holds_no_state() -> None:
    assert state_bytes(2, checkpoint=plain) == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: wrong_share(global_generator, preserve=True, entries=0), "entries must be .* got 0"),
        (lambda: state_bytes(0), "regions must be .* got 0"),
    ],
)
def test_errors_name_the_argument(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
