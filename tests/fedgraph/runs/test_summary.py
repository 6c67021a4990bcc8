import json

import pytest
from flwr.app import Message

from fedgraph.clients.app import app as client_app
from fedgraph.messages.envelope import error_content
from fedgraph.runs import load_run
from fedgraph.runs.reports import as_text, sentence
from fedgraph.runs.reports.words import captions, lost_clients
from fedgraph.runs.summary import attendance, counts, environment, in_words, measured_clients

NAMES = ("a", "b", "c", "d")


def summary(values, method="sfl", **more):
    lost = attendance(
        NAMES, {"test": {"accuracy": values, "loss": values}}, more.pop("absent", {}), more.pop("lines", ())
    )
    return {
        "method": method,
        "clients": 4,
        "per_client": {"test": {"accuracy": values, "loss": values}},
        **lost,
        **more,
    }


def of(*measured):
    return {name: 0.5 if name in measured else None for name in NAMES}


def test_a_client_with_any_value_is_measured():
    assert measured_clients({"auc": of("a"), "loss": of("a", "b")}) == ["a", "b"]
    assert (in_words(4, 4), in_words(2, 4)) == ("4 clients", "2 of 4 clients")


def test_nothing_is_said_where_nobody_was_lost():
    whole = summary(of(*NAMES))
    assert "not_measured" not in whole
    assert lost_clients([whole], "test") == {}
    assert (
        captions([whole], "test") == "4 clients, each measured on its own test data with the model it holds at the end"
    )


def test_metrics_that_some_clients_lack_are_said_to_be_of_fewer():
    values = {"accuracy": of(*NAMES), "auc": of("a", "b"), "aupr": of("a", "b"), "r2": of("c"), "ece": of()}
    said = captions([{**summary(of(*NAMES)), "per_client": {"test": values}}], "test")
    assert said.startswith("4 clients, each measured on its own test data")
    assert said.endswith("at the end; auc, aupr of 2 clients alone; r2 of 1 client alone")


def test_clients_without_examples_are_not_said_to_have_no_finite_value():
    values = {split: {"loss": of("a", "b")} for split in ("validation", "test")}
    lost = attendance(NAMES, values, {"d": "gone"}, empty={"test": ["c", "d"]})["not_measured"]
    assert lost == {
        "validation": {"c": "no finite value", "d": "gone"},
        "test": {"c": "no test examples", "d": "gone"},
    }


def test_lost_clients_are_counted_and_named():
    lines = [{"absent": {"d": "no reply"}}, {"absent": {"c": "gone", "d": "no reply"}}]
    lost = summary(of("a", "b"), absent={"c": "gone", "d": "gone"}, lines=lines)
    assert lost["not_measured"] == {"test": {"c": "gone", "d": "gone"}}
    assert lost["missed_training"] == {
        "c": {"rounds": 1, "of": 2, "reason": "gone"},
        "d": {"rounds": 2, "of": 2, "reason": "no reply"},
    }
    assert counts(lost, "test") == (2, 4)
    assert lost_clients([lost, summary(of(*NAMES))], "test") == {
        "clients measured": ["2 of 4", "4 of 4"],
        "never trained": ["d", "-"],
        "missed rounds": ["c: 1 of 2", "-"],
    }
    assert captions([lost], "test").startswith("2 of 4 clients, each measured on its own test data")
    assert captions([lost], "test").endswith("; not measured: c, d: gone; never trained: d: no reply")


def test_a_client_without_a_finite_value_says_so():
    assert summary(of("a", "b", "c"))["not_measured"] == {"test": {"d": "no finite value"}}


def test_clients_that_never_came_count(digits_tables):
    lost = summary(of(*NAMES), absent={"e": "no node hosted it"})
    assert counts(lost, "test") == (4, 5)
    assert "not measured: e: no node hosted it" in captions([lost], "test")


def test_each_run_has_its_count_where_they_differ():
    said = captions([summary(of(*NAMES), "sfl"), summary(of("a"), "local")], "test")
    assert said.startswith("sfl: 4 clients, each measured")
    assert "; local: 1 of 4 clients, each measured" in said


