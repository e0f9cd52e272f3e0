"""Linear layers with what follows them, and their exchange for faster ones, which do both at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
from torch import nn
from torch.nn import functional

Activation = Literal["gelu", "gelu_tanh", "silu"]
"""``gelu`` is the exact one, ``gelu_tanh`` the one by a hyperbolic tangent."""
Combine = Literal["add", "mul"]
_ACTIVATIONS: dict[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": functional.gelu,
    "gelu_tanh": lambda product: functional.gelu(product, approximate="tanh"),
    "silu": functional.silu,
}
_MLPS = (("fc1", "activation_fn"), ("fc1", "act"), ("linear_fc1", "act_fn"))
"""Names, in the vision encoders of Transformers, of a Linear and of the activation that alone reads it."""


@dataclass(frozen=True, slots=True)
class Then:
    """What is done with a product: an activation, or a sum or product with another tensor of the output's shape."""

    activation: Activation | None = None
    combine: Combine | None = None

    @property
    def for_onednn(self) -> tuple[str, list[float], str]:
        """The activation in its words: name, numbers, algorithm."""
        match self.activation:
            case None:
                return "none", [], ""
            case "silu":
                return "swish", [1.0], ""
            case gelu:
                return "gelu", [], "none" if gelu == "gelu" else "tanh"

    @property
    def coarse(self) -> Then:
        """The exact GELU in place of either, for arithmetic that does not tell them apart.

        oneDNN has it in half of the time: 1024 x 768 x 3072 on a Xeon with AMX, one thread, takes 8.8 ms with the
        hyperbolic tangent, 6.8 with the exact one and 4.9 without any. The cosine of SigLIP-B's features to float32's
        is 0.99995 either way in bfloat16 and 0.99949 in int8.
        """
        return replace(self, activation="gelu") if self.activation == "gelu_tanh" else self


NOTHING = Then()


class LinearThen(nn.Linear):
    """A Linear that knows what follows it, and does it. It takes the weights of one that is there."""

    def __init__(self, linear: nn.Linear, then: Then) -> None:
        super().__init__(linear.in_features, linear.out_features, bias=False, device="meta")
        self.weight, self.bias = linear.weight, cast("Any", linear.bias)  # declared as never absent
        self.then = then

    def forward(self, input: torch.Tensor, other: torch.Tensor | None = None) -> torch.Tensor:
        """From (…, in_features) to (…, out_features); ``other`` is what a sum or product is with."""
        product = super().forward(input)
        if self.then.activation is not None:
            product = _ACTIVATIONS[self.then.activation](product)
        if other is None:
            return product
        return other + product if self.then.combine == "add" else other * product


def joined(*linears: nn.Linear) -> nn.Linear:
    """One that gives the outputs of all, side by side."""
    weight = torch.cat([linear.weight.detach() for linear in linears])
    declared = [cast("torch.Tensor | None", linear.bias) for linear in linears]  # the library says: never absent
    biases = [bias.detach() for bias in declared if bias is not None]
    one = nn.Linear(weight.shape[1], weight.shape[0], bias=bool(biases), device="meta")
    one.weight = nn.Parameter(weight, requires_grad=False)
    if biases:
        one.bias = nn.Parameter(torch.cat(biases), requires_grad=False)
    return one


def activation_of(module: nn.Module) -> Activation | None:
    """By what it computes: the library has half a dozen classes for two formulas, which differ by 5e-4.

    One that has weights is none of them, and one that is clipped shows it far from 0 only.
    """
    if next(module.parameters(), None) is not None:
        return None
    points = torch.cat([torch.linspace(-4, 4, 65), torch.tensor([-1000.0, -20.0, 20.0, 1000.0])])
    with torch.inference_mode():
        values = module(points)
        for name, activation in _ACTIVATIONS.items():
            if torch.allclose(activation(points), values):
                return name
    return None


def is_librarys(module: nn.Module) -> bool:
    """Whether its class is one of Transformers', not one of the same name in code that a checkpoint brings along."""
    return type(module).__module__.startswith("transformers.models.")


def replace_linears(model: nn.Module, build: Callable[[nn.Linear, Then], nn.Module]) -> int:
    """Puts what ``build`` makes in the place of every plain Linear and of every ``LinearThen``; returns how many.

    Other subclasses are left alone.
    """
    return sum(_replace_children(module, build) for module in list(model.modules()))


def _replace_children(module: nn.Module, build: Callable[[nn.Linear, Then], nn.Module]) -> int:
    linears = [(name, child) for name, child in module.named_children() if type(child) in (nn.Linear, LinearThen)]
    for name, linear in linears:
        assert isinstance(linear, nn.Linear)
        attribute, then = ("", linear.then) if isinstance(linear, LinearThen) else _gelu_behind(module, name)
        setattr(module, name, build(linear, then))
        if attribute:
            setattr(module, attribute, nn.Identity())
    return len(linears)


def _gelu_behind(module: nn.Module, name: str) -> tuple[str, Then]:
    """Where the activation behind a Linear is, if that is a GELU."""
    for linear, attribute in _MLPS:
        activation = cast("object", getattr(module, attribute, None)) if linear == name else None
        if isinstance(activation, nn.Module):
            formula = activation_of(activation)
            return (attribute, Then(formula)) if formula in ("gelu", "gelu_tanh") else ("", NOTHING)
    return "", NOTHING
