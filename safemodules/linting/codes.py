"""The table of codes: what each finding means, why it matters, before and after.

A code is stable: it never changes its meaning and is never used again. The hundreds name the
category: ``SM0`` files, ``SM1`` in-place operations, ``SM2`` checkpoints, ``SM3`` loops.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from safemodules.mutation.sites import SiteKind


@dataclass(frozen=True)
class Code:
    """One row of the table.

    Attributes:
        code: what a finding is reported, selected and silenced by.
        name: what it is called.
        why: what goes wrong.
        before: code that is reported.
        after: what to write instead.
        fixes: when ``safemodules fix`` mends it.
    """

    code: str
    name: str
    why: str
    before: str
    after: str
    fixes: str = "not mended by `safemodules fix`"


_SAFE_OR_NOT = (
    "mended where nobody else holds the tensor and the result has the same dtype; with "
    "--unsafe-fixes wherever the written name is local"
)

TABLE: tuple[Code, ...] = (
    Code(
        "SM001",
        "file that is not read",
        "What cannot be read cannot be checked: a syntax error, an unknown encoding, a notebook "
        "that is no JSON.",
        "def forward(self, x:",
        "def forward(self, x):\n    return x",
    ),
    Code(
        "SM101",
        "augmented assignment",
        "`x += y` overwrites the tensor. Backward raises if an operation has saved it, and every "
        "other name of the tensor sees the new values.",
        "h = torch.sigmoid(self.net(x))\nh += x\nreturn h",
        "h = torch.sigmoid(self.net(x))\nh = h + x\nreturn h",
        _SAFE_OR_NOT,
    ),
    Code(
        "SM102",
        "in-place method",
        "A method whose name ends in `_` overwrites the tensor that it is called on.",
        "h = self.net(x).tanh()\nh.mul_(2)\nreturn h",
        "h = self.net(x).tanh()\nh = h.mul(2)\nreturn h",
        _SAFE_OR_NOT,
    ),
    Code(
        "SM103",
        "item assignment",
        "`x[i] = y` overwrites part of the tensor; one counter of versions covers the whole of "
        "it, so that backward raises even if it needs only the other part.",
        "h = self.net(x).exp()\nh[:, 0] = 0\nreturn h",
        "h = self.net(x).exp()\nmask = torch.arange(h.shape[1]) == 0\n"
        "return h.masked_fill(mask, 0)",
    ),
    Code(
        "SM104",
        "in-place function",
        "`torch.relu_(x)` and its like overwrite their first argument.",
        "h = self.net(x)\nreturn torch.relu_(h)",
        "h = self.net(x)\nreturn torch.relu(h)",
        _SAFE_OR_NOT,
    ),
    Code(
        "SM105",
        "function with inplace=True",
        "`F.relu(x, inplace=True)` overwrites its first argument.",
        "h = self.net(x)\nreturn F.relu(h, inplace=True)",
        "h = self.net(x)\nreturn F.relu(h)",
        _SAFE_OR_NOT,
    ),
    Code(
        "SM106",
        "module with inplace=True",
        "`nn.ReLU(inplace=True)` overwrites what it is given, wherever it is called. A backward "
        "hook on the layer before it raises, and so does any operation that has saved its result.",
        "self.act = nn.ReLU(inplace=True)",
        "self.act = nn.ReLU()",
        "mended where every call in the class gives it a tensor that nobody else holds; with "
        "--unsafe-fixes everywhere",
    ),
    Code(
        "SM107",
        "out= argument",
        "`torch.add(a, b, out=c)` overwrites c; autograd refuses it for tensors that require grad.",
        "h = self.net(x)\ntorch.mul(x, 2, out=h)\nreturn h",
        "h = torch.mul(x, 2)\nreturn h",
    ),
    Code(
        "SM108",
        "write through .data",
        "`.data` has a counter of versions of its own: autograd does not see the write, and the "
        "gradients are silently wrong where the old values had been saved.",
        "h = self.net(x).tanh()\nh.data.mul_(2)\nreturn h",
        "h = self.net(x).tanh()\nreturn h * 2",
    ),
    Code(
        "SM109",
        "tensor overwritten after it was collected",
        "The list holds the tensor itself, so its entry changes with the overwrite.",
        "kept = []\nh = self.net(x)\nkept.append(h)\nh += x\nreturn h, kept",
        "kept = []\nh = self.net(x)\nkept.append(h)\nh = h + x\nreturn h, kept",
        "mended with --unsafe-fixes: the list then keeps the old values",
    ),
    Code(
        "SM110",
        "requires_grad switched in forward",
        "A forward that switches `requires_grad` changes its caller's tensor, or which "
        "parameters train, from the second call on; `torch.compile` breaks its graph there.",
        "x.requires_grad_(True)\nreturn self.net(x)",
        "x = x.detach().requires_grad_(True)\nreturn self.net(x)",
    ),
    Code(
        "SM201",
        "reentrant checkpoint",
        "Reentrant checkpointing raises under DistributedDataParallel (`mark a variable ready "
        "only once`), refuses torch.autograd.grad, and drops gradients of nested inputs.",
        "return checkpoint(self.net, x, use_reentrant=True)",
        "return checkpoint(self.net, x, use_reentrant=False)",
        "mended with --unsafe-fixes; safemodules.checkpoint also keeps buffers from moving twice",
    ),
    Code(
        "SM202",
        "checkpoint without use_reentrant",
        "Without the argument torch takes the reentrant variant and warns; later versions raise.",
        "return checkpoint(self.net, x)",
        "return checkpoint(self.net, x, use_reentrant=False)",
        "mended with --unsafe-fixes; safemodules.checkpoint also keeps buffers from moving twice",
    ),
    Code(
        "SM203",
        "checkpointed function that closes over a loop variable",
        "The recomputation runs when the loop is over, so it sees the last value of the variable: "
        "the gradients are silently wrong.",
        "for k in range(3):\n"
        "    x = checkpoint(lambda t: self.net(t) * k, x, use_reentrant=False)\n"
        "return x",
        "for k in range(3):\n"
        "    x = checkpoint(lambda t, k=k: self.net(t) * k, x, use_reentrant=False)\nreturn x",
        "mended with --unsafe-fixes for a lambda",
    ),
    Code(
        "SM301",
        "loop that keeps every iteration",
        "Each iteration's saved tensors live until backward, so memory grows with the number of "
        "iterations.",
        "outputs = []\nfor part in x:\n    outputs.append(self.net(part))\nreturn outputs",
        "outputs = []\nfor part in x:\n"
        "    outputs.append(safemodules.checkpoint(self.net, part))\nreturn outputs",
    ),
    Code(
        "SM302",
        "loss summed with its graph",
        "The sum holds the graph of every iteration although backward has run.",
        "total = 0.0\nfor x in batches:\n    loss = net(x).mean()\n    loss.backward()\n"
        "    total += loss\nprint(total)",
        "total = 0.0\nfor x in batches:\n    loss = net(x).mean()\n    loss.backward()\n"
        "    total += loss.detach()\nprint(total)",
        "mended with --unsafe-fixes by `.detach()`",
    ),
    Code(
        "SM303",
        "retain_graph=True in a loop",
        "Every graph stays alive as long as its loss; most often a missing `detach()` is meant.",
        "for x in batches:\n    loss = net(x).mean()\n    loss.backward(retain_graph=True)",
        "for x in batches:\n    loss = net(x).mean()\n    loss.backward()",
    ),
)

CODES: Mapping[str, Code] = {row.code: row for row in TABLE}

#: The code of each kind of site.
OF_KIND: Mapping[SiteKind, str] = {
    SiteKind.AUGMENTED: "SM101",
    SiteKind.METHOD: "SM102",
    SiteKind.ITEM: "SM103",
    SiteKind.FUNCTION: "SM104",
    SiteKind.FUNCTION_FLAG: "SM105",
    SiteKind.MODULE_FLAG: "SM106",
    SiteKind.OUT: "SM107",
}


def explain(code: Code) -> str:
    """What ``safemodules lint --explain`` prints of a code."""
    parts = [
        f"{code.code}: {code.name}",
        "",
        code.why,
        "",
        "Before:",
        *(f"    {line}" for line in code.before.splitlines()),
        "",
        "After:",
        *(f"    {line}" for line in code.after.splitlines()),
        "",
        f"Fix: {code.fixes}.",
    ]
    return "\n".join(parts)
