"""What cuBLAS, cuBLASLt and cuDNN take once, and keep."""

from __future__ import annotations

import threading

import pytest
import torch

from memfit.phantom.device import streams
from memfit.phantom.kernels.library_handles import Libraries
from memfit.phantom.target import Target
from memfit.units import MIB

aten = torch.ops.aten
H200 = Target.parse("H200", "2.11+cu130")


@pytest.fixture(autouse=True)
def _fresh_streams():
    """As they are when a phantom world is entered."""
    streams.restart()


def matrix() -> torch.Tensor:
    return torch.empty(8, 8, device="meta")


def test_cublas_takes_its_workspace_once():
    libraries = Libraries(H200)
    assert libraries.newly_taken(aten.mm.default, (matrix(), matrix())) == [32 * MIB]
    assert libraries.newly_taken(aten.bmm.default, (matrix(), matrix())) == []


def test_another_thread_takes_its_own():
    libraries, taken = Libraries(H200), []
    libraries.newly_taken(aten.mm.default, (matrix(), matrix()))
    thread = threading.Thread(target=lambda: taken.extend(libraries.newly_taken(aten.mm.default, (matrix(), matrix()))))
    thread.start()
    thread.join()
    assert taken == [32 * MIB]


def test_another_stream_takes_its_own(monkeypatch):
    libraries = Libraries(H200)
    libraries.newly_taken(aten.mm.default, (matrix(), matrix()))
    monkeypatch.setattr("memfit.phantom.kernels.library_handles.current_stream_number", lambda: streams.current_stream_number() + 1)
    assert libraries.newly_taken(aten.mm.default, (matrix(), matrix())) == [32 * MIB]


def test_a_bias_is_added_by_cublaslt():
    libraries = Libraries(H200)
    assert libraries.newly_taken(aten.addmm.default, (matrix(), matrix(), matrix())) == [32 * MIB]
    assert libraries.newly_taken(aten.addmm.default, (matrix()[0], matrix(), matrix())) == [MIB]


def test_cublaslt_shares_the_workspace_since_2_12():
    assert Libraries(Target.parse("H200", "2.12")).newly_taken(aten.addmm.default, (matrix()[0], matrix(), matrix())) == [32 * MIB]


def test_cudnn_keeps_the_states_of_dropout_once_in_a_process():
    libraries = Libraries(H200)
    still, dropping = [None] * 11 + [0.0, True], [None] * 11 + [0.1, True]
    assert libraries.newly_taken(aten._cudnn_rnn.default, still) == []
    assert libraries.newly_taken(aten._cudnn_rnn.default, dropping) == [6488064]
    assert libraries.newly_taken(aten._cudnn_rnn.default, dropping) == []


def test_other_operators_keep_nothing():
    assert Libraries(H200).newly_taken(aten.relu.default, (matrix(),)) == []
    assert Libraries(H200).newly_taken(aten.sum.default, (matrix(),)) == []
