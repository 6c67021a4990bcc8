from fedgraph.federation import by_reason


def test_clients_that_are_missing_for_one_reason_are_named_together():
    absent = {"a": "lost", "b": "the disk is full", "c": "lost"}
    assert by_reason(absent) == ["a, c: lost", "b: the disk is full"]
    many = by_reason({f"client-{number}": "lost" for number in range(20)})
    assert many == ["client-0, client-1, client-2, client-3, client-4, client-5, client-6, client-7 and 12 more: lost"]
