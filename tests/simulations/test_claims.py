"""Sentences of pages that say who is ahead hold in the result files, for every seed, column and metric they name."""

import itertools
from statistics import fmean

import pytest

from fedgraph.simulations.pages import REPOSITORY, Results

HOUR = "forecasting/hour-small"
DAYS, TRAFFIC = "forecasting/days-small", "sfl/table1-small"
WITHOUT_GRAPH = (
    "FedAvg", "FedAtt", "FedProx", "SCAFFOLD", "FedPer", "LG-FedAvg", "Ditto", "FedAvg + fine-tuning", "Local only",
)  # fmt: skip
DIED = ("deaths-medicaid", "deaths-caesarean", "deaths-college")


@pytest.fixture(scope="module")
def numbers():
    """``numbers(file, row, column, metric)``: mean over seeds, and the numbers by seed."""
    results = Results(REPOSITORY)

    def found(file, row, column, metric):
        spread = results.named(file).spread(row, column, metric)
        assert spread is not None, (file, row, column, metric)
        return spread.mean, spread.values

    return found


def said(page, *sentences):
    """The page says it; who changes the sentence changes its test."""
    text = " ".join((REPOSITORY / page).read_text(encoding="utf-8").split())
    for sentence in sentences:
        assert sentence in text, f"{page} does not say: {sentence}"


def ahead(numbers, file, one, other, column, metric, larger=True):
    """On how many seeds that both have the first row is ahead, and of how many."""
    (_, ours), (_, theirs) = (numbers(file, row, column, metric) for row in (one, other))
    common = sorted(ours.keys() & theirs.keys())
    assert common
    return sum((ours[seed] > theirs[seed]) == larger for seed in common), len(common)


def total(pairs):
    return tuple(map(sum, zip(*pairs, strict=True)))


SPLITS = ("metr-la", "metr-la-weeks", "pems-bay", "pems-bay-weeks")


def test_an_average_of_networks_of_f3_beside_concatenations(numbers):
    def over(other, metric):
        file = "f3/ensembles-small"
        return total(ahead(numbers, file, "K ours", other, column, metric) for column in SPLITS)

    assert over("G: Concatenation", "AUC") == (20, 20)
    assert over("G: Concatenation", "F1") == (19, 20)
    assert over("Six of G with owner dropout", "AUC") == (17, 20)
    assert over("Six of G with owner dropout", "F1") == (14, 20)
    said(
        "docs/methods/f3.md",
        "*one* concatenation without dropout in AUC on all twenty splits that were measured, in F1 on nineteen",
    )
    said("docs/guides/reproduce.md", "ahead of one concatenation in AUC on all twenty splits and in F1 on nineteen")
    said("simulations/f3/README.md", "on 17 of the twenty splits in AUC and on 14 in F1")


ON_GRIDS = [
    "Best single owner",
    "F3 as published",
    "Concatenation",
    "Logistic regression on everything in one place",
    "Boosted trees on everything in one place",
    "Perceptron on everything in one place",
]


@pytest.mark.parametrize("row", ON_GRIDS)
@pytest.mark.parametrize("metric", ["accuracy", "AUC"])
def test_f3_is_ahead_on_grids(numbers, row, metric):
    file = "f3/grid-stability-small"
    assert ahead(numbers, file, "F3", row, "uci", metric) == (5, 5)
    single, _ = ahead(numbers, file, "F3 of one network", row, "uci", metric)
    assert single in ({5} if metric == "AUC" else {4, 5})
    said(
        "simulations/f3/README.md",
        "on all five splits in accuracy and in AUC",
        "ahead of each of them too, on all five in AUC and on four or five in accuracy",
    )


def test_an_average_of_six_concatenations_on_grids(numbers):
    file = "f3/grid-stability-small"
    assert ahead(numbers, file, "F3", "Six concatenations", "uci", "AUC") == (5, 5)
    assert ahead(numbers, file, "F3", "Six concatenations", "uci", "accuracy") == (4, 5)
    said("simulations/f3/README.md", "is slightly behind it, on all five splits in AUC and on four in accuracy")


def test_the_graph_pays_on_grids_as_published_and_not_behind_a_hidden_layer(numbers):
    file = "f3/grid-stability-small"
    for metric, without in (("accuracy", 4), ("AUC", 3)):
        published = "F3 as published", "F3 as published without a graph"
        practical = "F3 of one network without a graph", "F3 of one network"
        assert ahead(numbers, file, *published, "uci", metric) == (5, 5)
        assert ahead(numbers, file, *practical, "uci", metric) == (without, 5)
        complete = "F3 as published with a complete graph"
        assert ahead(numbers, file, complete, published[0], "uci", metric) == (3, 5)
        assert ahead(numbers, file, complete, published[1], "uci", metric) == (5, 5)
    said(
        "simulations/f3/README.md",
        "on all five splits and in AUC too",
        "ahead of the learned one on three splits in both",
        "on four splits in accuracy, on three in AUC",
    )


