"""Small models for the tests of running plans, and plain training as the oracle."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from remat.pytorch import GPTLayer, mlp

Loss = Callable[[Tensor], Tensor]


def squares(y: Tensor) -> Tensor:
    return y.square().mean()


class Residual(nn.Module):
    """Two convolutions beside the identity."""

    def __init__(self, channels: int, norm: type[nn.Module] | None = None) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = norm(channels) if norm else nn.GroupNorm(2, channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.second(torch.relu(self.norm(self.first(x)))))


def dropped(n: int = 5, width: int = 6, p: float = 0.3) -> list[nn.Module]:
    """Stages that draw random numbers, every other one."""
    return [nn.Sequential(stage, nn.Dropout(p)) if i % 2 else stage for i, stage in enumerate(mlp(n, width))]


def convolutions() -> list[nn.Module]:
    """A residual stack that narrows: uneven stages."""
    torch.manual_seed(0)
    return [
        nn.Conv2d(3, 8, 3, padding=1),
        Residual(8),
        Residual(8),
        nn.Sequential(nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU()),
        Residual(16),
        Residual(16),
        nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)),
    ]


def gpt_layers(n: int = 4) -> list[nn.Module]:
    torch.manual_seed(0)
    return [GPTLayer(64, 4) for _ in range(n)]


MODELS: dict[str, Callable[[], tuple[list[nn.Module], Tensor]]] = {
    "mlp": lambda: (mlp(12, 32), torch.linspace(-1, 1, 256 * 32).reshape(256, 32)),
    "gpt": lambda: (gpt_layers(), torch.linspace(-1, 1, 64 * 2 * 64).reshape(64, 2, 64)),
    "convolutions": lambda: (
        convolutions(),
        torch.linspace(-1, 1, 4 * 3 * 32 * 32).reshape(4, 3, 32, 32),
    ),
}


def parameters(stages: Sequence[object]) -> list[nn.Parameter]:
    modules = [stage for stage in stages if isinstance(stage, nn.Module)]
    return list(dict.fromkeys(parameter for module in modules for parameter in module.parameters()))


def zero(stages: Sequence[object]) -> None:
    for parameter in parameters(stages):
        parameter.grad = torch.zeros_like(parameter)


def plain_step(stages: Sequence[Callable[[Tensor], Tensor]], x: Tensor, loss: Loss) -> Tensor:
    y = x
    for stage in stages:
        y = stage(y)
    value = loss(y)
    value.backward()
    return value.detach()


def outcome(
    stages: Sequence[Callable[[Tensor], Tensor]], step: Callable[[], Tensor], *, seed: int = 0
) -> list[Tensor | None]:
    """The loss, the gradients and the random state that a step leaves, from a fresh start."""
    for parameter in parameters(stages):
        parameter.grad = None
    torch.manual_seed(seed)
    value = step()
    state = torch.get_rng_state()
    return [value, state, *(p.grad if p.grad is None else p.grad.clone() for p in parameters(stages))]


def same(a: Sequence[Tensor | None], b: Sequence[Tensor | None]) -> bool:
    """Bit for bit."""
    return len(a) == len(b) and all(
        x is y if x is None or y is None else torch.equal(x, y) for x, y in zip(a, b, strict=True)
    )
