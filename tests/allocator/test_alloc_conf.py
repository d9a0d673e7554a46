import pytest

from memfit.allocator import AllocatorSettings, parse_alloc_conf
from memfit.errors import ConfigError
from memfit.units import MIB


def test_nothing_means_the_defaults():
    assert parse_alloc_conf("") == AllocatorSettings()


def test_every_setting_is_read():
    settings = parse_alloc_conf(
        "expandable_segments:True, max_split_size_mb:128,max_non_split_rounding_mb:40 ,garbage_collection_threshold:0.8,"
        "roundup_power2_divisions:8,large_segment_size_mb:64,per_process_memory_fraction:0.5,throw_on_cudamalloc_oom:True,backend:native,",
        "2.13.0+cu130",
    )
    assert settings == AllocatorSettings(
        torch_version="2.13.0+cu130",
        expandable_segments=True,
        max_split_bytes=128 * MIB,
        max_non_split_rounding_bytes=40 * MIB,
        garbage_collection_threshold=0.8,
        roundup_power2_divisions=(8,) * 16,
        large_segment_bytes=64 * MIB,
        per_process_memory_fraction=0.5,
        throw_on_cudamalloc_oom=True,
    )


def test_divisions_by_size():
    settings = parse_alloc_conf("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]")
    assert settings.roundup_power2_divisions == (1,) * 9 + (2, 4) + (8,) * 5


def test_a_size_between_two_that_are_named_is_left_alone():
    assert parse_alloc_conf("roundup_power2_divisions:[1:2,8:4]").roundup_power2_divisions == (2, 0, 0, 4) + (0,) * 12


@pytest.mark.parametrize("conf", ["pinned_use_background_threads:True", "release_lock_on_cudamalloc:True"])
def test_settings_that_do_not_change_memory_are_accepted(conf: str):
    assert parse_alloc_conf(conf) == AllocatorSettings()


@pytest.mark.parametrize(
    ("conf", "named"),
    [
        ("max_split_size:128", "'max_split_size'; torch 2.11 knows backend, expandable_segments"),
        ("throw_on_cudamalloc_oom:True", "needs torch 2.12"),
        ("expandable_segments:true", "expandable_segments:true .* True or False"),
        ("max_split_size_mb:19", "max_split_size_mb must be 20 or more"),
        ("max_split_size_mb:-1", "max_split_size_mb:-1 .* whole number"),
        ("max_split_size_mb:1e9", "whole number"),
        ("max_non_split_rounding_mb:3", "max_non_split_rounding_mb must be 20"),
        ("large_segment_size_mb:10", "large_segment_size_mb must be more than 10"),
        ("garbage_collection_threshold:1.0", "garbage_collection_threshold"),
        ("garbage_collection_threshold:0", "garbage_collection_threshold"),
        ("garbage_collection_threshold:nan", "garbage_collection_threshold"),
        ("per_process_memory_fraction:1.5", "per_process_memory_fraction"),
        ("per_process_memory_fraction:half", "per_process_memory_fraction:half"),
        ("roundup_power2_divisions:3", "3 is not a power of two"),
        ("roundup_power2_divisions:[3:2]", "3 is not a power of two"),
        ("roundup_power2_divisions:[256]", "must look like 256:1"),
        ("roundup_power2_divisions:[256:2", "cannot read"),
        ("expandable_segments", "cannot read"),
        ("expandable_segments:True,,max_split_size_mb:64", "cannot read"),
        ("backend:cudaMallocAsync", "cudaMallocAsync replaces"),
    ],
)
def test_what_pytorch_would_refuse_is_refused_by_name(conf: str, named: str):
    with pytest.raises(ConfigError, match=named):
        parse_alloc_conf(conf)


@pytest.mark.parametrize("version", ["two", "2", "2.5.1", "1.13"])
def test_versions_that_cannot_be_meant(version: str):
    with pytest.raises(ConfigError, match="torch"):
        AllocatorSettings(torch_version=version)