def test_lines_of_the_grid_pay_a_little_more_than_permuted_ones(numbers):
    file, lines = "f3/grid-stability-small", "F3 as published with the lines of the grid"
    without, permuted = "F3 as published without a graph", "F3 as published with the lines permuted"
    assert all(ahead(numbers, file, lines, without, "simulated", metric) == (5, 5) for metric in ("accuracy", "AUC"))
    assert ahead(numbers, file, lines, permuted, "simulated", "AUC") == (5, 5)
    assert ahead(numbers, file, lines, permuted, "simulated", "accuracy") == (4, 5)
    assert ahead(numbers, file, "F3 as published", lines, "simulated", "AUC") == (4, 5)
    none, wrong, right = (numbers(file, row, "simulated", "AUC")[0] for row in (without, permuted, lines))
    assert wrong - none > right - wrong > 0
    said("simulations/f3/README.md", "Lines are ahead of no graph on all five splits, in accuracy and in AUC")


def test_vertical_learning_is_ahead_on_grids(numbers):
    file, rows = "f3/grid-stability-small", [*ON_GRIDS, "F3", "F3 of one network", "F3 of one network without a graph"]
    for metric, splits in (("accuracy", 5), ("AUC", 4)):
        vertical = numbers(file, "Vertical learning", "uci", metric)[0]
        assert all(vertical > numbers(file, row, "uci", metric)[0] for row in [*rows, "Six concatenations"])
        assert ahead(numbers, file, "Vertical learning", "F3", "uci", metric) == (splits, 5)
    said(
        "simulations/f3/README.md",
        "**Vertical learning is ahead of every other row** on average, in accuracy and in AUC, and of F3, practical, "
        "on all five splits in accuracy and on four in AUC",
    )


def test_the_practical_preset_on_small_tables(numbers):
    file, rows = "f3/columns-small", ("F3 practical", "F3")
    for metric in ("accuracy", "AUC"):
        for column in ("breast-cancer", "pima"):
            gain = numbers(file, rows[0], column, metric)[0] - numbers(file, rows[1], column, metric)[0]
            assert 0 < gain < 0.0075
        assert ahead(numbers, file, *rows, "pima-8", metric) == (0, 5)
    said(
        "simulations/f3/README.md",
        "is ahead on average with three and four owners, by 0.007 in accuracy and AUC at most, and behind on all five "
        "splits, in both, with eight owners of one column each",
    )


PARTICIPANTS = ("producer", "consumer-1", "consumer-2", "consumer-3")


def test_a_participant_of_a_grid_is_missing(numbers):
    def mean(row, column, metric="accuracy"):
        return numbers("f3/grid-missing-small", row, column, metric)[0]

    fusions = [f"{kind} {how} owner dropout" for kind in ("F3", "Concatenation") for how in ("with", "without")]
    missing = [f"{how}{name}" for how in ("without-", "predicted-without-") for name in PARTICIPANTS]
    lost = [mean(row, "everybody") - mean(row, column) for row in fusions for column in missing]
    assert 0.08 < min(lost) < max(lost) < 0.135
    for row in fusions:
        for column in missing:
            for metric in ("accuracy", "AUC"):
                assert mean(row, column, metric) - mean("Best single owner", column, metric) > 0.12
    for metric, level, dropout in (("accuracy", 0.012, 0.0113), ("AUC", 0.005, 0.0105)):
        for name in PARTICIPANTS:
            away, never = (
                mean("F3 without owner dropout", f"{how}{name}", metric) for how in ("predicted-without-", "without-")
            )
            assert abs(away - never) < level
            assert abs(away - mean("F3 with owner dropout", f"predicted-without-{name}", metric)) < 0.0085
        cost = mean("F3 without owner dropout", "everybody", metric) - mean(
            "F3 with owner dropout", "everybody", metric
        )
        assert cost == pytest.approx(dropout, abs=0.002)
    said(
        "simulations/f3/README.md",
        "costs eight to thirteen points of accuracy with each of the four fusions",
        "more than twelve points ahead of the best single owner",
        "within 0.012 in accuracy and 0.005 in AUC",
        "within 0.008 in both",
    )


@pytest.mark.parametrize("row", ["L: VFL of pre-trained owners", "M: VFL from scratch"])
def test_vertical_learning_is_ahead_of_f3_on_rush_hours(numbers, row):
    for column in ("metr-la", "pems-bay"):
        for metric in ("F1", "AUC"):
            assert (
                numbers("f3/table2-small", row, column, metric)[0]
                > numbers("f3/table2-small", "K: F3", column, metric)[0]
            )
    said(
        "docs/methods/f3.md",
        "Vertical learning, whose gradients go back to the owners, is ahead on rush hours of PEMS-BAY",
    )


def test_sfl_and_fedavg_by_mae_and_rmse(numbers):
    def less(column, metric):
        return numbers(TRAFFIC, "SFL", column, metric)[0] < numbers(TRAFFIC, "FedAvg", column, metric)[0]

    every = ("metr-la", "metr-la-pooled", "metr-la-inputs", "pems-bay", "pems-bay-pooled")
    assert all(less(column, "MAE") for column in every)
    assert [column for column in every if not less(column, "RMSE")] == ["pems-bay", "pems-bay-pooled"]
    said(
        "docs/guides/reproduce.md",
        "**SFL** has a smaller MAE than FedAvg on METR-LA and PEMS-BAY",
        "on PEMS-BAY its RMSE is no smaller",
    )


def test_sfl_over_a_permuted_graph_of_roads(numbers):
    pairs = [ahead(numbers, TRAFFIC, "SFL over a permuted graph", "SFL", "metr-la-pooled", metric, larger=False)
             for metric in ("MAE", "RMSE")]  # fmt: skip
    assert pairs == [(1, 3), (1, 3)]
    said("simulations/sfl/README.md", "on METR-LA on one draw of three more than over the true graph")


