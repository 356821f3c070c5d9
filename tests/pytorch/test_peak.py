import gc
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.multiprocessing.reductions import StorageWeakRef

from remat.pytorch import GPTLayer, checkpoint_segments, live_bytes, mlp, peak_bytes


def with_gradients(modules: list[nn.Module]) -> nn.Module:
    model = nn.ModuleList(modules)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return model


def tracked_peak(model: nn.Module, x: Tensor, step: Callable[[], object]) -> int:
    """The oracle: storages followed by weak references, at the level of dispatched operations."""
    tracker = MemTracker()
    tracker.track_external(model, x)
    with tracker:
        step()
    cpu = torch.device("cpu")
    peak, now = tracker.get_tracker_snapshot("peak")[cpu], tracker.get_tracker_snapshot("current")[cpu]
    assert now["Total"] <= peak["Total"]
    return int(peak["Total"] - now["Total"])  # the steps below leave nothing, so what is left lived before


def assert_agree(measured: int, tracked: int, regions: int) -> None:
    """Equal, but for what the tracker cannot see: scalars inside operations, and states of the random draw.

    A checkpointed region holds one state until its backward, and its replay sets one more aside.
    """
    states, rest = divmod(measured - tracked, torch.get_rng_state().nbytes)
    assert 0 <= states <= (regions + 1 if regions else 0)
    assert rest < 200


def test_history_of_elementwise_operations() -> None:
    # a; b = exp a; a goes; c = sin b; then both go.
    def step() -> None:
        a = torch.ones(1000)
        b = a.exp()
        del a
        b.sin()

    assert live_bytes(step) == [0, 4000, 8000, 4000, 8000, 4000, 0]
    assert peak_bytes(step) == 8000


def test_what_lived_before_does_not_count() -> None:
    before = torch.ones(10**6)
    assert peak_bytes(lambda: before.exp_()) == 0
    assert peak_bytes(lambda: before[:1000].exp()) == 4000


@pytest.mark.parametrize("born", ["before any measurement", "in an earlier measurement"])
def test_releasing_what_lived_before_changes_nothing(born: str) -> None:
    held: list[Tensor] = []
    if born == "before any measurement":
        held.append(torch.ones(5000))
    else:
        peak_bytes(lambda: held.append(torch.ones(5000)))

    def step() -> None:
        held.clear()
        torch.ones(1000)

    assert live_bytes(step) == [0, 4000, 0]


def test_what_the_step_returns_is_released_at_its_end() -> None:
    assert live_bytes(lambda: torch.ones(1000)) == [0, 4000, 0]


def test_what_the_step_leaves_behind_counts() -> None:
    held: list[Tensor] = []
    assert live_bytes(lambda: held.append(torch.ones(1000)))[-1] == 4000


def test_temporaries_inside_an_operation_count() -> None:
    x = torch.ones(100, 100)
    # A sum over the strided dimension of a product: the product is a temporary result.
    assert peak_bytes(lambda: (x * x).sum(0)) == 100 * 100 * 4 + 100 * 4


def test_the_same_step_has_the_same_peak_again() -> None:
    stages, x = mlp(4, 64), torch.ones(512, 64)
    with_gradients(stages)

    def step() -> None:
        checkpoint_segments(stages, [2, 2], x).mean().backward()

    assert len({peak_bytes(step) for _ in range(3)}) == 1


@pytest.mark.parametrize("lengths", [[8], [4, 4], [1, 3, 2, 2], [1] * 8])
@pytest.mark.parametrize("loss", ["mean", "square", "logsumexp"])
def test_agrees_with_mem_tracker_on_a_chain(lengths: list[int], loss: str) -> None:
    stages, x = mlp(8, 64), torch.ones(512, 64)
    model = with_gradients(stages)
    losses: dict[str, Callable[[Tensor], Tensor]] = {
        "mean": lambda y: y.mean(),
        "square": lambda y: (y * y).mean(),
        "logsumexp": lambda y: y.logsumexp(-1).sum(),
    }

    def step() -> None:
        losses[loss](checkpoint_segments(stages, lengths, x)).backward()

    step()
    assert_agree(peak_bytes(step), tracked_peak(model, x, step), regions=len(lengths) - 1)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_agrees_with_mem_tracker_on_gpt_layers(recompute: str) -> None:
    layers = [GPTLayer(64, 4, recompute=recompute) for _ in range(2)]
    model, x = with_gradients(list(layers)), torch.ones(64, 2, 64)

    def step() -> None:
        layers[1](layers[0](x)).mean().backward()

    step()
    regions = 0 if recompute == "none" else 2
    assert_agree(peak_bytes(step), tracked_peak(model, x, step), regions)


def test_gradients_that_did_not_exist_count() -> None:
    layer, x = nn.Linear(100, 100, bias=False), torch.ones(1, 100)

    def step() -> None:
        layer(x).sum().backward()

    fresh = live_bytes(step)
    assert fresh[-1] == layer.weight.nbytes
    assert live_bytes(step)[-1] == 0  # now it exists, and backward adds to it


