"""Saving and loading where there are no data: nothing is written, and what is loaded has its place."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from helpers.phantom_worlds import phantom
from safetensors.torch import load_file, save_file
from torch import nn


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    weight = torch.arange(4.0)
    torch.save({"weight": weight, "tied": weight, "part": weight[1:3], "step": 7}, tmp_path / "real.pt")
    return tmp_path / "real.pt"


def test_what_was_saved_can_be_loaded_and_no_file_is_written(tmp_path: Path):
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(b"precious")
    with phantom() as world:
        model = nn.Linear(4, 4).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(1, 4, device="cuda")).sum().backward()
        optimizer.step()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "host": torch.arange(3)}
        torch.save(state, path)
        loaded = torch.load(path, map_location="cpu")
        assert (loaded["epoch"], loaded["host"].tolist()) == (3, [0, 1, 2])
        assert (loaded["model"]["weight"].shape, loaded["model"]["weight"].device.type) == ((4, 4), "cpu")
        model.load_state_dict(torch.load(path)["model"])
        optimizer.load_state_dict(torch.load(path)["optimizer"])
        assert optimizer.state[model.weight]["exp_avg"].is_cuda
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        assert isinstance(torch.load(file, weights_only=False).weight, nn.Parameter)
    assert path.read_bytes() == b"precious"
    assert any("torch.save was passed over" in sentence for sentence in world.assumptions.sentences())


def test_what_has_data_is_saved_with_them(tmp_path: Path):
    with phantom() as world:
        torch.save({"tokens": torch.arange(5), "seed": 1}, tmp_path / "data.pt")
    assert torch.load(tmp_path / "data.pt")["tokens"].tolist() == [0, 1, 2, 3, 4]
    assert world.assumptions.sentences() == ()


@pytest.mark.parametrize(
    "location",
    ["cuda", torch.device("cuda", 0), {"cpu": "cuda:0"}, lambda storage, place: storage.cuda(0)],
    ids=["name", "device", "mapping", "function"],
)
def test_a_real_file_is_loaded_to_the_gpu(saved: Path, location):
    with phantom():
        loaded = torch.load(saved, map_location=location)
        assert (loaded["weight"].is_cuda, loaded["step"]) == (True, 7)
        assert loaded["weight"].untyped_storage().data_ptr() == loaded["tied"].untyped_storage().data_ptr()
        assert loaded["part"].data_ptr() == loaded["weight"].data_ptr() + 4
        model = nn.Linear(2, 2, bias=False, device="meta")
        model.load_state_dict({"weight": loaded["weight"].view(2, 2)}, assign=True)
        assert model.weight.is_cuda


def test_a_real_file_is_loaded_to_the_host_with_its_data(saved: Path):
    with phantom():
        assert torch.load(saved)["weight"].tolist() == [0, 1, 2, 3]
        assert torch.load(saved, map_location="cpu", mmap=True)["part"].sum().item() == 3


def test_safetensors(tmp_path: Path):
    save_file({"weight": torch.arange(4.0)}, tmp_path / "real.safetensors")
    with phantom() as world:
        assert load_file(tmp_path / "real.safetensors", device="cuda")["weight"].is_cuda
        assert load_file(tmp_path / "real.safetensors")["weight"].tolist() == [0, 1, 2, 3]
        save_file(nn.Linear(4, 4).cuda().state_dict(), tmp_path / "phantom.safetensors")
        save_file({"real": torch.arange(3)}, tmp_path / "host.safetensors")
    assert not (tmp_path / "phantom.safetensors").exists()
    assert load_file(tmp_path / "host.safetensors")["real"].tolist() == [0, 1, 2]
    assert any("safetensors were not written" in sentence for sentence in world.assumptions.sentences())


def test_distributed_checkpoints(tmp_path: Path):
    import torch.distributed.checkpoint as dcp

    asked = []

    class Application:
        def state_dict(self):
            asked.append("state_dict")
            return {"weight": torch.ones(2, device="cuda")}

        def load_state_dict(self, state):
            asked.append("load_state_dict")

    with phantom(world_size=2) as world:
        dist.init_process_group("nccl")
        dcp.save({"app": Application()}, checkpoint_id=tmp_path / "dcp")
        dcp.async_save({"app": Application()}, checkpoint_id=tmp_path / "dcp").result()
        dcp.load({"app": Application()}, checkpoint_id=tmp_path / "dcp")
    assert asked == ["state_dict", "state_dict", "state_dict", "load_state_dict"]
    assert not (tmp_path / "dcp").exists()
    assert any("checkpoint was passed over" in sentence for sentence in world.assumptions.sentences())


def test_a_compiled_model_has_the_state_of_the_original():
    with phantom():

        @torch.compile(fullgraph=True, mode="max-autotune")
        def double(x):
            return x * 2

        original = nn.Linear(2, 2).cuda()
        model = torch.compile(original, backend="inductor")
        assert model._orig_mod is original
        assert double(model(torch.ones(1, 2, device="cuda"))).is_cuda
        assert list(model.state_dict()) == ["_orig_mod.weight", "_orig_mod.bias"]
        torch.compiler.reset()
        torch.compiler.cudagraph_mark_step_begin()
        assert not torch.compiler.is_compiling()
