import signal
import threading

import pytest

from scale_invariant_attention.training.loop import StopRequest


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_are_noted_once_and_then_as_before(number):
    before = signal.getsignal(number)
    told = []
    with StopRequest(told.append) as stop:
        assert not stop.requested
        signal.raise_signal(number)
        signal.raise_signal(signal.SIGTERM)
        assert stop.requested
    assert signal.getsignal(number) is before
    assert len(told) == 1


def test_the_second_interrupt_interrupts():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), StopRequest():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_in_another_thread_signals_are_left_alone():
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    def work():
        with StopRequest() as stop:
            seen.extend([stop.requested, signal.getsignal(signal.SIGTERM) is before])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False, True]