def test_training_alone_and_sfl_by_mae_and_rmse(numbers):
    def less(column, metric):
        return numbers(TRAFFIC, "Local only", column, metric)[0] < numbers(TRAFFIC, "SFL", column, metric)[0]

    every = ("metr-la", "metr-la-pooled", "metr-la-inputs", "pems-bay", "pems-bay-pooled")
    assert all(less(column, metric) for column in every for metric in ("MAE", "MAPE"))
    assert [column for column in every if not less(column, "RMSE")] == ["metr-la"]
    said("docs/methods/sfl.md", "(MAE; in RMSE not on METR-LA with every sensor scaled by itself)")


def test_distances_of_sfl_by_mae_and_rmse(numbers):
    def mean(row, metric):
        return numbers(TRAFFIC, row, "metr-la-pooled", metric)[0]

    chosen = "SFL with lambda chosen on validation data"
    assert mean("Local only", "MAE") < mean(chosen, "MAE") < mean("SFL with lambda 0", "MAE")
    assert mean("Local only", "RMSE") < mean("SFL with lambda 0", "RMSE") < mean(chosen, "RMSE")
    for metric in ("MAE", "RMSE"):
        assert mean("SFL with lambda 0.3", metric) > mean("FedAvg", metric)
    said(
        "simulations/sfl/README.md",
        "On METR-LA the objective as printed pays in MAE",
        "which is worse than FedAvg there",
    )


def test_sfl_of_updates_by_mae_and_rmse(numbers):
    def behind(column, metric):
        ours = numbers(TRAFFIC, "SFL of updates", column, metric)[0]
        return {row for row in ("SFL", *WITHOUT_GRAPH) if numbers(TRAFFIC, row, column, metric)[0] < ours}

    assert behind("metr-la", "MAE") == behind("pems-bay", "MAE") == behind("pems-bay", "RMSE") == set()
    assert {"SFL", "FedAvg", "Local only"} <= behind("metr-la", "RMSE")
    said("simulations/sfl/README.md", "on METR-LA its RMSE is *larger* than that of SFL, FedAvg and local training")


def test_new_sensors_among_old_ones(numbers):
    def over(one, other, *days):
        columns = [f"cold-{number}" for number in days]
        return total(ahead(numbers, DAYS, one, other, column, "MAE, 60 min", larger=False) for column in columns)

    for row in ("Local only", "FedAvg", "FedAvg + fine-tuning"):
        assert over("SFL", row, 1) == (3, 3)
    assert over("SFL", "SFL for cold clients", 1, 3, 7, 30) == (11, 12)
    assert over("Local only", "SFL for cold clients", 7, 30) == (6, 6)
    for page in ("docs/methods/sfl.md", "docs/guides/reproduce.md", "simulations/sfl/README.md"):
        said(page, "in 11 of 12 runs")
    said("docs/methods/sfl.md", "it is ahead of these three with every seed")
    said("simulations/sfl/README.md", "and local training too from a week on")


TARGETS = {
    "mnist-iid": 98, "mnist-dir06": 98, "mnist-dir03": 98, "fashion-iid": 89, "fashion-dir06": 87, "fashion-dir03": 87,
}  # fmt: skip


def test_peers_of_ipa_at_the_end_of_the_round_in_which_the_first_reaches_the_target(numbers):
    reached = []
    for column, target in TARGETS.items():
        mean, best = (numbers("ipa/table1-small", "IPA", column, metric)[1] for metric in ("mean (%)", "best (%)"))
        assert all(best[seed] - mean[seed] < 0.1 for seed in mean)
        reached += [(column, seed) for seed in mean if mean[seed] >= target]
    assert reached == [("mnist-iid", 2)]
    said("simulations/ipa/README.md", "in all runs but one (even MNIST, seed 2) it is short of the target")


@pytest.fixture
def ahead_of_ipa(numbers):
    """``ahead_of_ipa(row, column)``: seeds with which a rival reaches the target of table I before IPA, and after."""

    def compared(row, column):
        ipa, rival = (numbers("ipa/table1-small", each, column, "rounds")[1] for each in ("IPA", row))
        assert set(ipa) == {0, 1, 2}
        return {seed for seed in rival if rival[seed] < ipa[seed]}, {seed for seed in rival if rival[seed] > ipa[seed]}

    return compared


def test_rivals_of_ipa_on_uneven_mnist(numbers, ahead_of_ipa):
    assert ahead_of_ipa("FedDyn", "mnist-dir03") == (set(), {1, 2})
    for row in ("FedDC", "SCAFFOLD"):
        assert ahead_of_ipa(row, "mnist-dir03") == (set(), {0, 1, 2})
    assert ahead_of_ipa("FedDC", "mnist-dir06") == ({0, 1, 2}, set())
    assert ahead_of_ipa("FedDyn", "mnist-dir06") == ({0, 1}, set())
    assert ahead_of_ipa("SCAFFOLD", "mnist-dir06") == ({0}, {1})
    for row in ("FedAvg", "FedProx"):
        for column in ("mnist-dir06", "mnist-dir03"):
            reached = numbers("ipa/table1-small", row, column, "mean (%)")[1]
            assert set(reached) == {0, 1, 2}
            assert max(reached.values()) < 98
    said(
        "simulations/ipa/README.md",
        "At 0.3 no rival reaches the target before the first peer of IPA: FedDyn is level with it with seed 0 and "
        "behind with seeds 1 and 2, FedDC and SCAFFOLD are behind with each seed. At 0.6 FedDC is ahead with each "
        "seed, FedDyn with seeds 0 and 1, and level with it with seed 2; SCAFFOLD is ahead with seed 0, behind with "
        "seed 1, and level with seed 2. FedAvg and FedProx are not there in 150 rounds, at 0.6 and at 0.3.",
    )
    said("docs/methods/ipa.md", "on MNIST, until 98 %, FedDC is ahead at 0.6, and nothing is at 0.3.")


