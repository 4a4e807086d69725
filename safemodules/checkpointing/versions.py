"""Version tokens: whether a tensor was overwritten, without keeping its memory.

NOTE [ Tokens ]: a detached alias shares its tensor's version counter, and goes on sharing it
after its own memory was replaced by an empty one. Such a token costs nothing but itself.
Tensor subclasses may refuse either step; theirs are not followed. Parameters are alive anyway,
so they stand for themselves.
"""

import torch
from torch import Tensor, nn

__all__ = ["Token"]

_EMPTY: dict[tuple[torch.device, torch.dtype], Tensor] = {}
_STRIDED = torch.strided
_PLAIN = (Tensor, nn.Parameter)


def _empty_like(tensor: Tensor) -> Tensor:
    key = tensor.device, tensor.dtype
    found = _EMPTY.get(key)
    if found is None:
        with torch.inference_mode(False):
            found = _EMPTY[key] = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return found


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

    __slots__ = ("_alias", "size", "version")

    def __init__(self, tensor: Tensor) -> None:
        self.size = tensor.size()
        kind = type(tensor)
        # Layouts without a storage, and tensors of inference mode, have nothing to share.
        if kind not in _PLAIN or tensor.layout is not _STRIDED or tensor.is_inference():
            self._alias = _empty_like(tensor)
            self.version = 0
            return
        if kind is not nn.Parameter:
            alias = tensor.detach()
            alias.data = _empty_like(tensor)
            tensor = alias
        self._alias = tensor
        self.version = tensor._version

    @property
    def is_stale(self) -> bool:
        """Whether the tensor was overwritten since."""
        return self._alias._version != self.version

    @property
    def found(self) -> int:
        """The version now."""
        return self._alias._version

    def __str__(self) -> str:
        """The tensor in words: ``"a float32 tensor of sizes [4, 8]"``."""
        return (
            f"a {str(self._alias.dtype).removeprefix('torch.')} tensor of sizes {list(self.size)}"
        )

    def placeholder(self) -> Tensor:
        """A tensor with the sizes, dtype and device, and the memory of one element."""
        return torch.zeros((), dtype=self._alias.dtype, device=self._alias.device).expand(self.size)
