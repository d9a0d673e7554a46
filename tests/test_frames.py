"""Reading a variable of a running function leaves nothing behind."""

from __future__ import annotations

import gc
import sys
import weakref

from memfit.frames import local_variable


class Thing:
    pass


def test_a_variable_of_a_caller_is_read():
    self = Thing()
    assert local_variable(sys._getframe(), "self") is self


def test_there_is_none_of_that_name():
    assert local_variable(sys._getframe(), "other") is None


def test_a_variable_of_a_module_is_none_of_a_function():
    found = []
    code = compile("self = 1\nfound.append(read(frame(), 'self'))\nassert self == 1", "module", "exec")
    exec(code, {"found": found, "read": local_variable, "frame": sys._getframe})
    assert found == [None]


def test_what_a_loop_lets_go_is_gone():
    """As a training loop does, whose logits of the last step end when those of the next come."""

    def loop(read):
        self, large = Thing(), Thing()
        before = weakref.ref(large)
        read(sys._getframe())
        large = None
        return before(), self, large

    gc.disable()  # only references count
    try:
        assert loop(lambda frame: local_variable(frame, "self"))[0] is None
        if sys.version_info < (3, 13):
            assert loop(lambda frame: frame.f_locals["self"])[0] is not None  # the proof can fail
    finally:
        gc.enable()