def test_rivals_of_ipa_on_uneven_fashion_mnist(numbers, ahead_of_ipa):
    for row in ("FedDyn", "SCAFFOLD"):
        assert ahead_of_ipa(row, "fashion-dir03") == ({0, 1, 2}, set())
    assert ahead_of_ipa("FedDC", "fashion-dir03") == ({0, 1}, set())
    for row in ("FedDyn", "FedDC", "SCAFFOLD"):
        assert ahead_of_ipa(row, "fashion-dir06") == ({0, 2}, {1})
    for row in ("FedAvg", "FedProx"):
        assert ahead_of_ipa(row, "fashion-dir06") == ahead_of_ipa(row, "fashion-dir03") == ({0}, {1})
    assert numbers("ipa/table1-small", "IPA", "fashion-dir06", "rounds")[1][1] == 3
    said(
        "simulations/ipa/README.md",
        "At 0.3 FedDyn and SCAFFOLD reach the target before the first peer of IPA with each seed, and FedDC with "
        "seeds 0 and 1. At 0.6 these three are ahead with seeds 0 and 2, and behind with seed 1, with which the first "
        "peer is there in round 3",
        "FedAvg and FedProx are ahead of it with seed 0 and behind with seed 1, both at 0.6 and at 0.3. In the paper, "
        "too, FedDyn and FedDC are ahead of IPA there.",
    )


def test_layers_at_home_help_sfl_with_each_seed(numbers):
    def errors(row):
        return numbers("sfl/table4-small", row, "pems-bay", "MAE (60 min)")[1]

    for mixing in ("", " with less mixing"):
        alone, head, representation = (errors(f"SFL{kind}{mixing}") for kind in ("", "+PER", "+LG"))
        assert set(alone) == set(head) == set(representation) == {0, 1, 2}
        assert all(representation[seed] < head[seed] < alone[seed] for seed in alone)
    said(
        "simulations/sfl/README.md",
        "Keeping layers at home helps SFL with each seed, in the paper's setting and with less mixing",
    )


def test_rivals_of_ipa_on_even_data(numbers):
    def rounds(row, column):
        return numbers("ipa/table1-small", row, column, "rounds")[1]

    ipa = rounds("IPA", "fashion-iid")
    for row in ("FedDyn", "FedDC"):
        rival = rounds(row, "fashion-iid")
        assert [seed for seed in range(3) if rival[seed] < ipa[seed]] == [0, 2]
        assert rival[1] > ipa[1]
        assert fmean(rival.values()) < fmean(ipa.values())
    for row in ("FedProx", "SCAFFOLD", "FedDyn", "FedDC", "FedAvg"):
        rival = rounds(row, "mnist-iid")
        assert all(rival[seed] > rounds("IPA", "mnist-iid")[seed] for seed in range(3))
    assert set(rounds("FedAvg", "fashion-dir03")) == {0, 1}
    said(
        "simulations/ipa/README.md",
        "The first peer of IPA is the fastest on MNIST with each seed. On Fashion-MNIST FedDyn and FedDC are faster on "
        "average: they are behind it with seed 1",
        "and ahead with seeds 0 and 2",
        "On Fashion-MNIST at 0.3 it does with two of three seeds",
    )


def test_fairness_of_ipa_in_the_first_rounds_and_of_cgsv_at_the_end(numbers):
    file, powers, classes = "ipa/table2-small", ("mnist-pow-10", "mnist-pow-20"), ("mnist-cla-10", "mnist-cla-20")

    def seeds(row, column, metric):
        values = numbers(file, row, column, metric)[1]
        assert len(values) == 3
        return list(values.values())

    first = [value for column in powers + classes for value in seeds("IPA", column, "fairness")]
    assert min(first) == min(seeds("IPA", "mnist-pow-20", "fairness")) == pytest.approx(63.2, abs=0.05)
    for row, settings in (("IPA", 2), ("IPA right after its turn", 3)):
        ends = [seeds(row, column, "at the end") for column in powers + classes]
        assert sum(min(values) < 0 < max(values) for values in ends) == settings
    for row, least in (("CGSV beta 1", 61.3), ("CGSV beta 2", 56.8)):
        among_ten = [value for column in (powers[0], classes[0]) for value in seeds(row, column, "fairness")]
        assert min(among_ten) == pytest.approx(least, abs=0.05)
        assert min(seeds(row, "mnist-pow-20", "fairness")) < 20 < 80 < max(seeds(row, "mnist-pow-20", "fairness"))
        assert all(min(seeds(row, column, "at the end")) > 70 for column in classes)
        assert all(
            min(seeds(row, column, "at the end")) < 0 < max(seeds(row, column, "at the end")) for column in powers
        )
        assert all(ahead(numbers, file, "IPA", row, column, "accuracy (%)") == (3, 3) for column in classes)
    said(
        "simulations/ipa/README.md",
        "In the first five rounds peers of IPA are fair in all four settings, with each seed",
        "after 30 rounds its sign depends on the seed in two of the four settings, and right after each peer's last "
        "turn in three",
        "At the end it is fair where peers have 1 to 10 classes, with each seed, and its peers then have less accuracy "
        "than IPA's; with sizes by a power law the sign depends on the seed. With beta 2 all this holds too",
    )


