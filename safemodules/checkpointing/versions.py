"""Version tokens: whether a tensor was overwritten, without keeping its memory.

NOTE [ Tokens ]: a detached alias shares its tensor's version counter, and goes on sharing it
after its own memory was replaced by an empty one. Such a token costs nothing but itself.
Tensor subclasses may refuse either step; theirs are not followed.
"""

import torch
from torch import Tensor, nn

__all__ = ["Token"]

_EMPTY: dict[tuple[torch.device, torch.dtype], Tensor] = {}
_PLAIN = (Tensor, nn.Parameter)


def _empty_like(tensor: Tensor) -> Tensor:
    key = tensor.device, tensor.dtype
    if key not in _EMPTY:
        with torch.inference_mode(False):
            _EMPTY[key] = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return _EMPTY[key]


class Token:
    """The version that a tensor has, to be compared with the one that it gets.

    Args:
        tensor: the tensor; its memory is not kept.

    Example:
        >>> import torch
        >>> x = torch.ones(2)
        >>> token = Token(x)
        >>> token.is_stale
        False
        >>> _ = x[0].zero_()
        >>> token.is_stale
        True
    """

    __slots__ = ("_alias", "device", "dtype", "size", "version")

    def __init__(self, tensor: Tensor) -> None:
        self.size, self.dtype, self.device = tensor.size(), tensor.dtype, tensor.device
        self._alias: Tensor | None = None
        self.version = 0
        # Layouts without a storage, and tensors of inference mode, have nothing to share.
        if type(tensor) in _PLAIN and tensor.layout is torch.strided and not tensor.is_inference():
            alias = tensor.detach()
            alias.data = _empty_like(tensor)
            self._alias = alias
            self.version = alias._version

    @property
    def is_stale(self) -> bool:
        """Whether the tensor was overwritten since."""
        return self._alias is not None and self._alias._version != self.version

    @property
    def found(self) -> int:
        """The version now."""
        return self.version if self._alias is None else self._alias._version

    def __str__(self) -> str:
        """The tensor in words: ``"a float32 tensor of sizes [4, 8]"``."""
        return f"a {str(self.dtype).removeprefix('torch.')} tensor of sizes {list(self.size)}"

    def placeholder(self) -> Tensor:
        """A tensor with the sizes, dtype and device, and the memory of one element."""
        return torch.zeros((), dtype=self.dtype, device=self.device).expand(self.size)
