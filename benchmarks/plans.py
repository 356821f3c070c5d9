"""Plans on real modules: what replay counts, PyTorch measures, and how long a step takes. A Markdown table.

Run from the top of the repository, on a machine that does nothing else (about a minute):

    .venv/bin/python benchmarks/plans.py

Peaks count the input and leave out weights and their gradients. Times are medians over rounds in which all
steps of a model take turns, over plain training and over `checkpoint_sequential` with the same model.
"""

import platform
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint_sequential

from remat.frontier import best, frontier
from remat.hardware import link
from remat.offload import offload_all, offload_checkpoints
from remat.pytorch import GPTLayer, checkpointed, mlp, profile, run, step_peak, time_ratios
from remat.replay import replay
from remat.schedules import recursive, sequential, store_all, uniform

SEGMENTS = 3


class Residual(nn.Module):
    """Two convolutions beside the identity."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.GroupNorm(4, channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Return x and what the convolutions make of it, nothing below zero."""
        return torch.relu(x + self.second(torch.relu(self.norm(self.first(x)))))


def residual() -> tuple[list[nn.Module], Tensor]:
    def halved(channels: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1), nn.ReLU())

    stages = [nn.Conv2d(3, 8, 3, padding=1), Residual(8), Residual(8), halved(8)]
    stages += [*(Residual(16) for _ in range(3)), halved(16), *(Residual(32) for _ in range(3))]
    return [*stages, nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))], torch.randn(
        8, 3, 48, 48
    )


def one_wide() -> tuple[list[nn.Module], Tensor]:
    def stage(inner: int) -> nn.Module:
        return nn.Sequential(nn.Linear(64, inner), nn.GELU(), nn.Linear(inner, 64), nn.GELU())

    return [stage(1024 if i == 3 else 64) for i in range(12)], torch.randn(1024, 64)


MODELS: dict[str, Callable[[], tuple[list[nn.Module], Tensor]]] = {
    "16 × Linear+GELU": lambda: (mlp(16, 128), torch.randn(1024, 128)),
    "12 blocks, one 16 × as wide": one_wide,
    "6 GPT layers": lambda: ([GPTLayer(128, 4) for _ in range(6)], torch.randn(128, 2, 128)),
    "residual stack": residual,
}


def loss(y: Tensor) -> Tensor:
    return y.square().mean()


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"PyTorch {torch.__version__}, {platform.machine()}, one thread\n")
    print("| model | strategy | predicted peak, B | measured peak, B | over plain | over sequential |")
    print("|:--|:--|--:|--:|--:|--:|")
    for name, build in MODELS.items():
        stages, x = build()
        model, chain = nn.Sequential(*stages), profile(stages, x, loss)

        def cut(model: nn.Sequential = model, x: Tensor = x) -> None:
            loss(checkpoint_sequential(model, SEGMENTS, x, use_reentrant=False)).backward()

        budget = step_peak(cut, stages, x)
        found = frontier(chain)
        plans = {
            "run: store all": store_all(chain),
            "run: every 3": uniform(chain, 3),
            f"run: checkpoint_sequential's cut in {SEGMENTS}": sequential(chain, SEGMENTS),
            "run: recursive, k = 1": recursive(chain, 1),
            "run: least peak": found.points[0].schedule(chain),
            "run: offload all": offload_all(chain),
            "run: offload checkpoints": offload_checkpoints(chain),
        }
        steps: dict[str, Callable[[], object]] = {
            "plain": lambda model=model, x=x: loss(model(x)).backward(),
            f"checkpoint_sequential, {SEGMENTS}": cut,
        }
        predicted = {}
        for key, plan in plans.items():
            steps[key] = lambda plan=plan, stages=stages, x=x: run(plan, stages, x, loss)
            predicted[key] = replay(chain, plan, link=link("PCIe 5")).peak
        if budget >= found.points[0].peak:
            plan = best(chain, budget)
            key = "checkpointed: planned for its measured peak"
            wrapped = checkpointed(model, plan)
            steps[key] = lambda wrapped=wrapped, x=x: loss(wrapped(x)).backward()
            predicted[key] = replay(chain, plan).peak
        ratios = time_ratios(steps, repeats=9)
        sequential_ratio = ratios[f"checkpoint_sequential, {SEGMENTS}"]
        for key, step in steps.items():
            counted = f"{predicted[key]:,.0f}" if key in predicted else ""
            measured = step_peak(step, stages, x)
            print(
                f"| {name} | {key} | {counted} | {measured:,} | {ratios[key]:.2f} | "
                f"{ratios[key] / sequential_ratio:.2f} |"
            )


if __name__ == "__main__":
    main()