@pytest.mark.parametrize("row", ["Pooled model", "Perceptron that sees all sensors", "Graph WaveNet"])
def test_forecasts_of_f3_beside_what_is_trained_in_one_place(numbers, row):
    for column in ("metr-la", "pems-bay"):
        for metric in ("60 min", "MAPE, 60 min", "RMSE, 60 min"):
            ours, theirs = (numbers(HOUR, each, column, metric)[0] for each in ("F3 over a learned graph", row))
            assert ours < theirs, (column, metric)
    said(
        "simulations/forecasting/README.md",
        "in MAE, MAPE and RMSE. It is also ahead of Graph WaveNet after 1,500 steps",
    )


@pytest.mark.parametrize("column", ["digits-labels", "digits-turned", "fashion-labels", "fashion-turned"])
def test_over_the_graph_of_the_groups_sfl_is_ahead_of_all_but_pfedgraph(numbers, column):
    file, own = "sfl/groups-small", "accuracy (%)"
    others = (
        "Local only", "FedAvg", "FedAvg + fine-tuning", "FedPer", "Ditto", "SFL over a permuted graph",
        "SFL over a complete graph", "SFL* without a given graph", "Pooled model",
    )  # fmt: skip
    for other in others:
        assert ahead(numbers, file, "SFL", other, column, own) == (5, 5), other
    assert abs(numbers(file, "SFL", column, own)[0] - numbers(file, "pFedGraph", column, own)[0]) < 0.3
    assert numbers(file, "pFedGraph", column, "edge precision")[0] == 1
    assert numbers(file, "pFedGraph", column, "edge recall")[0] == 1
    said("simulations/sfl/README.md", "in every column and with every seed", "finds the groups without an error")
    said("docs/methods/sfl.md", "pFedGraph, which finds the groups itself, is as good")


def test_graphs_that_are_learned_of_groups(numbers):
    file, row = "sfl/groups-small", "SFL* without a given graph"
    for column in ("digits-labels", "digits-turned", "fashion-labels", "fashion-turned"):
        assert numbers(file, row, column, "edge recall")[0] < 0.5
        precision = numbers(file, row, column, "edge precision")[0]
        assert precision == 1 if column.startswith("fashion") else 0.7 < precision < 1
    said(
        "simulations/sfl/README.md",
        "is right on Fashion-MNIST and mostly right on digits; it leaves out more than half",
    )


def test_sfl_beside_what_leaves_clients_something_of_their_own(numbers):
    file = "sfl/table2-small"
    for row in ("FedPer", "LG-FedAvg", "Ditto", "Local only", "FedAvg + fine-tuning"):
        for metric in ("accuracy, mean", "best 5 %"):
            assert ahead(numbers, file, row, "SFL", "shards-2", metric) == (3, 3)
        worst, sfl = (numbers(file, label, "shards-2", "worst 5 %")[0] for label in (row, "SFL"))
        if row == "FedAvg + fine-tuning":
            assert abs(worst - sfl) < 0.5
        else:
            assert (worst < sfl) == (row == "LG-FedAvg")
    said("simulations/sfl/README.md", "on the worst 5 % it is ahead of LG-FedAvg and level with fine-tuning")


def test_sfl_where_clients_have_more_classes(numbers):
    file, mean, worst = "sfl/table3-small", "accuracy, mean", "worst 5 %"
    others = ["SFL", "SFL as released", "SFL chosen on validation data", "SFL* as released"]
    others.append("SFL* by smoothness without a given graph")
    for column in ("shards-10", "shards-20"):
        for row in (*WITHOUT_GRAPH, *others):
            won, seeds = ahead(numbers, file, "SFL*", row, column, mean)
            assert won == seeds >= 2, row
        for row in WITHOUT_GRAPH:
            won, seeds = ahead(numbers, file, "SFL*", row, column, worst)
            assert won == seeds - (column == "shards-20" and row == "FedAtt"), row
            assert numbers(file, "SFL*", column, worst)[0] > numbers(file, row, column, worst)[0], row
        won, seeds = ahead(numbers, file, "SFL", "FedAvg", column, mean)
        assert won == seeds
        for metric in (mean, worst):
            assert ahead(numbers, file, "Pooled model", "SFL*", column, metric)[0] >= 2
    said(
        "simulations/sfl/README.md",
        "With 10 and with 20 shards SFL\\* is ahead of every row but the pooled model in mean accuracy, with each seed",
        "On the worst 5 % it is ahead of all rows without a graph but the pooled model, with each seed of 10 shards and"
        " on average over those of 20 (FedAtt is ahead of it with one)",
        "SFL in the setting of the paper is ahead of FedAvg in mean accuracy with each seed",
    )
    graphs = [
        f"SFL chosen on validation data{graph}"
        for graph in ("", *(f" over a {which} graph" for which in ("permuted", "complete")))
    ]
    for less, more in itertools.pairwise(graphs):
        assert ahead(numbers, "sfl/table2-small", more, less, "shards-5", mean) == (3, 3)
    said("simulations/sfl/README.md", "in this order with each seed")