def test_of_many_clients_a_few_are_named():
    lines = [{"absent": {f"c{number}": "gone" for number in range(9)}}]
    assert lost_clients([summary(of(*NAMES), lines=lines)], "test") == {"never trained": ["c0\nc1\nc2\nand 6 more"]}


def test_a_summary_of_an_older_version_is_counted_too():
    old = {"method": "sfl", "clients": 4, "per_client": {"test": {"loss": of("a", "b", "c")}}}
    assert captions([old], "test").startswith("3 of 4 clients, each measured")
    assert captions([{"method": "sfl", "clients": 4}], "test").startswith("4 clients, each")


# ---- whole runs


def losing(names, from_round):
    """A ClientApp whose clients of these names are lost from a round on."""

    def answer(message, context):
        config = message.content["config"]
        gone = set(names) & set(config.get("clients", ()))
        if gone and config.get("server-round", 0) >= from_round:
            return Message(error_content("the disk is full"), reply_to=message)
        return client_app(message, context)

    return answer


@pytest.fixture
def lossy(digits_tables, run_experiment):
    """A run of sfl in which two of six clients, each on a node of its own, are lost."""

    def run(never=("client-5",), later=("client-4",)):
        digits_tables["experiment"] |= {"rounds": 3, "on-missing": "skip"}
        first, second = losing(never, 0), losing(later, 2)

        def client(message, context):
            names = set(message.content["config"].get("clients", ()))
            return first(message, context) if names & set(never) else second(message, context)

        return run_experiment(digits_tables, nodes=6, client=client, report=True)

    return run


def test_table_sentence_page_and_summary_count_the_same(lossy):
    folder = lossy()
    found = json.loads((folder.path / "summary.json").read_text())
    assert found["clients"] == 6
    assert set(found["not_measured"]["test"]) == {"client-4", "client-5"}
    assert found["missed_training"]["client-5"]["rounds"] == found["missed_training"]["client-5"]["of"] == 3
    assert found["missed_training"]["client-4"]["rounds"] == 2
    table, page = as_text(found), (folder.path / "report.html").read_text()
    for text in (table, page):
        assert "4 of 6" in text
        assert "never trained" in text
        assert "client-5" in text
        assert "client-4: 2 of 3" in text
        assert "6 clients, each measured" not in " ".join(text.split()).replace("4 of 6 clients, each measured", "")
    assert "4 of 6 clients, each measured on its own test data" in page
    said = sentence([found])
    assert said.startswith("4 of 6 clients, each measured on its own test data with the model it holds at the end; not")
    mean = load_run(folder.path).clients["test/accuracy"].mean()
    assert found["metrics"]["test"]["accuracy"]["mean"] == pytest.approx(mean)


def test_an_absence_that_lasts_is_shown_once(lossy, caplog):
    lossy()
    lines = [record for record in caplog.records if "no usable reply from" in record.getMessage()]
    assert len(lines) > 3, "the log has every exchange"
    shown = {record.once for record in lines}
    assert len(shown) <= 2, "the screen shows those with another word"


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (["flwr-serverapp", "--token", "abc", "--run-once"], ["flwr-serverapp", "--token", "***", "--run-once"]),
        (["x", "--token=abc", "--access_key=a=b"], ["x", "--token=***", "--access_key=***"]),
        (["run", "--set", "output.my.api-key=abc", "-q"], ["run", "--set", "output.my.api-key=***", "-q"]),
        (["run", "--set=tracker.client-secret=abc"], ["run", "--set=tracker.client-secret=***"]),
        (["predict", "runs/token", "--secret", "2-of-3"], ["predict", "runs/token", "--secret", "2-of-3"]),
    ],
)
def test_no_secret_of_the_command_line_is_kept(command, shown, monkeypatch):
    monkeypatch.setattr("sys.argv", command)
    assert environment()["command"] == shown
