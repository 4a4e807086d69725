"""Places: what stands behind a name, and how a new value gets there.

NOTE [ Places ]: `name[i].attr[k]` is evaluated once, from the name outwards, as a chain of
(value, place of the container, key, whether the key is an attribute). Storing a new value
goes inwards again: a tensor that contains it is copied and the copy stored in its own place,
anything else takes the value as an entry. What then belongs to the name is returned.

Only the outermost step is the assignment that the source spells out. Those further in stand
for memory that the original writes through; so an entry that is a copy of its tensor (as
`h[mask]` is) ends the chain, a tuple is made anew, and a container that takes no new entry
has the memory of its old one written.
"""

from operator import setitem
from typing import Any

import torch
from torch import Tensor, nn

from safemodules.rewriting.copies import is_kept_leaf, stand_in, written_in_place
from safemodules.rewriting.inference import overwrites
from safemodules.rewriting.overlap import on_itself, overlap

# Of an operator that writes any elements of its target.
_ANY = "masked_scatter_"
Place = tuple[Any, Any, Any, bool]


class _Key:
    """``KEY[1:, ::2]`` is the index ``(slice(1, None), slice(None, None, 2))``."""

    __slots__ = ()

    def __getitem__(self, key: Any) -> Any:
        return key


KEY = _Key()


def at(root: Any) -> Place:
    """The place of a local name."""
    return root, None, None, False


def item(place: Place, key: Any) -> Place:
    """The place of ``place[key]``."""
    return place[0][key], place, key, False


def attribute(place: Place, name: str) -> Place:
    """The place of ``place.name``."""
    return getattr(place[0], name), place, name, True


def root_of(place: Place) -> Any:
    """What the name of a place stands for."""
    while place[1] is not None:
        place = place[1]
    return place[0]


def is_state(place: Place) -> bool:
    """Whether a place lies in a parameter or on a module, whose tensors keep their identity.

    So does a leaf where no graph is recorded. In inference every place is written as the
    original writes it.
    """
    if overwrites():
        return True
    while place[1] is not None:
        place = place[1]
        if isinstance(place[0], (nn.Parameter, nn.Module)) or is_kept_leaf(place[0]):
            return True
    return False


def assign(place: Place, value: Any) -> Any:
    """``place = value`` for a place behind a name; returns the name's new value."""
    entry, container, key, is_attribute = place
    if container is None:
        return value
    if not is_attribute and value is entry:  # it was written where it stands
        container[0][key] = value
        return root_of(container)
    if not is_attribute:
        return assign_item(container, key, value)
    setattr(container[0], key, value)
    return root_of(container)


def assign_item(container: Place, key: Any, value: Any) -> Any:
    """``container[key] = value`` out of place; returns the name's new value."""
    holder = container[0]
    if written_in_place(holder) or is_state(container):
        holder[key] = value
        return root_of(container)
    if _overlap(holder, key, value) and on_itself(setitem, holder, key, value):
        return root_of(container)
    copy = stand_in(holder)
    copy[key] = value
    return overwrite(container, copy)


def _overlap(holder: Tensor, key: Any, value: Any) -> bool:
    """Whether a value, or an index, lies in what ``holder[key] = value`` writes."""
    keys = key if isinstance(key, tuple) else (key,)
    if not any(isinstance(given, (Tensor, list)) for given in (value, *keys)):
        return False
    if overlap(holder, keys):
        return True
    if not overlap(holder, (value,), _ANY):
        return False
    return _copies(key) or overlap(holder[key], (value,))  # a view: what is written is known


def overwrite(place: Place, value: Any) -> Any:
    """Let a place hold what an in-place operator would have left in its tensor.

    Returns:
        What belongs to the name at its root.
    """
    entry, container, key, is_attribute = place
    if container is None:
        return value
    holder = container[0]
    if value is entry or (isinstance(holder, Tensor) and not is_attribute and _copies(key)):
        return root_of(place)
    if isinstance(holder, tuple):
        return _overwrite_in_tuple(place, value)
    if isinstance(holder, Tensor) and not is_attribute:
        return assign_item(container, key, value)
    try:
        if is_attribute:
            setattr(holder, key, value)
        else:
            holder[key] = value
    except (AttributeError, TypeError):  # read only
        entry.copy_(value)
    return root_of(place)


def _overwrite_in_tuple(place: Place, value: Any) -> Any:
    entry, container, key, is_attribute = place
    holder = container[0]
    fields = getattr(type(holder), "_fields", None)
    if fields is None and type(holder) is not tuple:  # such as what torch.max returns
        entry.copy_(value)
        return root_of(place)
    entries = list(holder)
    entries[fields.index(key) if is_attribute and fields is not None else key] = value
    made = tuple(entries) if fields is None else type(holder)._make(entries)
    return overwrite(container, made)


def _copies(key: Any) -> bool:
    """Whether ``tensor[key]`` is a copy: something else than basic indices is used."""
    if isinstance(key, tuple):
        return any(_copies(part) for part in key)
    if isinstance(key, Tensor):
        return key.dim() > 0 or key.is_floating_point() or key.dtype is torch.bool
    return not (
        key is None
        or key is Ellipsis
        or isinstance(key, slice)
        or (not isinstance(key, bool) and hasattr(key, "__index__"))
    )