def test_an_error_in_the_step_passes_through_and_the_next_measurement_works() -> None:
    def step() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        peak_bytes(step)
    assert peak_bytes(lambda: torch.ones(1000)) == 4000


def test_after_an_error_nothing_of_the_step_is_held() -> None:
    references = []

    def step() -> None:
        y = torch.ones(1000, requires_grad=True).exp()
        references.append(StorageWeakRef(y.untyped_storage()))
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        peak_bytes(step)
    del caught
    gc.collect()
    assert references[0].expired()


def test_a_measurement_holds_nothing_of_the_step_afterwards() -> None:
    references = []

    def step() -> Tensor:
        y = torch.ones(1000, requires_grad=True).exp()
        references.append(StorageWeakRef(y.untyped_storage()))
        return y.sin()

    assert peak_bytes(step) == 3 * 4000
    assert references[0].expired()


def test_two_models_measured_one_after_the_other_do_not_mix() -> None:
    def measured(width: int) -> int:
        model, x = with_gradients(mlp(2, width)), torch.ones(8 * width, width)

        def step() -> None:
            checkpoint_segments(list(model), [2], x).mean().backward()

        step()
        return peak_bytes(step)

    alone = [measured(width) for width in (16, 128)]
    assert alone[1] > 10 * alone[0]
    assert [measured(width) for width in (128, 16, 128)] == [alone[1], alone[0], alone[1]]


def test_two_models_in_one_step_peak_where_both_live() -> None:
    small, large, x = mlp(1, 16)[0], mlp(1, 64)[0], torch.ones(128, 16)

    def one(model: nn.Module, width: int) -> Tensor:
        return model(x.repeat(1, width // 16))  # type: ignore[no-any-return]

    peaks = [peak_bytes(lambda: one(small, 16)), peak_bytes(lambda: one(large, 64))]
    together = peak_bytes(lambda: (one(small, 16), one(large, 64)))
    # A repeated batch, Linear's result and GELU's: two are saved, the last is the caller's.
    assert peaks == [3 * 128 * 16 * 4, 3 * 128 * 64 * 4]
    assert together == sum(peaks)


def test_the_first_measurement_of_a_process_prints_nothing() -> None:
    program = "import torch\nfrom remat.pytorch import peak_bytes\nprint(peak_bytes(lambda: torch.ones(10)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("40\n", "")


@pytest.mark.parametrize("device", ["meta", "gpu"])
def test_a_device_that_cannot_be_measured_is_refused(device: str) -> None:
    with pytest.raises(ValueError, match=rf"device must be 'cpu' or a CUDA device, got '{device}'"):
        peak_bytes(lambda: None, device=device)


class Allocator:
    """A CUDA device's statistics, for allocations made by hand; its work is done only when waited for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.peak = 0
        self.pending: list[int] = []
        self.asked: set[torch.device] = set()
        for name in ("synchronize", "reset_peak_memory_stats", "memory_allocated", "max_memory_allocated"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))

    def allocate(self, change: int) -> None:
        self.pending.append(change)

    def synchronize(self, device: torch.device) -> None:
        self.asked.add(device)
        for change in self.pending:
            self.now += change
            self.peak = max(self.peak, self.now)
        self.pending.clear()

    def reset_peak_memory_stats(self, device: torch.device) -> None:
        self.asked.add(device)
        self.peak = self.now

    def memory_allocated(self, device: torch.device) -> int:
        self.asked.add(device)
        return self.now

    def max_memory_allocated(self, device: torch.device) -> int:
        self.asked.add(device)
        return self.peak


def test_on_cuda_the_peak_is_that_of_the_step_above_what_it_found(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Allocator(monkeypatch)
    for change in (1000, 5000, -5000):  # a higher peak, before the step; the last still on its way
        gpu.allocate(change)

    def step() -> None:
        for change in (300, -100, 250, -450):
            gpu.allocate(change)

    assert [peak_bytes(step, device="cuda:1") for _ in range(2)] == [450, 450]
    assert peak_bytes(lambda: gpu.allocate(-1000), device="cuda:1") == 0
    assert gpu.asked == {torch.device("cuda", 1)}


def test_on_cuda_an_error_passes_through_and_the_next_measurement_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = Allocator(monkeypatch)

    def step() -> None:
        gpu.allocate(700)
        gpu.allocate(-700)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        peak_bytes(step, device=torch.device("cuda"))
    assert peak_bytes(lambda: gpu.allocate(40), device="cuda") == 40


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_counts_what_the_step_allocates() -> None:
    before = torch.ones(10**6, device="cuda")
    # The caching allocator rounds up to 512 bytes; these are multiples.
    assert peak_bytes(lambda: before[:1024].exp().sin(), device="cuda") == 2 * 4096
    assert peak_bytes(lambda: before.exp_(), device="cuda") == 0
