"""transformers: architectures of all kinds, each from a tiny configuration."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import transformers
from torch import nn

from benchmarks.cases import MODES, Call, Case, Inputs, Mode, tokens
from benchmarks.transformers_mixed import AUDIO, MULTIMODAL
from benchmarks.transformers_text import (
    AUTOENCODING,
    CAUSAL,
    DECODER,
    LENGTH,
    SEQ2SEQ,
    TEXT,
    VOCABULARY,
)
from benchmarks.transformers_vision import IMAGE, SIDE


def cases() -> list[Case]:
    """One case for every row of the tables."""
    rows: list[Case] = []
    for name, config in AUTOENCODING.items():
        rows.append(_case(name, "AutoModel", TEXT | config, _masked_text))
    for name, config in CAUSAL.items():
        rows.append(_case(name, "AutoModelForCausalLM", TEXT | config, _text))
    for name, config in SEQ2SEQ.items():
        rows.append(
            _case(name, "AutoModelForSeq2SeqLM", TEXT | DECODER | config, _sequence_to_sequence)
        )
    for name, config in IMAGE.items():
        rows.append(_case(name, "AutoModel", config, _pixels))
    for name, config in AUDIO.items():
        rows.append(_case(name, "AutoModel", config, _sound))
    for name, config in MULTIMODAL.items():
        rows.append(_case(name, "AutoModel", config, _image_and_text))
    return rows


def _case(name: str, auto: str, config: dict[str, Any], inputs: Callable[..., Call]) -> Case:
    """A row: settings that start with a capital letter are for the case, not the model."""
    settings = {key: value for key, value in config.items() if key[0].isupper()}
    left_out = settings.get("Without", ())
    config = {
        key: value for key, value in config.items() if not key[0].isupper() and key not in left_out
    }
    kind: Inputs = partial(inputs, settings)
    return Case(
        name=f"transformers/{name}",
        factory=partial(_build, settings.get("Type", name), settings.get("Class", auto), config),
        inputs=kind,
        gradients=settings.get("Gradients", MODES),
        input_grads=settings.get("InputGradients", True),
    )


def _build(kind: str, auto: str, config: dict[str, Any]) -> nn.Module:
    transformers.logging.set_verbosity_error()
    found = getattr(transformers, auto)
    build = found.from_config if auto.startswith("Auto") else found
    model: nn.Module = build(configuration(kind, config))
    return model


def configuration(kind: str, config: dict[str, Any]) -> Any:
    """The configuration of a model type; nested dictionaries with a Type become their own."""
    values = {
        key: configuration(value["Type"], {k: v for k, v in value.items() if k != "Type"})
        if isinstance(value, dict) and "Type" in value
        else value
        for key, value in config.items()
    }
    return transformers.AutoConfig.for_model(kind, **values)


def _text(settings: dict[str, Any], mode: Mode, generator: torch.Generator) -> Call:
    shape = 2, settings.get("Length", LENGTH)
    ids = tokens(VOCABULARY, *shape, generator=generator)
    return Call((), {"input_ids": ids, "use_cache": False} | settings.get("Inputs", {}))


def _masked_text(settings: dict[str, Any], mode: Mode, generator: torch.Generator) -> Call:
    shape = 2, settings.get("Length", LENGTH)
    ids = tokens(VOCABULARY, *shape, generator=generator)
    mask = torch.ones(shape, dtype=torch.long)
    mask[1, -3:] = 0
    return Call((), {"input_ids": ids, "attention_mask": mask} | settings.get("Inputs", {}))


def _sequence_to_sequence(settings: dict[str, Any], mode: Mode, generator: torch.Generator) -> Call:
    call = _masked_text(settings, mode, generator)
    length = settings.get("DecoderLength", 6)
    return Call(
        (),
        call.kwargs
        | {
            "decoder_input_ids": tokens(VOCABULARY, 2, length, generator=generator),
            "use_cache": False,
        },
    )


def _pixels(settings: dict[str, Any], mode: Mode, generator: torch.Generator) -> Call:
    shape = settings.get("Shape", (2, 3, SIDE, SIDE))
    return Call((torch.randn(shape, generator=generator),), dict(settings.get("Inputs", {})))


def _sound(settings: dict[str, Any], mode: Mode, generator: torch.Generator) -> Call:
    kwargs = dict(settings.get("Inputs", {}))
    name = settings.get("Name", "input_values")
    kwargs[name] = torch.randn(settings.get("Shape", (2, 1600)), generator=generator)
    if "DecoderLength" in settings:
        length = settings["DecoderLength"]
        kwargs["decoder_input_ids"] = tokens(VOCABULARY, 2, length, generator=generator)
    return Call((), kwargs)


def _image_and_text(settings: dict[str, Any], mode: Mode, generator: torch.Generator) -> Call:
    call = _masked_text(settings, mode, generator)
    shapes = settings.get("Floats", {"pixel_values": settings.get("Shape", (2, 3, SIDE, SIDE))})
    floats = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return Call((), call.kwargs | floats)