def test_peers_of_ipa_without_a_class_in_common_beside_every_rival(numbers):
    file, own = "ipa/own-models-small", "mean (%)"
    for other in ("Local only", "Ditto", "FedAvg + fine-tuning", "SFL over a complete graph", "pFedGraph", "FedAvg"):
        assert ahead(numbers, file, "IPA", other, "five", own) == (5, 5), other
    (ours, by_seed), (theirs, others) = (numbers(file, row, "five", own) for row in ("IPA", "FedDyn"))
    assert ours > theirs
    assert sum(by_seed[seed] > others[seed] for seed in by_seed) >= 4
    for other in ("FedAvg", "FedDyn"):
        assert abs(numbers(file, "IPA", "two", own)[0] - numbers(file, other, "two", own)[0]) < 0.5
    for column, times in (("two", 2), ("five", 5)):
        sent = [numbers(file, row, column, "MB per client")[0] for row in ("IPA", "FedAvg")]
        assert sent[0] / sent[1] == pytest.approx(times, rel=0.03)
    said("simulations/ipa/README.md", "and of FedDyn with four of five, for 3 to 5 times the bytes")
    said("docs/methods/ipa.md", "it is level with FedAvg and FedDyn")


def test_predictions_over_all_that_is_missing_beside_means(numbers):
    file, tables = "fedngm/small-small", ("pima", "wisconsin", "haberman", "adult")
    for row, better in (("Client's own NGM", 4), ("Global NGM", 3)):
        rows = f"{row} over all that is missing", row
        means = [[numbers(file, each, column, "AUC")[0] for each in rows] for column in tables]
        assert sum(over > plugged_in for over, plugged_in in means) == better
        assert ahead(numbers, file, *rows, "wisconsin", "AUC") == (5, 5)
    said("simulations/fedngm/README.md", "better on all four data sets for the clients' own models and on three for")


def test_where_personal_models_of_hospitals_are_ahead_and_where_not(numbers):
    def draws(other, question, metric, larger=True, ours="FedNGM, personal model"):
        return ahead(numbers, "fedngm/hospitals-small", ours, other, question, metric, larger)[0]

    federated, pooled, only = (
        "FedAvg of a linear model", "Linear model of pooled rows", "Linear model of pooled rows, for this question",
    )  # fmt: skip
    for other in ("NGM of a hospital", "Linear model of a hospital", federated):
        assert draws(other, "half", "AUC") == 5
    assert draws(pooled, "half", "AUC") == 3
    assert draws(federated, "few", "AUC") == draws(pooled, "few", "AUC") == 5
    assert draws(only, "few", "RMSE from the truth", larger=False) == 0
    assert draws(federated, "pressure", "RMSE", larger=False) == draws(pooled, "pressure", "RMSE", larger=False) == 4
    assert draws(federated, "event", "AUC") == 3
    assert draws(federated, "event", "RMSE from the truth", larger=False) == 2
    assert draws(pooled, "event", "AUC") == 1
    assert draws(pooled, "event", "log loss", larger=False) == 0
    for other in ("Linear model of a hospital", federated, pooled):
        assert draws(other, "event", "AUC", ours="FedNGM, global model") == 0
    assert draws("NGM of a hospital", "ejection", "RMSE", larger=False) == 3
    said(
        "simulations/fedngm/README.md",
        "ahead of the hospitals' own linear models and NGMs on all five draws, and of FedAvg of a linear model",
        "On three of five draws they are ahead of a linear model of the rows of all hospitals in one place",
        "each is ahead of the other on two or three draws",
        "is nearer to the truth than FedNGM on all five draws",
        "federated or pooled, on four of five draws",
        "behind all linear models in AUC",
    )
    said("docs/methods/fedngm.md", "With 15 % of the cells missing, linear models are as good")


def test_disjoint_classes_of_fashion_mnist_with_every_method_tuned(numbers):
    file, own = "ipa/classes-small", "mean (%)"

    def mean(row, column="fashion-433"):
        return numbers(file, row, column, own)[0]

    assert 0 < mean("IPA") - mean("FedAvg") < 1.5
    assert abs(mean("IPA") - mean("FedDyn")) < 0.3 > abs(mean("IPA") - mean("IPA last models"))
    assert all(mean("FedDC", column) < mean("FedAvg", column) for column in ("fashion-433", "fashion-55"))
    for column in ("fashion-55", "fashion-five"):
        for other in ("FedAvg", "FedDyn"):
            wins, seeds = ahead(numbers, file, other, "IPA", column, own)
            assert wins == seeds >= 3, (column, other)
    said("simulations/ipa/README.md", "points ahead of FedAvg, with half of its minibatches and three times its bytes")


