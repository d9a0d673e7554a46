"""A model's modules by the names that plans use: those of the model as it was before anything was wrapped around it."""

from __future__ import annotations

from torch import nn

from memfit.record.module_names import unwrapped_name


def unwrapped(model: nn.Module) -> nn.Module:
    """Without what DDP and ``torch.compile`` put around a model."""
    while True:
        is_data_parallel = isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel)
        inner = model.module if is_data_parallel else getattr(model, "_orig_mod", None)
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def depths_of(model: nn.Module) -> dict[str, int]:
    """How many modules each list of modules holds that is in no other list, by name; that of the model itself is empty."""
    lists = {"": model} | named_units(model)
    return {
        name: len(module)
        for name, module in lists.items()
        if isinstance(module, nn.ModuleList | nn.Sequential) and not any(part.isdecimal() for part in name.split("."))
    }


def named_units(model: nn.Module) -> dict[str, nn.Module]:
    """Every module below the model. Where wrappers share a name with what they wrap, it is that of the innermost."""
    return {unwrapped_name(name): module for name, module in model.named_modules() if unwrapped_name(name)}
