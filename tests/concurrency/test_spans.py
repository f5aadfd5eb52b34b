"""The log of who did what when."""

from turnwise.concurrency.spans import Span, SpanLog


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_spans_are_sorted_by_lane_and_time() -> None:
    clock = Clock()
    log = SpanLog(clock)
    log.add("two", "update", 3.0)
    log.add("one", "score", 1.0)
    log.add("one", "step", 2.0)
    assert log.take() == [
        Span(lane="one", activity="step", start=98.0, end=100.0),
        Span(lane="one", activity="score", start=99.0, end=100.0),
        Span(lane="two", activity="update", start=97.0, end=100.0),
    ]
    assert log.take() == []


def test_running_activity_is_cut_and_continues() -> None:
    clock = Clock()
    log = SpanLog(clock)
    log.switch("worker", "episodes")
    clock.now += 2
    assert log.take() == [Span(lane="worker", activity="episodes", start=100.0, end=102.0)]
    clock.now += 1
    log.switch("worker", "episodes")  # changes nothing
    clock.now += 1
    log.switch("worker", None)
    clock.now += 5
    assert log.take() == [Span(lane="worker", activity="episodes", start=102.0, end=104.0)]


def test_switch_to_another_activity_ends_the_first() -> None:
    clock = Clock()
    log = SpanLog(clock)
    log.switch("worker", "episodes")
    clock.now += 1
    log.switch("worker", "is replaced")
    clock.now += 1
    spans = [(span.activity, span.start, span.end) for span in log.take()]
    assert spans == [("episodes", 100.0, 101.0), ("is replaced", 101.0, 102.0)]


def test_short_spans_are_left_out_and_short_gaps_closed() -> None:
    clock = Clock()
    log = SpanLog(clock)
    log.switch("worker", "environments")
    clock.now += 1
    log.switch("worker", None)
    clock.now += 0.0005
    log.switch("worker", "environments")
    clock.now += 1
    log.switch("worker", None)
    log.add("worker", "publish", 0.0005)
    assert log.take() == [Span(lane="worker", activity="environments", start=100.0, end=102.0005)]