def test_a_peer_of_ipa_leaves_with_its_model(numbers):
    file, own = "ipa/leaving-small", "mean (%)"

    def mean(row, column):
        return numbers(file, row, column, own)[0]

    def lost(row):
        return mean(row, "100") - mean(row, "left")

    for other in ("FedAvg", "FedDyn"):
        assert all(ahead(numbers, file, other, "IPA", column, own) == (5, 5) for column in ("5", "20"))
    assert mean("IPA", "5") < mean("Local only", "5") + 2
    assert mean("FedAvg", "50") < mean("IPA", "50") < mean("FedDyn", "50")
    assert ahead(numbers, file, "IPA right after its turn", "FedAvg own copy", "50", own) == (5, 5)
    assert lost("FedDyn") < lost("IPA") < 5 < 10 < lost("FedAvg")
    for other in ("FedAvg", "FedAvg with last updates", "Ditto", "pFedGraph", "IPA all at once"):
        assert ahead(numbers, file, "IPA", other, "left", own) == (5, 5), other
    for column in ("5", "20", "50", "100", "left"):
        assert mean("IPA all at once", column) < 30
    spread = "deviation over peers (%)"
    assert numbers(file, "IPA", "100", spread)[0] < 0.5 < 1 < numbers(file, "Ditto", "100", spread)[0]
    said(
        "simulations/ipa/README.md",
        "**A peer that leaves early leaves with little.** After five rounds a peer of IPA has what it would have alone",
        "**The others lose little.**",
        "those of Ditto differ",
    )


def test_what_a_client_graph_is_worth_on_eleven_sets(numbers):
    def change(experiment, rival):
        low, high = (numbers("sfl/worth", rival, experiment, bound)[0] for bound in ("low", "high"))
        return "level" if low <= 0 <= high else "above" if low > 0 else "below"

    def pays(experiment):
        return numbers("sfl/worth", "verdict", experiment, "pays")[0] == 1

    groups = ("sfl/digits-groups.toml", "sfl/fashion-groups.toml")
    shards = ("sfl/digits.toml", "sfl/mnist.toml", "sfl/fashion-mnist.toml")
    space = ("sfl/synthetic-traffic.toml", "sfl/chickenpox.toml", "sfl/metr-la.toml")
    assert all(map(pays, groups))
    assert not any(
        map(pays, (*shards, *space, "sfl/breast-cancer.toml", "sfl/births.toml", "fedngm/occupations-sfl.toml"))
    )
    permuted = "sfl over a permuted graph"
    assert [change(each, permuted) for each in shards] == ["above", "above", "level"]
    assert {change(each, rival) for each in shards for rival in ("training alone", "FedAvg with fine-tuning")} == {
        "level"
    }
    assert [change(each, "training alone") for each in space] == ["below", "below", "above"]  # errors
    assert {change(each, permuted) for each in space} == {"level"}
    births, rivals = "sfl/births.toml", ("training alone", "FedAvg", "FedAvg with fine-tuning", permuted)
    for rival in (*rivals, "sfl over a complete graph"):
        assert numbers("sfl/worth", rival, births, "change")[0] > 0, rival
        assert change(births, rival) == "level", rival
    said("docs/guides/client-graph.md", "wrong ones in two sets of three", "on none of these does it matter with whom")


def test_models_of_infants_who_died_at_clients(numbers):
    def means(row, file, metric):
        return [numbers(f"fedngm/{file}-small", row, column, metric)[0] for column in DIED]

    def larger(one, other, file, metric):
        return [
            ours > theirs for ours, theirs in zip(means(one, file, metric), means(other, file, metric), strict=True)
        ]

    own, trees, best = "Client's own NGM", "Boosted trees of the client", "Boosted trees of pooled rows"
    pooled, everywhere = "NGM of pooled rows", [True, True, True]
    for number in ("gestational age", "birth weight"):
        for metric in (f"{number}, {'MAE [g]' if number == 'birth weight' else 'MAE [weeks]'}", f"{number}, RMSE"):
            assert larger(own, "Global NGM", "table2", metric) == everywhere
            assert larger("Global NGM", best, "table2", metric) == everywhere
            assert larger("Global NGM", trees, "table2", metric) == [number == "birth weight", False, False]
    for metric in ("gestational age, MAE [weeks]", "gestational age, RMSE"):
        assert larger("Global NGM", pooled, "table2", metric) == everywhere
    assert larger(pooled, "Global NGM", "table2", "birth weight, RMSE") == everywhere
    precision, recall, micro, error = (
        f"cause, {metric}" for metric in ("macro precision", "macro recall", "micro precision", "calibration error")
    )
    assert larger(own, "Global NGM", "table3", precision) == everywhere
    assert larger(own, "Global NGM", "table3", micro) == [True, True, False]
    assert larger(own, "Global NGM", "table3", recall) == [True, False, False]
    assert larger("Global NGM", own, "table3", error) == [True, False, False]
    for other in (own, "Global NGM"):
        for row in ("Linear model of the client", trees):
            assert all(larger(row, other, "table3", metric) == everywhere for metric in (precision, recall, error))
            assert larger(other, row, "table3", micro) == everywhere
    assert all(larger(pooled, "Global NGM", "table3", metric) == everywhere for metric in (micro, precision, recall))
    assert larger("Global NGM", pooled, "table3", error) == [False, True, False]
    for row in (own, "Global NGM", pooled):
        assert means(row, "table3", micro) == means(row, "table3", "cause, micro recall")
    said(
        "simulations/fedngm/README.md",
        "In gestation and birth weight the global model has smaller MAE and RMSE than the client's own at all three",
        "client alone are ahead of the global model in birth weight at C1, in MAE and RMSE, and behind it elsewhere",
        "in micro precision at C1 and C2, and in macro recall and calibration at C1",
        "than the global model at all three, and a smaller calibration error at C2 alone",
    )


