import os
import signal
import threading

import pytest

from mhrl.signals import StopSignals

BOTH = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])


@BOTH
def test_the_first_is_remembered_and_said(number, capfd):
    before = signal.getsignal(number)
    with StopSignals() as stop:
        assert stop.received is None and stop.name == ""
        os.kill(os.getpid(), number)
        assert stop.received == number
        assert signal.Signals(number).name == stop.name and stop.name in capfd.readouterr().err
        # The second one is the system's: the process ends, whatever it is doing.
        assert signal.getsignal(signal.SIGINT) == signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert signal.getsignal(number) is before


def test_the_first_is_passed_on_at_once():
    told = []
    with StopSignals() as stop:
        stop.pass_on = told.append
        os.kill(os.getpid(), signal.SIGTERM)
        assert told == [signal.SIGTERM]


def test_outside_the_main_thread_it_hears_nothing():
    heard = []

    def listen():
        with StopSignals() as stop:
            heard.append(stop.received)

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join(10)
    assert heard == [None]
