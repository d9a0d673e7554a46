import pytest

from memfit.errors import ConfigError
from memfit.hardware import find_gpu
from memfit.hardware.gpu import KEPT_BYTES
from memfit.units import GIB, MIB

TABLE = """
[My-Card]
arch = "sm_90"
num_sms = 100
total = "50 GiB"
l2_cache = "50 MiB"
teraflops = { bf16 = 500, tf32 = 250, f8 = 1000, f32 = 50, f64 = 25 }
gigabytes_per_second = { memory = 2000, link = 300, host = 64 }
speed_source = "its owner"
"""


@pytest.mark.parametrize(
    "said", ["24GiB", "RTX-4090=48GiB", "mine=12GiB", "sm_90=64GiB", "A100-80GB=0.5", "A100-80GB=50%", "A100-80GB MIG 3g.40gb"]
)
def test_a_described_gpu_is_found_again_by_its_name(said: str):
    gpu = find_gpu(said)
    assert gpu.name == said
    assert find_gpu(gpu.name) == gpu
    assert gpu.caveat
    assert not gpu.is_offered


def test_memory_alone_is_a_card_like_the_one_with_about_as_much():
    gpu, like = find_gpu("24GiB"), find_gpu("RTX-3090")
    assert (gpu.total_bytes, gpu.usable_bytes) == (24 * GIB, 24 * GIB - KEPT_BYTES)
    assert (gpu.arch, gpu.bf16_flops) == (like.arch, like.bf16_flops)
    assert "RTX-3090" in gpu.caveat
    assert find_gpu("24gb").total_bytes == 24 * GIB


def test_a_known_card_with_other_memory_is_that_card():
    gpu = find_gpu("RTX-4090=48GiB")
    assert (gpu.num_sms, gpu.total_bytes) == (128, 48 * GIB)
    assert "as fast as" not in gpu.caveat


def test_an_architecture_lends_its_kernels():
    assert find_gpu("sm_90=100GiB").arch == "sm_90"
    assert find_gpu("nobody-knows-it=80GiB").arch == find_gpu("A100-80GB").arch


def test_a_share_of_a_card_has_that_share_of_everything():
    whole, half = find_gpu("A100-80GB"), find_gpu("A100-80GB=0.5")
    assert half.usable_bytes == round(whole.usable_bytes / 2)
    assert (half.num_sms, half.bf16_flops, half.memory_bandwidth) == (54, whole.bf16_flops / 2, whole.memory_bandwidth / 2)
    assert half.context_bytes == whole.context_bytes
    assert find_gpu("A100-80GB=50%").usable_bytes == half.usable_bytes


@pytest.mark.parametrize(
    ("said", "usable", "num_sms"),
    [
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 4864 * MIB, 13),
        ("A100-40GB MIG 2g.10gb", 9984 * MIB, 27),
        ("a100-40gb 3g.20gb", 19968 * MIB, 40),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", 9728 * MIB, 13),
    ],
)
def test_a_slice_has_what_nvidia_smi_says_of_it(said: str, usable: int, num_sms: int):
    gpu = find_gpu(said)
    assert (gpu.usable_bytes, gpu.num_sms) == (usable, num_sms)


def test_a_file_is_a_gpu_wherever_the_process_is(tmp_path, monkeypatch):
    (tmp_path / "card.toml").write_text(TABLE)
    monkeypatch.chdir(tmp_path)
    gpu = find_gpu("card.toml")
    monkeypatch.chdir("/")
    assert gpu.name == f"My-Card={tmp_path}/card.toml"
    assert find_gpu(gpu.name) == gpu
    assert gpu.usable_bytes == 50 * GIB - KEPT_BYTES


def test_a_file_that_changed_is_read_again(tmp_path):
    path = tmp_path / "card.toml"
    path.write_text(TABLE)
    assert find_gpu(str(path)).num_sms == 100
    path.write_text(TABLE.replace("num_sms = 100", "num_sms = 90"))
    assert find_gpu(str(path)).num_sms == 90


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ("A100-80GB=1.5", "a share of it"),
        ("A100-80GB=0.0", "more than 0"),
        ("=48GiB", "a name before"),
        ("A100=0.5", "could be A100-40GB or A100-80GB"),
        ("mine=1GiB", "more memory"),
        ("A100-80GB MIG 3g.30gb", "has no slice 3g.30gb"),
        ("nowhere.toml", "No such file"),
    ],
)
def test_what_describes_no_gpu_is_refused(said: str, problem: str):
    with pytest.raises(ConfigError, match=problem):
        find_gpu(said)


def test_a_file_without_a_gpu_is_refused(tmp_path):
    (tmp_path / "card.toml").write_text("a = 1\nb = 2\n")
    with pytest.raises(ConfigError, match="has no GPU"):
        find_gpu(str(tmp_path / "card.toml"))
