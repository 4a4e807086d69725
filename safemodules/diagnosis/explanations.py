"""Errors that are not about a version, and what causes them, as a table."""

EXPLANATIONS: tuple[tuple[str, str], ...] = (
    (
        "Trying to backward through the graph a second time",
        "A graph is freed by its first backward. Either two losses share a part of it: add them "
        "and call backward once, or pass retain_graph=True to all but the last. Or a tensor is "
        "carried from one step into the next: detach it between the steps, h = h.detach().",
    ),
    (
        "Expected to mark a variable ready only once",
        "Under DistributedDataParallel a parameter reported its gradient twice. Causes: a "
        "reentrant checkpoint (use_reentrant=True) together with find_unused_parameters=True, or "
        "with a block that runs twice, or whose parameters are used outside it too; or two "
        "forwards before one backward. Pass use_reentrant=False to every checkpoint.",
    ),
    (
        "Recomputed values for the following tensors have different metadata",
        "The checkpointed function did not repeat itself in backward: it depends on something "
        "that changed since the forward, such as a counter, a cache, a rebound variable or a "
        "random choice. Make everything that it reads an argument.",
    ),
)


def explain_message(message: str) -> list[str]:
    """Explanations of an error, by its text.

    Example:
        >>> explain_message("Trying to backward through the graph a second time")[0][:41]
        'A graph is freed by its first backward. E'
    """
    return [advice for text, advice in EXPLANATIONS if text in message]
