from mhrl.engine.payoff import Payoff


def said(payoff, *runs):
    return [line for line in map(payoff.after, runs) if line]


def test_it_says_once_when_the_time_is_won_back():
    # 12 s over 8 - 5 = 3 ms an update: 4,000 updates.
    runs = (0.009, 0.005, 0.006, 0.007, 0.008, 0.001, 0.001)
    assert said(Payoff("actor, value", 12.0, 0.008), *runs) == [
        "compiled the update of actor, value in 12.0 s: it takes 5.00 ms instead of about 8.00 ms, which pays off "
        "after about 4,000 updates"
    ]


def test_it_says_so_if_it_does_not_pay():
    (line,) = said(Payoff("value", 3.0, 0.004), *[0.004] * 9)
    assert line.endswith("instead of about 4.00 ms; this does not pay, engine=eager is faster here")
