"""Small models that contracts run over; each overwrites tensors in forward in its own way."""

import abc
import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import cases_helpers
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import safemodules as sm

T = TypeVar("T")


class Residual(nn.Module):
    """A clash: sigmoid keeps its result for backward, which the next line overwrites."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.sigmoid(self.linear(x))
        y += x
        return self.act(y * 2)


class Child(Residual):
    """Inherits the edited method through super()."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x).sigmoid()
        y.mul_(3)
        return y


class Grandchild(Child):
    """Inherits forward without a line of its own."""


class Helpers(nn.Module):
    """Overwrites in plain functions: of its own module and of another, decorated or not."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = doubled(self.linear(x).sigmoid())
        return cases_helpers.shifted(cases_helpers.scaled(y.exp()))


def doubled(x: Tensor) -> Tensor:
    x *= 2
    return x


def logged(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def wrapper(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        self.calls = getattr(self, "calls", 0) + 1
        return method(self, *args, **kwargs)

    return wrapper


class Decorated(nn.Module):
    """Methods behind decorators, a static method, a class method and a property."""

    scale = 2.0

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    @logged
    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x).exp()
        y += self.offset
        return self.stretched(self.clipped(y.sigmoid()))

    @property
    def offset(self) -> Tensor:
        offset = self.linear.bias.exp()
        offset += 1
        return offset

    @staticmethod
    def clipped(x: Tensor) -> Tensor:
        x.clamp_(0.2, 0.8)
        return x.exp()

    @classmethod
    def stretched(cls, x: Tensor) -> Tensor:
        x *= cls.scale
        return x


class Flags(nn.Sequential):
    """A container with flags of torch's own modules."""

    def __init__(self) -> None:
        super().__init__(
            nn.Linear(4, 4), nn.Sigmoid(), nn.ReLU(inplace=True), nn.Linear(4, 4), nn.SiLU(True)
        )


class Container(nn.Sequential):
    """A container with a forward of its own; it is sliced and counted."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__(*(blocks or (Residual(), Residual(), Residual())))

    def forward(self, x: Tensor) -> Tensor:
        for block in self:
            y = block(x).exp()
            y -= x
            x = y.tanh()
        return x


class Shared(nn.Module):
    """One module under two names, one class in many instances."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Residual()
        self.second = self.first
        self.rest = nn.ModuleList([Residual(), self.first])

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.first(x))
        for block in self.rest:
            x = block(x)
        return x


class AbstractBlock(nn.Module, abc.ABC):
    @abc.abstractmethod
    def weight(self) -> Tensor: ...


class Concrete(AbstractBlock):
    """Its metaclass is ABCMeta."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def weight(self) -> Tensor:
        weight = self.linear.weight.exp()
        weight += 1
        return weight

    def forward(self, x: Tensor) -> Tensor:
        y = (x @ self.weight()).sigmoid()
        y += x
        return y


class Registering(type):
    """A metaclass that keeps a list of its classes, and takes no name twice."""

    classes: ClassVar[list[type]] = []

    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> type:
        if any(known.__name__ == name for known in mcls.classes):
            raise TypeError(f"{name} is registered already")
        return super().__new__(mcls, name, bases, namespace)

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> None:
        super().__init__(name, bases, namespace)
        Registering.classes.append(cls)


class Metaclassed(Residual, metaclass=Registering):
    """Its metaclass refuses a second class of its name."""


class Registered(Residual):
    """Its subclasses register themselves, and must be told a key."""

    subclasses: ClassVar[list[type]] = []

    def __init_subclass__(cls, *, key: str, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        Registered.subclasses.append(cls)


class RegisteredChild(Registered, key="child"):
    """A registered subclass."""


class Slotted(nn.Module):
    """Has slots besides its __dict__, and a state of its own for copies and pickles."""

    __slots__ = ("factor",)

    def __init__(self) -> None:
        super().__init__()
        self.factor = 3.0
        self.linear = nn.Linear(4, 4)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "factor": self.factor}

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        self.factor = state.pop("factor")
        super().__setstate__(state)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x).exp()
        y *= self.factor
        return y


@dataclass(eq=False)
class Data(nn.Module):
    """A dataclass."""

    width: int = 4

    def __post_init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(self.width, self.width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x).sigmoid()
        y += x
        return y


class Box(nn.Module, Generic[T]):
    """Generic in what it holds."""

    def __init__(self, inner: T) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x).exp()  # type: ignore[operator]
        y -= 1
        return y


class Private(nn.Module):
    """Private names, a buffer that is updated, a default and an annotation."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.__linear = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))

    def __shifted(self, x: Tensor, by: float = 0.5) -> Tensor:
        x += by
        return x.exp()

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        y = self.__shifted(self.__linear(x).sigmoid())
        y[:, 0] = 1
        return F.relu(y, inplace=True)


class BatchNormed(nn.Module):
    """Batch statistics and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True))
        self.drop = nn.Dropout(0.5, inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        y += x
        return self.drop(y.sigmoid())


BUILDERS: dict[str, Callable[[], nn.Module]] = {
    "batch norm": BatchNormed,
    "child": Child,
    "concrete": Concrete,
    "container": Container,
    "data": Data,
    "decorated": Decorated,
    "flags": Flags,
    "generic": lambda: Box[nn.Module](Residual()),
    "grandchild": Grandchild,
    "helpers": Helpers,
    "metaclass": Metaclassed,
    "private": Private,
    "registered": RegisteredChild,
    "residual": Residual,
    "shared": Shared,
    "slots": Slotted,
}


def build(name: str) -> nn.Module:
    """A model of the list, always with the same weights."""
    torch.manual_seed(0)
    return BUILDERS[name]()


@functools.cache
def _converted(name: str) -> nn.Module:
    return sm.convert_model(build(name), example())


def converted(name: str) -> nn.Module:
    """A copy of a model of the list that was converted with the example."""
    return copy.deepcopy(_converted(name))


def example() -> Tensor:
    """An input of every model here, of shape (N, C)."""
    return torch.linspace(-1, 1, 12).reshape(3, 4)