def test_concatenation_and_f3_by_the_number_of_owners(numbers):
    for owners in (8, 16, 32):
        concatenation, f3 = (
            {metric: numbers("f3/owners-small", row, f"pems-bay-{owners}", metric)[0] for metric in ("F1", "AUC")}
            for row in ("G: Concatenation", "K: F3")
        )
        assert concatenation["F1"] > f3["F1"]
        assert f3["AUC"] > concatenation["AUC"] - 0.001
    said(
        "simulations/f3/README.md",
        "it is ahead by F1 with any number of owners, and K is level or ahead by AUC",
        'Only with the released program\'s parameters too (`[f3] sinkhorn = "sigmoid"`) do the matrices come as near',
    )
    nearness = [
        numbers("f3/figures", f"hard alignment{row}", "metr-la", "rows above 0.9 (%)")[0]
        for row in (" without entropy", "", " by exp of sigmoid")
    ]
    assert nearness[0] < 1 < nearness[1] < 20 < 80 < nearness[2]


def test_rounds_on_a_gpu(numbers):
    file, page = Results(REPOSITORY).named("benchmarks/gpu"), "simulations/benchmarks/README.md"
    (source,) = {line.source for line in file.lines}
    assert source.startswith("benchmarks gpu, NVIDIA H100 80GB")
    said(page, f"On an NVIDIA H100 (80 GB) beside 16 cores, with {source.rpartition(', ')[2]}.")

    def all_of(column, metric, row=""):
        found = [
            float(line.value)
            for line in file.lines
            if (line.column, line.metric) == (column, metric) and line.row.endswith(row)
        ]
        assert found, (column, metric, row)
        return found

    assert set(all_of("agreement", "twice the same")) == {1.0}
    assert max(all_of("agreement", "difference")) <= 1e-3
    assert max(all_of("nodes", "difference of the model")) < 3e-5
    few, many = (numbers("benchmarks/gpu", f"{count} clients", "growth", "ms")[0] for count in ("10", "1,000"))
    assert round(many / few) == 5
    for clients, most in (("10", 1 / 5), ("100", 1 / 15), ("1,000", 1 / 15)):
        assert max(all_of("models", "fedgraph, as it comes", f", {clients} clients")) < most
    assert numbers("benchmarks/gpu", "resnet9, 5 rounds of 6 clients", "agreement", "rounding alone")[0] < 1e-3
    flower, recorded = "to plain Flower on Ray, a client per node", "a round, in one process, CUDA graphs"
    for card, times in (("gpu", 86), ("gpu-h200", 88)):
        assert round(1 / numbers(f"benchmarks/{card}", "a round, in one process", "flower", flower)[0]) == times
    assert numbers("benchmarks/gpu", recorded, "gru", "ms")[0] > 20
    assert numbers("benchmarks/gpu-h200", recorded, "gru", "ms")[0] < 20
    assert {line.source.split(",")[1] for line in Results(REPOSITORY).named("benchmarks/gpu-h200").lines} == {
        " NVIDIA H200"
    }
    resnet9 = numbers("benchmarks/gpu", "ResNet9, 100 clients, a round, in one process", "resnet9", flower)[0]
    assert 0.9 < resnet9 < 1
    said(
        page,
        "Two runs on the GPU give the same models, bit for bit, for each of these and for a custom module",
        "`resnet9` is trained at a quarter of the others' learning rate, at which rounding alone comes to less.",
        "the median of the recorded rounds reaches it on an H200 (140 GB, whose memory is faster) and misses it on the "
        "H100.",
        "A hundred times as many clients take five times as long.",
        "Models differ by less than 0.00003.",
        "The aim is that it takes 50 times as long as fedgraph; it takes 86 times on the H100 and 88 times on the "
        "H200.",
        "Beside plain Flower on Ray, with a node for each client, such a round takes as long",
        "With 100 clients or more, a round of any of them takes less than a fifteenth of it, also that of a custom "
        "module with batch normalisation and dropout. With 10 clients, it takes a fifth at most.",
    )


def test_the_width_of_the_published_graphical_model(numbers):
    def of(units, metric, who="Global NGM"):
        return numbers("fedngm/released-small", f"{who} of {units} hidden units", "births", metric)[1]

    seeds = {0, 1, 2}
    for metric, published in (("survival, AUC", 0.799), ("survival, AUPR", 0.241)):
        wide, narrow = of(1000, metric, "NGM of a client"), of(100, metric, "NGM of a client")
        assert set(wide) == set(narrow) == seeds
        assert all(wide[seed] > published > narrow[seed] for seed in seeds)
        whole = of(1000, metric)
        assert {seed for seed in seeds if whole[seed] > published} == {0}
    errors = ("gestational age, MAE [weeks]", "gestational age, RMSE", "birth weight, MAE [g]", "birth weight, RMSE")
    for metric, published in zip(errors, (1.384, 2.494, 373.29, 492.30), strict=True):
        wide, narrow = of(1000, metric), of(100, metric)
        assert all(wide[seed] < narrow[seed] for seed in seeds)
        assert {seed for seed in seeds if wide[seed] > published} == ({0} if metric == errors[1] else seeds)
    assert set(of(1000, "survival, macro recall").values()) == {0.5}
    said(
        "simulations/fedngm/README.md",
        "At the clients the width is what deaths depend on: with each seed, models of 1,000 units have a larger AUC "
        "and AUPR than those of 100, and than published for the global model. The global model keeps this with seed 0 "
        "alone",
        "With each seed its errors in gestation and birth weight are smaller than with 100 units and, but for the RMSE "
        "of gestation with seeds 1 and 2, larger than published; it predicts no death.",
    )
